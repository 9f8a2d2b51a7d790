"""Writes tests/data/quant/ggml_encode.safetensors: rows of float32 and what the
gguf package makes of them in the types that GGUF files are written in. (A
block of -0 is left out: its q4_0 scale has another sign there than in ggml.)

    python tests/oracle/make_gguf_goldens.py      needs gguf, safetensors

Made with gguf 0.19.0. Tensors: "x" [rows, 64], "<type>" bytes [rows, row size].
"""
import os

import gguf
import numpy as np
from safetensors.numpy import save_file

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "quant", "ggml_encode.safetensors")
COLS = 64


def rows():
    rng = np.random.default_rng(5)
    x = [rng.standard_normal(COLS) * scale for scale in (1e-6, 1e-3, 0.02, 1, 300, 6000) for _ in range(20)]
    halves = np.arange(COLS) / 2 - 16
    x += [np.zeros(COLS), np.full(COLS, 0.3), np.full(COLS, -0.3)]
    x += [np.where(np.arange(COLS) % 32 == k, top, halves % 3.5 * sign)  # halves between codes
          for k in (0, 7, 31) for top in (127, -127, 8, -8, 7.5, 15) for sign in (1, -1)]
    x += [np.where(np.arange(COLS) % 2, 8, -8), np.where(np.arange(COLS) % 2, -8, 8)]  # equal magnitudes
    x += [rng.standard_normal(COLS).astype(np.float16).astype(np.float64) for _ in range(10)]
    x += [np.where(np.arange(COLS) % 32, 0, v) for v in (3e-5, 1e-7, 6e-8, 65504, -65504)]  # f16's ends
    ties = np.float32(1) + np.arange(COLS) * np.float32(2**-12)  # between f16 and bf16 numbers
    x += [ties, -ties, ties * 2**-16]
    return np.array(x, np.float32)


def main():
    x = rows()
    tensors = {"x": x, "f16": x.astype(np.float16).view(np.uint8)}
    for name in ("q8_0", "q4_0", "q4_1", "bf16"):
        tensors[name] = gguf.quantize(x, gguf.GGMLQuantizationType[name.upper()]).view(np.uint8)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, OUT)


if __name__ == "__main__":
    main()
