"""Writes tests/data/quant/*.safetensors: raw weights and what the original
libraries decode them to, as float32.

    python tests/oracle/make_quant_goldens.py ggml            needs gguf, safetensors
    python tests/oracle/make_quant_goldens.py rows MODELS     the same, and the three GGUF models
    python tests/oracle/make_quant_goldens.py fp8             needs torch, safetensors
    python tests/oracle/make_quant_goldens.py mlx             needs mlx

Made with gguf 0.19.0, torch 2.15.0, mlx 0.32.4 (its CPU build). Tensor names:
"<format>.raw" and "<format>.f32" for GGUF, "<name>.w", ".scales", ".biases" and
".f32" for the others. Each file's metadata names the packages.
"""
import os
import sys

import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "quant")

# Where a block holds f16 numbers; the other bytes may be anything.
GGML = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "iq4_nl": [0], "mxfp4": [],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq4_xs": [0],
}
# A few rows of every format that the real files hold.
ROWS = {
    "smollm2-135m-instruct.Q4_1.gguf": [("token_embd.weight", 0), ("token_embd.weight", 49151),
                                        ("blk.0.ffn_down.weight", 575), ("blk.29.attn_q.weight", 7),
                                        ("blk.0.attn_norm.weight", 0)],
    "gemma-3-270m.Q4_K_M.gguf": [("token_embd.weight", 262143), ("blk.0.attn_k.weight", 255)],
    "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf": [("token_embd.weight", 151935), ("blk.0.ffn_down.weight", 895)],
}


def save(name, tensors, **packages):
    from safetensors.numpy import save_file
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, os.path.join(OUT, name), metadata=packages)


def make_ggml():
    import gguf
    rng = np.random.default_rng(1)
    tensors = {}
    for name, f16_at in GGML.items():
        kind = gguf.GGMLQuantizationType[name.upper()]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = 3, 512 // block
        raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
        for at in f16_at:
            d = rng.standard_normal((rows, blocks)).astype(np.float16) * np.float16(0.1)
            d[0, 0], d[1, 0], d[2, 0] = 3e-7, -0.0, 65504  # subnormal, zero, largest
            raw[:, :, at:at + 2] = d.view(np.uint8).reshape(rows, blocks, 2)
        if name == "mxfp4":
            raw[:, :, 0] = rng.integers(100, 140, (rows, blocks))
            raw[0, :4, 0] = [0, 1, 2, 254]
        raw = raw.reshape(rows, blocks * size)
        tensors[name + ".raw"] = raw
        tensors[name + ".f32"] = gguf.dequantize(raw, kind)
    save("ggml.safetensors", tensors, gguf=version("gguf"))


def make_rows(models):
    import gguf
    tensors = {}
    for file, rows in ROWS.items():
        reader = gguf.GGUFReader(os.path.join(models, file))
        by_name = {t.name: t for t in reader.tensors}
        for name, row in rows:
            t = by_name[name]
            data = t.data.reshape(-1, t.data.shape[-1])[row:row + 1]
            tensors["%s:%s:%d" % (file, name, row)] = gguf.dequantize(data, t.tensor_type).reshape(-1)
    save("rows.safetensors", tensors, gguf=version("gguf"))


def make_fp8():
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(1)
    rows, cols = 130, 260
    w = torch.randint(0, 256, (rows, cols), dtype=torch.uint8)
    w[(w & 0x7f) == 0x7f] = 0  # NaN
    values = w.view(torch.float8_e4m3fn).to(torch.float32)
    keep = [0, 1, 127, 128, 129]
    tensors = {"fp8.w": w.view(torch.float8_e4m3fn), "rows": torch.tensor(keep, dtype=torch.int32)}
    for name, shape, expand in [("tensor", (1, 1), (rows, cols)), ("row", (rows, 1), (1, cols)),
                                ("block", (2, 3), (128, 128))]:
        for dtype, label in [(torch.float32, "f32"), (torch.bfloat16, "bf16")]:
            s = (torch.rand(shape) * 0.01 + 1e-4).to(dtype)
            full = s.to(torch.float32).repeat_interleave(expand[0], 0).repeat_interleave(expand[1], 1)[:rows, :cols]
            tensors["fp8.%s.%s.scales" % (name, label)] = s
            tensors["fp8.%s.%s.f32" % (name, label)] = (values * full)[keep].contiguous()
    save_file(tensors, os.path.join(OUT, "fp8.safetensors"), metadata={"torch": torch.__version__})


def make_mlx():
    import mlx.core as mx
    rng = np.random.default_rng(1)
    rows, cols = 3, 384
    tensors = {}

    def affine(bits, group, dtype, label):
        w = mx.array((rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)).astype(dtype)
        q, s, b = mx.quantize(w, group_size=group, bits=bits)
        name = "affine%dg%d.%s" % (bits, group, label)
        tensors[name + ".w"], tensors[name + ".scales"], tensors[name + ".biases"] = q, s, b
        tensors[name + ".f32"] = mx.dequantize(q, s.astype(mx.float32), b.astype(mx.float32), group_size=group,
                                               bits=bits)

    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            affine(bits, group, mx.bfloat16, "bf16")
        affine(bits, 64, mx.float16, "f16")
        affine(bits, 64, mx.float32, "f32")

    for mode, group, bits in (("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)):
        q = rng.integers(0, 256, (rows, cols * bits // 8), dtype=np.uint8)
        if mode == "mxfp8":
            q[(q & 0x7f) == 0x7f] = 0x7e  # NaN
        s = rng.integers(0, 0x7f, (rows, cols // group), dtype=np.uint8) if mode == "nvfp4" else \
            rng.integers(90, 160, (rows, cols // group), dtype=np.uint8)
        s[0, 0] = 0
        q, s = mx.array(q.view(np.uint32)), mx.array(s)
        tensors[mode + ".w"], tensors[mode + ".scales"] = q, s
        tensors[mode + ".f32"] = mx.dequantize(q, s, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    mx.save_safetensors(os.path.join(OUT, "mlx.safetensors"), tensors, {"mlx": version("mlx")})
    mx.save_safetensors(os.path.join(OUT, "mlx_null_metadata.safetensors"), {"a.b": mx.array([1.0, 2.0])})


def version(package):
    from importlib.metadata import version as of
    return of(package)


if __name__ == "__main__":
    {"ggml": make_ggml, "rows": make_rows, "fp8": make_fp8, "mlx": make_mlx}[sys.argv[1]](*sys.argv[2:])
