"""Prompt cache files of mlx-lm for tests/test_prompt_cache.py, one or more for each cache class.

usage: make_prompt_cache_goldens.py OUT_DIR        (mlx-lm 0.32.2, mlx on the CPU)

OUT_DIR gets <case>.safetensors.gz and goldens.json: what mlx-lm generates when it goes on from each file, with the log
probability of each token. It goes on token by token: mlx-lm lets the kept tokens of a rotating cache fall out of sight
in longer steps; and with quantised caches as block_cache.py says.
"""
import glob
import gzip
import json
import os
import sys
import tempfile

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as C
from mlx_lm.utils import load_model

from block_cache import BlockCache

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

CONFIG = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
LONG = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 2
SHORT = LONG[:70]
SUFFIX = "So what?"
N = 24
START = tiny_model.START

GEMMA = CONFIG | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 4,
                  "sliding_window": 32, "sliding_window_pattern": 2, "rope_local_base_freq": 1000.0,
                  "query_pre_attn_scalar": 64, "hidden_activation": "gelu_pytorch_tanh"}


def padded(cache, n=3):
    """With n places before the first token."""
    cache.update_and_fetch(mx.zeros((1, 1, n, 64)), mx.zeros((1, 1, n, 64)))
    return cache


# Prompt, class (None: the model's own), bits and group size.
CASES = {
    "kv": (SHORT, C.KVCache),
    "concatenate": (SHORT, C.ConcatenateKVCache),
    "rotating": (SHORT, lambda: C.RotatingKVCache(max_size=48, keep=4)),
    "rotating_open": (SHORT[:30], lambda: C.RotatingKVCache(max_size=48, keep=4)),
    "rotating_keep0": (SHORT, lambda: C.RotatingKVCache(max_size=48)),
    "batch": (SHORT[:40], lambda: C.BatchKVCache([0])),
    "batch_rotating": (SHORT[:40], lambda: C.BatchRotatingKVCache(128, [0])),
    "batch_padded": (SHORT[:40], lambda: padded(C.BatchKVCache([3]))),
    "batch_rotated": (SHORT, lambda: C.BatchRotatingKVCache(48, [0])),
    "gemma": (SHORT[:20], None),
    "gemma_ring": (SHORT, None),
    "q4g32_gemma": (SHORT, None, (4, 32)),
    "q4g64": (LONG, C.KVCache, (4, 64)),
    "q3g32": (LONG, C.KVCache, (3, 32)),
    "q6g64": (LONG, C.KVCache, (6, 64)),
    "q8g32": (LONG, C.KVCache, (8, 32)),
}


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        import pathlib

        models = {}
        for name, config in (("llama", CONFIG), ("gemma", GEMMA)):
            models[name] = load_model(pathlib.Path(tiny_model.make(os.path.join(folder, name), **config)))[0]
        goldens = {"configs": {"llama": CONFIG, "gemma": GEMMA}, "suffix": SUFFIX, "cases": {}}
        for name, (text, make, *quantized) in CASES.items():
            model = models["llama" if make else "gemma"]
            caches = [make() for _ in model.layers] if make else C.make_prompt_cache(model)
            # One token at a time where a ring is to turn.
            step = 1 if name in ("rotating", "rotating_keep0", "batch_rotated") else 2048
            for _ in generate_step(mx.array([START, *text.encode()]), model, max_tokens=0, prompt_cache=caches,
                                   prefill_step_size=step):
                pass
            for bits, group in quantized:
                caches = [c.to_quantized(group, bits) if isinstance(c, C.KVCache) else c for c in caches]
            path = os.path.join(out, name + ".safetensors")
            C.save_prompt_cache(path, caches, {"tokenizer_config": "{}"})
            if not name.startswith("batch"):  # mlx-lm cannot go on from those that it loads
                caches = C.load_prompt_cache(path)
            classes = [type(c).__name__ for c in caches]
            caches = [BlockCache(c, c.offset) if isinstance(c, C.QuantizedKVCache) else c for c in caches]
            said = [(int(t), p[t].item()) for t, p in
                    generate_step(mx.array(list(SUFFIX.encode())), model, max_tokens=N, prompt_cache=caches,
                                  prefill_step_size=1)]
            goldens["cases"][name] = {"classes": classes, "model": "llama" if make else "gemma", "text": text,
                                      "generated": bytes(t for t, _ in said).decode(),
                                      "logprobs": [round(p, 5) for _, p in said]}
    for name, caches in {
        "arrays": [C.ArraysCache(2), C.ArraysCache(2)],
        "chunked": [C.ChunkedKVCache(16), C.ChunkedKVCache(16)],
        "list": [C.CacheList(C.KVCache(), C.KVCache())],
        "batch_of_two": [C.BatchKVCache([0, 1]), C.BatchKVCache([0, 1])],
    }.items():
        for c in caches:
            for part in c.caches if name == "list" else [c]:
                if name == "arrays":
                    part.cache = [mx.zeros((1, 2)), mx.zeros((1, 2))]
                else:
                    n = 2 if name == "batch_of_two" else 1
                    part.update_and_fetch(mx.zeros((n, 1, 4, 64)), mx.zeros((n, 1, 4, 64)))
        C.save_prompt_cache(os.path.join(out, name + ".safetensors"), caches, {"tokenizer_config": "{}"})
    for path in glob.glob(os.path.join(out, "*.safetensors")):
        with open(path, "rb") as f, gzip.GzipFile(path + ".gz", "wb", mtime=0) as z:
            z.write(f.read())
        os.remove(path)
    with open(os.path.join(out, "goldens.json"), "w", encoding="utf-8") as f:
        json.dump(goldens, f, indent=1)


main()
