"""convert: directories equal to those of mlx_lm.convert, from every kind of source; nothing half-written is left."""
import glob
import hashlib
import json
import os
import resource
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

import fake_hub
import tiny_model as maker
import write_gguf

ROOT = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(ROOT, "data", "convert", "convert.json"), encoding="utf-8") as f:
    GOLDENS = json.load(f)["conversions"]
SMALL = ["--q-group-size", "32"]  # fits every matrix of the tiny model
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 2}


def read_text(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def read_json(*path):
    return json.loads(read_text(*path))


def tensors(folder):
    """{name: (dtype, shape, bytes)} of all weight files"""
    out = {}
    for path in sorted(glob.glob(os.path.join(str(folder), "model*.safetensors"))):
        with open(path, "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, v in json.loads(data[8 : 8 + n]).items():
            if name != "__metadata__":
                begin, end = v["data_offsets"]
                out[name] = (v["dtype"], v["shape"], data[8 + n + begin : 8 + n + end])
    return out


def digests(folder):
    return {k: [d, s, hashlib.sha256(b).hexdigest()[:16]] for k, (d, s, b) in sorted(tensors(folder).items())}


def leftovers(folder, name="out"):
    return sorted(n for n in os.listdir(str(folder)) if n.startswith(name))


@pytest.fixture
def convert(turbolm, tmp_path):
    """convert(model, "-q", ...) is the directory that was written; its .printed goes to convert.printed."""

    def run(model, *args, out="out", **kwargs):
        path = str(tmp_path / out)
        got = turbolm("convert", "--hf-path", model, "--mlx-path", path, *args, **kwargs)
        assert got.returncode == 0, got.stderr
        run.printed, run.warnings = got.stdout, got.stderr
        return path

    return run


@pytest.fixture
def refused(turbolm, tmp_path):
    """The message of a conversion that fails and leaves nothing."""

    def run(model, *args, status=1, out=None, **kwargs):
        got = turbolm("convert", "--hf-path", model, "--mlx-path", out or tmp_path / "out", *args, **kwargs)
        assert got.returncode == status, got.stderr
        assert got.stderr.startswith("error: ") and got.stderr.count("\n") == 1, got.stderr
        assert leftovers(tmp_path) == []
        return got.stderr[7:-1]

    return run


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_like_the_original(convert, tiny_model, name):
    golden = GOLDENS[name]
    folder, printed = tiny_model(**golden["config"]), []
    for i, step in enumerate(golden["steps"]):
        folder = convert(folder, *step.split(), out=str(i))
        printed.append(convert.printed)
    assert printed == golden["printed"]
    assert digests(folder) == golden["tensors"]
    texts = golden["texts"]
    for file in ("model.safetensors.index.json", "README.md"):
        assert read_text(folder, file) == texts[file]
    if any("--dtype" in s for s in golden["steps"]):  # the original leaves the old name of the type there
        config, want = read_json(folder, "config.json"), json.loads(texts["config.json"])
        assert config.pop("torch_dtype") == "float16" and want.pop("torch_dtype") and config == want
    else:
        assert read_text(folder, "config.json") == texts["config.json"]


def test_files(convert, tiny_model, tmp_path):
    source = maker.make(tmp_path / "source")
    for name in ("generation_config.json", "special_tokens_map.json", "model.py", "notes.md", "pytorch_model.bin"):
        (tmp_path / "source" / name).write_text('{"eos_token_id": [257, 3]}' if name.startswith("gen") else "x")
    (tmp_path / "source" / "additional_chat_templates").mkdir()
    (tmp_path / "source" / "additional_chat_templates" / "tool_use.jinja").write_text("y")
    out = convert(source)
    assert sorted(os.listdir(out)) == [
        "README.md", "additional_chat_templates", "chat_template.jinja", "config.json", "generation_config.json",
        "model.py", "model.safetensors", "model.safetensors.index.json", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json"]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
                 "additional_chat_templates/tool_use.jinja"):
        assert read_text(out, name) == read_text(source, name)
    assert read_json(out, "config.json")["eos_token_id"] == [257, 3]


def test_config_keeps_its_numbers(convert, tmp_path):
    source = maker.make(tmp_path / "source")
    config = read_json(source, "config.json") | {"_name_or_path": "x", "vision_config": {}}
    text = json.dumps(config)[:-1] + ', "big": 123456789012345678901234567890, "tiny": 1E-7, "whole": 3.0, ' \
        '"bad": NaN, "text": "\\u00e9\\ud83d\\ude00\\u007f\\n", "empty": [], "nothing": {}}'
    (tmp_path / "source" / "config.json").write_text(text)
    out = read_text(convert(source), "config.json")
    want = json.loads(text)
    del want["_name_or_path"], want["vision_config"]
    want["bad"] = {"__float__": "NaN"}
    assert out == json.dumps(dict(sorted(want.items())), indent=4)


def test_rope_parameters(convert, tmp_path):
    """mlx-lm does not read them: the older keys go beside."""
    source = maker.make(tmp_path / "source", rope_theta=None, rope_parameters={"rope_theta": 50000.0,
                                                                               "rope_type": "default"})
    config = read_json(source, "config.json")
    del config["rope_theta"]
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    assert read_json(convert(source), "config.json") == config | {"rope_theta": 50000.0}


def test_recipe_without_a_group(convert, tiny_model):
    """The original writes null."""
    q = read_json(convert(tiny_model(), "-q", "--quant-predicate", "mixed_4_6"), "config.json")["quantization"]
    assert q["group_size"] == 64 and q["lm_head"] == {"group_size": 64, "bits": 6, "mode": "affine"}


def test_overrides(convert, tiny_model):
    out = convert(tiny_model(), "-q", "--q-group-size", "32", "--q-override", "layers.*.mlp.down_proj=6",
                  "--q-override", "*.1.mlp.*=3,32", "--q-override=model.layers.1.mlp.up_proj=8,64",
                  "--q-override", "lm_head=false", "--q-override", "self_attn.[qk]_proj=4,32,mxfp4")
    q = read_json(out, "config.json")["quantization"]
    entry = lambda bits, group=32, mode="affine": {"group_size": group, "bits": bits, "mode": mode}  # noqa: E731
    p = "model.layers.%d."
    attention = {p % i + "self_attn." + n: entry(4, 32, "mxfp4") for i in (0, 1) for n in ("q_proj", "k_proj")}
    assert q == entry(4) | attention | {
        p % 0 + "mlp.down_proj": entry(6), p % 1 + "mlp.gate_proj": entry(3), p % 1 + "mlp.down_proj": entry(3),
        p % 1 + "mlp.up_proj": entry(8, 64), "lm_head": False}
    t = tensors(out)
    assert "lm_head.scales" not in t and t["lm_head.weight"][0] == "F32"
    assert t["model.layers.0.mlp.down_proj.weight"][1] == [64, 96 * 6 // 32]
    assert t["model.layers.1.mlp.up_proj.scales"][1] == [96, 1]
    assert t["model.layers.0.self_attn.q_proj.scales"][0] == "U8"


@pytest.mark.parametrize("args, message", [
    (["--q-override", "nothing.here=4"], "override 'nothing.here=4' matches no module of "),
    (["--q-override", "lm_head"], "override 'lm_head': expected PATTERN=BITS[,GROUP[,MODE]] or PATTERN=false"),
    (["--q-override", "lm_head=4,"], "override 'lm_head=4,': expected PATTERN="),
    (["--q-override", "lm_head=7"], "override 'lm_head=7': [quantize] The requested number of bits 7 is not supported"),
    (["--q-override", "lm_head=4,32,x"], "override 'lm_head=4,32,x': [quantize] Invalid quantization mode 'x'."),
    (["--q-bits", "7"], "[quantize] The requested number of bits 7 is not supported."),
    (["--q-group-size", "48"], "[quantize] The requested group size 48 is not supported."),
    (["--q-mode", "mxfp4", "--q-group-size", "64"], "[quantize] mxfp4 quantization requires group size 32 but got 64."),
    (["--q-mode", "nvfp4", "--quant-predicate", "mixed_3_6"], "Quant predicates only support 'affine' quantization."),
    (["-d"], "Choose either quantize or dequantize, not both."),
])
def test_refused_options(turbolm, tiny_model, tmp_path, args, message):
    got = turbolm("convert", "--model", tiny_model(), "--out", tmp_path / "out", "-q", *args)
    assert got.returncode == 2 and got.stderr.split("error: ")[1].startswith(message), got.stderr
    assert leftovers(tmp_path) == []


def test_options_without_effect(convert, tiny_model):
    convert(tiny_model(), "--q-bits", "8", "--q-mode", "mxfp8")
    assert convert.warnings == ("warning: --q-bits has no effect without -q\n"
                                "warning: --q-mode has no effect without -q\n")


@pytest.mark.parametrize("args, message", [
    (["--quant-predicate", "mixed_3_6"], "argument --quant-predicate: needs --quantize"),
    (["--q-override", "lm_head=8"], "argument --q-override: needs --quantize"),
    (["-d", "--q-override", "lm_head=8"], "argument --q-override: needs --quantize"),
    (["-q", "--q-mode", "turbo", "--seed", str(2**53 + 1)], "must be from 0 to %d, but is %d" % (2**53, 2**53 + 1)),
    (["--to", "gguf", "--out", "x/"], "x/: a folder's name, expected that of a GGUF file")])
def test_options_that_need_another(turbolm, tiny_model, args, message):
    got = turbolm("convert", "--model", tiny_model(), *args)
    assert got.returncode == 2 and got.stderr.endswith(message + "\n"), got.stderr


def test_nothing_to_dequantize(convert, tiny_model):
    source = tiny_model()
    convert(source, "-d")
    assert convert.warnings == "warning: %s: none of the matrices is quantised: there is nothing to dequantise\n" % (
        source)


def test_existing_path(turbolm, tiny_model, tmp_path):
    for make in (lambda p: p.mkdir(), lambda p: p.write_text("x"), lambda p: p.symlink_to("nowhere")):
        path = tmp_path / "out"
        make(path)
        got = turbolm("convert", "--model", tiny_model(), "--mlx-path", path)
        assert got.returncode == 1
        assert got.stderr == ("error: Cannot save to the path %s as it already exists. Please delete the "
                              "file/directory or specify a new path to save to.\n" % path)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_name_that_is_too_long(refused, tiny_model, tmp_path):
    for name in ("x" * 300, "/".join(["x" * 200] * 30)):
        assert refused(tiny_model(), out=tmp_path / name).endswith(": cannot be written: File name too long")


def test_parents_are_made(convert, tiny_model, tmp_path):
    convert(tiny_model(), "--to", "gguf", out="a/b/c.gguf")
    assert os.listdir(tmp_path / "a" / "b") == ["c.gguf"]
    assert os.path.exists(os.path.join(convert(tiny_model(), out="a/b/c/"), "config.json"))


def test_generates_the_same(turbolm, convert, tiny_model):
    def say(model):
        got = turbolm("generate", "--model", model, "--verbose", "f", "-m", "8", "--precision", "exact")
        assert got.returncode == 0, got.stderr
        return got.stdout

    source = tiny_model()
    assert say(convert(source, out="plain")) == say(source)
    eight = convert(source, "-q", "--q-bits", "8", out="eight")
    assert say(convert(eight, "-d", out="back")) == say(eight)


@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": True}, GEMMA])
def test_from_gguf(turbolm, convert, tiny_model, tmp_path, change):
    """A converter's changes are taken back: the directory holds the numbers it was made from."""
    gemma = change.get("model_type") == "gemma3_text"
    config = maker.CONFIG | {"vocab_size": 261} | change
    t = maker._tokenizer({}, [("a", "b")])
    texts = [None] * config["vocab_size"]
    for text, i in t["model"]["vocab"].items():
        texts[i] = text
    for a in t["added_tokens"]:
        texts[a["id"]] = a["content"]
    extra = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": texts,
             "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 4, 4, 1], "tokenizer.ggml.merges": ["a b"],
             "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257,
             "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": maker.TEMPLATE,
             "tokenizer.chat_template.tool_use": "tools"}
    weights = maker.weights(config)
    if change.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    names = dict(write_gguf.NAMES)
    try:
        if gemma:
            write_gguf.NAMES |= {"post_attention_layernorm": "post_attention_norm",
                                 "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
            extra |= {"gemma3." + k: v for k, v in write_gguf.metadata("gemma3", config, 16).items()
                      if not k.startswith("general")}
            extra = {k.replace("gemma3.gemma3.", "gemma3."): v for k, v in extra.items()}
            extra |= {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 512}
        stored = [(k, w + 1 if gemma and w.ndim == 1 else w) for k, w in weights.items()]
        path = str(tmp_path / "m.gguf")
        write_gguf.write(path, config, stored, extra=extra)
    finally:
        write_gguf.NAMES.clear()
        write_gguf.NAMES |= names
    out = convert(path)
    assert convert.printed == "[INFO] Loading\n[INFO] Using dtype: float32\n"
    got = tensors(out)
    assert set(got) == set(weights)
    for name, w in weights.items():
        x = np.frombuffer(got[name][2], np.float32).reshape(w.shape)
        assert np.array_equal(x, w) if not (gemma and w.ndim == 1) else np.allclose(x, w, atol=1e-6), name
    c = read_json(out, "config.json")
    assert "norm_weights_hold_one" not in c and "rope_traditional" not in c
    assert c["architectures"] == ["Gemma3ForCausalLM" if gemma else "LlamaForCausalLM"]
    assert (c["bos_token_id"], c["eos_token_id"], c["rms_norm_eps"], c["torch_dtype"]) == (256, 257, 1e-5, "float32")
    assert read_text(out, "chat_template.jinja") == maker.TEMPLATE
    assert read_text(out, "additional_chat_templates", "tool_use.jinja") == "tools"
    text = "Hello <think>, abab\n\t  don't 123\u00e9\u4e2d<|end|>x"
    ids = [turbolm("tokenize", "--model", m, input=text).stdout for m in (path, out)]
    assert ids[0] == ids[1] and ids[0]
    args = ["--ignore-chat-template", "-m", "6", "--verbose", "f", "--precision", "exact", "-p", "abc"]
    said = [turbolm("generate", "--model", m, *args).stdout for m in (path, out)]
    assert said[0] == said[1] and said[0].strip()


def test_llama3_angles_from_gguf(convert, tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    config = maker.CONFIG | {"rope_scaling": scaling, "rope_theta": 500000.0, "max_position_embeddings": 131072}
    path = str(tmp_path / "m.gguf")
    write_gguf.write(path, config, maker.weights(config).items())
    assert read_json(convert(path), "config.json")["rope_scaling"] == scaling


def test_wrapper(convert, tmp_path):
    """mlx-lm wants the language model under its own name, whatever the checkpoint calls it, and no vision tower."""
    text = maker.CONFIG | GEMMA | {"tie_word_embeddings": True}
    weights = {k.replace("model.", "model.language_model."): w for k, w in maker.weights(text).items()
               if not k.startswith("lm_head")}
    source = maker.make(tmp_path / "source", with_weights=False, model_type="gemma3", text_config=text,
                        vision_config={"a": 1})
    maker._write_weights(os.path.join(source, "model.safetensors"),
                         weights | {"model.vision_tower.x": np.zeros((4, 4), np.float32)})
    out = convert(source, "-q", "--q-group-size", "32")
    assert "language_model.model.layers.1.mlp.up_proj.scales" in tensors(out)
    assert len(tensors(out)) == sum(3 if w.ndim == 2 else 1 for w in weights.values())
    assert "vision_config" not in read_json(out, "config.json")


def test_model_card_of_a_hub_name(turbolm, tiny_model, tmp_path):
    hub = fake_hub.FakeHub()
    try:
        hub.add_folder("org/tiny", tiny_model())
        cache = str(tmp_path / "cache")
        got = turbolm("convert", "--hf-path", "org/tiny", "--mlx-path", tmp_path / "out", env=hub.env(cache))
        assert got.returncode == 0, got.stderr
        assert read_text(tmp_path, "out", "README.md") == (
            "---\nbase_model: org/tiny\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n---\n")
        snapshot = glob.glob(os.path.join(cache, "models--org--tiny", "snapshots", "*"))[0]
        with open(os.path.join(snapshot, "README.md"), "w", encoding="utf-8") as f:
            f.write("---\nlicense: mit\nlibrary_name: transformers\ntags:\n- chat\n- 'code'\nlanguage:\n- en\n---\n"
                    "# Hi\n")
        got = turbolm("convert", "--hf-path", "org/tiny", "--mlx-path", tmp_path / "out2", env=hub.env(cache))
        assert got.returncode == 0, got.stderr
        assert read_text(tmp_path, "out2", "README.md") == (
            "---\nbase_model: org/tiny\nlibrary_name: mlx\npipeline_tag: text-generation\nlicense: mit\n"
            "tags:\n- chat\n- code\n- mlx\nlanguage:\n- en\n---\n")
    finally:
        hub.close()


def test_same_for_any_number_of_threads(convert, tiny_model):
    one, three = (digests(convert(tiny_model(vocab_size=20000), "-q", "--threads", n, out=n)) for n in ("1", "3"))
    assert one == three


def test_broken_sources(refused, tmp_path):
    source = maker.make(tmp_path / "source")
    path = os.path.join(source, "model.safetensors")
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(data[:-100])
    assert "model.safetensors" in refused(source, "-q")
    os.unlink(path)
    assert refused(source) == "No safetensors found in " + source
    weights = maker.weights()
    weights["model.layers.1.mlp.up_proj.weight"][7, 3] = np.inf
    maker._write_weights(path, weights)
    assert refused(source, "-q", *SMALL).endswith("tensor model.layers.1.mlp.up_proj.weight, row 7: holds a value "
                                                  "that is not finite or too large, and cannot be quantised")
    maker._write_weights(path, maker.weights() | {"model.extra.weight": np.zeros(3, np.float32)})
    assert "model.extra.weight is not part of a llama model" in refused(source)


@pytest.mark.parametrize("name", ["merges.txt", "additional_chat_templates/x.jinja"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda p: os.symlink("/dev/zero", p)])
def test_files_without_end(refused, tmp_path, make, name):
    """Not waited for, not copied until the disk is full."""
    source = maker.make(tmp_path / "source")
    path = os.path.join(source, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    make(path)
    assert refused(source, timeout=60) == path + ": not a regular file"


@pytest.mark.parametrize("value, dtype, args, holds", [
    (65519.0, "float16", [], True), (-65520.0, "float16", [], False), (65520.0, "float16", ["-q", *SMALL], False),
    (65520.0, "float32", ["-q", *SMALL], True), (3.3962e38, "bfloat16", [], False), (3.39e38, "bfloat16", [], True)])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_values_beyond_the_type(turbolm, refused, tmp_path, name, value, dtype, args, holds):
    """No finite value becomes infinite."""
    source = maker.make(tmp_path / "source", with_weights=False)
    weights = maker.weights()
    weights[name][..., 7] = value
    maker._write_weights(os.path.join(source, "model.safetensors"), weights)
    if holds:
        got = turbolm("convert", "--model", source, "--out", tmp_path / "out", "--dtype", dtype, *args)
        assert got.returncode == 0, got.stderr
    else:
        assert refused(source, "--dtype", dtype, *args).endswith(
            "tensor %s, row 0: holds a value that %s cannot hold" % (name, dtype))


def test_scales_beyond_the_type(convert, refused, tmp_path):
    source = maker.make(tmp_path / "source", with_weights=False)
    weights = maker.weights()
    weights["lm_head.weight"] *= 1e7
    maker._write_weights(os.path.join(source, "model.safetensors"), weights)
    q = convert(source, "-q", "--q-bits", "2", *SMALL, out="q")
    assert refused(q, "--dtype", "float16").endswith("tensor lm_head: has a scale or bias that float16 cannot hold")
    assert "tensor lm_head.weight, row" in refused(q, "-d", "--dtype", "float16")


@pytest.mark.parametrize("size, args, file", [
    (9000, ["-q", *SMALL], "/model.safetensors"), (10, [], "/config.json"), (1000, [], "/tokenizer.json"),
    (9000, ["--to", "gguf"], ""), (0, ["--to", "gguf"], "")])
def test_full_disk(refused, tiny_model, tmp_path, size, args, file):
    message = refused(tiny_model(), *args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert message == "%s%s: cannot be written: File too large" % (tmp_path / "out", file)


@pytest.mark.parametrize("to, status, message", [
    (">/dev/full", 1, "error: cannot write to standard output: No space left on device\n"),
    (">&-", 1, "error: cannot write to standard output: Bad file descriptor\n"), ("", 141, "")])
def test_output_that_is_not_taken(turbolm_bin, tiny_model, tmp_path, to, status, message):
    reader, writer = os.pipe()
    os.close(reader)
    got = subprocess.run(["bash", "-c", "exec %s convert --model %s --out %s %s" %
                          (turbolm_bin, tiny_model(), tmp_path / "out", to)], stdout=writer, stderr=subprocess.PIPE,
                         text=True)
    os.close(writer)
    assert (got.returncode, got.stderr) == (status, message) and leftovers(tmp_path) == []


def test_target_that_cannot_be_written(refused, tiny_model, tmp_path):
    assert refused(tiny_model(), out="/proc/none/x") == "/proc/none/x: cannot be written: No such file or directory"
    (tmp_path / "file").write_text("x")
    assert refused(tiny_model(), out=tmp_path / "file" / "x").endswith("file/x: cannot be written: Not a directory")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model that takes a while: 64 MB, quantised by one thread."""
    return maker.make(tmp_path_factory.mktemp("large"), vocab_size=120000)


QUANTIZE = ("-q", "--q-group-size", "32")
GGUF = ("--to", "gguf", "--gguf-type", "Q4_1")


def start(turbolm_bin, large, out, *args):
    """The process once its directory or file is there."""
    p = subprocess.Popen([turbolm_bin, "convert", "--model", large, "--out", out, "--threads", "1", *args],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    while p.poll() is None and not glob.glob(out + ".part-*"):
        time.sleep(0.001)
    return p


@pytest.mark.parametrize("args", [QUANTIZE, GGUF], ids=["mlx", "gguf"])
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_ended(turbolm_bin, large, tmp_path, number, status, args):
    out, ended = str(tmp_path / "out"), 0
    for i in range(5):
        p = start(turbolm_bin, large, out, *args)
        time.sleep(0.004 * i)
        p.send_signal(number)
        text = p.communicate()[1]
        if p.returncode == 0:  # it was quicker
            assert args == GGUF or "model.safetensors" in os.listdir(out)
            os.rename(out, out + "%d" % i)
            continue
        assert (p.returncode, text) == (status, b"")
        assert not [n for n in leftovers(tmp_path) if ".part-" in n or n == "out"]
        ended += 1
    assert ended


@pytest.mark.parametrize("args", [QUANTIZE, GGUF], ids=["mlx", "gguf"])
def test_killed(turbolm, turbolm_bin, large, tmp_path, args):
    """What a killed process leaves has another name, and the next one takes it away."""
    out, left = str(tmp_path / "out"), []
    while not left:
        p = start(turbolm_bin, large, out, *args)
        p.kill()
        p.communicate()
        if os.path.exists(out):
            os.rename(out, str(tmp_path / ("done%d" % p.pid)))
        left = leftovers(tmp_path)
    assert len(left) == 1 and left[0].startswith("out.part-%d-" % p.pid)
    others = ["out.part-%d-%s" % (p.pid, x) for x in ("", "0x", "x")] + ["out.part-x"]  # not names of ours
    for name in others:
        (tmp_path / name).write_text("x")
    got = turbolm("convert", "--model", large, "--out", out, *args)
    assert got.returncode == 0
    assert got.stderr == "warning: %s: removed, left by a process that was killed\n" % left[0]
    assert leftovers(tmp_path) == sorted(["out", *others])


@pytest.mark.parametrize("args", [QUANTIZE, GGUF], ids=["mlx", "gguf"])
def test_never_onto_what_came_meanwhile(turbolm_bin, large, tmp_path, args):
    out = tmp_path / "out"
    p = start(turbolm_bin, large, str(out), *args)
    out.write_text("someone else's")
    text = p.communicate()[1].decode()
    assert (p.returncode, text) == (1, "error: %s: cannot be written: File exists\n" % out)
    assert leftovers(tmp_path) == ["out"] and out.read_text() == "someone else's"
