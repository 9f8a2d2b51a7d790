"""mlx-lm's models computed in float32, and the directories it needs.

Where mlx-lm leaves float32 by itself, repair() undoes it, in memory: it rounds Gemma's factor of embeddings to
bfloat16 in any type, and mlx looks rows of embeddings up in bfloat16 where weights are mxfp4, nvfp4 or mxfp8 (the
elements are exact in it, the products with that factor are not).
"""
import json
import os
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma3_text
from mlx_lm.utils import load, load_model


class WithoutBfloat16:
    """mlx.core, except that arrays asked for in bfloat16 are in float32."""

    def __getattr__(self, name):
        return getattr(mx, name)

    def array(self, x, dtype=None):
        return mx.array(x, mx.float32 if dtype == mx.bfloat16 else dtype)


def repair():
    if isinstance(gemma3_text.mx, WithoutBfloat16):
        return
    gemma3_text.mx = WithoutBfloat16()
    look_up = nn.QuantizedEmbedding.__call__
    nn.QuantizedEmbedding.__call__ = lambda self, x: look_up(self, x).astype(mx.float32)


def model_of(directory):
    repair()
    model, _ = load_model(Path(directory))
    model.set_dtype(mx.float32)
    return model


def model_and_tokenizer(directory):
    """Through mlx_lm.load."""
    repair()
    model, tokenizer = load(str(directory))
    model.set_dtype(mx.float32)
    return model, tokenizer


def with_rope_theta(source, folder):
    """A directory of links to source, with rope_theta where mlx-lm 0.32 looks for it: most of its models overlook
    rope_parameters."""
    out = os.path.join(folder, os.path.basename(os.path.normpath(source)))
    os.mkdir(out)
    for name in os.listdir(source):
        if name != "config.json":
            os.symlink(os.path.join(os.path.abspath(source), name), os.path.join(out, name))
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    rope = config.get("rope_parameters", {})
    if "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    elif "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return out


def prompt_of(tokenizer, text, chat):
    """As mlx_lm.generate makes it: tokens through a chat template, or the text."""
    if not chat or not tokenizer.has_chat_template:
        return text
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)


def say(model, tokenizer, prompt, n):
    """What mlx-lm's stream_generate says without sampling: text, [(token, how much better than the next best)]. The
    text is that of the tokens; the streamed one lacks a space at its beginning."""
    from mlx_lm.generate import stream_generate

    said = []
    for r in stream_generate(model, tokenizer, prompt, max_tokens=n):
        top = mx.sort(r.logprobs)[-2:].tolist()
        said.append((r.token, top[1] - top[0]))
    return text_of(tokenizer, said), said


def text_of(tokenizer, said):
    return tokenizer.decode([t for t, _ in said], skip_special_tokens=True)


def gap_where_it_differs(tokenizer, text, said):
    """How much better mlx-lm's token was than the next best where text leaves what mlx-lm said."""
    for i, (_, gap) in enumerate(said):
        if not text.startswith(text_of(tokenizer, said[: i + 1]).rstrip("\ufffd")):
            return gap
    return said[-1][1]
