"""Prompt cache files of mlx-lm for tests/test_prompt_cache.py, one for each cache class that a llama can have.

usage: make_prompt_cache_goldens.py OUT_DIR        (mlx-lm 0.32.2, mlx on the CPU)

OUT_DIR gets <case>.safetensors.gz and goldens.json: what mlx-lm generates when it goes on from each file. It goes on
token by token: mlx-lm lets the kept tokens of a rotating cache fall out of sight in longer steps.
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

CONFIG = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
LONG = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 2
SHORT = LONG[:70]
SUFFIX = "So what?"
N = 24


def quantized(bits, group):
    return {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": 0}


CASES = {
    "kv": (SHORT, C.KVCache, {}),
    "concatenate": (SHORT, C.ConcatenateKVCache, {}),
    "rotating": (SHORT, lambda: C.RotatingKVCache(max_size=48, keep=4), {}),
    "rotating_open": (SHORT[:30], lambda: C.RotatingKVCache(max_size=48, keep=4), {}),
    "batch": (SHORT[:40], lambda: C.BatchKVCache([0]), {}),
    "batch_rotating": (SHORT[:40], lambda: C.BatchRotatingKVCache(128, [0]), {}),
    "q4g64": (LONG, C.KVCache, quantized(4, 64)),
    "q3g32": (LONG, C.KVCache, quantized(3, 32)),
    "q6g64": (LONG, C.KVCache, quantized(6, 64)),
    "q8g32": (LONG, C.KVCache, quantized(8, 32)),
}


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        import pathlib

        model = load_model(pathlib.Path(tiny_model.make(folder, **CONFIG)))[0]
        goldens = {"config": CONFIG, "suffix": SUFFIX, "cases": {}}
        for name, (text, make, settings) in CASES.items():
            caches = [make() for _ in model.layers]
            tokens = mx.array(list(text.encode()))
            # One token at a time where a ring is to turn.
            step = 1 if name == "rotating" else 2048
            for _ in generate_step(tokens, model, max_tokens=0, prompt_cache=caches, prefill_step_size=step,
                                   **settings):
                pass
            path = os.path.join(out, name + ".safetensors")
            C.save_prompt_cache(path, caches, {"tokenizer_config": "{}"})
            if not name.startswith("batch"):  # mlx-lm cannot go on from those that it loads
                caches = C.load_prompt_cache(path)
            said = [t for t, _ in generate_step(mx.array(list(SUFFIX.encode())), model, max_tokens=N,
                                                prompt_cache=caches, prefill_step_size=1)]
            goldens["cases"][name] = {"class": type(caches[0]).__name__, "text": text,
                                      "generated": bytes(int(t) for t in said).decode()}
    for name, caches in {
        "arrays": [C.ArraysCache(2), C.ArraysCache(2)],
        "chunked": [C.ChunkedKVCache(16), C.ChunkedKVCache(16)],
        "list": [C.CacheList(C.KVCache(), C.KVCache())],
    }.items():
        for c in caches:
            for part in c.caches if name == "list" else [c]:
                if name == "arrays":
                    part.cache = [mx.zeros((1, 2)), mx.zeros((1, 2))]
                else:
                    part.update_and_fetch(mx.zeros((1, 1, 4, 4)), mx.zeros((1, 1, 4, 4)))
        C.save_prompt_cache(os.path.join(out, name + ".safetensors"), caches, {"tokenizer_config": "{}"})
    for path in glob.glob(os.path.join(out, "*.safetensors")):
        with open(path, "rb") as f, gzip.GzipFile(path + ".gz", "wb", mtime=0) as z:
            z.write(f.read())
        os.remove(path)
    with open(os.path.join(out, "goldens.json"), "w", encoding="utf-8") as f:
        json.dump(goldens, f, indent=1)


main()
