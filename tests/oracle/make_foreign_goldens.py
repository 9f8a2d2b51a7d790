"""Goldens of other quantisers' layouts, from the quantisers themselves.

    python make_foreign_goldens.py --out ../data/foreign

Matrices are packed by the original code and unpacked by it; foreign_layouts.py, which
the tests use, is checked to pack the same bytes and to mean the same numbers. What is
stored, goldens.npz: per layout the packed tensors and the matrix as the original
decodes it, in float32.

Needs torch and transformers; and, on the path, compressed-tensors, and auto-gptq and
AutoAWQ unpacked (their modules are loaded without their packages' __init__, which want
a GPU).
"""
import argparse
import importlib.util
import os
import sys
import types
from importlib.metadata import version

import numpy as np
import torch

import foreign_layouts as fl

ROWS, COLS = 64, 128


def load(name, path):
    for i, part in enumerate(name.split(".")[:-1]):
        package = ".".join(name.split(".")[: i + 1])
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
    for p in sys.path:
        if os.path.exists(os.path.join(p, path)):
            spec = importlib.util.spec_from_file_location(name, os.path.join(p, path))
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
    raise SystemExit("%s is not on the path" % path)


def tensor(x):
    word, array = x
    if word == "BF16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if word == "F8_E4M3":
        return torch.from_numpy(array.copy()).view(torch.float8_e4m3fn)
    return torch.from_numpy(np.ascontiguousarray(array))


def same(ours, theirs, what):
    theirs = theirs.detach()
    if theirs.dtype in (torch.bfloat16, torch.float8_e4m3fn):
        theirs = theirs.view(torch.int16 if theirs.dtype == torch.bfloat16 else torch.uint8)
    a, b = np.asarray(ours[1]), theirs.numpy()
    assert a.shape == b.shape and a.tobytes() == b.tobytes(), what


class Store:
    def __init__(self):
        self.arrays = {}

    def add(self, name, tensors, w, decoded, tolerance=0.0):
        decoded = decoded.detach().to(torch.float32).numpy()
        error = np.abs(decoded - w).max()
        assert decoded.shape == w.shape and error <= tolerance * np.abs(w).max(), (name, error)
        for suffix, (word, x) in tensors.items():
            self.arrays["%s.%s.%s" % (name, suffix, word)] = x
        self.arrays[name + ".w"] = decoded.astype(np.float32)
        print("%-24s %s, error %.3g" % (name, decoded.shape, error))


def gptq(store):
    ql = load("auto_gptq.nn_modules.qlinear.qlinear_cuda", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    for bits in (2, 3, 4, 8):
        for kind in ("sym", "asym", "order"):
            order = np.random.RandomState(bits).permutation(COLS) if kind == "order" else None
            t, w = fl.gptq(np.random.RandomState(bits), ROWS, COLS, bits, 32, kind == "sym", order=order)
            module = ql.QuantLinear(bits, 32, COLS, ROWS, False, weight_dtype=torch.float32)
            g_idx, scales = tensor(t["g_idx"]), tensor(t["scales"]).float()
            # the codes from the matrix and its parameters: zero points as stored, plus 1
            stored = np.unpackbits(np.ascontiguousarray(t["qzeros"][1]).view(np.uint8), axis=1, bitorder="little")
            zeros = (stored.reshape(len(stored), ROWS, bits) @ (1 << np.arange(bits)) + 1) % 2**bits
            linear = torch.nn.Linear(COLS, ROWS, bias=False)
            linear.weight.data = torch.from_numpy(w.copy())
            # zero points of 0 wrap when they are stored less 1; the original needs them in two's complement
            module.pack(linear, scales.T.contiguous(), torch.from_numpy(zeros.T.copy()).float(), g_idx)
            same(t["qweight"], module.qweight, "qweight %d %s" % (bits, kind))
            if not (zeros == 0).any():
                same(t["qzeros"], module.qzeros, "qzeros %d %s" % (bits, kind))
            module.qzeros = tensor(t["qzeros"])
            module.g_idx = g_idx
            out = module(torch.eye(COLS)).T
            # A zero point of 0 is stored as 2^bits - 1. AutoGPTQ's kernels disagree on it: some read 2^bits,
            # others and GPTQModel wrap, as we do. Packers of AutoGPTQ make no such zero point.
            wraps = torch.from_numpy((zeros == 0).any(0))
            out[wraps] = torch.from_numpy(w.copy())[wraps]
            assert wraps.sum() < ROWS or bits == 2
            store.add("gptq%d-%s" % (bits, kind), t, w, out, 1e-6)


def awq(store):
    packing = load("awq.utils.packing_utils", "awq/utils/packing_utils.py")
    for name in ("awq.utils.module", "awq.utils.utils"):
        load(name.rsplit(".", 1)[0] + ".x", "awq/utils/packing_utils.py")
        sys.modules[name] = types.ModuleType(name)
    sys.modules["awq.utils.module"].try_import = lambda name: (None, "")
    sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"
    t, w = fl.awq(np.random.RandomState(1), ROWS, COLS, 32)
    out = packing.dequantize_gemm(tensor(t["qweight"]), tensor(t["qzeros"]), tensor(t["scales"]).float(), 4, 32)
    store.add("awq", t, w, out.T, 1e-6)
    gemv = load("awq.modules.linear.gemv", "awq/modules/linear/gemv.py")
    t, w = fl.awq_gemv(np.random.RandomState(2), ROWS, COLS, 32)
    groups = COLS // 32
    scales = tensor(t["scales"])[:, :groups].float()
    zeros = torch.from_numpy((t["qzeros"][1].view(np.uint32)[:, :1] >> (4 * np.arange(groups)) & 15).astype(np.float32))
    linear = torch.nn.Linear(COLS, ROWS, bias=False)
    linear.weight.data = torch.from_numpy(w.copy())
    module = gemv.WQLinear_GEMV.from_linear(linear, 4, 32, scales=scales, zeros=zeros)
    for suffix in ("qweight", "qzeros", "scales"):
        same(t[suffix], getattr(module, suffix), "gemv " + suffix)
    store.add("awq-gemv", t, w, torch.from_numpy(w.copy()))  # decoding it needs a GPU


def bitnet(store):
    from transformers.integrations import bitnet as original
    t, w = fl.bitnet(np.random.RandomState(3), ROWS, COLS, kind="f32")
    scale = float(t["weight_scale"][1][0])
    same(t["weight"], original.pack_weights(torch.from_numpy(np.rint(w * scale)).to(torch.int8)), "bitnet")
    torch._dynamo.config.disable = True
    store.add("bitnet", t, w, original.unpack_weights(tensor(t["weight"]), torch.float32) / scale, 1e-6)


def compressed(store):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    def check(name, fmt, made, tolerance=0.0, **args):
        t, w = made
        original = BaseCompressor.get_value_from_registry(fmt)
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        state = {k: tensor(x) for k, x in t.items()}
        out = original.decompress(state, scheme)
        plain = {k: v for k, v in out.items() if k != "weight_shape"}
        if "zero" not in name and fmt == "pack-quantized":
            again = original.compress(plain, scheme)
            same(t["weight_packed"], again["weight_packed"], name)
        store.add(name, t, w, out["weight"], tolerance)

    rng = np.random.RandomState
    check("ct-int4", "pack-quantized", fl.packed(rng(4), ROWS, COLS, kind="f32"), num_bits=4, strategy="group",
          group_size=32)
    check("ct-int4-zeros", "pack-quantized", fl.packed(rng(5), ROWS, COLS, sym=False, kind="f32"), 1e-6, num_bits=4,
          strategy="group", group_size=32, symmetric=False)
    check("ct-int8", "pack-quantized", fl.packed(rng(6), ROWS, COLS, bits=8, group=0, kind="f32"), num_bits=8,
          strategy="channel")
    check("ct-int8-zeros", "pack-quantized", fl.packed(rng(7), ROWS, COLS, bits=8, sym=False, kind="f32"), 1e-6,
          num_bits=8, strategy="group", group_size=32, symmetric=False)
    check("ct-nvfp4", "nvfp4-pack-quantized", fl.nvfp4(rng(8), ROWS, COLS), 0.01, num_bits=4, type="float",
          strategy="tensor_group", group_size=16)  # decoded in a 16-bit type
    check("ct-mxfp4", "mxfp4-pack-quantized", fl.mxfp4(rng(9), ROWS, COLS), 0.01, num_bits=4, type="float",
          strategy="group", group_size=32)
    check("ct-int8-dense", "int-quantized", fl.int8(rng(10), ROWS, COLS, kind="f32"), num_bits=8, strategy="channel")
    check("ct-fp8", "float-quantized", fl.fp8(rng(11), ROWS, COLS, name="weight_scale"), num_bits=8, type="float",
          strategy="channel")
    check("ct-fp8-block", "float-quantized", fl.fp8(rng(12), ROWS, COLS, name="weight_scale", block=(32, 64)),
          num_bits=8, type="float", strategy="block", block_structure=[32, 64])


def fp8(store):
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
    for name, block in (("fp8-block", (32, 64)), ("fp8-block-odd", (48, 96))):
        t, w = fl.fp8(np.random.RandomState(13), ROWS, COLS, block=block)
        out = _dequantize_fp8_weight(tensor(t["weight"]), tensor(t["weight_scale_inv"]), list(block), torch.float32)
        store.add(name, t, w, out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    store = Store()
    for part in (gptq, awq, bitnet, compressed, fp8):
        part(store)
    os.makedirs(args.out, exist_ok=True)
    np.savez_compressed(os.path.join(args.out, "goldens.npz"), **store.arrays)
    print({p: version(p) for p in ("torch", "transformers", "compressed-tensors")})


if __name__ == "__main__":
    main()
