"""GGUF files that `convert --to gguf` writes: the same logits, the same token ids, the right bytes."""
import base64
import json
import os
import shutil
import sys

import numpy as np
import pytest

import read_gguf
import tiny_model
import write_gguf

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "data", "goldens")
sys.path.insert(0, os.path.join(HERE, "oracle"))
import make_model  # noqa: E402

MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def golden(name):
    with open(os.path.join(GOLDENS, name + ".json")) as f:
        return json.load(f)


def write_dir(folder, g, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(g["config"] | config))
    make_model.write_safetensors(str(folder / "model.safetensors"), make_model.tensors_of(g))
    return folder


@pytest.fixture
def convert(turbolm, tmp_path):
    """convert(source, type=…) writes a file and gives its path and what went to stderr."""

    def run(source, name="out.gguf", kind=None, status=0):
        out = tmp_path / name
        args = ["--gguf-type", kind] if kind else []
        done = turbolm("convert", "--hf-path", source, "--to", "gguf", "--out", out, *args)
        assert done.returncode == status, done.stderr
        assert out.exists() == (status == 0)
        assert not [f for f in os.listdir(tmp_path) if ".part-" in f]
        return out, done.stderr

    return run


@pytest.fixture
def logits(turbolm, tmp_path):
    def run(model, tokens):
        out = tmp_path / "l.npy"
        done = turbolm("logits", "--model", model, "--ids", " ".join(map(str, tokens)), "--out", out,
                       "--precision", "exact")
        assert done.returncode == 0, done.stderr
        return np.load(out)

    return run


# ---- weights and metadata ----

NAMES = [n[:-5] for n in sorted(os.listdir(GOLDENS)) if n.endswith(".json")]
SAYABLE = [n for n in NAMES if not n.startswith(("llama-dynamic", "llama-swa"))]


@pytest.mark.parametrize("name", SAYABLE)
def test_logits_of_goldens(convert, logits, tmp_path, name):
    """Permuted rows, norms of 1 + w, rotary settings and sliding periods arrive."""
    g = golden(name)
    path, _ = convert(write_dir(tmp_path / "dir", g), kind="F32")
    want = np.frombuffer(base64.b64decode(g["logits"]), "<f4").reshape(-1, g["config"]["vocab_size"])
    tolerance = max(10 * golden(name.removesuffix(".hf"))["sensitivity"], 1e-4)
    assert np.abs(logits(path, g["tokens"]) - want).max() <= tolerance


def test_as_a_converter_writes_it(convert, tmp_path):
    """Tensor for tensor what the tests' own writer of such files makes of it."""
    for name in ["llama.hf", "llama-yarn.hf", "qwen2.hf", "qwen3.hf"]:
        g = golden(name)
        path, _ = convert(write_dir(tmp_path / name, g), name + ".gguf", kind="F32")
        write_gguf.write(tmp_path / "want.gguf", g["config"], make_model.tensors_of(g))
        meta, _, tensors = read_gguf.read(path)
        want_meta, _, want = read_gguf.read(tmp_path / "want.gguf")
        assert tensors.keys() == want.keys()
        for t in want:
            if t != "rope_freqs.weight":
                assert tensors[t] == want[t], t
        if "rope_freqs.weight" in want:
            got, ref = (np.frombuffer(x["rope_freqs.weight"][2], "<f4") for x in (tensors, want))
            assert np.abs(got / ref - 1).max() < 1e-5 and got.min() == 1 and got.max() == 8
        for k, v in want_meta.items():
            assert meta[k] == pytest.approx(v) if isinstance(v, float) else meta[k] == v, k


def test_types(convert, tmp_path):
    """Matrices get the type, vectors are F32, rows that no block divides are F16."""
    source = tiny_model.make(tmp_path / "dir", intermediate_size=80)
    for kind in ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"]:
        path, _ = convert(source, kind + ".gguf", kind)
        meta, kinds, tensors = read_gguf.read(path)
        for name, (label, shape, _) in tensors.items():
            odd = shape[-1] % 32 and kind.startswith("Q")
            assert label == ("F32" if len(shape) == 1 else "F16" if odd else kind), name
        number = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}[kind]
        assert (meta["general.file_type"], kinds["general.file_type"]) == (number, "u32")
        assert meta["general.architecture"] == "llama" and meta["general.quantization_version"] == 2
        assert meta["llama.rope.freq_base"] == 10000 and kinds["llama.rope.freq_base"] == "f32"


@pytest.mark.parametrize("folder, name", [("a--b.c", "a--b.c"), ("models--org--my-model/snapshots/0a1b", "my-model")])
def test_name(convert, tmp_path, folder, name):
    source = tiny_model.make(tmp_path / folder)
    assert read_gguf.read(convert(source + "/")[0])[0]["general.name"] == name


def test_usual_type(convert, tmp_path):
    source = tiny_model.make(tmp_path / "dir")
    assert read_gguf.read(convert(source)[0])[2]["token_embd.weight"][0] == "F32"


def test_from_gguf(convert, logits, tmp_path):
    """Metadata and vocabulary are carried over; blocks of the same type byte for byte."""
    source = tiny_model.make(tmp_path / "dir")
    first, _ = convert(source, "first.gguf", "Q4_1")
    again, _ = convert(first, "again.gguf", "Q4_1")
    assert read_gguf.read(first) == read_gguf.read(again)
    wide, _ = convert(first, "wide.gguf", "F32")
    meta, kinds, _ = read_gguf.read(first)
    wide_meta, wide_kinds, tensors = read_gguf.read(wide)
    assert wide_kinds == kinds
    assert wide_meta == meta | {"general.file_type": 0}
    assert {t[0] for t in tensors.values()} == {"F32"}
    ids = tiny_model.encode("the same logits")
    assert np.abs(logits(first, ids) - logits(wide, ids)).max() < 1e-4


def test_gemma_from_gguf(convert, logits, tmp_path):
    g = golden("gemma3_text.hf")
    first, _ = convert(write_dir(tmp_path / "dir", g), "first.gguf", "F32")
    again, _ = convert(first, "again.gguf", "F32")
    assert read_gguf.read(first) == read_gguf.read(again)


def test_sliding_that_files_cannot_say(convert, tmp_path):
    _, said = convert(write_dir(tmp_path / "dir", golden("llama-swa")), kind="F32")
    assert "no sliding layers for architecture llama: its results are the same up to 6 tokens" in said


@pytest.mark.parametrize("name, config, message", [
    ("llama-dynamic", {}, "rope type 'dynamic'"),
    ("qwen2", {"rope_scaling": golden("llama")["config"]["rope_scaling"]}, "rope type 'llama3'"),
    ("qwen3", {"hidden_act": "gelu"}, "another activation"),
    ("qwen3", {"rope_traditional": True}, "rope_traditional"),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.5}}, "attention_factor"),
    ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
    ("gemma3_text", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 4}, "order of sliding layers"),
])
def test_refused_configs(convert, tmp_path, name, config, message):
    g = golden(name)
    _, said = convert(write_dir(tmp_path / "dir", g, **config), status=1)
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize("args, message", [
    (["--gguf-type", "Q4_0"], "argument --gguf-type: needs --to gguf"),
    (["--to", "gguf"], "argument --to: gguf needs --mlx-path FILE.gguf"),
    (["--to", "gguf", "--out", "x.gguf", "-q"], "argument --quantize/-q: not allowed with --to gguf"),
    (["--to", "gguf", "--out", "x.gguf", "--dtype", "float16"], "argument --dtype: not allowed with --to gguf"),
    (["--to", "gguf", "--out", "x.gguf", "--gguf-type", "Q5_0"], "invalid choice: 'Q5_0'"),
])
def test_usage(turbolm, tmp_path, args, message):
    done = turbolm("convert", "--model", tmp_path, *args)
    assert done.returncode == 2 and message in done.stderr


def test_not_finite(convert, tmp_path):
    source = tiny_model.make(tmp_path / "dir")
    path = tmp_path / "dir" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(np.inf).tobytes()
    path.write_bytes(data)
    for kind in ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"]:
        _, said = convert(source, kind=kind, status=1)
        assert "is not finite or too large for" in said


def test_mlx_quantised_source(turbolm, convert, logits, tmp_path):
    """Codes are decoded first."""
    source = tiny_model.make(tmp_path / "dir")
    done = turbolm("convert", "--model", source, "--out", tmp_path / "q", "-q", "--q-group-size", "32")
    assert done.returncode == 0, done.stderr
    path, _ = convert(tmp_path / "q", kind="F32")
    ids = tiny_model.encode("coded")
    assert np.abs(logits(path, ids) - logits(tmp_path / "q", ids)).max() < 1e-4


# ---- tokenizers ----

TEXTS = ["", " ", "  a  b   c    ", "Hello, world! It's 12345 o'clock.", "caf\u00e9 na\u00efve \u00fcber",
         "\n\n\t x\r\n", "\u4f60\u597d\uff0c\u4e16\u754c", "\U0001f600\U0001f469\u200d\U0001f4bb", "<s>a</s><unk>",
         "a<|start|>b <|end|> ", "def f(x):\n    return x+1\n", MARK + "x" + MARK * 3, "don't DON'T we'll", "x" * 40]


def ids_of(turbolm, path, texts=TEXTS, *args):
    done = turbolm("tokenize", "--model", path, "--jsonl", *args, input="".join(json.dumps(t) + "\n" for t in texts))
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def with_tokenizer(folder, root, name, rows, change=lambda t: None):
    tiny_model.make(folder, tokenizer=False, vocab_size=rows)
    with open(os.path.join(root, "tests", "data", "tokenizer", name + ".json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    special = {t["content"] for t in tokenizer["added_tokens"]}
    names = {k: v for k, v in {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}.items() if v in special}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer


def plain_level(t):
    """The splitting and nothing else that files cannot say."""
    t["normalizer"] = None
    for a in t["added_tokens"]:
        a |= {"lstrip": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize("name, rows, change, model, pre", [
    ("level", 710, plain_level, "gpt2", "llama-bpe"),
    ("spm", 900, lambda t: None, "llama", "default"),
    ("fallback", 801, lambda t: None, "llama", "default"),
])
def test_same_ids(turbolm, convert, root, tmp_path, name, rows, change, model, pre):
    tokenizer = with_tokenizer(tmp_path / "dir", root, name, rows, change)
    path, said = convert(tmp_path / "dir")
    assert said == ""
    assert ids_of(turbolm, path) == ids_of(turbolm, tmp_path / "dir")
    assert ids_of(turbolm, path, TEXTS, "--no-special") == ids_of(turbolm, tmp_path / "dir", TEXTS, "--no-special")
    meta, kinds, _ = read_gguf.read(path)
    assert (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) == (model, pre)
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == rows
    vocab = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    special = {t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    for i, (token, kind) in enumerate(zip(tokens, types)):
        if i in special:
            assert kind == CONTROL
        elif i not in vocab and not any(t["id"] == i for t in tokenizer["added_tokens"]):
            assert (token, kind) == ("[PAD%d]" % i, UNUSED)
        elif kind == NORMAL:
            assert token == vocab[i]
    assert (model == "llama") == ("tokenizer.ggml.scores" in meta) == (BYTE in types)
    assert meta["tokenizer.ggml.add_bos_token"] == (name != "fallback")
    assert meta["tokenizer.ggml.add_eos_token"] == (name == "level")
    assert meta["tokenizer.ggml.add_space_prefix"] == (name == "spm")


def test_same_ids_from_sentencepiece(turbolm, convert, root, tmp_path):
    """Of a tokenizer.model the scores are its own."""
    source = os.path.join(root, "tests", "data", "tokenizer", "sentencepiece")
    tiny_model.make(tmp_path / "dir", tokenizer=False, vocab_size=1000)
    for f in os.listdir(source):
        shutil.copy(os.path.join(source, f), tmp_path / "dir")
    assert "no form in GGUF files" in convert(tmp_path / "dir", status=1)[1]  # a character map, spaces merged
    (tmp_path / "dir" / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    path, said = convert(tmp_path / "dir")
    assert "this one not where one is there" in said and said.count("\n") == 1
    texts = [t for t in TEXTS if "<s>" not in t and t[:1] not in (" ", MARK)]
    assert ids_of(turbolm, path, texts) == ids_of(turbolm, tmp_path / "dir", texts)
    meta, _, _ = read_gguf.read(path)
    scores, types = meta["tokenizer.ggml.scores"], meta["tokenizer.ggml.token_type"]
    normal = [s for s, t in zip(scores, types) if t == NORMAL]
    assert meta["tokenizer.ggml.model"] == "llama" and len(set(normal)) > 100 and max(normal) <= 0


def test_chat_template(turbolm, convert, tmp_path):
    source = tiny_model.make(tmp_path / "dir")
    (tmp_path / "dir" / "additional_chat_templates").mkdir()
    (tmp_path / "dir" / "additional_chat_templates" / "short.jinja").write_text("{{ messages[0].content }}")
    path, _ = convert(source)
    meta, _, _ = read_gguf.read(path)
    assert meta["tokenizer.chat_template"] == tiny_model.TEMPLATE
    assert meta["tokenizer.chat_template.short"] == "{{ messages[0].content }}"
    assert meta["tokenizer.chat_templates"] == ["short"]
    assert (meta["tokenizer.ggml.bos_token_id"], meta["tokenizer.ggml.eos_token_id"]) == (256, 257)
    args = ["--prompt", "hi", "--max-tokens", "8", "--temp", "0", "--verbose", "False"]
    texts = [turbolm("generate", "--model", m, *args).stdout for m in (source, path)]
    assert texts[0] == texts[1] != ""


def test_all_ends_of_an_answer(turbolm, convert, tmp_path):
    prompt = tiny_model.SPECIAL[0] + "ends"
    text = tiny_model.greedy(tiny_model.encode(prompt), 12)
    stop = ord(text[5])
    source = tiny_model.make(tmp_path / "dir", template=None, renamed=((stop, "<|stop|>"),))
    (tmp_path / "dir" / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, stop, 258]}))
    path, said = convert(source)
    assert said == ""
    meta = read_gguf.read(path)[0]
    assert [meta["tokenizer.ggml.%s_token_id" % k] for k in ("eos", "eot", "eom")] == [257, stop, 258]
    args = ["--prompt", "ends", "--max-tokens", "12", "--temp", "0", "--verbose", "False"]
    assert turbolm("generate", "--model", path, *args).stdout.rstrip("\n") == text[: text.index(chr(stop))]
    (tmp_path / "dir" / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2, 3]}))
    assert "the file says of 3 ids that they end an answer; 3 is left out" in convert(source, "more.gguf")[1]


def test_no_tokenizer(turbolm, convert, logits, tmp_path):
    source = tiny_model.make(tmp_path / "dir", tokenizer=False, template=None)
    path, said = convert(source)
    assert "there is no tokenizer" in said
    assert read_gguf.read(path)[0]["tokenizer.ggml.model"] == "no_vocab"
    assert logits(path, [1, 2, 3]).shape == (3, 260)


def other_order(t):
    """The first merge once more under another split, at the end."""
    m = t["model"]["merges"]
    first = m[0] if isinstance(m[0], list) else m[0].split(" ")
    whole = "".join(first)
    t["model"]["vocab"].setdefault(whole[:1], 0)
    longer = next(x for x in ((a if isinstance(a, list) else a.split(" ")) for a in m)
                  if len("".join(x)) > 2 and len(x[0]) > 1)
    text = "".join(longer)
    m.append([text[:1], text[1:]] if text[1:] in t["model"]["vocab"] else [text[:-1], text[-1:]])


def set_pattern(t):
    plain_level(t)
    t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+|[^\\w]"


def set_template(t):
    plain_level(t)
    t["post_processor"]["single"].insert(0, {"SpecialToken": {"id": "</s>", "type_id": 0}})


@pytest.mark.parametrize("name, change, message", [
    ("level", set_pattern, "splits as none of the values of tokenizer.ggml.pre"),
    ("level", set_template, "puts other tokens around a text"),
    ("suffix", lambda t: None, "is not written to GGUF files"),
    ("unigram", lambda t: None, "is not written to GGUF files"),
    ("spm", lambda t: t.update(normalizer={"type": "NFKC"}), "has no form in GGUF files"),
    ("fallback", other_order, "stands apart from others with the same result"),
])
def test_refused_tokenizers(convert, root, tmp_path, name, change, message):
    with_tokenizer(tmp_path / "dir", root, name, 1000, change)
    _, said = convert(tmp_path / "dir", status=1)
    assert message in said and said.count("\n") == 1 and str(tmp_path / "dir") in said


def test_what_files_cannot_say(convert, root, tmp_path):
    with_tokenizer(tmp_path / "dir", root, "level", 700)
    _, said = convert(tmp_path / "dir")
    assert "whose normalizer is another one" in said
    assert "(lstrip, rstrip, single_word) has no form in GGUF files" in said
    assert "tokens from id 700 on are left out" in said
