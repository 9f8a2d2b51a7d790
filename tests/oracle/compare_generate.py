#!/usr/bin/env python3
"""Directories of turbolm in mlx-lm and of mlx_lm.convert in turbolm: both programs must say the same on both, and the
safetensors library must read every file of ours.

    python tests/oracle/compare_generate.py --turbolm build/turbolm MODEL_DIR|tiny|tiny-gemma... [--modes all|mxfp4,...]

MODEL_DIR: of transformers, in bf16; tiny, tiny-gemma: models of tests/support, in float32. Modes are those of
compare_convert.py. Each mode is converted by both; mlx-lm
(mlx_lm.load and stream_generate on the CPU, in float32 as mlx_float32.py makes it) and `turbolm generate --precision
exact` go on from PROMPT, greedily, over -m tokens, with --chat through the chat template where the tokenizer has one.
Texts may differ only where mlx-lm's two best logits are closer than TIE, which is then said. Where mlx-lm has loaded
the same model from both directories, its text is computed once. mlx_lm.convert gets the source with rope_theta beside
rope_parameters, which mlx-lm overlooks; turbolm gets it as it is and has to write it. Needs mlx-lm, safetensors and
torch. A line for each model and mode; status 1 when one is bad.
"""
import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.convert import configure_parser, convert
from safetensors import safe_open

import mlx_float32
from compare_convert import options

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tiny_model  # noqa: E402

MODES = ["affine%dg64" % b for b in (4, 2, 3, 5, 6, 8)] + ["affine4g32", "mxfp4", "nvfp4", "mxfp8", "mixed_3_6",
                                                            "plain", "float16"]
PROMPT = "The old lighthouse stood"
TIE = 5e-3


def tiny(name, folder):
    gemma = {"model_type": "gemma3_text", "query_pre_attn_scalar": 64, "sliding_window": 512,
             "sliding_window_pattern": 2, "rope_local_base_freq": 10000.0}
    return tiny_model.make(os.path.join(folder, name), intermediate_size=128, head_dim=64,
                           **(gemma if name == "tiny-gemma" else {}))


def read_all(folder):
    """({name: (type, shape)}, number of files), every tensor read by the safetensors library: through torch, since its
    way to mlx does not know bfloat16."""
    found, files = {}, [f for f in sorted(os.listdir(folder)) if f.endswith(".safetensors")]
    for file in files:
        with safe_open(os.path.join(folder, file), "pt") as f:
            assert f.metadata() == {"format": "mlx"}, f.metadata()
            for name in f.keys():
                part, x = f.get_slice(name), f.get_tensor(name)
                assert list(x.shape) == part.get_shape() and name not in found, name
                found[name] = (part.get_dtype(), part.get_shape())
    return found, len(files)


def run(program, *args):
    done = subprocess.run([program, *args], capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(args), done.stderr))
    return done.stdout


class Peer:
    """What mlx-lm says from a directory."""

    def __init__(self, folder, n, chat):
        self.model, self.tokenizer = mlx_float32.model_and_tokenizer(folder)
        self.n = n
        self.prompt = mlx_float32.prompt_of(self.tokenizer, PROMPT, chat)

    def is_as(self, other):
        """The same modules with the same numbers, and the same prompt: computing again would compute the same."""
        x, y = (dict(tree_flatten(m.model.parameters())) for m in (self, other))
        return (str(self.model) == str(other.model) and self.model.args == other.model.args and x.keys() == y.keys()
                and all(mx.array_equal(x[k], y[k], equal_nan=True) for k in x)
                and self.prompt == other.prompt and self.tokenizer.eos_token_ids == other.tokenizer.eos_token_ids)

    def say(self, other=None):
        if other and self.is_as(other):
            self.text, self.said, self.note = other.text, other.said, " as the same model"
        else:
            self.text, self.said = mlx_float32.say(self.model, self.tokenizer, self.prompt, self.n)
            self.note = ""


def our_text(program, folder, n, chat):
    return run(program, "generate", "--model", folder, "--prompt", PROMPT, "-m", str(n), "--verbose", "f",
               "--precision", "exact", "--kv-format", "f32", "--temp", "0",
               *([] if chat else ["--ignore-chat-template"]))[:-1]


def judge(ours, peer):
    """(is it right, note)"""
    if ours == peer.text:
        return True, "same text (%d tokens%s)" % (len(peer.said), peer.note)
    gap = mlx_float32.gap_where_it_differs(peer.tokenizer, ours, peer.said)
    return gap < TIE, "%s at a gap of %.1e\n    turbolm %r\n    mlx-lm  %r\n   " % (
        "tie" if gap < TIE else "DIFFERENT", gap, ours, peer.text)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="+")
    ap.add_argument("--turbolm", default="build/turbolm")
    ap.add_argument("--modes", default="all")
    ap.add_argument("--chat", action="store_true")
    ap.add_argument("-m", "--max-tokens", type=int, default=32)
    args = ap.parse_args()
    mx.set_default_device(mx.cpu)
    bad = 0
    for model in args.models:
        for mode in MODES if args.modes == "all" else args.modes.split(","):
            with tempfile.TemporaryDirectory(prefix="compare-generate-") as work:
                source = tiny(model, work) if model.startswith("tiny") else model
                ours, theirs = os.path.join(work, "ours"), os.path.join(work, "theirs")
                run(args.turbolm, "convert", "--hf-path", source, "--mlx-path", ours, *options(mode))
                with contextlib.redirect_stdout(io.StringIO()):
                    os.mkdir(os.path.join(work, "rope"))
                    convert(**vars(configure_parser().parse_args(
                        ["--hf-path", mlx_float32.with_rope_theta(source, os.path.join(work, "rope")), "--mlx-path",
                         theirs, *options(mode)])))
                (a, files), (b, _) = read_all(ours), read_all(theirs)
                good, notes = a == b, []
                first = None
                for name, folder in (("ours", ours), ("theirs", theirs)):
                    peer = Peer(folder, args.max_tokens, args.chat)
                    peer.say(first)
                    first = first or peer
                    right, note = judge(our_text(args.turbolm, folder, args.max_tokens, args.chat), peer)
                    good &= right
                    notes.append("%s: %s" % (name, note))
                bad += not good
                print("%-6s %-33s %-10s %s; safetensors: %d tensors in %d file%s, %s" % (
                    "ok" if good else "BAD", os.path.basename(os.path.normpath(model)), mode, ", ".join(notes),
                    len(a), files, "s" * (files != 1), "as mlx's" if a == b else "NOT AS MLX'S: %s" % sorted(
                        k for k in a.keys() | b.keys() if a.get(k) != b.get(k))[:4]), flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
