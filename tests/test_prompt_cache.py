"""Prompt cache files: what turbolm writes it goes on from as if there had been no file; what mlx-lm writes it reads."""
import gzip
import json
import os
import resource
import struct
import subprocess

import pytest

ROOT = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(ROOT, "data", "prompt_cache")
with open(os.path.join(DATA, "goldens.json"), encoding="utf-8") as f:
    GOLDENS = json.load(f)
CONFIG = GOLDENS["config"]
LONG = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 3
EXACT = ("--precision", "exact")
FORMATS = ["f16", "f32", "bf16", "fp8", "affine4g64", "affine3g32:affine3g32", "affine8g32:affine4g64",
           "chan4+pre+mix:tq4", "tq4.matched+c:tq4.matched", "rot4+qjl:affine4g64", "tq3", "prod3:tq2",
           "prod4.orth:tq4", "split2.5", "f16:tq4", "affine4g64;1=f16", "turbo3;0=f16"]


def golden(name, folder):
    path = os.path.join(str(folder), name + ".safetensors")
    with gzip.open(os.path.join(DATA, name + ".safetensors.gz")) as z, open(path, "wb") as out:
        out.write(z.read())
    return path


def read(path):
    """metadata, {name: (dtype, shape, bytes)}"""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    meta = header.pop("__metadata__")
    body = data[8 + n :]
    return meta, {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def write(path, meta, tensors):
    header, at = {"__metadata__": meta}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


@pytest.fixture
def tiny(tiny_model):
    return tiny_model(**CONFIG)


@pytest.fixture
def say(turbolm):
    """The text that generate prints."""

    def run(*args, **kwargs):
        got = turbolm("generate", "--verbose", "f", *args, **kwargs)
        assert got.returncode == 0, got.stderr
        return got.stdout

    return run


@pytest.fixture
def cached(turbolm, tiny, tmp_path):
    """Writes a file and returns its path."""

    def run(*args, prompt=LONG, model=tiny, name="p.safetensors"):
        path = str(tmp_path / name)
        got = turbolm("cache_prompt", "--model", model, "--prompt-cache-file", path, "--prompt", prompt, *args)
        assert got.returncode == 0, got.stderr
        return path

    return run


# --- our own files ---


@pytest.mark.parametrize("fmt", FORMATS)
def test_goes_on_as_if_uninterrupted(cached, say, tiny, fmt):
    path = cached("--kv-format", fmt)
    for more in ("", " And then?", "\nWhat?"):
        want = say("--model", tiny, "--prompt", LONG + more, "-m", 40, "--kv-format", fmt)
        assert say("--prompt-cache-file", path, "--prompt", more, "-m", 40) == want


@pytest.mark.parametrize("length", [1, 20, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("fmt", ["f16", "affine4g64", "turbo4"])
def test_every_length(cached, say, tiny, fmt, length):
    path = cached("--kv-format", fmt, "--kv-sink", 0, prompt=LONG[:length])
    want = say("--model", tiny, "--prompt", LONG[: length + 5], "-m", 20, "--kv-format", fmt, "--kv-sink", 0)
    assert say("--prompt-cache-file", path, "--prompt", LONG[length : length + 5], "-m", 20) == want


@pytest.mark.parametrize("extra", [("--max-kv-size", 100), ("--kv-bits", 4, "--quantized-kv-start", 150),
                                   ("--kv-bits", 4, "--quantized-kv-start", 5000), EXACT])
def test_settings_are_in_the_file(cached, say, tiny, extra):
    path = cached(*extra)
    want = say("--model", tiny, "--prompt", LONG + "x", "-m", 40, *extra)
    precision = extra if extra == EXACT else ()
    assert say("--prompt-cache-file", path, "--prompt", "x", "-m", 40, *precision) == want


def test_only_new_tokens_are_computed(cached, turbolm, tiny):
    path = cached()
    got = turbolm("generate", "--prompt-cache-file", path, "--prompt", " Yes.", "-m", 2)
    assert "\nPrompt: %d tokens" % len(" Yes.X[assistant](thinking)".encode()) in got.stdout.replace("Prompt: 0", "")


def test_another_prompt_is_computed_anew(cached, turbolm, say, tiny):
    path = cached()
    args = ["--system-prompt", "Be brief.", "--prompt", "Hm", "-m", 20]
    got = turbolm("generate", "--verbose", "f", "--prompt-cache-file", path, *args)
    assert got.stdout == say("--model", tiny, *args[:2], "--prompt", LONG + "Hm", "-m", 20)
    assert "warning: the prompt has only the first 2 of the " in got.stderr


def test_answer_with_a_beginning(cached, say, tiny):
    args = ["--prefill-response", "Well", "-m", 10, "--chat-template-config", '{"note": "!"}']
    want = say("--model", tiny, "--prompt", LONG + "why?", *args)
    assert say("--prompt-cache-file", cached(), "--prompt", "why?", *args) == want


def test_what_cache_prompt_prints(turbolm, tiny, tmp_path):
    got = turbolm("cache_prompt", "--model", tiny, "--prompt", "-", "--prompt-cache-file", tmp_path / "a", input="abc")
    lines = got.stdout.split("\n")
    assert got.returncode == 0 and lines[:2] == ["", "Processed      0 tokens (  0.00 tok/s)"]
    assert lines[2].startswith("Processed     10 tokens (")  # <|start|>[user]abc
    assert lines[3].startswith("Peak memory: ") and lines[4:] == ["Saving...", ""]
    assert os.listdir(tmp_path) == ["a.safetensors"]
    meta, _ = read(tmp_path / "a.safetensors")
    assert meta["0.model"] == tiny and json.loads(meta["0.tokenizer_config"]) == {"trust_remote_code": False}


def test_end_token_is_in_the_file(cached, say):
    want = say("--prompt-cache-file", cached(), "--prompt", "", "-m", 30)[:-1]
    path = cached("--eos-token", want[5], name="q.safetensors")
    assert say("--prompt-cache-file", path, "--prompt", "", "-m", 30)[:-1] == want[: want.index(want[5])]


# --- refusals ---


@pytest.mark.parametrize("made, used, message", [
    (("--kv-bits", 4), ("--kv-bits", 8), "--kv-bits does not match the kv cache"),
    (("--kv-bits", 4), ("--kv-group-size", 32), "--kv-group-size does not match the kv cache"),
    ((), ("--kv-bits", 4), "--kv-bits does not match the kv cache"),
    ((), ("--kv-format", "turbo4"), "the cache is f16, but the model was opened with a cache of chan4+pre+mix:tq4"),
    (("--kv-format", "tq4"), ("--kv-sink", 0), "--kv-sink does not match the kv cache"),
    ((), ("--max-kv-size", 90), "--max-kv-size does not match the kv cache"),
])
def test_contradictions(cached, turbolm, made, used, message):
    got = turbolm("generate", "--prompt-cache-file", cached(*made), "--prompt", "x", *used)
    assert got.returncode == 2 and message in got.stderr


def test_matching_flags_are_taken(cached, turbolm):
    path = cached("--kv-bits", 8, "--kv-group-size", 32)
    for flags in ([], ["--kv-bits", 8], ["--kv-bits", 8, "--kv-group-size", 32], ["--kv-group-size", 32]):
        got = turbolm("generate", "--prompt-cache-file", path, "--prompt", "x", "-m", 1, *flags)
        assert got.returncode == 0, got.stderr


@pytest.mark.parametrize("change", [{"rms_norm_eps": 1e-5, "num_hidden_layers": 1}, {"intermediate_size": 64}])
def test_another_model(cached, turbolm, tiny, tiny_model, change):
    other = tiny_model(**CONFIG, **change)
    got = turbolm("generate", "--model", other, "--prompt-cache-file", cached(), "--prompt", "x")
    assert got.returncode == 2
    assert ("error: Providing a different model (%s) than that used to create the prompt cache (%s) is an error.\n"
            % (other, tiny)) in got.stderr


def test_another_tokenizer(cached, turbolm, tiny_model):
    other = tiny_model(**CONFIG, renamed=((ord("t"), "<t>"),))
    got = turbolm("generate", "--model", other, "--prompt-cache-file", cached(), "--prompt", "x")
    assert got.returncode == 2 and "the tokenizer of %s is not that of" % other in got.stderr


def test_no_model_and_no_file(turbolm, tmp_path):
    got = turbolm("generate", "--prompt", "x")
    assert got.returncode == 2 and "the following arguments are required: --model" in got.stderr
    got = turbolm("generate", "--prompt", "x", "--prompt-cache-file", tmp_path / "none")
    assert got.returncode == 1 and "none" in got.stderr


def test_a_failed_write_leaves_the_old_file(turbolm, turbolm_bin, tiny, cached, tmp_path):
    path = cached()
    with open(path, "rb") as f:
        old = f.read()

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    got = subprocess.run([turbolm_bin, "cache_prompt", "--model", tiny, "--prompt", LONG, "--prompt-cache-file", path],
                         capture_output=True, encoding="utf-8", preexec_fn=small_files)
    assert got.returncode == 1 and got.stderr == "error: %s: cannot be written: File too large\n" % path
    with open(path, "rb") as f:
        assert f.read() == old
    assert os.listdir(tmp_path) == ["p.safetensors"]
    got = turbolm("cache_prompt", "--model", tiny, "--prompt", "x", "--prompt-cache-file", tmp_path / "no" / "x")
    assert got.returncode == 1 and "cannot be written: No such file or directory" in got.stderr


def i64(*numbers):
    return struct.pack("<%dq" % len(numbers), *numbers)


@pytest.mark.parametrize("fmt, change, message", [
    ("f16", {"2.entries": ("I64", [1, 3], i64(0, 65, 0)), "2.have.0": ("U8", [1], b"\2")}, "not sound"),
    ("f16", {"2.entries": ("I64", [1, 3], i64(0, 64, 1)), "2.have.0": ("U8", [1], b"\2")}, "not sound"),
    ("f16", {"2.entries": ("I64", [1, 3], i64(0, 64, 0)), "2.have.0": ("U8", [1], b"\2")}, "do not hold its"),
    ("f16", {"2.entries": ("I64", [1, 3], i64(-1, 64, 0)), "2.have.0": ("U8", [1], b"\2")}, "not sound"),
    ("f16", {"2.entries": ("I64", [1, 3], i64(0, 64, 0))}, "the blocks of layer group 0"),
    ("f16", {"2.entries": ("I64", [2], i64(0, 64))}, "tensor entries"),
    ("f16", {"2.tokens": ("I32", [3], b"\0" * 12)}, "3 tokens, but the layers have"),
    ("f16", {"2.tokens": ("F32", [3], b"\0" * 12)}, "tensor tokens"),
    ("f16", {"0.2": ("I32", [], struct.pack("<i", -1))}, "expected a whole number from 0 to"),
    ("f16", {"0.2": ("I32", [], struct.pack("<i", 10000))}, "expected a whole number from 0 to"),
    ("f16", {"0.1": ("F16", [1, 1, 2, 64], b"\0" * 256)}, "as many heads and tokens as keys"),
    ("tq4", {"0.sealed.0": ("U8", [1, 8], b"\0" * 8)}, "the blocks of layer group 0"),
    ("tq4", {"0.sealed.0": None}, "a block is missing"),
    ("tq4", {"0.have.0": ("U8", [6], b"\0" * 6)}, None),
    ("affine4g64", {"0.3": ("I32", [], struct.pack("<i", 48))}, "bits and group size"),
    ("affine4g64", {"0.0.1": ("F16", [1, 1, 1, 1], b"\0" * 2)}, "a float for each group of codes"),
])
def test_hostile_tensors(cached, turbolm, fmt, change, message):
    path = cached("--kv-format", fmt)
    meta, tensors = read(path)
    for name, value in change.items():
        assert name in tensors
        tensors[name] = value
    write(path, meta, {k: v for k, v in tensors.items() if v is not None})
    got = turbolm("generate", "--prompt-cache-file", path, "--prompt", "x", "-m", 2)
    assert got.returncode in (1, 2) and got.stderr.count("\n") == 1 + got.stderr.count("[INFO]"), got.stderr
    assert message is None or message in got.stderr


def test_hostile_channel_sets(cached, turbolm):
    path = cached("--kv-format", "chan4+pre+mix:tq4")
    meta, tensors = read(path)
    dtype, shape, data = tensors["0.sealed.0"]
    tensors["0.sealed.0"] = (dtype, shape, b"\xff" * len(data))
    write(path, meta, tensors)
    got = turbolm("generate", "--prompt-cache-file", path, "--prompt", "x", "-m", 2)
    assert got.returncode == 1 and "the channel sets of a block are not sound" in got.stderr


@pytest.mark.parametrize("fmt", ["f16", "turbo4"])
def test_truncated_files(cached, turbolm, fmt):
    path = cached("--kv-format", fmt)
    size = os.path.getsize(path)
    for n in (size - 1, size // 2, 100, 7, 0):
        with open(path, "r+b") as f:
            f.truncate(n)
        got = turbolm("generate", "--prompt-cache-file", path, "--prompt", "x")
        assert got.returncode == 1 and path in got.stderr


# --- files of mlx-lm ---


@pytest.mark.parametrize("case", GOLDENS["cases"])
def test_goes_on_from_files_of_mlx_lm(say, tiny, tmp_path, case):
    path = golden(case, tmp_path)
    got = say("--model", tiny, "--prompt-cache-file", path, "--prompt", GOLDENS["suffix"], "--ignore-chat-template",
              *EXACT, "-m", 24)
    assert got == GOLDENS["cases"][case]["generated"] + "\n"


def test_goes_on_from_the_older_form(say, tiny, tmp_path):
    path = golden("kv", tmp_path)
    _, tensors = read(path)
    old = {"1.tokenizer_config": "{}", "1.model": tiny}
    tokens = len(GOLDENS["cases"]["kv"]["text"])
    for i in range(2):
        old |= {"0.%d" % i: "", "2.%d" % i: "KVCache"}
        for part in "01":
            dtype, (_, _, rows, dim), data = tensors["%d.%s" % (i, part)]
            tensors["%d.%s" % (i, part)] = (dtype, [1, 1, tokens, dim], data[: len(data) // rows * tokens])
        del tensors["%d.2" % i]
    write(path, old, tensors)
    got = say("--prompt-cache-file", path, "--prompt", GOLDENS["suffix"], "--ignore-chat-template", *EXACT, "-m", 24)
    assert got == GOLDENS["cases"]["kv"]["generated"] + "\n"


@pytest.mark.parametrize("case, message", [
    ("arrays", "layer 0 is a ArraysCache of mlx-lm, which is for models with recurrent state"),
    ("chunked", "layer 0 is a ChunkedKVCache of mlx-lm, which is for models with chunked attention"),
    ("list", "layer 0 is a CacheList of mlx-lm, which is for models with several caches in one layer"),
])
def test_classes_that_no_model_here_has(turbolm, tiny, tmp_path, case, message):
    got = turbolm("generate", "--model", tiny, "--prompt-cache-file", golden(case, tmp_path), "--prompt", "x")
    assert got.returncode == 1 and message in got.stderr


def test_the_prompt_follows_a_file_of_mlx_lm(turbolm, tiny, tmp_path):
    """In the template, with a prefilled answer too, which makes mlx-lm lose the prompt."""
    path = golden("kv", tmp_path)
    for more, rest in (((), "[assistant](thinking)"), (("--prefill-response", "Oh"), "[assistant]Oh")):
        got = turbolm("generate", "--model", tiny, "--prompt-cache-file", path, "--prompt", "abc", "-m", 1, *more)
        # <|end|> is one token
        assert "\nPrompt: %d tokens" % (len("abc" + rest) + 1) in got.stdout, got.stderr


def test_another_name_is_another_model_to_files_of_mlx_lm(turbolm, tiny, tmp_path):
    path = golden("kv", tmp_path)
    meta, tensors = read(path)
    write(path, meta | {"0.model": "org/other"}, tensors)
    got = turbolm("generate", "--model", tiny, "--prompt-cache-file", path, "--prompt", "x")
    assert (got.returncode, got.stderr) == (
        2, "error: Providing a different model (%s) than that used to create the prompt cache (org/other) is an "
           "error.\n" % tiny)


def test_flags_against_files_of_mlx_lm(turbolm, tiny, tmp_path):
    path = golden("q8g32", tmp_path)
    args = ["generate", "--model", tiny, "--prompt-cache-file", path, "--prompt", "x", "-m", 1]
    assert "--kv-bits does not match" in turbolm(*args, "--kv-bits", 4).stderr
    assert "--kv-group-size does not match" in turbolm(*args, "--kv-bits", 8, "--kv-group-size", 64).stderr
    assert turbolm(*args).returncode == 0


# --- what mlx-lm sees ---


def test_format_that_mlx_lm_has_not(cached):
    meta, tensors = read(cached("--kv-format", "turbo4"))
    assert meta["1.0"] == "turbolm cache of format chan4+pre+mix:tq4, which mlx-lm does not have"
    assert "0.tokens" in tensors


@pytest.mark.parametrize("extra, name, numbers", [
    ((), "KVCache", {"2"}), (("--kv-bits", 4, "--quantized-kv-start", 0), "QuantizedKVCache", {"2", "3", "4"}),
    (("--max-kv-size", 100), "RotatingKVCache", {"2", "3", "4", "5"}),
])
def test_classes_that_mlx_lm_has(cached, extra, name, numbers):
    meta, tensors = read(cached(*extra))
    assert [meta["1.0"], meta["1.1"]] == [name] * 2 and meta["2.0"] == ""
    scalars = {meta[k] for k in meta if k.startswith("2.") and k.endswith(".0") and k != "2.0"}
    assert scalars == {"%d.%s" % (i, n) for i in range(2) for n in numbers}
    assert all(tensors[s][:2] == ("I32", []) for s in scalars)
