#!/usr/bin/env python3
"""Converts model directories with mlx_lm.convert (CPU build of mlx) and with turbolm and compares what they wrote.

    python tests/oracle/compare_convert.py --turbolm build/turbolm MODEL_DIR... [--modes all|affine4g64,mxfp4,...]

Every tensor is compared byte for byte, config.json by its values (keys that turbolm adds are listed), index and model
card byte for byte where the weights are in one file. Needs mlx-lm. One line for each model and mode; status 1 when a
tensor differs.
"""
import argparse
import contextlib
import io
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from mlx_lm.convert import configure_parser, convert

AFFINE = ["affine%dg%d" % (b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
MODES = AFFINE + ["mxfp4", "nvfp4", "mxfp8", "mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6", "float16", "float32",
                  "plain", "affine4g64+float16", "mxfp8+float32"]


def options(mode):
    mode, _, dtype = mode.partition("+")
    extra = ["--dtype", dtype] if dtype else []
    if mode.startswith("affine"):
        bits, _, group = mode[6:].partition("g")
        return ["-q", "--q-bits", bits, "--q-group-size", group] + extra
    if mode.startswith("mixed"):
        return ["-q", "--quant-predicate", mode, "--q-group-size", "64"] + extra
    if mode in ("float16", "float32", "bfloat16"):
        return ["--dtype", mode]
    return extra if mode == "plain" else ["-q", "--q-mode", mode] + extra


def tensors(folder):
    """{name: (dtype, shape, memoryview)}"""
    out = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            data = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(bytes(data[8 : 8 + n]))
        for key, v in header.items():
            if key != "__metadata__":
                begin, end = v["data_offsets"]
                out[key] = (v["dtype"], v["shape"], data[8 + n + begin : 8 + n + end])
    return out


def same_bytes(a, b):
    return len(a) == len(b) and all(a[i : i + (1 << 24)] == b[i : i + (1 << 24)] for i in range(0, len(a), 1 << 24))


def read(folder, name):
    with open(os.path.join(folder, name), "rb") as f:
        return f.read()


def compare(theirs, ours):
    """(number of tensors, names that differ, notes)"""
    a, b = tensors(theirs), tensors(ours)
    differ = [k for k in sorted(set(a) | set(b)) if k not in a or k not in b or a[k][:2] != b[k][:2]
              or not same_bytes(a[k][2], b[k][2])]
    notes = []
    x, y = json.loads(read(theirs, "config.json")), json.loads(read(ours, "config.json"))
    added = sorted(set(y) - set(x))
    if added:
        notes.append("config adds " + ", ".join(added))
    changed = [k for k in x if k not in y or x[k] != y[k]]
    if changed:
        notes.append("config differs in " + ", ".join(changed))
    for name in ("model.safetensors.index.json", "README.md"):
        if read(theirs, name) != read(ours, name):
            notes.append(name + " differs")
    return len(a), differ, notes


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="+")
    ap.add_argument("--turbolm", default="build/turbolm")
    ap.add_argument("--modes", default="all")
    args = ap.parse_args()
    failed = 0
    for model in args.models:
        for mode in MODES if args.modes == "all" else args.modes.split(","):
            work = tempfile.mkdtemp(prefix="compare-convert-")
            theirs, ours = os.path.join(work, "theirs"), os.path.join(work, "ours")
            try:
                ask = ["--hf-path", model, "--mlx-path"]
                with contextlib.redirect_stdout(io.StringIO()):
                    convert(**vars(configure_parser().parse_args([*ask, theirs, *options(mode)])))
                subprocess.run([args.turbolm, "convert", *ask, ours, *options(mode)], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                n, differ, notes = compare(theirs, ours)
                failed += bool(differ)
                print("%-40s %-20s %4d tensors, %d differ%s%s" % (
                    os.path.basename(model.rstrip("/")), mode, n, len(differ),
                    ": " + ", ".join(differ[:4]) if differ else "", "".join("; " + s for s in notes)), flush=True)
            finally:
                shutil.rmtree(work)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
