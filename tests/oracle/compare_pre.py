"""Compares the rows of src/text/tokenizer_pre.def with the HF tokenizers library:
for each row a GGUF file with that `pre`, and in the library the same steps on its
own regex engine, over hard lines. What a row's steps should be is another question;
this shows that they mean the same here and there.

    TURBOLM_LIB=…/libturbolm.so compare_pre.py DIR [--mixed N] [--only NAME]

DIR holds a tokenizer.json with a byte-level BPE, whose tokens and merges are used."""
import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer as Oracle

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import tokenizer_corpus as corpus
import write_gguf
from tokenizer_lib import Tokenizer

NAMED = {
    "@Punctuation": {"type": "Punctuation", "behavior": "Contiguous"},
    "@DigitRuns": {"type": "Digits", "individual_digits": False},
    "@ByteLevel": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "@Thousands": r"\d{1,3}(?=(?:\d{3})*\b)",
    "@Threes": r"(?=(\d{3})+(?!\d))",
}


def rows():
    """(name, flags, steps) of the table, macros expanded."""
    source = ('#define TOK_PRE(name, flags, ...) ROW([name], #flags, [__VA_ARGS__])\n'
              '#include "text/tokenizer_pre.def"\n')
    text = subprocess.run(["cc", "-E", "-P", "-I", os.path.join(HERE, "..", "..", "src"), "-"], input=source,
                          capture_output=True, text=True, check=True).stdout
    row = r'^ROW\(\[("[^"]*")\], "([^"]*)", \[(.*)\]\)$'
    for name, flags, steps in re.findall(row, text.replace("\n ", " "), re.M):
        yield ast.literal_eval(name), flags.split(" | "), ast.literal_eval("[" + steps.replace("NULL", "None") + "]")


def pretokenizer(steps):
    out = []
    for step in steps:
        step = NAMED.get(step, step)
        if isinstance(step, str):
            regex = step.replace(r"\p{sc:Han}", r"\p{Han}")
            step = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        out.append(step)
    if NAMED["@ByteLevel"] not in out:
        out.append(NAMED["@ByteLevel"])
    return {"type": "Sequence", "pretokenizers": out}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--mixed", type=int, default=1500)
    p.add_argument("--only")
    a = p.parse_args()
    with open(os.path.join(a.dir, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    vocab = t["model"]["vocab"]
    tokens = [""] * (max(vocab.values()) + 1)
    for token, i in vocab.items():
        tokens[i] = token
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    lines = [s for s in corpus.SAMPLES] + list(corpus.chars()) + list(corpus.mixed(a.mixed)) + list(corpus.runs())
    bad, seen = 0, {}
    for name, flags, steps in rows():
        if a.only not in (None, name) or "PRE_MARKS" in flags:
            continue
        key = repr((sorted(set(flags) - {"PRE_BOS"}), steps))
        if key in seen:
            print(f"{name}: as {seen[key]}")
            continue
        seen[key] = name
        form = [f[4:] for f in flags if f in ("PRE_NFC", "PRE_NFKC")]
        t.update(added_tokens=[], post_processor=None, normalizer={"type": form[0]} if form else None,
                 pre_tokenizer=pretokenizer(steps))
        t["model"]["ignore_merges"] = "PRE_WHOLE" in flags
        ref = Oracle.from_str(json.dumps(t))
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "v.gguf")
            write_gguf.write_metadata(path, {
                "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name,
                "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges})
            own = Tokenizer(path)
        wrong = [s for s in lines if own.encode(s) != ref.encode(s, add_special_tokens=False).ids]
        own.close()
        bad += bool(wrong)
        print(f"{name}: {len(lines)} lines, {len(wrong)} differ", *(repr(s[:80]) for s in wrong[:2]), sep="\n    ")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
