"""Prompt cache files of turbolm in mlx-lm and the other way: both go on from the same file, greedily, and must say the
same.

usage: compare_prompt_cache.py TURBOLM MODEL_DIR [GGUF] [--long] [--skip N]        (mlx-lm 0.32.2, mlx on the CPU)

MODEL_DIR: a directory of mlx-lm's, or "tiny", the model of tests/support; GGUF: of the same model, its files are given
to mlx-lm with MODEL_DIR. --long: a prompt of more than 512 tokens, which turns the ring of a window. --skip: leaves
the first N comparisons out, for a run that was cut off.

Both sides compute in float32, so texts differ only where the two best logits are closer than TIE, which is then said.
Caches of bf16 come from mlx-lm's model in bf16.

mlx-lm quantises every token, turbolm keeps the block that is being filled exact. So from a quantised file mlx-lm's
own text must agree only as far as that allows: shown, not judged. Judged is the text of mlx-lm's model with
BlockCache of block_cache.py, turbolm's rule in MLX.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as C
from mlx_lm.utils import load

from block_cache import BLOCK, BlockCache
from mlx_float32 import with_rope_theta

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

SENTENCES = ["The lighthouse keeper wrote in his diary every night.", "Ships came from the north in the spring.",
             "His daughter counted them and drew their flags.",
             "In winter nobody came, and the lamp burned for the sea."]
MORE = "What did he write?"
N = 24
TIE = 5e-3
QUANTIZED = ["--quantized-kv-start", "0", "--kv-sink", "0", "--kv-bits"]
OURS = [["--kv-format", "f16"], ["--kv-format", "f32"], ["--kv-format", "bf16"], [*QUANTIZED, "2"],
        [*QUANTIZED, "2", "--kv-group-size", "32"], [*QUANTIZED, "3"], [*QUANTIZED, "4"], [*QUANTIZED, "5"],
        [*QUANTIZED, "6"],
        [*QUANTIZED, "8", "--kv-group-size", "32"], ["--max-kv-size", "100", "--kv-format", "f16"]]
THEIRS = {
    "KVCache": {}, "ConcatenateKVCache": {"each": C.ConcatenateKVCache}, "RotatingKVCache": {"size": 100},
    "RotatingKVCache not full": {"size": 500}, "RotatingKVCache without kept tokens": {"size": 100, "keep": 0},
    "BatchKVCache": {"batch": True}, "BatchRotatingKVCache": {"size": 100, "keep": 0, "batch": True},
    "QuantizedKVCache 2 bits": {"bits": 2, "group": 32}, "QuantizedKVCache 3 bits": {"bits": 3, "group": 64},
    "QuantizedKVCache 4 bits": {"bits": 4, "group": 64}, "QuantizedKVCache 6 bits": {"bits": 6, "group": 64},
    "QuantizedKVCache 8 bits": {"bits": 8, "group": 32},
}


class Compare:
    def __init__(self, program, model, folder):
        self.program, self.model, self.folder = program, model, folder
        self.path = os.path.join(folder, "p.safetensors")
        self.half, self.tokenizer = load(model)
        self.peer, _ = load(model)
        self.peer.set_dtype(mx.float32)
        self.bad = self.n = 0

    def run(self, *args):
        done = subprocess.run([self.program, *args, "--prompt-cache-file", self.path, "--precision", "exact"],
                              capture_output=True, encoding="utf-8")
        if done.returncode:
            sys.exit("%s\n%s" % (" ".join(args), done.stderr))
        return done.stdout

    def go_on(self, caches, ids):
        """text, [(token, how much better than the next best)]"""
        said = []
        for t, p in generate_step(mx.array(ids), self.peer, max_tokens=N, prompt_cache=caches, prefill_step_size=1):
            top = mx.sort(p)[-2:].tolist()
            said.append((int(t), top[1] - top[0]))
        end = [i for i, (t, _) in enumerate(said) if t in self.tokenizer.eos_token_ids]
        said = said[: end[0]] if end else said
        return self.tokenizer.decode([t for t, _ in said], skip_special_tokens=True), said

    def tie(self, ours, said):
        """Were the best two as good as equal where ours begins to differ?"""
        for i, (_, gap) in enumerate(said):
            if not ours.startswith(self.tokenizer.decode([t for t, _ in said[: i + 1]]).rstrip("\ufffd")):
                return gap < TIE
        return False

    def judge(self, name, ours, caches, ids):
        """caches(): anew from the file."""
        loaded = caches()
        quantized = any(isinstance(c, C.QuantizedKVCache) for c in loaded)
        text, said = self.go_on(loaded, ids[loaded_offset(loaded) :])
        note = ""
        if quantized:
            same = len(os.path.commonprefix([ours, text]))
            note = ", mlx-lm itself: " + ("the same" if ours == text else "the same for %d of %d characters" %
                                          (same, len(ours)))
            text, said = self.exact_tail(caches(), ids)
        good = ours == text
        tie = not good and self.tie(ours, said)
        self.bad += not good and not tie
        self.n += 1
        print("%-9s %s%s" % ("same" if good else "tie" if tie else "DIFFERENT", name, note), flush=True)
        if not good:
            print("  ours   %r\n  theirs %r" % (ours, text))

    def exact_tail(self, loaded, ids):
        """The open block: computed again from what was sealed; where a ring has turned, which cannot be cut, taken
        from turbolm's part of the file."""
        length = start = loaded_offset(loaded)
        tail = None
        if self.ours and all(c.is_trimmable() for c in loaded):
            start = length // BLOCK * BLOCK
        elif self.ours:
            assert length % BLOCK + len(ids) - length + N <= BLOCK, "the rings here are never encoded"
            tail = exact_tails(self.path, loaded, length % BLOCK)
        caches = []
        for i, c in enumerate(loaded):
            if isinstance(c, C.QuantizedKVCache):
                caches.append(BlockCache(c, start))
                if tail:
                    caches[-1].open = tail[i]
            else:
                c.trim(length - start)
                caches.append(c)
        return self.go_on(caches, ids[start:])

    def of_turbolm(self, source, text, settings):
        self.ours = True
        self.run("cache_prompt", "--model", source, "--prompt", text, *settings)
        t = self.tokenizer
        ours = self.run("generate", "--model", source, "--prompt", MORE, "--prefill-response", "", "-m", str(N),
                        "--verbose", "f")[:-1]
        whole = t.apply_chat_template(
            [{"role": "user", "content": text + MORE}, {"role": "assistant", "content": ""}], tokenize=False,
            continue_final_message=True) if t.has_chat_template else text + MORE
        # turbolm encodes the whole and goes on from the last token that both have, if the cache can be cut there.
        special = not t.has_chat_template
        end = whole.index(MORE)
        cached, ids = t.encode(whole[:end], add_special_tokens=special), t.encode(whole, add_special_tokens=special)
        caches = C.load_prompt_cache(self.path)
        assert len(cached) == loaded_offset(caches)
        common = len(os.path.commonprefix([cached, ids]))
        if not all(c.is_trimmable() for c in caches):
            ids, common = cached + t.encode(whole[end:], add_special_tokens=False), len(cached)
        names = "+".join(sorted({type(c).__name__ for c in caches}))
        self.judge("turbolm to mlx-lm, %s, %d tokens, %s, %s" % (
            os.path.basename(source), loaded_offset(caches), names, " ".join(settings)),
            ours, lambda: cut(C.load_prompt_cache(self.path), common), ids)

    def of_mlx(self, name, text, size=None, keep=4, bits=None, group=64, each=None, batch=False):
        self.ours = False
        t = self.tokenizer
        ids = t.encode(text, add_special_tokens=True)
        each = (lambda: C.RotatingKVCache(size, keep=keep)) if size else each
        caches = [each() for _ in self.half.layers] if each else C.make_prompt_cache(self.half)
        # The ring behind kept tokens is right only token by token.
        for _ in generate_step(mx.array(ids), self.half, max_tokens=0, prompt_cache=caches,
                               prefill_step_size=1 if size else 2048):
            pass
        if bits:
            caches = [c.to_quantized(group, bits) if isinstance(c, C.KVCache) else c for c in caches]
        saved = [type(c).merge([c]) for c in caches] if batch else caches
        C.save_prompt_cache(self.path, saved, {"model": self.model, "tokenizer_config": "{}"})
        exact = [] if bits else ["--kv-format", "bf16"]
        ours = self.run("generate", "--model", self.model, "--prompt", MORE, "--ignore-chat-template", "-m", str(N),
                        "--verbose", "f", *exact)[:-1]

        def again():
            c = C.load_prompt_cache(self.path)
            if batch:  # mlx-lm cannot go on from those
                for b in c:
                    if isinstance(b, C.BatchRotatingKVCache):
                        b.rotated = bool(b.rotated)
                c = [b.extract(0) for b in c]
            return c

        names = "+".join(sorted({type(c).__name__ for c in saved}))
        self.judge("mlx-lm to turbolm, %s, %d tokens, %s (%s)" % (
            os.path.basename(self.model), len(ids), names, name), ours, again,
            ids + t.encode(MORE, add_special_tokens=False))


def cut(caches, length):
    for c in caches:
        if c.offset > length:
            c.trim(c.offset - length)
    return caches


def exact_tails(path, caches, n):
    """{layer: [keys, values]} of the open block of the layers that are quantised; they are the group of one tensor."""
    extension = len(caches)
    layers = [i for i, c in enumerate(caches) if isinstance(c, C.QuantizedKVCache)]
    heads = caches[layers[0]].keys[1].shape[1]
    dim = caches[layers[0]].keys[1].shape[3] * caches[layers[0]].group_size
    arrays = mx.load(path)
    group = int(layers[0] > 0)  # groups are numbered by their first layers
    block = arrays["%d.open.%d" % (extension, group)][-1].view(mx.float16).reshape(len(layers), 2, heads, -1)
    return {i: [block[k, 0].reshape(1, heads, dim, BLOCK).swapaxes(2, 3)[:, :, :n],
                block[k, 1].reshape(1, heads, BLOCK, dim)[:, :, :n]] for k, i in enumerate(layers)}


def loaded_offset(caches):
    return int(caches[0].offset)


def cases(c, model, gguf, text):
    """What to call for each comparison."""
    sliding = any(isinstance(k, C.RotatingKVCache) for k in C.make_prompt_cache(c.half))
    for source in [model, *gguf]:
        for settings in OURS:
            # In a GGUF file's order, groups smaller than a head hold other channels than in mlx-lm's: their keys are
            # quantised twice, which 2 bits do not stand.
            if not (sliding and "--max-kv-size" in settings or source in gguf and "2" in settings and "32" in settings):
                yield lambda s=source, o=settings: c.of_turbolm(s, text, o)
    for name, settings in THEIRS.items():
        if not (sliding and ("size" in settings or "each" in settings)):
            yield lambda n=name, o=settings: c.of_mlx(n, text, **o)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("turbolm")
    p.add_argument("model")
    p.add_argument("gguf", nargs="*")
    p.add_argument("--long", action="store_true")
    p.add_argument("--skip", type=int, default=0)
    a = p.parse_args()
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        if a.model == "tiny":
            model = tiny_model.make(os.path.join(folder, "m"), num_attention_heads=2, num_key_value_heads=1,
                                    head_dim=64)
        else:
            model = with_rope_theta(a.model, folder)
        c = Compare(a.turbolm, model, folder)
        text = " ".join("%d. %s" % (i, SENTENCES[i % 4]) for i in range(1, 44)) if a.long else " ".join(SENTENCES * 3)
        for case in list(cases(c, model, a.gguf, text))[a.skip :]:
            case()
        print("%d of %d differ" % (c.bad, c.n))
    return c.bad > 0


sys.exit(main())
