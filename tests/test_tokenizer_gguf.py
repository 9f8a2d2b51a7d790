"""Tokenizers in GGUF files, written as converters do: against goldens of the original library
(tests/oracle/make_tokenizer_goldens.py) where it has the kind, else against plain references here."""
import base64
import json
import os
import random

import pytest

import tiny_model as maker
import write_gguf

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = ["<0x%02X>" % b for b in range(256)]
MARK = "\u2581"


@pytest.fixture
def data(root):
    return os.path.join(root, "tests", "data", "tokenizer")


@pytest.fixture
def gguf(turbolm, tmp_path):
    """gguf(model, tokens, **keys) writes the file; encode(texts, ...) then gives ids."""

    class File:
        path = tmp_path / "v.gguf"

        def __call__(self, model, tokens, **keys):
            meta = {"general.architecture": "llama", "tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens}
            meta |= {("tokenizer.ggml." if k != "general_name" else "") + k.replace("general_", "general."): v
                     for k, v in keys.items()}
            write_gguf.write_metadata(self.path, meta)
            return self

        def encode(self, texts, *args):
            lines = "".join(json.dumps(t) + "\n" for t in texts)
            done = turbolm("tokenize", "--model", self.path, "--jsonl", *args, input=lines)
            assert (done.returncode, done.stderr) == (0, "")
            return [json.loads(line) for line in done.stdout.splitlines()]

        def decode(self, ids, *args):
            lines = "".join(json.dumps(i) + "\n" for i in ids)
            done = turbolm("tokenize", "--model", self.path, "--jsonl", "--decode", *args, input=lines)
            assert (done.returncode, done.stderr) == (0, "")
            return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

        def error(self):
            done = turbolm("tokenize", "--model", self.path, "x")
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            return done.stderr

    return File()


def golden(data, name):
    """(text, ids, decoding) of a .golden file."""
    with open(os.path.join(data, name + ".golden"), encoding="ascii") as f:
        for line in f:
            text, ids, whole, _ = line.rstrip("\n").split("|")
            text = bytes.fromhex(text).decode()
            yield text, [int(i) for i in ids.split()], text if whole == "=" else bytes.fromhex(whole).decode()


def load(data, name):
    """(tokens by id, types, the file)"""
    with open(os.path.join(data, name + ".json"), encoding="utf-8") as f:
        t = json.load(f)
    vocab = t["model"]["vocab"]
    tokens = [v[0] for v in vocab] if isinstance(vocab, list) else sorted(vocab, key=vocab.get)
    types = [BYTE if s in BYTES else NORMAL for s in tokens]
    for a in t["added_tokens"]:
        if a["id"] < len(types):
            types[a["id"]] = CONTROL
    return tokens, types, t


def check(file, rows):
    rows = list(rows)
    assert len(rows) > 50
    for (text, ids, whole), got in zip(rows, file.encode([r[0] for r in rows], "--no-special")):
        assert got == ids, text
    assert file.decode([r[1] for r in rows]) == [r[2] for r in rows]


def test_splittings(gguf, data):
    tokens, types, t = load(data, "level")
    types = [NORMAL] * len(types)
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    rows = {}
    with open(os.path.join(data, "pre.golden"), encoding="ascii") as f:
        for line in f:
            name, text, ids = line.rstrip("\n").split("|")
            rows.setdefault(name, []).append((bytes.fromhex(text).decode(), [int(i) for i in ids.split()]))
    assert len(rows) > 35
    for name, cases in rows.items():
        file = gguf("gpt2", tokens, pre=name, token_type=types, merges=merges)
        for (text, ids), got in zip(cases, file.encode([c[0] for c in cases])):
            assert got == ids, (name, text)


def test_bert(gguf, data):
    tokens, types, _ = load(data, "wordpiece")
    # What begins with U+2581 cannot be told from a word's start in this format.
    types = [UNUSED if s.startswith("##" + MARK) else k for s, k in zip(tokens, types)]
    written = [s if k in (CONTROL, UNUSED) else s[2:] if s.startswith("##") else MARK + s
               for s, k in zip(tokens, types)]
    file = gguf("bert", written, token_type=types, unknown_token_id=0, cls_token_id=1, seperator_token_id=2)
    check(file, (row for row in golden(data, "wordpiece") if MARK not in row[0]))
    assert file.encode([""]) == [[1, 2]]


def test_t5(gguf, data):
    tokens, types, t = load(data, "t5")
    file = gguf("t5", tokens, token_type=types, scores=[float(v[1]) for v in t["model"]["vocab"]], unknown_token_id=0,
                eos_token_id=2, add_space_prefix=True, remove_extra_whitespaces=True,
                precompiled_charsmap=base64.b64decode(t["normalizer"]["precompiled_charsmap"]))
    check(file, golden(data, "t5"))
    assert file.encode([""]) == [[2]]


def test_merges_on_marks(gguf, data):
    tokens, types, t = load(data, "fallback")
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    check(gguf("gemma4", tokens, token_type=types, merges=merges, unknown_token_id=0, add_bos_token=False),
          golden(data, "fallback"))


def texts(alphabet, n=150):
    rng = random.Random(3)
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 30))) for _ in range(n)]


def pieces(alphabet, n):
    rng = random.Random(4)
    return list(dict.fromkeys("".join(rng.choice(alphabet) for _ in range(rng.randint(2, 6))) for _ in range(n)))


def spm(text, scores):
    """SentencePiece's BPE: the best pair of neighbours first, the leftmost of equals."""
    parts = list(text.replace(" ", MARK))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in scores]
        if not pairs:
            return parts
        _, i = min(pairs)
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


def test_llama(gguf):
    alphabet = "ab c\u00e9"
    words = [c for c in (MARK, "a", "b", "c")] + [p.replace(" ", MARK) for p in pieces("ab c", 200)]
    words = list(dict.fromkeys(words))
    tokens = ["<unk>", "<s>", "</s>"] + BYTES + words
    scores = {w: -float(i) for i, w in enumerate(words)}
    file = gguf("llama", tokens, token_type=[UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words),
                scores=[0.0] * 259 + list(scores.values()))
    ids = {t: i for i, t in enumerate(tokens)}
    cases = [t for t in texts(alphabet) if t]
    for text, got in zip(cases, file.encode(cases)):
        want = [1]
        for part in spm(" " + text, scores):
            want += [ids[part]] if part in ids else [ids["<0x%02X>" % b] for b in part.encode()]
        assert got == want, text
    assert file.decode(file.encode(cases), "--no-special") == cases
    plain = gguf("llama", tokens, token_type=[UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words),
                 scores=[0.0] * 259 + list(scores.values()), add_space_prefix=False, add_bos_token=False,
                 add_eos_token=True)
    assert plain.encode(["a<s>b<unk>"]) == [[ids["a"], 1, ids["b"], 0, 2]]


def test_rwkv(gguf):
    alphabet = "ab\u00e9\n\t'\\\u6f22"
    words = [bytes([b]) for b in range(256)] + [p.encode()[1:] or b"a" for p in pieces(alphabet, 300)]
    words = list(dict.fromkeys(words))
    file = gguf("rwkv", ["<s>"] + [repr(w)[2:-1] for w in words], token_type=[CONTROL] + [NORMAL] * len(words))
    ids = {w: i + 1 for i, w in enumerate(words)}
    cases = texts(alphabet + "\0\x7f\U0001f642")
    for text, got in zip(cases, file.encode(cases)):
        raw, want = text.encode(), []
        while raw:
            n = max(n for n in range(1, 25) if raw[:n] in ids)
            want.append(ids[raw[:n]])
            raw = raw[n:]
        assert got == want, text
    assert file.decode(file.encode(cases)) == cases


def test_plamo(gguf):
    alphabet, rng = "abcd \u00e9", random.Random(5)
    words = ["a", "b", " "] + pieces(alphabet, 300)
    words = list(dict.fromkeys(words))
    scores = [-float(rng.randint(1, 40)) for _ in words]
    scores[5] = -3000.0 # below what is ever taken
    head = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    file = gguf("plamo2", head + BYTES + words, scores=[0.0] * 260 + scores,
                token_type=[CONTROL] * 4 + [BYTE] * 256 + [NORMAL] * len(words))
    cost = {w: round(-s * 1e4) for w, s in zip(words, scores) if s > -2000}
    cases = texts(alphabet)
    for text, got in zip(cases, file.encode(cases)):
        best = [(0, [])]
        for i in range(len(text) - 1, -1, -1):  # best[k]: of the last k characters
            unknown = [4 + b for b in text[i].encode()]
            options = [(best[-1][0] + 10 ** 7, -1, unknown + best[-1][1])]
            for n in range(1, 7):
                w = text[i:i + n]
                if len(w) == n and w in cost:
                    c, rest = best[len(best) - n]
                    options.append((c + cost[w], -n, [260 + words.index(w)] + rest))
            c, _, ids = min(options, key=lambda o: o[:2])
            best.append((c, ids))
        assert got == best[-1][1], text
    assert file.decode(file.encode(cases)) == cases


def test_token_types(gguf):
    tokens = list(maker.byte_characters().values()) + ["ab", "<s>", "[PAD]", "<tool>"]
    file = gguf("gpt2", tokens, pre="gpt-2", token_type=[NORMAL] * 257 + [CONTROL, UNUSED, USER], merges=["a b"])
    assert file.encode(["ab<s><tool>"]) == [[256, 257, 259]]
    assert len(file.encode(["[PAD]"])[0]) == 5  # padding is never matched
    assert file.decode([[256, 257, 258, 259]]) == ["ab<s><tool>"]
    assert file.decode([[256, 257, 258, 259]], "--no-special") == ["ab<tool>"]


def test_strip_attributes(gguf):
    tokens = list(maker.byte_characters().values()) + ["<mask>", "<s>", "ab"]
    types = [NORMAL] * 256 + [CONTROL] * 2 + [NORMAL]
    assert gguf("gpt2", tokens, pre="jina-v2-de", token_type=types, merges=["a b"]).encode(["a <mask> b"]) \
        == [[97, 256, 32, 98]]
    tokens[256] = "<|user|>"
    file = gguf("gpt2", tokens, pre="gpt-2", token_type=types, merges=["a b"], general_name="Phi-3-mini")
    assert file.encode(["<|user|>\n a<s> b"]) == [[256, 97, 257, 32, 98]]


def test_errors(gguf):
    tokens = list(maker.byte_characters().values()) + ["ab"]
    cases = [(("gpt2", tokens), {"pre": "no-such-name", "merges": ["a b"]}, 'pre: unknown "no-such-name"'),
             (("gpt9", tokens), {}, 'model: unknown "gpt9"'),
             (("hybriddna", tokens), {}, 'model: unknown "hybriddna"'),
             (("none", tokens), {}, "no tokenizer"),
             (("gpt2", tokens), {"pre": "gpt-2"}, "merges is missing"),
             (("gpt2", tokens), {"pre": "gpt-2", "merges": ["ab"]}, "not two texts"),
             (("gpt2", tokens), {"pre": "gpt-2", "merges": ["a x y"]}, "not in the vocabulary"),
             (("gpt2", tokens), {"pre": "gpt-2", "merges": ["a b"], "token_type": [9] * 257}, "unknown type 9"),
             (("gpt2", tokens), {"pre": "gpt-2", "merges": ["a b"], "token_type": [1]}, "expected 257"),
             (("gpt2", tokens), {"pre": "gpt-2", "merges": ["a b"], "bos_token_id": 257}, "expected less than 257"),
             (("llama", tokens), {}, "scores"), (("t5", tokens), {"scores": [1.0]}, "scores"),
             (("t5", tokens), {"scores": [float("nan")] * 257}, "finite"),
             (("t5", tokens), {"scores": [0.0] * 257, "precompiled_charsmap": b"123"}, "character map"),
             (("rwkv", ["\\x4"]), {}, "escape")]
    for args, keys, message in cases:
        assert message in gguf(*args, **keys).error(), keys
