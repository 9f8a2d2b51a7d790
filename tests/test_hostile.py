"""Files that lie: every command that opens one ends soon, in little memory, with status 1 and one
line that names the file and what is wrong in it."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import tempfile
import threading

import numpy as np
import pytest

import tiny_model
import write_gguf

SECONDS = 20              # of processor time
MEGABYTES = 400           # of resident memory, far above what a tiny model needs
SANITIZED = os.environ.get("TURBOLM_LIB") == ""
CONFIG = {
    "model_type": "llama", "vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}
GENERATE = ("-p", "hi", "-m", "1")


class Done:
    def __init__(self, code, out, err, rss):
        self.returncode, self.stdout, self.stderr, self.megabytes = code, out, err, rss / 1024


@pytest.fixture(scope="module")
def run(turbolm_bin):
    """run("inspect", path) with bounds on time and memory."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))

    def start(*args, stdout=None):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            p = subprocess.Popen([turbolm_bin, *map(str, args)], stdin=subprocess.DEVNULL, stdout=stdout or out,
                                 stderr=err, preexec_fn=limit)
            timer = threading.Timer(5 * SECONDS, p.kill)
            timer.start()
            _, status, usage = os.wait4(p.pid, 0)
            timer.cancel()
            p.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            return Done(p.returncode, out.read().decode(), err.read().decode(), usage.ru_maxrss)

    return start


@pytest.fixture(scope="module")
def refused(run):
    """refused(args, words): one error line that holds every word, and nothing else went wrong."""

    def check(args, *words, status=1):
        done = run(*args)
        context = "%s\n%s" % (args, done.stderr)
        assert done.returncode in (status if isinstance(status, tuple) else (status,)), context
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: "), context
        for word in words:
            assert str(word) in done.stderr, (word, context)
        assert SANITIZED or done.megabytes < MEGABYTES, "%.0f MB: %s" % (done.megabytes, context)
        return done.stderr

    return check


def accepted(done):
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def put(path, data):
    """data: bytes, text, or parts of either, (part, times) among them."""
    with open(path, "wb") as f:
        for part in data if isinstance(data, list) else [data]:
            part, times = part if isinstance(part, tuple) else (part, 1)
            for _ in range(times):
                f.write(part.encode() if isinstance(part, str) else part)
    return path


def many(unit, times):
    """unit * times for put, without ever holding it: what is resident here counts in the program's peak."""
    return [(unit * 1000, times // 1000)]


@pytest.fixture
def folder(tmp_path):
    """A good model directory of its own, to be spoilt."""
    return tiny_model.make(tmp_path / "model")


# JSON files of a directory --------------------------------------------------------------------------

NEEDED = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
          "special_tokens_map.json", "model.safetensors.index.json"]

BROKEN_JSON = {
    "empty": b"",
    "white space": b" \n\t ",
    "one bracket": b"{",
    "open string": b'{"a": "b',
    "cut": b'{"a": [1, {"b": tru',
    "two values": b"{} {}",
    "comment": b"{/**/}",
    "trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "bare word": b"{a: 1}",
    "leading zero": b'{"a": 01}',
    "lone sign": b'{"a": -}',
    "plus": b'{"a": +1}',
    "hexadecimal": b'{"a": 0x10}',
    "NUL": b'{"a": 1}\0',
    "control character": b'{"a": "\x01"}',
    "bad escape": b'{"a": "\\x"}',
    "short escape": b'{"a": "\\u12"}',
    "invalid UTF-8": b'{"a": "\xff"}',
    "overlong UTF-8": b'{"a": "\xc0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "not JSON": b"\x7fELF" + bytes(100),
    "100,000 brackets": b"[" * 100000 + b"]" * 100000,
    "100,000 open brackets": b"[" * 100000,
    "100,000 objects": b'{"a":' * 100000 + b"1" + b"}" * 100000,
    "an array": b"[1, 2]",
    "a string": b'"model"',
    "a number": b"7",
    "null": b"null",
}


@pytest.mark.parametrize("name", NEEDED)
def test_broken_json(refused, folder, name):
    for kind, data in BROKEN_JSON.items():
        put(os.path.join(folder, name), data)
        line = refused(("generate", "--model", folder, *GENERATE), name)
        assert len(line) < 400, kind


def test_json_larger_than_sense(refused, folder):
    config = os.path.join(folder, "config.json")
    for data in (["[", *many("1,", 10_000_000), "1]"], ['{"a": "', *many("x", 100_000_000), '"}'],
                 ['{"a": ', *many("9", 1_000_000), "}"], ["{", *many('"a":{},', 5_000_000), '"b":1}']):
        put(config, data)
        refused(("inspect", folder), config)


def test_words_of_python_in_unread_fields(run, folder):
    """json.load takes NaN and Infinity, so files have them."""
    config = dict(tiny_model.CONFIG, unread=float("nan"), more=[float("inf"), {"x": float("-inf")}],
                  text='NaN "quoted" \\ Infinity')
    put(os.path.join(folder, "config.json"), json.dumps(config))
    put(os.path.join(folder, "generation_config.json"), '{"eos_token_id": 257, "temperature": NaN}')
    accepted(run("generate", "--model", folder, *GENERATE))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("field", ["rope_theta", "rms_norm_eps", "hidden_size"])
def test_words_of_python_in_read_fields(refused, folder, field, word):
    text = json.dumps({k: v for k, v in tiny_model.CONFIG.items() if k != field})
    put(os.path.join(folder, "config.json"), '{"%s": %s, %s' % (field, word, text[1:]))
    refused(("inspect", folder), "config.json: %s" % field)


INTEGER = ["7", [7], {}, True, 1.5, -1, 0, 1e300, -1e300, 2**53 + 2, 1e18]
TRUTH = ["true", 1, 0.0, [], {}]
WRONG = {
    "model_type": [7, [], {}, True, "", "no_such_model", "x" * 100_000, "llama\n\x1b[31m"],
    "vocab_size": INTEGER + [2**31], "hidden_size": INTEGER + [63, 2**31], "num_hidden_layers": INTEGER + [2**20],
    "intermediate_size": INTEGER + [2**40], "num_attention_heads": INTEGER + [2**20, 3],
    "num_key_value_heads": [v for v in INTEGER if v] + [3, 2**20], "head_dim": [v for v in INTEGER if v] + [7, 2**20],
    "max_position_embeddings": INTEGER, "sliding_window": [v for v in INTEGER if v != 0],
    "rms_norm_eps": ["1e-5", [], {}, True, 1e300], "rope_theta": ["1", [], {}, False, 0, -5, 1e300],
    "hidden_act": [1, [], "softmax"], "tie_word_embeddings": TRUTH, "attention_bias": TRUTH, "mlp_bias": TRUTH,
    "rope_traditional": TRUTH, "eos_token_id": ["x", {}, True, 1.5, -1, 260, [1, "x"], [[1]], [7] * 300, 1e300],
    "layer_types": ["full_attention", {}, [], [1, 2], ["full_attention"] * 3, ["full_attention", "other"]],
    "rope_scaling": [{"type": 7}, {"type": "no such"}, {"type": "linear"}, {"type": "linear", "factor": "2"},
                     {"type": "linear", "factor": 0}, {"type": "linear", "factor": -1}, {"type": "yarn", "factor": []},
                     {"type": "yarn", "factor": 2, "beta_fast": "x"},
                     {"type": "yarn", "factor": 2, "original_max_position_embeddings": 1.5},
                     {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1},
                     {"type": "longrope", "original_max_position_embeddings": 4},
                     {"type": "longrope", "original_max_position_embeddings": 4, "long_factor": [1], "short_factor": 1},
                     {"type": "dynamic", "factor": {}}],
}


@pytest.mark.parametrize("field", sorted(WRONG))
def test_wrong_field_of_config(refused, folder, field):
    for value in WRONG[field]:
        config = dict(tiny_model.CONFIG, **{field: value})
        put(os.path.join(folder, "config.json"), json.dumps(config))
        # Sizes that are legal but not those of the tensors: the tensor is named.
        line = refused(("generate", "--model", folder, *GENERATE), folder)
        if value not in (63, 3, 7, 2**31) or field == "num_hidden_layers":
            word = "No such" if field == "model_type" else field
            assert word in line or field == "model_type", (value, line)


@pytest.mark.parametrize("field", ["model_type", "vocab_size", "hidden_size", "num_hidden_layers",
                                   "intermediate_size", "num_attention_heads"])
def test_missing_field_of_config(refused, folder, field):
    without = {k: v for k, v in tiny_model.CONFIG.items() if k != field}
    for config in (without, dict(without, **{field: None})):
        put(os.path.join(folder, "config.json"), json.dumps(config))
        refused(("inspect", folder), "config.json: %s: missing" % field)


def test_wrong_field_of_generation_config(refused, folder):
    for value in WRONG["eos_token_id"]:
        put(os.path.join(folder, "generation_config.json"), json.dumps({"eos_token_id": value}))
        refused(("generate", "--model", folder, *GENERATE), "generation_config.json: eos_token_id")


def test_positions_beyond_every_integer(refused, folder):
    put(os.path.join(folder, "config.json"), json.dumps(dict(tiny_model.CONFIG, max_position_embeddings=1e300)))
    line = refused(("inspect", folder), "max_position_embeddings: found 1")
    assert "an integer" not in line


def test_wrong_field_of_tokenizer_config(run, refused, folder):
    os.remove(os.path.join(folder, "chat_template.jinja"))
    for value in ({"chat_template": 7}, {"chat_template": [7]}, {"chat_template": [{"name": "a"}]},
                  {"chat_template": [{"name": [], "template": ""}]}, {"chat_template_type": 7},
                  {"chat_template_type": "other"}, {"chat_template": "{% for %}"}, {"chat_template": "{{" * 5000},
                  {"chat_template": "{{" + "(" * 100000},
                  {"chat_template": "{% if x %}" * 100000}, {"chat_template": "{{ " + "-" * 100000 + "1 }}"}):
        put(os.path.join(folder, "tokenizer_config.json"), json.dumps(value))
        for command in (("generate", "--model", folder, *GENERATE), ("chat", "--model", folder)):
            refused(command, os.path.join(folder, "tokenizer_config.json"))
        accepted(run("generate", "--model", folder, "--ignore-chat-template", *GENERATE))


def break_template(path, kind):
    if kind == "directory":
        os.mkdir(path)
    elif kind == "dangling link":
        os.symlink("nowhere", path)
    else:
        put(path, "a\n{% if")


@pytest.mark.parametrize("kind", ["syntax", "directory", "dangling link"])
def test_template_that_cannot_be_used(run, refused, folder, tmp_path, kind):
    """It stops what needs it, and nothing else."""
    path = os.path.join(folder, "chat_template.jinja")
    os.remove(path)
    break_template(path, kind)
    for command in (("generate", "--model", folder, *GENERATE), ("chat", "--model", folder),
                    ("cache_prompt", "--model", folder, "--prompt", "x", "--prompt-cache-file", tmp_path / "c")):
        line = refused(command, path)
        assert "no chat template" not in line
    accepted(run("generate", "--model", folder, "--ignore-chat-template", *GENERATE))
    accepted(run("logits", "--model", folder, "--prompt", "x", "--out", tmp_path / "l.npy"))
    accepted(run("tokenize", "--model", folder, "x"))
    done = run("inspect", folder)
    assert done.returncode == 0 and "cannot be used" in done.stdout
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("warning: ") and path in done.stderr


def test_additional_template_that_cannot_be_used(refused, folder):
    os.mkdir(os.path.join(folder, "additional_chat_templates"))
    path = put(os.path.join(folder, "additional_chat_templates", "rag.jinja"), "{% for %}")
    refused(("generate", "--model", folder, *GENERATE), path + ": line 1")


def test_failing_template_is_named(refused, folder):
    """By its file, or by the key of tokenizer_config.json."""
    path = os.path.join(folder, "chat_template.jinja")
    config = os.path.join(folder, "tokenizer_config.json")
    for source, words in (("{{ raise_exception('Not this') }}", ": Not this"), ("\n{{ x.y }}", ": line 2: ")):
        put(path, source)
        refused(("generate", "--model", folder, *GENERATE), "error: " + path + words)
    os.remove(path)
    for value, where in (("{{ raise_exception('Not this') }}", ": chat_template: Not this"),
                         ([{"name": "default", "template": "{{ x.y }}"}], ': chat_template "default": line 1: ')):
        put(config, json.dumps({"chat_template": value}))
        refused(("generate", "--model", folder, *GENERATE), "error: " + config + where)


@pytest.mark.parametrize("template", [
    "{% for i in range(1000000000) %}{% endfor %}", "{{ 'x' * 1000000000 }}", "{{ [0] * 1000000000 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ range(9999999999999)|list }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "{{ '%1000000000d' % 1 }}", "{{ 'x'.center(1000000000) }}", "{{ 9 ** 99999 }}", "{{ raise_exception('a\nb') }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{{ messages.nothing.at.all }}", "{{ 1 // 0 }}"])
def test_template_that_asks_for_too_much(refused, folder, template):
    put(os.path.join(folder, "chat_template.jinja"), template)
    words = ": a?b" if "raise" in template else ": line 1: "
    refused(("generate", "--model", folder, *GENERATE), os.path.join(folder, "chat_template.jinja") + words)


# The model argument -----------------------------------------------------------------------------------

@pytest.mark.parametrize("mode, name", [(0, "config.json"), (0o744, "config.json"), (0o755, "model.safetensors")])
def test_model_that_may_not_be_read(turbolm_bin, mode, name):
    """As a user who is not its owner, where the tests run as root."""
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory() as top:  # others may not enter pytest's own
        os.chmod(top, 0o755)
        folder = tiny_model.make(os.path.join(top, "model"))
        program = shutil.copy(turbolm_bin, os.path.join(top, "turbolm"))
        os.chmod(program, 0o755)
        os.chmod(os.path.join(folder, "model.safetensors"), 0)
        os.chmod(folder, mode if as_nobody else mode & 0o677)
        for command in (("generate", "--model", folder, *GENERATE), ("inspect", folder)):
            done = subprocess.run([program, *command], capture_output=True, text=True, cwd="/", **as_nobody)
            assert (done.returncode, done.stderr) == (
                1, "error: %s: Permission denied\n" % os.path.join(folder, name))
        path = put(os.path.join(top, "m.gguf"), "GGUF")
        os.chmod(path, 0)
        done = subprocess.run([program, "inspect", path], capture_output=True, text=True, cwd="/", **as_nobody)
        assert (done.returncode, done.stderr) == (1, "error: %s: Permission denied\n" % path)
        os.chmod(folder, 0o755)


@pytest.mark.parametrize("name", ["./" + "x" * 5000, "./" + "é" * 2500, "./" + "x/" * 5000, "./" + "x" * 100000])
def test_long_model_argument(refused, name):
    for command in (("inspect", name), ("generate", "--model", name, *GENERATE), ("tokenize", "--model", name, "x")):
        line = refused(command, "error: ./" + name[2:4], "...")
        assert re.search(r": (File name too long|[Nn]o such file or directory)\n$", line) and len(line) < 1100


# tokenizer.json ---------------------------------------------------------------------------------------

def tokenizer_of(folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        return json.load(f)


def test_truncated_tokenizer(refused, folder):
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "rb") as f:
        data = f.read()
    for n in [*range(0, 40), *range(40, len(data), len(data) // 60), len(data) - 1]:
        put(path, data[:n])
        refused(("generate", "--model", folder, *GENERATE), path)


@pytest.mark.parametrize("path, value", [
    (("model",), None), (("model",), 7), (("model",), {"type": "No"}), (("model", "type"), 7),
    (("model", "vocab"), None),
    (("model", "vocab"), []), (("model", "vocab", "a"), -1), (("model", "vocab", "a"), 1.5),
    (("model", "vocab", "a"), 2**31), (("model", "vocab", "a"), "1"), (("model", "merges"), 7),
    (("model", "merges"), ["a"]), (("model", "merges"), ["a b c"]), (("model", "merges"), [["a"]]),
    (("model", "merges"), ["no such"]), (("model", "dropout"), 0.5), (("added_tokens",), 7), (("added_tokens",), [7]),
    (("added_tokens",), [{"id": -1, "content": "x"}]), (("added_tokens",), [{"id": 2**40, "content": "x"}]),
    (("added_tokens",), [{"content": "x"}]), (("added_tokens",), [{"id": 1}]),
    (("added_tokens",), [{"id": 1, "content": 7}]), (("normalizer",), 7), (("normalizer",), {"type": "No"}),
    (("normalizer",), {"type": "Sequence", "normalizers": 7}), (("normalizer",), {"type": "Replace"}),
    (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "!!"}),
    (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
    (("pre_tokenizer",), []), (("pre_tokenizer",), {"type": "No"}), (("pre_tokenizer",), {"type": 7}),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "(" * 5000 + ")" * 5000}, "behavior": "Isolated"}),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "((a{0,500}){0,500}){0,500}"}}),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "x" * 100000}, "behavior": "Isolated"}),
    (("pre_tokenizer",), {"type": "Split", "pattern": 7}),
    (("pre_tokenizer",), {"type": "Metaspace", "replacement": ""}),
    (("pre_tokenizer",), {"type": "FixedLength", "length": 0}), (("post_processor",), 7),
    (("post_processor",), {"type": "No"}), (("post_processor", "special_tokens"), {}),
    (("post_processor", "single"), [7]), (("decoder",), 7), (("decoder",), {"type": "No"}),
    (("decoder",), {"type": "Strip", "content": "ab", "start": -1})])
def test_wrong_field_of_tokenizer(refused, folder, path, value):
    whole = tokenizer_of(folder)
    t = whole
    for key in path[:-1]:
        t = t[key]
    t[path[-1]] = value
    put(os.path.join(folder, "tokenizer.json"), json.dumps(whole))
    refused(("generate", "--model", folder, *GENERATE), "tokenizer.json")


def test_deep_tokenizer(refused, folder):
    whole = tokenizer_of(folder)
    for field, parts in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders"),
                         ("post_processor", "processors")):
        whole[field] = "@"
        text = json.dumps(whole)
        deep = ('{"type":"Sequence","%s":[' % parts) * 50000 + "]}" * 50000
        put(os.path.join(folder, "tokenizer.json"), text.replace('"@"', deep))
        refused(("generate", "--model", folder, *GENERATE), "tokenizer.json")
        whole[field] = None


def test_pattern_that_takes_for_ever(refused, folder):
    whole = tokenizer_of(folder)
    whole["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(x+x+)+[0-9]"}, "behavior": "Isolated"}
    put(os.path.join(folder, "tokenizer.json"), json.dumps(whole))
    refused(("generate", "--model", folder, "--ignore-chat-template", "-m", "1", "-p", "x" * 5000), "regex")


# safetensors ------------------------------------------------------------------------------------------

def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def row(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_truncated_safetensors(refused, folder):
    path = put(os.path.join(folder, "model.safetensors"), safetensors({"model.norm.weight": row()}, bytes(8)))
    with open(path, "rb") as f:
        data = f.read()
    for n in range(len(data)):
        put(path, data[:n])
        refused(("inspect", folder), path)


A, B = "model.norm.weight", "lm_head.weight"
LYING_SAFETENSORS = [
    (safetensors({}, length=2**63), "header"), (safetensors({}, length=2**64 - 1), "header"),
    (safetensors({}, length=99_999_999), "header"), (safetensors({}, length=3), "header"),
    (safetensors({A: row()}, bytes(9)), "after the last tensor"), (safetensors({A: row()}, bytes(7)), A),
    (safetensors({A: row(offsets=(0, 4))}, bytes(4)), A), (safetensors({A: row(offsets=(8, 0))}, bytes(8)), A),
    (safetensors({A: row(offsets=(4, 12))}, bytes(12)), A),
    (safetensors({A: row(), B: row(offsets=(4, 12))}, bytes(12)), "overlap"),
    (safetensors({A: row(), B: row()}, bytes(8)), "overlap"),
    (safetensors({A: row(), B: row(offsets=(12, 20))}, bytes(20)), "hole"),
    (safetensors({A: row(shape=(-2,))}, bytes(8)), "header"), (safetensors({A: row(shape=(2.0,))}, bytes(8)), "header"),
    (safetensors({A: row(shape=(2**63,))}, bytes(8)), "header"),
    (safetensors({A: row(shape=(2**62, 2**62))}, bytes(8)), A),
    (safetensors({A: row(shape=(2**32,) * 2)}, bytes(8)), A),
    (safetensors({A: row(shape=(2**63 - 1, 0))}, bytes(8)), A), (safetensors({A: row(shape=(1,) * 9)}, bytes(4)), A),
    (safetensors({A: row(offsets=(0, 2**63 - 1))}, bytes(8)), A),
    (safetensors({A: row(offsets=(0,))}, bytes(8)), "header"),
    (safetensors({A: row(dtype="F33")}, bytes(8)), "F33"), (safetensors({A: row(dtype=7)}, bytes(8)), "header"),
    (safetensors({A: 7}), "header"), (safetensors({A: {}}), A), (safetensors({A: row() | {"x": 1}}, bytes(8)), A),
    (safetensors(b'{"%s":%s,"%s":%s}' % ((A.encode(), json.dumps(row()).encode()) * 2), bytes(8)), "twice"),
    (safetensors(b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "twice"),
    (safetensors({"__metadata__": {"a": 7}}), "header"), (safetensors({"__metadata__": []}), "header"),
    (safetensors(b'{"__metadata__":{"a":"b","a":"c"}}'), "__metadata__"),
    (safetensors(b"[" * 100000), "header"), (safetensors(b'{"a":' * 100000), "tensor a"),
    (safetensors(b'{"\xff":1}'), "header"), (safetensors(b'{"a\0":1}'), "header")]


@pytest.mark.parametrize("data, words", LYING_SAFETENSORS, ids=range(len(LYING_SAFETENSORS)))
def test_lying_safetensors(refused, folder, data, words):
    path = put(os.path.join(folder, "model.safetensors"), data)
    refused(("inspect", folder), path, words)


def test_safetensors_with_a_long_name(refused, folder):
    path = put(os.path.join(folder, "model.safetensors"),
               [struct.pack("<Q", 90_000_008), '{"', *many("x", 90_000_000), '":7}   '])
    refused(("inspect", folder), path, "header")


def test_wrong_tensors(refused, folder):
    good = tiny_model.weights()
    path = os.path.join(folder, "model.safetensors")
    for change in ("missing", "extra", "shape", "dimensions", "scales"):
        tensors = dict(good)
        name = "model.layers.1.mlp.up_proj.weight"
        if change == "missing":
            del tensors[name]
        elif change == "extra":
            name = "model.layers.2.mlp.up_proj.weight"
            tensors[name] = good["model.norm.weight"]
        elif change == "shape":
            tensors[name] = np.ascontiguousarray(good[name].T)
        elif change == "dimensions":
            tensors[name] = good[name].reshape(4, -1, 8)
        else:
            tensors[name.replace(".weight", ".scales")] = good["model.norm.weight"]
        tiny_model._write_weights(path, tensors)
        refused(("generate", "--model", folder, *GENERATE), folder, name.removesuffix(".weight"))


def test_index(refused, folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    for value, word in (({}, "weight_map"), ({"weight_map": []}, "weight_map"),
                        ({"weight_map": {"a": 7}}, "weight_map.a"),
                        ({"weight_map": {"a": "../model.safetensors"}}, "weight_map.a"),
                        ({"weight_map": {"a": "/etc/passwd"}}, "weight_map.a"), ({"weight_map": {"a": ""}}, folder),
                        ({"weight_map": {"a": "no.safetensors"}}, "no.safetensors"),
                        ({"weight_map": {"a": "."}}, folder), ({"weight_map": {"a": ".."}}, folder),
                        ({"weight_map": {"a": "config.json"}}, "config.json"),
                        ({"weight_map": {"a": "x" * 5000}}, folder),
                        ({"weight_map": {"no.such.tensor": "model.safetensors"}}, "no.such.tensor")):
        put(index, json.dumps(value))
        refused(("inspect", folder), word)


def test_shards(refused, folder):
    path = os.path.join(folder, "model.safetensors")
    os.rename(path, os.path.join(folder, "model-00001-of-00002.safetensors"))
    put(os.path.join(folder, "model-00002-of-00002.safetensors"),
        safetensors({"model.norm.weight": row(shape=(64,), offsets=(0, 256))}, bytes(256)))
    refused(("inspect", folder), folder, "model.norm.weight", "twice")
    os.remove(os.path.join(folder, "model-00001-of-00002.safetensors"))
    refused(("generate", "--model", folder, *GENERATE), folder, "is missing")


# GGUF -------------------------------------------------------------------------------------------------

S = write_gguf.string


def key(name, kind, data):
    return S(name) + struct.pack("<I", kind) + data


def info(name, dims=(32,), kind=0, offset=0, n_dims=None):
    return (S(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims) +
            b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset))


def gguf(keys=(), infos=(), data=b"", version=3, n_keys=None, n_tensors=None):
    """Complete but for the lie: where that is not noticed, the file is accepted."""
    known = write_gguf.metadata("llama", CONFIG, 16) | {"llama.vocab_size": 8}
    keys = [*(write_gguf.value(k, v) for k, v in known.items()), *keys]
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos) if n_tensors is None else n_tensors,
                                 len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def array(kind, n, data=b""):
    return struct.pack("<IQ", kind, n) + data


U32 = struct.Struct("<I").pack
K = "llama.block_count"


def test_the_good_ones_are_accepted(run, tmp_path, folder):
    path = put(tmp_path / "m.gguf", gguf([key("a", 7, b"\1")], [info("output_norm.weight")], bytes(128)))
    accepted(run("inspect", path))
    accepted(run("generate", "--model", folder, *GENERATE))


def test_truncated_gguf(refused, tmp_path):
    data = gguf([key("a", 9, array(8, 2, S("x") + S("yy"))), key("b", 7, b"\1")],
                [info("output_norm.weight"), info("token_embd.weight", (32, 2), offset=128)], bytes(384))
    for n in [*range(0, len(data) - 384, 5), *range(len(data) - 384, len(data), 32), len(data) - 1]:
        path = put(tmp_path / "m.gguf", data[:n])
        refused(("inspect", path), path)


BIG = 2**64 - 1
LYING_GGUF = [
    (gguf(version=1), "version"), (gguf(version=4), "version"), (gguf(version=0x03000000), "endian"),
    (gguf(n_keys=BIG), "keys"), (gguf(n_keys=2**32), "keys"), (gguf(n_keys=2), "vocab"),
    (gguf(n_tensors=BIG), "tensors"),
    (gguf(n_tensors=1), ""), (gguf([S("")[:8] + U32(4) + U32(1)]), "name"),
    (gguf([struct.pack("<Q", BIG) + b"x" * 40]), "name"), (gguf([struct.pack("<Q", 2**63) + b"x" * 40]), "name"),
    (gguf([key("a\0b", 4, U32(1))]), "name"), (gguf([key("x" * 70000, 4, U32(1))]), "name"),
    (gguf([key("a", 13, U32(1))]), "a"), (gguf([key("a", BIG % 2**32, U32(1))]), "a"),
    (gguf([key("a", 7, b"\2")]), "bool"),
    (gguf([key("a", 8, struct.pack("<Q", BIG))]), "a"), (gguf([key("a", 8, struct.pack("<Q", 2**40))]), "a"),
    (gguf([key("a", 9, array(4, BIG))]), "a"), (gguf([key("a", 9, array(4, 2**62))]), "a"),
    (gguf([key("a", 9, array(12, 2**61 + 1))]), "a"), (gguf([key("a", 9, array(8, BIG))]), "a"),
    (gguf([key("a", 9, array(8, 2**40))]), "a"), (gguf([key("a", 9, array(9, 1, array(4, 1, U32(1))))]), "a"),
    (gguf([key("a", 9, array(99, 1))]), "a"), (gguf([key("a", 9, array(8, 1, struct.pack("<Q", BIG)))]), "a"),
    (gguf([key(K, 4, U32(1))] * 2), K), (gguf([key("general.alignment", 4, U32(0))]), "general.alignment"),
    (gguf([key("general.alignment", 4, U32(3))]), "general.alignment"),
    (gguf([key("general.alignment", 8, S("32"))]), "general.alignment"),
    (gguf([key("general.alignment", 4, U32(2**31))], [info("t", offset=0)], bytes(128)), "tensor t"),
    (gguf([], [info("t", n_dims=5)], bytes(128)), "tensor t"),
    (gguf([], [info("t", n_dims=2**32 - 1)], bytes(128)), "tensor t"),
    (gguf([], [info("t", (BIG,))], bytes(128)), "tensor t"),
    (gguf([], [info("t", (2**32, 2**32))], bytes(128)), "tensor t"),
    (gguf([], [info("t", (2**62, 2**62, 2**62, 2**62))], bytes(128)), "tensor t"),
    (gguf([], [info("t", (33,), kind=2)], bytes(128)), "tensor t"),
    (gguf([], [info("t", kind=4)], bytes(128)), "tensor t"),
    (gguf([], [info("t", kind=2**31)], bytes(128)), "tensor t"),
    (gguf([], [info("t", offset=32)], bytes(160)), "tensor t"),
    (gguf([], [info("t", offset=1)], bytes(160)), "tensor t"),
    (gguf([], [info("t", offset=BIG)], bytes(160)), "tensor t"),
    (gguf([], [info("t", (64,))], bytes(128)), "tensor t"), (gguf([], [info("t"), info("u")], bytes(256)), "tensor u"),
    (gguf([], [info("t"), info("t", offset=128)], bytes(256)), "twice"), (b"GGUF", "header"), (b"GGUF" + bytes(40), ""),
    (b"GGUX" + bytes(40), ""), (b"", ""), (bytes(100), "")]


@pytest.mark.parametrize("data, words", LYING_GGUF, ids=range(len(LYING_GGUF)))
def test_lying_gguf(refused, tmp_path, data, words):
    path = put(tmp_path / "m.gguf", data)
    refused(("inspect", path), path, words)


def gguf_model(path, **extra):
    write_gguf.write(path, CONFIG, [("model.norm.weight", np.ones(32, np.float32))],
                     extra={"llama.vocab_size": 8} | extra)
    return path


@pytest.mark.parametrize("suffix, value", [
    ("block_count", 0), ("block_count", 2**20), ("block_count", "1"), ("block_count", 1.5), ("embedding_length", 0),
    ("embedding_length", 2**31), ("feed_forward_length", 0), ("feed_forward_length", 2.5),
    ("attention.head_count", 0), ("attention.head_count", 2**20), ("attention.head_count_kv", 3),
    ("attention.head_count_kv", "x"), ("attention.key_length", 2**20), ("attention.key_length", 7),
    ("context_length", "x"), ("rope.freq_base", 0.0), ("rope.freq_base", float("nan")), ("rope.freq_base", "x"),
    ("attention.layer_norm_rms_epsilon", float("inf")), ("attention.layer_norm_rms_epsilon", 1),
    ("rope.scaling.type", 7), ("rope.scaling.type", "other"), ("attention.sliding_window", "x"),
    ("expert_count", 8), ("logit_scale", 2.0)])
def test_gguf_errors_name_its_own_keys(refused, tmp_path, suffix, value):
    path = gguf_model(tmp_path / "m.gguf", **{"llama." + suffix: value})
    line = refused(("inspect", path), path, "rope" if value == 7 and "key" in suffix else "llama." + suffix)
    for word in ("num_", "hidden_size", "rope_theta", "rms_norm", "max_position", "config.json", "head_dim"):
        assert word not in line


@pytest.mark.parametrize("extra", [{}, {"llama.rope.scaling.factor": 0.0}, {"llama.rope.scaling.factor": "2"}])
def test_gguf_rope_scaling(refused, tmp_path, extra):
    path = tmp_path / "m.gguf"
    gguf_model(path, **{"llama.rope.scaling.type": "linear"}, **extra)
    assert "rope_scaling" not in refused(("inspect", path), path, "llama.rope.scaling").removeprefix("error: %s" % path)


@pytest.mark.parametrize("keys, word", [
    ({"split.count": 3, "split.no": 0}, "split.count"), ({"split.no": 1, "split.count": 2}, "part 2 of 2"),
    ({"split.count": "2"}, "split.count"), ({"split.count": 70000}, "split.count"),
    ({"split.tensors.count": 9}, "split.tensors.count"), ({"general.architecture": 7}, "general.architecture"),
    ({"general.architecture": "other"}, "general.architecture"),
    ({"general.architecture": "x" * 100}, "general.architecture")])
def test_wrong_keys_of_gguf(refused, tmp_path, keys, word):
    path = gguf_model(tmp_path / "m.gguf", **keys)
    refused(("inspect", path), path, word, status=2 if "part" in word else 1)


def test_missing_part_of_gguf(refused, tmp_path):
    path = gguf_model(tmp_path / "m-00001-of-00002.gguf", **{"split.count": 2, "split.no": 0})
    refused(("inspect", path), "m-00002-of-00002.gguf")
    gguf_model(tmp_path / "m-00002-of-00002.gguf", **{"split.count": 2, "split.no": 0})
    refused(("inspect", path), "m-00002-of-00002.gguf", "split.no")
    gguf_model(tmp_path / "m-00002-of-00002.gguf", **{"split.count": 2, "split.no": 1})
    refused(("inspect", path), path, "output_norm.weight", "twice")


TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}


def strings(*s):
    return array(8, len(s), b"".join(S(x) for x in s))


@pytest.mark.parametrize("keys, word", [
    ([key("tokenizer.ggml.model", 4, U32(1))], "tokenizer.ggml.model"),
    ([key("tokenizer.ggml.model", 8, S("no"))], "tokenizer.ggml.model"),
    ([key("tokenizer.ggml.pre", 8, S("no"))], "tokenizer.ggml.pre"),
    ([key("tokenizer.ggml.tokens", 4, U32(1))], "tokenizer.ggml.tokens"),
    ([key("tokenizer.ggml.tokens", 9, strings())], ""), ([key("tokenizer.ggml.merges", 9, strings("ab"))], "merges"),
    ([key("tokenizer.ggml.merges", 9, array(4, 1, U32(1)))], "tokenizer.ggml.merges"),
    ([key("tokenizer.ggml.token_type", 9, array(5, 1, U32(1)))], "tokenizer.ggml.token_type"),
    ([key("tokenizer.ggml.token_type", 9, array(8, 1, S("1")))], "tokenizer.ggml.token_type"),
    ([key("tokenizer.ggml.bos_token_id", 4, U32(99))], "tokenizer.ggml.bos_token_id"),
    ([key("tokenizer.ggml.eos_token_id", 8, S("1"))], "tokenizer.ggml.eos_token_id"),
    ([key("tokenizer.ggml.add_bos_token", 4, U32(1))], "tokenizer.ggml.add_bos_token")])
def test_wrong_tokenizer_of_gguf(refused, tmp_path, keys, word):
    base = {"tokenizer.ggml.model": (8, S("gpt2")), "tokenizer.ggml.pre": (8, S("llama-bpe")),
            "tokenizer.ggml.tokens": (9, strings("a", "b", "c")), "tokenizer.ggml.merges": (9, strings())}
    rows = [key(k, *v) for k, v in base.items() if not any(x.startswith(S(k)) for x in keys)] + keys
    path = put(tmp_path / "m.gguf", gguf(rows, [info("output_norm.weight")], bytes(128)))
    refused(("inspect", path), path, word)


# What stands in place of a file -----------------------------------------------------------------------

@pytest.mark.parametrize("name", [*NEEDED, "model.safetensors"])
def test_other_things_than_files(refused, folder, name):
    path = os.path.join(folder, name)
    for kind in ("directory", "pipe", "loop", "device", "nothing"):
        if os.path.lexists(path):
            os.remove(path) if not os.path.isdir(path) or os.path.islink(path) else os.rmdir(path)
        if kind == "directory":
            os.mkdir(path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind in ("loop", "device"):
            os.symlink(name if kind == "loop" else "/dev/zero", path)
        if kind == "nothing" and name not in ("config.json", "tokenizer.json", "model.safetensors"):
            continue
        if kind == "nothing" and name == "tokenizer.json":
            refused(("generate", "--model", folder, *GENERATE), "tokenizer")
        else:
            refused(("generate", "--model", folder, *GENERATE), folder)


def test_other_things_than_models(refused, tmp_path):
    os.symlink("loop", tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    os.mkdir(tmp_path / "empty")
    put(tmp_path / "zero", b"")
    for name in ("loop", "pipe", "empty", "zero", "absent.gguf", "zero/x"):
        refused(("inspect", tmp_path / name), tmp_path / name)
    refused(("inspect", "/dev/zero"), "/dev/zero")
    refused(("inspect", "x" * 5000), "x" * 100)
    refused(("inspect", ""), "no path or name given", status=(2,))


def test_files_that_change(turbolm_bin, folder):
    """What is read while another program rewrites it is an error or the truth, never a crash."""
    path = os.path.join(folder, "config.json")
    with open(path, "rb") as f:
        whole = f.read()
    stop = threading.Event()

    def rewrite():
        n = 0
        while not stop.is_set():
            n = (n * 31 + 7) % (len(whole) + 1)
            put(path, whole[:n] if n % 3 else whole)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(60):
            done = subprocess.run([turbolm_bin, "inspect", folder], capture_output=True, timeout=60)
            assert done.returncode in (0, 1) and done.stderr.count(b"error:") == done.returncode
    finally:
        stop.set()
        thread.join()


# A tokenizer that knows more ids than the model ------------------------------------------------------

@pytest.fixture(scope="module")
def beyond(tmp_path_factory):
    """xy has id 260, the model's vocabulary 260 ids."""
    return tiny_model.make(tmp_path_factory.mktemp("beyond"), merges=[("x", "y")], vocab_size=260)


@pytest.mark.parametrize("args", [("generate", *GENERATE, "-p", "an xy"), ("generate", *GENERATE, "-p", "xy",
                                                                         "--ignore-chat-template"),
                                  ("cache_prompt", "--prompt", "xy", "--prompt-cache-file", "/nonexistent/x"),
                                  ("logits", "-p", "xy", "--out", "/nonexistent/x")])
def test_ids_beyond_the_vocabulary(refused, run, beyond, args):
    refused((args[0], "--model", beyond, *args[1:]), beyond + "/tokenizer.json", "'xy' has id 260", "has 260")
    accepted(run("generate", "--model", beyond, "-p", "x y", "-m", "1"))


@pytest.mark.parametrize("command", [("perplexity",), ("turboquant", "eval")])
def test_text_with_ids_beyond_the_vocabulary(turbolm, beyond, tmp_path, command):
    text = put(tmp_path / "text", "xy" * 1000)
    last = turbolm(*command, "--model", beyond, "--data-path", text)
    assert last.returncode == 1 and last.stderr.count("error:") == 1
    assert beyond + "/tokenizer.json: the token 'xy' has id 260" in last.stderr


def test_conversation_with_ids_beyond_the_vocabulary(turbolm, beyond):
    """An answer that fails ends no conversation."""
    got = turbolm("chat", "--model", beyond, "-m", "1", input="an xy\n")
    assert beyond + "/tokenizer.json: the token 'xy' has id 260" in got.stderr


def test_given_ids_beyond_the_vocabulary(refused, run, beyond, tmp_path):
    done = run("logits", "--model", beyond, "--ids", "1 260", "--out", tmp_path / "x")
    assert done.returncode == 2 and "argument --ids" in done.stderr


def test_end_token_beyond_the_vocabulary(run, tmp_path):
    model = tiny_model.make(tmp_path / "model", vocab_size=257, eos_token_id=256)
    accepted(run("generate", "--model", model, "-p", "x", "-m", "1", "--ignore-chat-template"))
