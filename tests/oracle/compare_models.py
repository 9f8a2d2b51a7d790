"""turbolm's logits of real models against transformers in float32, over 256 tokens.

    python compare_models.py --models DIR [--only NAME] [--modes gguf,bf16,affine4g64,…] [--greedy 64]

DIR holds the GGUF files and bf16 directories of scripts/get-models --hf. For MLX modes
mlx_lm.convert makes the directory from the bf16 one (on the CPU), its weights are
dequantised by mlx, and transformers runs on those; mlx-lm itself, cast to float32, is
compared too with --mlx, with rope_theta beside rope_parameters, which it does not read, and
without rounding Gemma's factor of embeddings to bfloat16, which it does in any type, nor
what that multiplies, which mlx looks up in bfloat16 where weights are mxfp4, nvfp4 or mxfp8
(the elements are exact in it, the products are not). Where
the two are too far apart, both are also measured against transformers in float64. Needs
torch, transformers, mlx, mlx-lm. Prints a row per model and mode; exit status 1 when one is
off by more than 2e-3, or a greedy continuation differs where the two best logits are further
apart than that.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import engine_api  # noqa: E402

MODELS = {
    "smollm2": ("smollm2-135m-instruct.Q4_1.gguf", "smollm2-135m-instruct-bf16"),
    "gemma": ("gemma-3-270m.Q4_K_M.gguf", "gemma-3-270m-bf16"),
    "qwen": ("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "qwen2.5-coder-0.5b-instruct-bf16"),
}
AFFINE = ["affine%dg%d" % (b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
MODES = ["gguf", "bf16"] + AFFINE + ["mxfp4", "nvfp4", "mxfp8"]
TEXT = (
    "The tower was built between 1887 and 1889 as the entrance to a fair. It is 330 metres tall, about the height "
    "of a building of 81 storeys. During its construction it passed the monument that had been the tallest structure "
    "made by man, a title it held for 41 years.\n\ndef area(r):\n    return 3.14159 * r ** 2\n\n"
)
LIMIT = 2e-3


def mlx_convert(source, mode, out):
    """An MLX directory, with rope_theta where mlx-lm looks for it."""
    import mlx_float32

    work = tempfile.mkdtemp()
    src = mlx_float32.with_rope_theta(source, work)
    cmd = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", src, "--mlx-path", out, "-q"]
    if mode.startswith("affine"):
        bits, group = mode[6:].split("g")
        cmd += ["--q-bits", bits, "--q-group-size", group]
    else:
        cmd += ["--q-mode", mode]
    done = subprocess.run(cmd, capture_output=True, text=True)
    shutil.rmtree(work)
    if done.returncode:
        sys.exit(done.stderr[-2000:])


def mlx_dequantised(directory):
    """{name: float32 array} of an MLX directory."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    with open(os.path.join(directory, "config.json")) as f:
        q = json.load(f)["quantization"]
    weights = {}
    for name in os.listdir(directory):
        if name.endswith(".safetensors"):
            weights |= mx.load(os.path.join(directory, name))
    out = {}
    for name, w in weights.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if stem + ".scales" in weights:
            s, b = weights[stem + ".scales"], weights.get(stem + ".biases")
            if b is not None:
                s, b = s.astype(mx.float32), b.astype(mx.float32)
            w = mx.dequantize(w, s, b, group_size=q["group_size"], bits=q["bits"], mode=q.get("mode", "affine"))
        out[name] = np.array(w.astype(mx.float32))
    return out


def mlx_logits(directory, ids):
    import mlx.core as mx

    import mlx_float32

    return np.array(mlx_float32.model_of(directory)(mx.array([ids])))[0]


def reference(models, name, mode, directory):
    gguf, bf16 = MODELS[name]
    if mode == "gguf":
        return AutoModelForCausalLM.from_pretrained(models, gguf_file=gguf, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(models, bf16), dtype=torch.float32)
    if mode != "bf16":
        state = {k: torch.from_numpy(v) for k, v in mlx_dequantised(directory).items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and all(m == "lm_head.weight" for m in missing), (missing, unexpected)
        model.tie_weights()
    return model


def greedy_gap(model, ids, ours):
    """How far apart the two best logits are where our continuation first differs; None where it does not."""
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=len(ours), do_sample=False, eos_token_id=-1,
                            pad_token_id=0)[0, len(ids):].tolist()
    if theirs == ours:
        return None
    at = next(i for i in range(len(ours)) if theirs[i] != ours[i])
    best = model(torch.tensor([ids + theirs[:at]])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


def our_logits(binary, path, ids, work):
    out = os.path.join(work, "o.npy")
    subprocess.run([binary, "logits", "--model", path, "--ids", " ".join(map(str, ids)), "--out", out,
                    "--decode-from", str(len(ids) - 6)], check=True)
    return np.load(out, mmap_mode="r")


def our_greedy(library, path, ids, n):
    engine = engine_api.Engine(library, path)
    request = engine.submit(ids, max_tokens=n)
    tokens = engine.run([request])[request][0]
    engine.close()
    return tokens


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default="build/turbolm")
    ap.add_argument("--lib", default="build/libturbolm.so")
    ap.add_argument("--models", default="models")
    ap.add_argument("--only", choices=MODELS)
    ap.add_argument("--modes", default=",".join(MODES))
    ap.add_argument("--greedy", type=int, default=0, metavar="N", help="compare a continuation of N tokens")
    ap.add_argument("--mlx", type=int, default=0, const=256, nargs="?", metavar="N",
                    help="also mlx-lm in float32 over the first N tokens (256), which takes minutes a mode")
    args = ap.parse_args()
    torch.set_grad_enabled(False)
    bad = 0
    for name in [args.only] if args.only else MODELS:
        gguf, bf16 = MODELS[name]
        ids = AutoTokenizer.from_pretrained(os.path.join(args.models, bf16))(TEXT * 4).input_ids[:256]
        for mode in args.modes.split(","):
            with tempfile.TemporaryDirectory() as work:
                path = os.path.join(args.models, gguf if mode == "gguf" else bf16)
                if mode not in ("gguf", "bf16"):
                    path = os.path.join(work, "mlx")
                    mlx_convert(os.path.join(args.models, bf16), mode, path)
                model = reference(args.models, name, mode, path)
                want = model(torch.tensor([ids])).logits[0].numpy()
                got = our_logits(args.bin, path, ids, work)
                diff = float(np.abs(got - want).max())
                line = "%-8s %-11s max |turbolm - transformers| %.1e" % (name, mode, diff)
                ok = diff <= LIMIT
                if mode not in ("gguf", "bf16") and args.mlx:
                    line += ", mlx-lm %.1e" % np.abs(got[:args.mlx] - mlx_logits(path, ids[:args.mlx])).max()
                if not ok:  # whose rounding is it? (at 2 bits some models amplify it a thousandfold)
                    exact = model.double()(torch.tensor([ids])).logits[0].numpy()
                    model.float()
                    line += "; from float64: turbolm %.1e, transformers %.1e" % (
                        np.abs(got - exact).max(), np.abs(want - exact).max())
                if args.greedy:
                    gap = greedy_gap(model, ids[:32], our_greedy(args.lib, path, ids[:32], args.greedy))
                    line += ", greedy equal" if gap is None else ", greedy differs at a gap of %.1e" % gap
                    ok = ok and (gap is None or gap < LIMIT)
                print(line if ok else line + "  FAILED", flush=True)
                bad += not ok
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
