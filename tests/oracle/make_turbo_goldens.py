#!/usr/bin/env python3
"""Makes tests/data/turbo: rotated weights as tests/oracle/turbo.py and mlx_turboquant make them.

encode.safetensors   rows, and their codes and scales in every width (numpy alone)
seed/                a model directory written by mlx_turboquant 0.0.2 (mlx on the CPU), and seed_*.safetensors
                     with its logits

Needs mlx, mlx-lm and mlx-turboquant (installed without dependencies). mlx_turboquant finds the block of a transform
by a probe that reads outside its arrays on the CPU; the same rule, stated in turbo.py, takes its place.
"""
import json
import os
import shutil
import sys
import tempfile

import numpy as np
from safetensors.numpy import save_file

import turbo

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "data", "turbo")
sys.path.insert(0, os.path.join(HERE, "..", "support"))
# The tiny model of these tests: inputs of 64 and 96.
CHANGES = {}


def rows(n):
    rng = np.random.default_rng(5)
    w = rng.standard_normal((6, n)) * 0.03
    w[1, n // 3] = 4.0
    w[2] *= 1e-3
    w[3] = 0
    w[4] = np.abs(w[4]) + 0.1
    w[5, ::2] = 0
    return w.astype(np.float32)


def make_encode():
    out = {}
    for n in (32, 96, 128, 352, 640):
        w = out["%d.w" % n] = rows(n)
        out["%d.y" % n] = turbo.rotate(w, 3)
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                if n % group == 0:
                    code, scale = turbo.encode(out["%d.y" % n], bits, group)
                    out["%d.%d.%d.codes" % (n, bits, group)] = turbo.pack(code, bits)
                    out["%d.%d.%d.scales" % (n, bits, group)] = (scale.view(np.uint32) >> 16).astype(np.uint16)
    save_file(out, os.path.join(OUT, "encode.safetensors"))


def make_seed():
    import mlx.core as mx
    import mlx_turboquant.quant_linear as quant_linear
    import mlx_turboquant.rotation as rotation

    import tiny_model

    rotation.supported_hadamard_block = quant_linear.supported_hadamard_block = turbo.block
    from mlx_turboquant.convert import convert
    from mlx_turboquant.loader import _turboquant_load_model
    from pathlib import Path

    ids = list(range(40, 72))
    with tempfile.TemporaryDirectory() as tmp:
        for name, dtype, mode, bits, group, seed in (("affine4", "bfloat16", "affine", 4, 32, 0),
                                                    ("affine3", "float32", "affine", 3, 32, 7),
                                                    ("affine8", "float16", "affine", 8, 32, 1),
                                                    ("lut4", "float32", "lut", 4, 32, 0)):
            source, out = os.path.join(tmp, "m" + name), os.path.join(tmp, "q" + name)
            os.makedirs(source)
            source = tiny_model.make(Path(source), torch_dtype=dtype)
            convert(str(source), out, bits=bits, group_size=group, rot_base_seed=seed, mode=mode)
            config = json.load(open(os.path.join(out, "config.json")))["quantization_config"]
            tensors = {k: v for k, v in mx.load(os.path.join(out, "model.safetensors")).items()
                       if k.startswith("model.layers.1.") and v.ndim == 2}
            tensors = {k: np.array(v) if v.dtype == mx.uint32 else np.array(v.astype(mx.float32))
                       for k, v in tensors.items()}
            if mode == "affine":
                model, _ = _turboquant_load_model(Path(out))
                model.set_dtype(mx.float32)
                tensors["logits"] = np.array(model(mx.array([ids]))[0].astype(mx.float32))
            save_file(tensors, os.path.join(OUT, "seed_%s.safetensors" % name),
                      {"config": json.dumps(config), "dtype": dtype, "ids": json.dumps(ids)})


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    make_encode()
    make_seed()
