"""A GGUF file of float32 tensors from a golden: what a converter makes of the checkpoint."""
import struct

import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
ALIGN = 32


def rename(name):
    stem, leaf = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        return "blk.%s.%s.%s" % (layer, NAMES[part], leaf)
    return "%s.%s" % (NAMES[stem], leaf)


def permute(w, heads):
    """Rows of q and k so that the halves of a rotated pair become neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def string(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def value(key, v):
    """A str, bool, int, float, a list of str, int or float; bytes are an array of int8."""
    if isinstance(v, bool):
        return string(key) + struct.pack("<IB", 7, v)
    if isinstance(v, bytes):
        return string(key) + struct.pack("<IIQ", 9, 1, len(v)) + v
    if isinstance(v, list):
        head = string(key) + struct.pack("<II", 9, 8 if isinstance(v[0], str) else 6 if isinstance(v[0], float) else 5)
        pack = string if isinstance(v[0], str) else struct.Struct("<f" if isinstance(v[0], float) else "<i").pack
        return head + struct.pack("<Q", len(v)) + b"".join(map(pack, v))
    if isinstance(v, str):
        return string(key) + struct.pack("<I", 8) + string(v)
    if isinstance(v, float):
        return string(key) + struct.pack("<If", 6, v)
    return string(key) + struct.pack("<II", 4, v)


def metadata(arch, c, dims):
    m = {
        "general.architecture": arch, arch + ".block_count": c["num_hidden_layers"],
        arch + ".context_length": c["max_position_embeddings"], arch + ".embedding_length": c["hidden_size"],
        arch + ".feed_forward_length": c["intermediate_size"], arch + ".attention.head_count": c["num_attention_heads"],
        arch + ".attention.head_count_kv": c["num_key_value_heads"], arch + ".attention.key_length": dims,
        arch + ".attention.value_length": dims, arch + ".rope.dimension_count": dims,
        arch + ".attention.layer_norm_rms_epsilon": c["rms_norm_eps"], arch + ".rope.freq_base": c["rope_theta"],
    }
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        m |= {arch + ".rope.scaling.type": kind, arch + ".rope.scaling.factor": scaling["factor"]}
    if kind == "yarn":
        m |= {arch + ".rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
              arch + ".rope.scaling.yarn_beta_fast": float(scaling["beta_fast"]),
              arch + ".rope.scaling.yarn_beta_slow": float(scaling["beta_slow"])}
    return m


def llama3_factors(c, dims):
    s = c["rope_scaling"]
    freq = c["rope_theta"] ** (-np.arange(0, dims, 2) / dims)
    wave = 2 * np.pi / freq
    low, high, orig = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    smooth = (orig / wave - low) / (high - low)
    between = 1 / ((1 - smooth) / s["factor"] + smooth)
    return np.where(wave < orig / high, 1, np.where(wave > orig / low, s["factor"], between)).astype(np.float32)


def write_metadata(path, meta):
    """A file without tensors."""
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(meta)) + b"".join(value(k, v) for k, v in meta.items()))


def write(path, config, tensors, version=3, extra=()):
    """tensors: (name, float32 array) under Hugging Face names."""
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    dims = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rows = []
    for name, w in tensors:
        if arch == "llama" and ".q_proj." in name:
            w = permute(w, config["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            w = permute(w, config["num_key_value_heads"])
        if name != "lm_head.weight" or not config.get("tie_word_embeddings"):
            rows.append((rename(name), np.ascontiguousarray(w, np.float32)))
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        rows.append(("rope_freqs.weight", llama3_factors(config, dims)))
    meta = metadata(arch, config, dims) | dict(extra)
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(meta))
    head += b"".join(value(k, v) for k, v in meta.items())
    data = b""
    for name, w in rows:
        head += string(name) + struct.pack("<I", w.ndim) + b"".join(struct.pack("<Q", d) for d in w.shape[::-1])
        head += struct.pack("<IQ", 0, len(data))
        data += w.tobytes() + b"\0" * (-w.nbytes % ALIGN)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGN) + data)
