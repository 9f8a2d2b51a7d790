"""Matrices in the layouts of other quantisers, and what they stand for; numpy only.

Each maker takes (rng, rows, cols) and returns (tensors, w): tensors maps the suffix of a
name ("qweight") to (safetensors type, array), w is the matrix [rows, cols] in float32.
make_foreign_goldens.py compares both with the original programs.
"""
import json
import os
import struct
import zlib

import numpy as np

from make_model import to_bf16

CONFIG = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # outputs of a word from its lowest nibble on


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_e4m3(x):
    x = x.astype(np.int64)
    e, m = x >> 3 & 15, x & 7
    v = np.where(e == 0, m * 2.0**-9, (8 + m) * 2.0**(e - 10.0))
    return np.where(x & 128, -v, v).astype(np.float32)


def typed(x, kind):
    """(safetensors type, stored array), and the numbers that are stored."""
    x = np.asarray(x, np.float32)
    if kind == "bf16":
        return ("BF16", to_bf16(x)), from_bf16(to_bf16(x))
    if kind == "f16":
        return ("F16", x.astype(np.float16)), x.astype(np.float16).astype(np.float32)
    return ("F32", x), x


def stream(codes, bits):
    """Rows of codes as streams of bits in words, the first code in the lowest bits."""
    rows, n = codes.shape
    b = (codes[:, :, None] >> np.arange(bits) & 1).reshape(rows, n * bits).astype(np.uint8)
    b = np.pad(b, ((0, 0), (0, -(n * bits) % 32)))
    return np.packbits(b, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def words(x):
    return ("I32", np.ascontiguousarray(x).astype(np.uint32).view(np.int32))


def random_scales(rng, shape, bits):
    return ((0.5 + rng.random_sample(shape)) * 0.3 / 2**bits).astype(np.float16).astype(np.float32)


def gptq(rng, rows, cols, bits=4, group=64, sym=True, v2=False, order=None, zeros=True):
    """order: a permutation of the inputs in the order of quantisation (act order)."""
    group = cols if group < 0 else group
    groups = (cols - 1) // group + 1
    g_idx = np.arange(cols) // group
    if order is not None:
        g_idx[order] = np.arange(cols) // group
    codes = rng.randint(0, 2**bits, (rows, cols))
    zero = np.full((rows, groups), 2**(bits - 1)) if sym else rng.randint(0, 2**bits, (rows, groups))
    scale = random_scales(rng, (rows, groups), bits)
    w = (codes - zero[:, g_idx]).astype(np.float32) * scale[:, g_idx]
    out = {"qweight": words(stream(codes, bits).T), "scales": ("F16", scale.T.astype(np.float16)),
           "g_idx": ("I32", g_idx.astype(np.int32))}
    if zeros:
        out["qzeros"] = words(stream((zero.T - (0 if v2 else 1)) % 2**bits, bits))
    return out, w


def awq_words(codes):
    """[n, outputs] -> [n, outputs / 8]"""
    grouped = codes.reshape(codes.shape[0], -1, 8)[:, :, AWQ_ORDER]
    return stream(grouped.reshape(codes.shape), 4)


def awq(rng, rows, cols, group=64, zeros=True):
    group = cols if group < 0 else group
    codes, scale = rng.randint(0, 16, (rows, cols)), random_scales(rng, (rows, cols // group), 4)
    zero = rng.randint(0, 16, scale.shape) if zeros else np.full(scale.shape, 8)
    w = (codes - np.repeat(zero, group, 1)).astype(np.float32) * np.repeat(scale, group, 1)
    out = {"qweight": words(awq_words(codes.T)), "scales": ("F16", scale.T.astype(np.float16))}
    if zeros:
        out["qzeros"] = words(awq_words(zero.T))
    return out, w


def awq_gemv(rng, rows, cols, group=64):
    codes, scale = rng.randint(0, 16, (rows, cols)), random_scales(rng, (rows, cols // group), 4)
    zero = rng.randint(0, 16, scale.shape)
    w = (codes - np.repeat(zero, group, 1)).astype(np.float32) * np.repeat(scale, group, 1)
    wide = {64: 2, 32: 4}.get(group, 1)  # words are padded to a multiple of this
    n = -(-(cols // group // 8 or 1) // wide) * wide
    pad = ((0, 0), (0, n * 8 - scale.shape[1]))
    return {"qweight": words(stream(codes, 4)), "qzeros": words(stream(np.pad(zero, pad), 4)),
            "scales": ("F16", np.pad(scale, pad).astype(np.float16))}, w


def bitnet(rng, rows, cols, divides=True, kind="bf16"):
    codes = rng.randint(0, 3, (rows, cols))
    packed = sum(codes[i * rows // 4:(i + 1) * rows // 4] << 2 * i for i in range(4))
    stored, scale = typed([9.3 if divides else 0.11], kind)
    w = (codes - 1).astype(np.float32) * (np.float32(1) / scale if divides else scale)
    return {"weight": ("U8", packed.astype(np.uint8)), "weight_scale": stored}, w


def packed(rng, rows, cols, bits=4, group=32, sym=True, kind="bf16", order=None):
    """compressed-tensors' pack-quantized; group 0: a scale per row."""
    size = group or cols
    groups = cols // size
    g_idx = np.arange(cols) // size
    if order is not None:
        g_idx[order] = np.arange(cols) // size
    codes = rng.randint(0, 2**bits, (rows, cols))
    zero = np.full((rows, groups), 2**(bits - 1)) if sym else rng.randint(0, 2**bits, (rows, groups))
    stored, scale = typed(random_scales(rng, (rows, groups), bits), kind)
    w = (codes - zero[:, g_idx]).astype(np.float32) * scale[:, g_idx]
    out = {"weight_packed": words(stream(codes, bits)), "weight_scale": stored,
           "weight_shape": ("I64", np.array([rows, cols]))}
    if not sym:
        out["weight_zero_point"] = words(stream(zero.T, bits).T)
    if order is not None:
        out["weight_g_idx"] = ("I32", g_idx.astype(np.int32))
    return out, w


def e2m1_bytes(codes):
    return ("U8", (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))


def nvfp4(rng, rows, cols, modelopt=False):
    codes, scale = rng.randint(0, 16, (rows, cols)), rng.randint(0x40, 0x78, (rows, cols // 16)).astype(np.uint8)
    number = np.float32(1 / 1713.7 if modelopt else 1713.7)
    factor = number if modelopt else np.float32(1) / number
    w = E2M1[codes] * np.repeat(from_e4m3(scale), 16, 1) * factor
    return {"weight" if modelopt else "weight_packed": e2m1_bytes(codes), "weight_scale": ("F8_E4M3", scale),
            "weight_scale_2" if modelopt else "weight_global_scale":
                ("F32", np.array(number) if modelopt else np.array([number]))}, w


def mxfp4(rng, rows, cols):
    codes, scale = rng.randint(0, 16, (rows, cols)), rng.randint(120, 123, (rows, cols // 32)).astype(np.uint8)
    w = E2M1[codes] * np.repeat(2.0**(scale.astype(np.float32) - 127), 32, 1)
    return {"weight_packed": e2m1_bytes(codes), "weight_scale": ("U8", scale)}, w.astype(np.float32)


def fp8(rng, rows, cols, block=None, kind="f32", name="weight_scale_inv", scalar=False):
    """block: [rows, inputs] of a scale; None: one per row, or one with scalar."""
    codes = rng.randint(0, 256, (rows, cols)).astype(np.uint8) & 0xBF  # below 2, no NaN
    br, bc = block or (rows if scalar else 1, cols)
    shape = (-(-rows // br), -(-cols // bc))
    if kind in ("e8m0", "u8"):
        exponents = rng.randint(121, 125, shape).astype(np.uint8)
        stored, scale = ("F8_E8M0" if kind == "e8m0" else "U8", exponents), 2.0**(exponents.astype(np.float32) - 127)
    else:
        stored, scale = typed(0.05 + 0.05 * rng.random_sample(shape), kind)
    if scalar:
        stored = (stored[0], stored[1].reshape(()))
    full = np.repeat(np.repeat(scale, br, 0), bc, 1)[:rows, :cols]
    return {"weight": ("F8_E4M3", codes), name: stored}, (from_e4m3(codes) * full).astype(np.float32)


def int8(rng, rows, cols, group=0, kind="bf16", scalar=False):
    codes = rng.randint(-128, 128, (rows, cols)).astype(np.int8)
    stored, scale = typed(random_scales(rng, (1 if scalar else rows, cols // (group or cols)), 8), kind)
    if scalar:
        stored = (stored[0], stored[1].reshape(1))
    return {"weight": ("I8", codes), "weight_scale": stored}, codes * np.repeat(
        np.broadcast_to(scale, (rows, scale.shape[1])), group or cols, 1)


def compressed(fmt, **weights):
    """A quantization_config of compressed-tensors with one group."""
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
            "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None,
                                          "weights": {"dynamic": False, "symmetric": True, "block_structure": None,
                                                      "group_size": None} | weights}}}


def matrices(config):
    d, f = config["hidden_size"], config["intermediate_size"]
    kv = d * config["num_key_value_heads"] // config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        p = "model.layers.%d." % i
        yield from ((p + "self_attn.q_proj", (d, d)), (p + "self_attn.k_proj", (kv, d)),
                    (p + "self_attn.v_proj", (kv, d)), (p + "self_attn.o_proj", (d, d)),
                    (p + "mlp.gate_proj", (f, d)), (p + "mlp.up_proj", (f, d)), (p + "mlp.down_proj", (d, f)))


def random_state(name):
    return np.random.RandomState(zlib.crc32(name.encode()))


def model(make, config=CONFIG, heads=False):
    """Tensors of a tiny model whose matrices in layers `make` made, and of the same in float32.
    heads: embeddings and output head as well."""
    d, v = config["hidden_size"], config["vocab_size"]
    plain, ends = {}, [("model.embed_tokens", (v, d)), ("lm_head", (v, d))]
    for name, shape in ends:
        x = random_state(name).standard_normal(shape).astype(np.float32)
        plain[name + ".weight"] = ("F32", x * np.float32(d**-0.5))
    for name in ["model.norm"] + ["model.layers.%d.%s" % (i, n) for i in range(config["num_hidden_layers"])
                                  for n in ("input_layernorm", "post_attention_layernorm")]:
        plain[name + ".weight"] = ("F32", (0.9 + 0.2 * random_state(name).random_sample(d)).astype(np.float32))
    foreign, dense = dict(plain), dict(plain)
    for name, (rows, cols) in list(matrices(config)) + (ends if heads else []):
        foreign.pop(name + ".weight", None)
        tensors, w = make(random_state(name), rows, cols)
        foreign |= {"%s.%s" % (name, k): t for k, t in tensors.items()}
        dense[name + ".weight"] = ("F32", np.asarray(w, np.float32))
        if config["model_type"] == "qwen2" and name.split(".")[-1] in ("q_proj", "k_proj", "v_proj"):
            bias = random_state(name + ".bias").standard_normal(rows) * 0.1
            foreign[name + ".bias"] = dense[name + ".bias"] = ("F32", bias.astype(np.float32))
    return foreign, dense


def write_tensors(path, tensors):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (word, x) in sorted(tensors.items(), key=lambda t: -t[1][1].itemsize):
        blob = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": word, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write(directory, tensors, quantization=None, config=CONFIG):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config | ({"quantization_config": quantization} if quantization else {}), f)
    write_tensors(os.path.join(directory, "model.safetensors"), tensors)
