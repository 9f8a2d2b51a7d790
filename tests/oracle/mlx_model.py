"""A small llama in MLX's quantised formats, codes and scales from a hash; numpy only."""
import json
import os
import struct

import numpy as np

from hashinit import hash_stream, hash_tensor
from make_model import to_bf16

CONFIG = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}
# "mixed": entries per layer beside a default; false: left as it is.
MIXED = {
    "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8},
    "model.layers.1.self_attn.v_proj": {"group_size": 32, "bits": 6, "mode": "affine"},
    "model.layers.1.mlp.up_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    "model.layers.1.mlp.gate_proj": False,
}


def shapes():
    c = CONFIG
    d, f, v, kv = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["hidden_size"] // 2
    out = {"model.embed_tokens": (v, d), "lm_head": (v, d)}
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        out |= {p + "self_attn.q_proj": (d, d), p + "self_attn.k_proj": (kv, d), p + "self_attn.v_proj": (kv, d),
                p + "self_attn.o_proj": (d, d), p + "mlp.gate_proj": (f, d), p + "mlp.up_proj": (f, d),
                p + "mlp.down_proj": (d, f)}
    return out


def settings(mode, name):
    """(bits, group, mode, type of the scales), or None for a plain matrix."""
    if mode == "mixed":
        own = MIXED.get(name, {"group_size": 64, "bits": 4})
        return own and (own["bits"], own["group_size"], own.get("mode", "affine"), "bf16")
    if mode.startswith("affine"):
        size, _, kind = mode[6:].partition("-")
        bits, group = size.split("g")
        return int(bits), int(group), "affine", kind or "bf16"
    return {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}[mode] + (mode, "u8")


def matrix(name, shape, mode):
    """{tensor name: (safetensors type, array)} of one matrix."""
    rows, cols = shape
    s = settings(mode, name)
    if not s:
        return {name + ".weight": ("F32", hash_tensor(name + ".weight", shape, "linear"))}
    bits, group, kind, scale_type = s
    words = rows * cols * bits // 32
    codes = (hash_stream(name + ".weight", words) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    n = rows * cols // group
    u = ((hash_stream(name + ".scales", n) >> np.uint64(40)).astype(np.float64) * 2.0**-24).reshape(rows, -1)
    if kind != "affine":
        if kind == "mxfp8":
            codes &= np.uint32(0xBFBFBFBF)  # below 2, and no NaN
        scales = {"nvfp4": 16 + 8 * u, "mxfp4": 122 + 2 * u, "mxfp8": 124 + 2 * u}[kind].astype(np.uint8)
        return {name + ".weight": ("U32", codes.reshape(rows, -1)), name + ".scales": ("U8", scales)}
    # values spread over about -0.15 .. 0.15
    scales = (0.2 + 0.1 * u) / 2**bits
    biases = -0.5 * (2**bits - 1) * scales * (1 + 0.1 * (u - 0.5))
    out = {name + ".weight": ("U32", codes.reshape(rows, -1))}
    for leaf, x in (("scales", scales), ("biases", biases)):
        x = x.astype(np.float32)
        out[name + "." + leaf] = {"bf16": ("BF16", to_bf16(x)), "f16": ("F16", x.astype(np.float16)),
                                  "f32": ("F32", x)}[scale_type]
    return out


def write(directory, mode):
    tensors = {}
    for name, shape in shapes().items():
        tensors |= matrix(name, shape, mode)
    norms = ["model.norm"] + ["model.layers.%d.%s" % (i, n) for i in range(CONFIG["num_hidden_layers"])
                              for n in ("input_layernorm", "post_attention_layernorm")]
    for name in norms:
        tensors[name + ".weight"] = ("F32", hash_tensor(name + ".weight", (CONFIG["hidden_size"],), "norm"))
    if mode == "mixed":
        quantization = {"group_size": 64, "bits": 4} | MIXED
    else:
        bits, group, kind, _ = settings(mode, "")
        quantization = {"group_size": group, "bits": bits, "mode": kind}
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(CONFIG | {"quantization": quantization, "quantization_config": quantization}, f)
    header, blobs, at = {"__metadata__": {"format": "mlx"}}, [], 0
    for name, (word, x) in sorted(tensors.items(), key=lambda t: -t[1][1].itemsize):
        blob = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": word, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
