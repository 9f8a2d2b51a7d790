#!/usr/bin/env python3
"""Makes tests/data/convert: encode.bin, small matrices and what mx.quantize of mlx's CPU build makes of them, and
convert.json, what mlx_lm.convert makes of the tiny models of tests/support.

Needs mlx (mlx-cpu), mlx-lm and numpy. encode.bin is a sequence of cases: seven little-endian int32 (mode 0 to 3 for
affine, mxfp4, nvfp4, mxfp8; bits; group; type 0 to 2 for f32, f16, bf16; rows; columns; bytes of one scale), then
the matrix in its type, codes, scales and for affine biases. A line at the end names the version of mlx.
"""
import contextlib
import hashlib
import io
import json
import os
import struct
import sys
import tempfile

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.convert import configure_parser, convert

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import tiny_model  # noqa: E402

DATA = os.path.join(HERE, "..", "data", "convert")
TYPES = (mx.float32, mx.float16, mx.bfloat16)
MODES = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)] + [
    ("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)]
COLUMNS = 128


def matrix():
    rng = np.random.default_rng(20)
    n = COLUMNS
    normal = rng.standard_normal((5, n))
    steps = np.arange(n) % 33
    rows = [
        normal[0],
        normal[1] * 0.02,
        normal[2] * 1e-5,
        normal[3] * 3e3,
        np.zeros(n),
        -np.zeros(n),
        np.full(n, 0.3),
        np.full(n, -7.0),
        np.abs(normal[4]) + 0.5,
        -np.abs(normal[4]) - 0.5,
        np.where(np.arange(n) % 40 == 7, 50.0, normal[0] * 0.01),
        np.where(np.arange(n) % 40 == 9, -50.0, normal[0] * 0.01),
        steps * 0.25 - 4,                                  # halves between the values of e2m1
        np.where(steps % 2 == 0, -0.0, steps * 0.125),
        (steps - 16.0) * 2.0**-20,
        np.where(steps % 5 == 0, 0.0, 6.0 * 2.0 ** (steps % 7 - 3.0)),
        np.sign(normal[1]) * 2.0 ** (np.floor(steps / 3) - 6),
        np.where(steps == 0, 1e-30, 0.0),
        np.repeat(448.0 * 2.0 ** (np.arange(n // 16) * 0.5 - 3), 16) * np.tile(np.linspace(-1, 1, 16), n // 16),
        np.repeat(6.0 * 2.0 ** (np.arange(n // 16) * 0.25 - 3), 16) * np.tile(np.linspace(-1, 1, 16), n // 16),
    ]
    return np.stack(rows).astype(np.float32)


def raw(a):
    return bytes(memoryview(mx.view(a.reshape(-1), mx.uint8)))


# name: what the tiny model's config says, arguments of one conversion after the other
WIDE = {"hidden_size": 128, "intermediate_size": 256}
CONVERSIONS = {
    "affine4": ({}, ["-q"]),
    "affine2g32": ({}, ["-q --q-bits 2 --q-group-size 32"]),
    "affine3g32 bf16": ({"torch_dtype": "bfloat16"}, ["-q --q-bits 3 --q-group-size 32"]),
    "affine6g128 f16": ({"torch_dtype": "float16"} | WIDE, ["-q --q-bits 6 --q-group-size 128"]),
    "mxfp4 bf16": ({"torch_dtype": "bfloat16"}, ["-q --q-mode mxfp4"]),
    "nvfp4 f16": ({"torch_dtype": "float16"}, ["-q --q-mode nvfp4"]),
    "mxfp8": ({}, ["-q --q-mode mxfp8"]),
    "mixed_3_6": ({"num_hidden_layers": 9}, ["-q --quant-predicate mixed_3_6 --q-group-size 32"]),
    "mixed_2_6": ({"num_hidden_layers": 3}, ["-q --quant-predicate mixed_2_6 --q-group-size 32"]),
    "mixed_3_4 gemma": ({"model_type": "gemma3_text", "num_hidden_layers": 8, "torch_dtype": "bfloat16"},
                        ["-q --quant-predicate mixed_3_4 --q-group-size 32"]),
    "tied": ({"tie_word_embeddings": True}, ["-q --q-group-size 32"]),
    "plain bf16": ({"torch_dtype": "bfloat16"}, [""]),
    "dtype": ({}, ["--dtype float16"]),
    "twice": ({"torch_dtype": "bfloat16"}, ["-q --q-bits 8", "-q --q-bits 4 --q-group-size 32"]),
    "affine4 to f16": ({"torch_dtype": "bfloat16"}, ["-q --q-group-size 32", "--dtype float16"]),
    "dequantize affine5 f16": ({"torch_dtype": "float16"}, ["-q --q-bits 5 --q-group-size 32", "-d"]),
    "dequantize affine4 bf16": ({"torch_dtype": "bfloat16"}, ["-q --q-bits 4 --q-group-size 32", "-d"]),
    "dequantize affine8 f32": ({}, ["-q --q-bits 8", "-d"]),
    "dequantize mxfp4": ({"torch_dtype": "bfloat16"}, ["-q --q-mode mxfp4", "-d"]),
    "dequantize nvfp4": ({"torch_dtype": "bfloat16"}, ["-q --q-mode nvfp4", "-d"]),
    "dequantize mxfp8": ({"torch_dtype": "bfloat16"}, ["-q --q-mode mxfp8", "-d"]),
}


def describe(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, v in sorted(json.loads(data[8 : 8 + n]).items()):
        if name != "__metadata__":
            begin, end = v["data_offsets"]
            digest = hashlib.sha256(data[8 + n + begin : 8 + n + end]).hexdigest()
            tensors[name] = [v["dtype"], v["shape"], digest[:16]]
    texts = {}
    for name in ("config.json", "model.safetensors.index.json", "README.md"):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            texts[name] = f.read()
    return {"tensors": tensors, "texts": texts}


def conversions():
    out = {}
    for name, (config, steps) in CONVERSIONS.items():
        with tempfile.TemporaryDirectory() as work:
            folder, lines = tiny_model.make(os.path.join(work, "source"), **config), []
            for i, step in enumerate(steps):
                target = os.path.join(work, str(i))
                args = ["--hf-path", folder, "--mlx-path", target, *step.split()]
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    convert(**vars(configure_parser().parse_args(args)))
                lines.append(printed.getvalue())
                folder = target
            out[name] = {"config": config, "steps": steps, "printed": lines} | describe(folder)
    return out


def main():
    os.makedirs(DATA, exist_ok=True)
    with open(os.path.join(DATA, "convert.json"), "w", encoding="utf-8") as f:
        json.dump({"mlx": mx.__version__, "mlx-lm": mlx_lm.__version__, "conversions": conversions()}, f,
                  separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(DATA, "encode.bin"), "wb") as f:
        for t, dtype in enumerate(TYPES):
            w = mx.array(matrix()).astype(dtype)
            for mode, bits, group in MODES:
                parts = mx.quantize(w, group_size=group, bits=bits, mode=mode, stream=mx.cpu)
                number = ("affine", "mxfp4", "nvfp4", "mxfp8").index(mode)
                f.write(struct.pack("<7i", number, bits, group, t, *w.shape, parts[1].dtype.size))
                f.write(raw(w))
                for part in parts:
                    f.write(raw(part))
        f.write(b"mlx " + mx.__version__.encode() + b"\n")
    print({name: os.path.getsize(os.path.join(DATA, name)) for name in os.listdir(DATA)})


if __name__ == "__main__":
    main()
