"""Compares libturbolm with the HF tokenizers library (0.23), text by text.

    TURBOLM_LIB=…/libturbolm.so compare_tokenizer.py ORACLE_DIR [PATH_FOR_TURBOLM] [--text FILE] [--mixed N]

ORACLE_DIR holds the tokenizer.json for the library; turbolm opens PATH (the
same directory by default, or a GGUF file of the same model). Prints every kind
of difference; exit status 1 when there is one."""
import argparse
import os
import sys
import time

from tokenizers import Tokenizer as Oracle

sys.path.insert(0, os.path.dirname(__file__))
import tokenizer_corpus as corpus
from tokenizer_lib import Tokenizer


def main():
    p = argparse.ArgumentParser()
    p.add_argument("oracle")
    p.add_argument("path", nargs="?")
    p.add_argument("--text")
    p.add_argument("--mixed", type=int, default=3000)
    p.add_argument("--show", type=int, default=10)
    a = p.parse_args()
    name = a.oracle if a.oracle.endswith(".json") else os.path.join(a.oracle, "tokenizer.json")
    ref, own = Oracle.from_file(name), Tokenizer(a.path or a.oracle)
    counts, shown = {}, 0

    def check(what, text, want, got):
        nonlocal shown
        if want == got:
            return
        counts[what] = counts.get(what, 0) + 1
        if shown < a.show:
            shown += 1
            print(f"{what}: {text[:200]!r}\n  want {want[:60]!r}\n  got  {got[:60]!r}")

    def one(what, text):
        want = ref.encode(text, add_special_tokens=False).ids
        got = own.encode(text)
        check("ids of " + what, text, want, got)
        for skip in (False, True):
            decoded = ref.decode(want, skip_special_tokens=skip).encode()
            check("text of " + what, text, decoded, own.decode(want, skip))
            if what != "file":
                pieces = own.stream(want, skip)
                check("stream of " + what, text, decoded, b"".join(pieces))
                for piece in pieces:
                    piece.decode()  # no piece ends inside a character
        return len(want)

    names = [t.content for t in ref.get_added_tokens_decoder().values()]
    lines = list(corpus.hard(a.mixed, names or ["<s>"]))
    for what, s in lines:
        one(what, s)
    for what, s in lines:
        check("ids with specials", s, ref.encode(s).ids, own.encode(s, own.SPECIAL))
    for s in corpus.SAMPLES:
        ref.encode_special_tokens = True
        check("ids of plain", s, ref.encode(s, add_special_tokens=False).ids, own.encode(s, own.PLAIN))
        ref.encode_special_tokens = False
    import random
    rng = random.Random(5)
    size = own.info().vocab_size
    for _ in range(500):
        ids = [rng.randrange(size) for _ in range(rng.randint(1, 30))]
        if rng.random() < .5:  # bytes, so that characters are built and broken
            pool = own.encode("é漢🙂\x80ab\x00Ω") + list(range(238, 494))
            ids = [rng.choice(pool) for _ in ids]
        for skip in (False, True):
            want = ref.decode(ids, skip_special_tokens=skip).encode()
            check("text of random ids", str(ids), want, own.decode(ids, skip))
            check("stream of random ids", str(ids), want, b"".join(own.stream(ids, skip)))
    for i in range(size):
        want = ref.decode([i], skip_special_tokens=False).encode()
        check("text of each id", str(i), want, own.decode([i]))
    if a.text:
        data = open(a.text, encoding="utf-8", newline="").read()
        n = one("file", data)
        for line in data.split("\n"):
            one("line", line)
        t0 = time.perf_counter()
        ref.encode(data, add_special_tokens=False)
        t1 = time.perf_counter()
        own.encode(data)
        t2 = time.perf_counter()
        print(f"whole file: {n} tokens, library {len(data) / (t1 - t0) / 1e6:.1f} MB/s, turbolm "
              f"{len(data) / (t2 - t1) / 1e6:.1f} MB/s")
    print(f"{len(lines)} lines; differences: {counts or 'none'}")
    sys.exit(bool(counts))


if __name__ == "__main__":
    main()
