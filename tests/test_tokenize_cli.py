"""turbolm tokenize: the command around the tokenizer, whose own results other tests compare."""
import json
import os
import subprocess

import pytest

import tiny_model as maker
import write_gguf


@pytest.fixture
def run(turbolm_bin, tiny_model):
    """run(args, input=b"") with the tiny model: (stdout, stderr) as bytes, the status checked."""

    def call(*args, input=b"", status=0, model=None):
        done = subprocess.run([turbolm_bin, "tokenize", "--model", str(model or tiny_model()), *map(os.fsencode, args)],
                              input=input, capture_output=True, timeout=60)
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr.decode()

    return call


def line(ids):
    return (" ".join(map(str, ids)) + "\n").encode()


def test_text_file_and_stdin(run, tmp_path):
    text = "a b\r\né\n\n"
    (tmp_path / "f").write_bytes(text.encode())
    want = line([maker.START] + list(text.encode())), ""
    assert run(text) == run("-f", tmp_path / "f") == run(input=text.encode()) == want
    assert run("--no-special", text)[0] == line(text.encode())
    assert run("--no-special", input=b"")[0] == b"\n"
    assert run("--no-special", "<|end|>\\n")[0] == line([maker.END] + list(b"\\n"))
    assert run("--no-special", "--", "-5")[0] == line(b"-5")


def test_nul_and_invalid_bytes(run, tmp_path):
    assert run("--no-special", input=b"a\0b\xff\xe6\xbcc")[0] == line(b"a\0b" + "\ufffd\ufffdc".encode())
    (tmp_path / "f").write_bytes(b"\0")
    assert run("--no-special", "--file", tmp_path / "f")[0] == line([0])
    assert run("--no-special", b"\xed\xa0\x80")[0] == line("\ufffd\ufffd\ufffd".encode())


def test_decode(run):
    ids = [maker.START] + list("é\0\n".encode()) + [maker.END]
    assert run("--decode", " ".join(map(str, ids)))[0] == "<|start|>é\0\n<|end|>".encode()
    assert run("--decode", "--no-special", input=b"\n" + line(ids))[0] == "é\0\n".encode()
    assert run("--decode", "97,98, 195")[0] == "ab\ufffd".encode()
    assert run("--decode", input=b"")[0] == b""
    for wrong in ("1 260", "1 -1", "1x", "1.5", "99999999999999999999999"):
        out, message = run("--decode", wrong, status=1)
        assert out == b"" and "not a token id" in message and message.count("\n") == 1


def test_lines(run):
    texts = ["", "a\"\\/\b\f\n\r\t\0\x1f", "é漢🙂 \u2028", "<|end|>"]
    data = "".join(json.dumps(t, ensure_ascii=i % 2 == 0) + "\n" for i, t in enumerate(texts)).encode()
    out = run("--jsonl", "--no-special", input=data)[0]
    want = [list(t.encode()) for t in texts[:3]] + [[maker.END]]
    assert [json.loads(x) for x in out.splitlines()] == want
    assert run("--jsonl", "--no-special", data.decode())[0] == out
    assert run("--jsonl", input=data.rstrip() + b" \r\n")[0].splitlines()[3] == b"[256, 257]"
    back = run("--jsonl", "--decode", input=out)[0]
    assert [json.loads(x) for x in back.decode().split("\n")[:-1]] == texts
    assert run("--jsonl", "--decode", "--no-special", input=b"[257,97]")[0] == b'"a"\n'


def test_surrogates_in_lines(run):
    cases = [("\\ud83d\\ude42", "🙂"), ("\\ud83d", "\ufffd"), ("\\ude42\\ud83d", "\ufffd\ufffd"),
             ("\\ud83dx", "\ufffdx"), ("\\ud83d\\ud83d\\ude42", "\ufffd🙂"), ("\\ud83d\\n", "\ufffd\n")]
    for text, want in cases:
        assert json.loads(run("--jsonl", "--no-special", '"%s"' % text)[0]) == list(want.encode())


def test_bad_lines(run):
    good = b'"a"\n'
    for bad in (b"", b"x", b"1", b"[1]", b'"a', b'"a" "b"', b'"\\x"', b'"\\u12g4"', b'"\\u12', b'"\x01"', b'"a\\'):
        out, message = run("--jsonl", input=good + bad + b"\n" + good, status=1)
        assert out == b"[256, 97]\n" and "standard input: line 2: " in message and message.count("\n") == 1
    for bad in (b'"a"', b"[1,]", b"[,1]", b"[1 2]", b"[260]", b"[-1]", b"[1.5]", b"[1", b"[1]x", b"[[1]]", b"[true]",
                b"[01]", b"[007, 2]", b"[1, 00]", b"[1e0]", b"[+1]", b"[\xc2\xa01]", b"[1\x0b]"):
        out, message = run("--jsonl", "--decode", input=b"[97]\n" + bad, status=1)
        assert out == b'"a"\n' and "line 2: " in message


def test_answers_come_line_by_line(turbolm_bin, tiny_model):
    with subprocess.Popen([turbolm_bin, "tokenize", "--model", tiny_model(), "--jsonl"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as p:
        for text in ("a", "b", "long" * 1000):
            p.stdin.write(json.dumps(text).encode() + b"\n")
            p.stdin.flush()
            assert json.loads(p.stdout.readline()) == [256] + list(text.encode())
        p.stdin.close()
        assert p.wait(60) == 0


def test_usage(run, tmp_path):
    assert "not allowed with argument" in run("-f", "x", "text", status=2)[1]
    assert "No such file" in run("-f", tmp_path / "none", status=1)[1]
    assert run("-f", tmp_path, status=1)[1].count("\n") == 1
    assert "no such file" in run("x", model=tmp_path / "none.gguf", status=1)[1]


def test_where_a_tokenizer_comes_from(run, tiny_model, tmp_path):
    folder = tiny_model(with_weights=False, template=None)
    want = line([256, 104, 105])
    assert run("hi", model=folder)[0] == want
    assert run("hi", model=os.path.join(folder, "tokenizer.json"))[0] == want
    tokens = list(maker.byte_characters().values()) + ["<s>", "hi"]
    write_gguf.write_metadata(tmp_path / "v.gguf", {
        "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 256 + [3, 1],
        "tokenizer.ggml.merges": ["h i"], "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.add_bos_token": True})
    assert run("hi", model=tmp_path / "v.gguf")[0] == b"256 257\n"
    assert run("--no-special", "hi<s>", model=tmp_path / "v.gguf")[0] == b"257 256\n"
