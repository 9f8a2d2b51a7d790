#!/usr/bin/env python3
"""Directories of mlx_turboquant in turbolm and the other way: both read both, and their logits are the same.

    python tests/oracle/compare_turboquant.py --turbolm build/turbolm MODEL_DIR|tiny[:TYPE]... [--modes affine4g64,...]

tiny, or tiny:TYPE: the model of tests/support, with that torch_dtype. A mode is mlx_turboquant's: its quantiser, bits
and group (32 for tiny); +SEED for --seed. Each is converted by mlx_turboquant.convert (from a directory with rope_theta
where mlx-lm looks for it) and by `turbolm turboquant convert`; config and tensors are compared; then mlx_lm.load after
mlx_turboquant.register(), set to float32, and `turbolm logits --precision exact` run on both directories. mlx-lm then
says -m tokens of PROMPT, and `turbolm generate` must say the same or part where the two best logits are closer than
TIE. Needs mlx, mlx-lm, torch, mlx-turboquant 0.0.2 (installed without dependencies).

What is changed of mlx_turboquant, in memory:
- rotation.supported_hadamard_block, in the three modules that have the name. The original calls mx.hadamard_transform
  on every divisor of n and keeps the largest that preserves a norm; on the CPU mlx reads and writes outside its arrays
  for sizes that it does not support. turbo.block states the same rule: m * 2^k, m in {1, 12, 20, 28}.
- for mode lut, kernels.qmm.turbo_qmm, a Metal kernel, which no CPU build of mlx has: x times the transpose of
  codebook.dequantize_weight_lut, which is its authors' statement of the same product.
Everything else, convert, loader, register, the transform and its signs, codebooks and packing, is the original's.
"""
import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
import mlx_turboquant
import numpy as np
from mlx_turboquant import codebook, quant_linear, rotation
from mlx_turboquant.convert import convert
from mlx_turboquant.kernels import qmm

import mlx_float32
import turbo
from compare_convert import same_bytes, tensors
from compare_generate import PROMPT, TIE, our_text, run

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

MODES = ["affine4g64", "affine3g32", "affine8g64", "affine2g64", "affine4g32+7", "lut4g64", "lut2g32"]
LIMIT = 2e-3


def lut_product(x, packed, scales, levels, bits, group_size, out_features, in_features):
    w = codebook.dequantize_weight_lut(packed, scales.astype(mx.float32), bits, group_size, in_features)
    return (x.astype(mx.float32) @ w.T).astype(x.dtype)


def repair():
    for module in (rotation, quant_linear, mlx_turboquant):
        module.supported_hadamard_block = turbo.block
    qmm.turbo_qmm = lut_product


def differing(theirs, ours):
    """(tensors that differ: name, share of numbers that are not equal), number of tensors"""
    a, b = tensors(theirs), tensors(ours)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())[:4]
    out = []
    for k in a:
        assert a[k][:2] == b[k][:2], (k, a[k][:2], b[k][:2])
        if not same_bytes(a[k][2], b[k][2]):
            x, y = (np.frombuffer(t[k][2], np.uint8) for t in (a, b))
            out.append((k, float(np.mean(x != y))))
    return out, len(a)


def judge(program, folder, ids, work, n):
    """(largest difference of logits, largest logit, note on the text, is it right)"""
    model, tokenizer = mlx_float32.model_and_tokenizer(folder)
    kinds = sum(isinstance(m, quant_linear.TurboQuantLinear) for m in model.modules())
    assert kinds, "not loaded by mlx_turboquant"
    want = np.array(model(mx.array([ids]))[0])
    path = os.path.join(work, "logits.npy")
    run(program, "logits", "--model", folder, "--ids", " ".join(map(str, ids)), "--out", path, "--precision", "exact")
    off = float(np.abs(np.load(path) - want).max())
    text, said = mlx_float32.say(model, tokenizer, PROMPT, n)
    ours = our_text(program, folder, n, False)
    note, right = "same text", True
    if text != ours:
        gap = mlx_float32.gap_where_it_differs(tokenizer, ours, said)
        right = gap < TIE
        note = "text parts at a gap of %.1e (%r, %r)" % (gap, ours, text)
    return "%d rotated layers, logits %.1e of %.0f, %s" % (kinds, off, np.abs(want).max(), note), right and off < LIMIT


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="+")
    ap.add_argument("--turbolm", default="build/turbolm")
    ap.add_argument("--modes", default=",".join(MODES))
    ap.add_argument("-m", "--max-tokens", type=int, default=24)
    args = ap.parse_args()
    mx.set_default_device(mx.cpu)
    repair()
    mlx_turboquant.register()
    bad = 0
    for model in args.models:
        for mode in args.modes.split(","):
            with tempfile.TemporaryDirectory(prefix="compare-turboquant-") as work:
                name = os.path.basename(os.path.normpath(model))
                tiny = name.startswith("tiny")
                source = model
                if tiny:
                    source = tiny_model.make(os.path.join(work, "tiny"), torch_dtype=name[5:] or "float32")
                shape, _, seed = mode.partition("+")
                quantizer = shape[: 3 if shape.startswith("lut") else 6]
                bits, group = shape[len(quantizer) :].split("g")
                group = "32" if tiny else group
                os.mkdir(os.path.join(work, "rope"))
                ours, theirs = os.path.join(work, "ours"), os.path.join(work, "theirs")
                with contextlib.redirect_stdout(io.StringIO()):
                    convert(mlx_float32.with_rope_theta(source, os.path.join(work, "rope")), theirs, bits=int(bits),
                            group_size=int(group), rot_base_seed=int(seed or 0), mode=quantizer)
                run(args.turbolm, "turboquant", "convert", "--model", source, "--out", ours, "--bits", bits,
                    "--group-size", group, "--seed", seed or "0", "--mode", quantizer)
                differ, n = differing(theirs, ours)
                with open(os.path.join(ours, "config.json")) as f, open(os.path.join(theirs, "config.json")) as g:
                    same = json.load(f)["quantization_config"] == json.load(g)["quantization_config"]
                good = same and (quantizer == "lut" or not differ)
                text = mlx_float32.load(ours)[1].encode("The tower was built between 1887 and 1889 by " * 3)[:32]
                print("%s %s (group %s): %d tensors, %d differ%s; quantization_config %s" % (
                    name, mode, group, n, len(differ), " (%.1e of their bytes at most)" % max(d for _, d in differ)
                    if differ else "", "equal" if same else "NOT EQUAL"), flush=True)
                for which, folder in (("theirs", theirs), ("ours", ours)):
                    note, right = judge(args.turbolm, folder, text, work, args.max_tokens)
                    good &= right
                    print("    %s: %s" % (which, note), flush=True)
                bad += not good
                print("    %s" % ("ok" if good else "BAD"), flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
