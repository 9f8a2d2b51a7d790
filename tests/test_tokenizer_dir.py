"""Model directories: special tokens that stand beside the vocabulary, tiktoken files and
SentencePiece models, whole and damaged. Expected ids are what transformers 5.24 gives."""
import base64
import json
import os
import random
import shutil
import subprocess

import pytest

import tiny_model as maker


@pytest.fixture
def ids(turbolm):
    """ids(folder, text, ...) is what `tokenize` prints."""

    def call(folder, *args):
        done = turbolm("tokenize", "--model", folder, *args)
        assert (done.returncode, done.stderr) == (0, "")
        return [int(i) for i in done.stdout.split()]

    return call


@pytest.fixture
def folder(tmp_path):
    """folder(**files) is a directory with the tiny tokenizer.json and files as JSON; None leaves one out."""

    def make(special=(), **files):
        path = maker.make(tmp_path / "m", with_weights=False, template=None, special=special)
        for name, content in files.items():
            file = os.path.join(path, name + ".json")
            if content is None:
                os.remove(file)
            else:
                with open(file, "w", encoding="utf-8") as f:
                    json.dump(content, f)
        return path

    return make


def test_named_tokens_get_ids(folder, ids):
    path = folder(tokenizer_config={"bos_token": "a", "pad_token": "<new>", "eos_token": None,
                                    "mask_token": {"content": "<m>", "lstrip": True},
                                    "additional_special_tokens": ["<x>", "a"]}, special=maker.SPECIAL)
    assert ids(path, "--no-special", "<new>b <m><x>a") == [260, 98, 261, 262, 97]
    done = ids(path, "--no-special", "aab")
    assert done == [97, 97, 98]  # "a" is cut out before the model


def test_added_tokens_decoder(folder, ids):
    added = {"256": {"content": "<|start|>", "special": True}, "257": {"content": "<y>", "special": False},
             "258": {"content": "<z>", "special": True, "rstrip": True}}
    path = folder(tokenizer_config={"added_tokens_decoder": added}, added_tokens={"<never>": 259})
    assert ids(path, "--no-special", "<y><z>  <|start|>") == [257, 258, 256]
    assert len(ids(path, "--no-special", "<never>")) == 7


def test_added_tokens_file(folder, ids):
    path = folder(tokenizer_config={"eos_token": "<e>"}, added_tokens={"<y>": 256, "<e>": 257})
    assert ids(path, "--no-special", "<y><e>") == [256, 257]


def test_special_tokens_map(folder, ids):
    path = folder(tokenizer_config={"add_bos_token": True, "add_eos_token": True, "bos_token": "<b>"},
                  special_tokens_map={"bos_token": "<other>", "eos_token": {"content": "<e>"}})
    assert ids(path, "x") == [256, 120, 257]
    assert ids(path, "--no-special", "<other>") == [256] and len(ids(path, "--no-special", "<b>")) == 3
    path = folder(tokenizer_config={"bos_token": "<b>", "added_tokens_decoder": {}},
                  special_tokens_map={"bos_token": "<other>"})
    assert ids(path, "--no-special", "<b>") == [256] and len(ids(path, "--no-special", "<other>")) == 7


def test_config_errors(turbolm, folder):
    for config, message in (({"bos_token": 3}, "bos_token"), ({"added_tokens_decoder": {"x": {}}}, "no token id"),
                            ({"added_tokens_decoder": {"97": {"content": "<q>"}}}, "another token"),
                            ({"tokenizer_class": 1}, "tokenizer_class"), ({"add_bos_token": "yes"}, "add_bos_token")):
        done = turbolm("tokenize", "--model", folder(tokenizer_config=config), "x")
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


# tiktoken and SentencePiece ---------------------------------------------------------


def tiktoken_lines(tokens=(b"ab", b"abc", b" a")):
    words = [bytes([b]) for b in range(256)] + list(tokens)
    return b"".join(base64.b64encode(w) + b" %d\n" % i for i, w in enumerate(words))


def vocabulary(path, name, data, **config):
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(data)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_families(tmp_path, ids):
    data = tiktoken_lines()
    qwen = vocabulary(tmp_path / "q", "qwen.tiktoken", data, tokenizer_class="QWenTokenizer")
    assert ids(qwen, "abc<|endoftext|><|im_start|><|extra_0|><|extra_204|>12") == [257, 259, 260, 262, 466, 49, 50]
    added = {259: {"content": "[gMASK]", "special": True}, 260: {"content": "<sop>", "special": True}}
    glm = vocabulary(tmp_path / "g", "tokenizer.model", data, tokenizer_class="ChatGLM4Tokenizer",
                     added_tokens_decoder=added)
    assert ids(glm, " abab") == [259, 260, 32, 256, 256]
    assert ids(glm, "--no-special", "<sop>") == [260]
    phi = vocabulary(tmp_path / "p", "cl100k_base.tiktoken", data, tokenizer_class="Phi3SmallTokenizer")
    assert ids(phi, "<|dummy_id_2|><|endoftext|><|end|><|dummy_id_3|><|endofprompt|><|dummy_id_12|>") \
        == [259, 260, 269, 270, 279, 280]
    plain = vocabulary(tmp_path / "f", "tokenizer.model", data, tokenizer_class="PreTrainedTokenizerFast",
                       added_tokens_decoder={261: {"content": "<x>", "special": True}}, extra_special_tokens=["<w>"])
    assert ids(plain, "<|reserved_token_259|><x><w>") == [259, 261, 262]


def test_tiktoken_errors(turbolm, tmp_path):
    good, lines = tiktoken_lines(), tiktoken_lines().splitlines(True)
    cases = [(good, {}, "tokenizer_class"), (good, {"tokenizer_class": "OddTokenizer"}, "OddTokenizer")]
    cases += [(data, {"tokenizer_class": "QWenTokenizer"}, message) for data, message in (
        (b"", "byte 0"), (b"".join(lines[1:]), "byte 0"), (good + b"YWJj\n", "line 260"),
        (good + b"YWJj x\n", "line 260"),
        (good + b"YWJj 99999999999\n", "line 260"), (good + b"Y?Jj 300\n", "line 260"), (good + b" 300\n", "line 260"),
        (good + b"YWJj 5\n", "second token"), (good + b"YWJj 300 1\n", "line 260"))]
    for data, config, message in cases:
        path = vocabulary(tmp_path / "t", "x.tiktoken", data, **config)
        done = turbolm("tokenize", "--model", path, "x")
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


def test_sentencepiece_class(turbolm, root, tmp_path):
    path = shutil.copytree(os.path.join(root, "tests", "data", "tokenizer", "sentencepiece"), tmp_path / "s")
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    done = turbolm("tokenize", "--model", path, "x")
    assert done.returncode == 1 and "XLMRobertaTokenizer" in done.stderr
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true}')
    assert turbolm("tokenize", "--model", path, "x").stdout.startswith("1 ")


@pytest.mark.parametrize("name", ["sentencepiece", "tiktoken"])
def test_damaged(turbolm_bin, root, tmp_path, name):
    """Cut and bit-flipped files open or give one line, never a crash."""
    path = shutil.copytree(os.path.join(root, "tests", "data", "tokenizer", name), tmp_path / "d")
    file = path / ("tokenizer.model" if name == "sentencepiece" else "tiktoken.model")
    data, rng = file.read_bytes(), random.Random(6)
    refused = 0
    for k in range(120):
        broken = bytearray(data)
        if k % 2:
            del broken[rng.randrange(len(data)):]
        else:
            for _ in range(3):
                broken[rng.randrange(min(len(data), 400 if k % 4 else len(data)))] ^= 1 << rng.randrange(8)
        file.write_bytes(broken)
        done = subprocess.run([turbolm_bin, "tokenize", "--model", path, "x 1"], capture_output=True, timeout=60)
        assert done.returncode in (0, 1) and done.stderr.count(b"\n") == done.returncode
        refused += done.returncode
    assert refused > 30
