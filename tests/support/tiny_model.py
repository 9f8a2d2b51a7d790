"""A llama of 50,000 parameters with a byte-level tokenizer, made from a hash, and the same
computed with numpy.

Only printable ASCII has weights in lm_head, so greedy text is printable and never ends.
Token ids 0 to 255 are the bytes, then come SPECIAL. A prompt of n bytes has n tokens.
"""
import json
import os
import struct

import numpy as np

SPECIAL = ["<|start|>", "<|end|>", "<think>", "</think>"]
START, END = 256, 257
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 262144,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": START,
    "eos_token_id": END,
    "torch_dtype": "float32",
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last or m.role != 'assistant' %}"
    "<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if enable_thinking %}(thinking){% endif %}{{ note }}"
)


def render(messages, thinking=True, note=""):
    """What TEMPLATE gives for [(role, content)] with a user's message last."""
    text = SPECIAL[0] + "".join("[%s]%s<|end|>" % m for m in messages)
    return text + "[assistant]" + ("(thinking)" if thinking else "") + note


def _uniform(name, n):
    """n values in [-1, 1): SplitMix64 from the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for b in name.encode():
        seed = ((seed ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def weights(config=CONFIG):
    c = config
    d, f, q, kv = (c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * c["head_dim"],
                   c["num_key_value_heads"] * c["head_dim"])
    shapes = {"model.embed_tokens": (c["vocab_size"], d), "model.norm": (d,), "lm_head": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        shapes |= {p + "self_attn.q_proj": (q, d), p + "self_attn.k_proj": (kv, d), p + "self_attn.v_proj": (kv, d),
                   p + "self_attn.o_proj": (d, q), p + "mlp.gate_proj": (f, d), p + "mlp.up_proj": (f, d),
                   p + "mlp.down_proj": (d, f), p + "input_layernorm": (d,), p + "post_attention_layernorm": (d,)}
    gemma = c["model_type"] == "gemma3_text"
    for i in range(c["num_hidden_layers"] if gemma else 0):
        p = "model.layers.%d." % i
        shapes |= {p + "self_attn.q_norm": (c["head_dim"],), p + "self_attn.k_norm": (c["head_dim"],),
                   p + "pre_feedforward_layernorm": (d,), p + "post_feedforward_layernorm": (d,)}
    out = {}
    for name, shape in shapes.items():
        x = _uniform(name + ".weight", int(np.prod(shape))).reshape(shape)
        x = (not gemma) + 0.2 * x if len(shape) == 1 else x * (1 if "embed" in name else np.sqrt(3 / shape[-1]))
        out[name + ".weight"] = x.astype(np.float32)
    out["lm_head.weight"][:32] = 0
    out["lm_head.weight"][127:] = 0
    return out


def logits(ids, config=CONFIG, seen=None):
    """float64 [tokens, vocabulary]; seen(row, position): what else than causal limits attention"""
    c, w = config, {k: v.astype(np.float64) for k, v in weights(config).items()}
    n, hd = len(ids), c["head_dim"]
    group = c["num_attention_heads"] // c["num_key_value_heads"]
    angle = np.arange(n)[:, None] * c["rope_theta"] ** (-np.arange(0, hd, 2) / hd)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name + ".weight"]

    def heads(x, name, rope):
        y = (x @ w[name + ".weight"].T).reshape(n, -1, hd)
        if rope:
            a, b = y[..., : hd // 2], y[..., hd // 2 :]
            y = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return y.transpose(1, 0, 2)

    mask = np.triu(np.full((n, n), -np.inf), 1)
    if seen:
        mask[~np.fromfunction(seen, (n, n))] = -np.inf
    x = w["model.embed_tokens.weight"][list(ids)]
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        h = norm(x, p + "input_layernorm")
        q = heads(h, p + "self_attn.q_proj", True)
        k = heads(h, p + "self_attn.k_proj", True).repeat(group, 0)
        v = heads(h, p + "self_attn.v_proj", False).repeat(group, 0)
        s = q @ k.transpose(0, 2, 1) / np.sqrt(hd) + mask
        s = np.exp(s - s.max(-1, keepdims=True))
        a = (s / s.sum(-1, keepdims=True)) @ v
        x = x + a.transpose(1, 0, 2).reshape(n, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm")
        g = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def greedy(ids, n, config=CONFIG, seen=None):
    """The n best tokens after ids, as text."""
    ids = list(ids)
    for _ in range(n):
        ids.append(int(np.argmax(logits(ids, config, seen)[-1])))
    return bytes(ids[len(ids) - n :]).decode()


def encode(text):
    """Ids of text with the names of SPECIAL in it."""
    ids = []
    while text:
        special = [s for s in SPECIAL if text.startswith(s)]
        if special:
            ids.append(256 + SPECIAL.index(special[0]))
            text = text[len(special[0]) :]
        else:
            ids += text[0].encode()
            text = text[1:]
    return ids


def byte_characters():
    """The character that stands for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = {}, 256
    for b in range(256):
        out[b] = chr(b if b in plain else extra)
        extra += b not in plain
    return out


def _tokenizer(renamed, merges):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    start, a = {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": i < 2} for i, s in enumerate(SPECIAL)]
    vocab = {c: b for b, c in byte_characters().items() if b not in renamed}
    vocab |= {a + b: 260 + i for i, (a, b) in enumerate(merges)}
    added = [t for t in added if t["content"] not in renamed.values()]
    added += [added[0] | {"id": i, "content": s, "special": "|" in s} for i, s in renamed.items()]
    added.sort(key=lambda t: t["id"])
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing", "single": [start, a],
            "pair": [start, a, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [START], "tokens": [SPECIAL[0]]}}},
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": ["%s %s" % m for m in merges]},
    }


def _write_weights(path, tensors):
    header, offset = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))


def make(folder, template=TEMPLATE, tokenizer=True, with_weights=True, special=tuple(SPECIAL), renamed=(), merges=(),
         **config):
    """Writes the directory; config overrides CONFIG. Returns its path.

    renamed: (id, text) of bytes that are another token instead, special with a | in it, so that the model can say it;
    merges: pairs of characters with a token of their own, from 260 on, which the model never says.
    """
    config = CONFIG | {"vocab_size": CONFIG["vocab_size"] + len(merges)} | config
    renamed = dict(renamed)
    os.makedirs(folder, exist_ok=True)
    files = {"config.json": json.dumps(config, indent=1)}
    if template:
        files["chat_template.jinja"] = template
    if tokenizer:
        t = _tokenizer(renamed, merges)
        t["added_tokens"] = [a for a in t["added_tokens"] if a["content"] in special or a["id"] in renamed]
        files["tokenizer.json"] = json.dumps(t, ensure_ascii=False)
        files["tokenizer_config.json"] = json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
             "clean_up_tokenization_spaces": False})
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    if with_weights:
        _write_weights(os.path.join(folder, "model.safetensors"), weights(config))
    return str(folder)
