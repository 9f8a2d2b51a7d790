"""Prompt cache files of turbolm in mlx-lm: both go on from the same file, greedily, and must say the same.

usage: compare_prompt_cache.py TURBOLM MODEL_DIR [GGUF]        (mlx-lm 0.32.2, mlx on the CPU)

mlx-lm 0.32.2 overlooks rope_parameters, so MODEL_DIR's config must have rope_theta itself. GGUF: of the same model;
its files are given to mlx-lm with MODEL_DIR. MODEL_DIR "tiny" is the model of tests/support.
"""
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import load_prompt_cache
from mlx_lm.utils import load

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

TEXT = "The lighthouse keeper wrote in his diary every night. " * 12
MORE = "What did he write?"
N = 20
QUANTIZED = ["--quantized-kv-start", "0", "--kv-sink", "0", "--kv-bits"]
SETTINGS = [[], ["--kv-format", "f32"], ["--kv-format", "bf16"], [*QUANTIZED, "4"], [*QUANTIZED, "8", "--kv-group-size",
            "32"], [*QUANTIZED, "3"], ["--max-kv-size", "100"]]


def main():
    program, model = sys.argv[1:3]
    different = 0
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        if model == "tiny":
            model = tiny_model.make(os.path.join(folder, "m"), num_attention_heads=2, num_key_value_heads=1,
                                    head_dim=64)
        peer, tokenizer = load(model)
        for source in [model, *sys.argv[3:]]:
            for settings in SETTINGS:
                path = os.path.join(folder, "p.safetensors")
                subprocess.run([program, "cache_prompt", "--model", source, "--prompt", TEXT, "--prompt-cache-file",
                                path, *settings], check=True, capture_output=True)
                ours = subprocess.run([program, "generate", "--model", source, "--prompt-cache-file", path, "--prompt",
                                       MORE, "--prefill-response", "", "-m", str(N), "--verbose", "f"],
                                      capture_output=True, encoding="utf-8", check=True).stdout[:-1]
                whole = tokenizer.apply_chat_template(
                    [{"role": "user", "content": TEXT + MORE}, {"role": "assistant", "content": ""}], tokenize=False,
                    continue_final_message=True) if tokenizer.has_chat_template else TEXT + MORE
                ids = tokenizer.encode(whole, add_special_tokens=not tokenizer.has_chat_template)
                caches = load_prompt_cache(path)
                rest = ids[caches[0].offset :]
                said = [int(t) for t, _ in generate_step(mx.array(rest), peer, max_tokens=N, prompt_cache=caches,
                                                         prefill_step_size=1)]
                end = [i for i, t in enumerate(said) if t in tokenizer.eos_token_ids]
                said = said[: end[0]] if end else said
                theirs = tokenizer.decode(said, skip_special_tokens=True)
                different += ours != theirs
                print("%-9s %s %-18s %s" % ("same" if ours == theirs else "DIFFERENT", os.path.basename(source),
                                            type(caches[0]).__name__, " ".join(settings)))
                if ours != theirs:
                    print("  ours   %r\n  theirs %r" % (ours, theirs))
    return different > 0


sys.exit(main())
