"""Logits of tiny hash-made models against stored goldens of mlx-lm and transformers.

Each golden (tests/data/goldens, made by tests/oracle/golden.py and hf_golden.py)
holds a config, the tensor list and the logits; the weights come from a hash of
their names. NAME.json has MLX names, NAME.hf.json those of the published
checkpoint. Three ways must agree: one call, chunks of 7 and then single rows,
and single rows from the start.
"""

import base64
import json
import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "data", "goldens")
sys.path.insert(0, os.path.join(HERE, "oracle"))
import make_model  # noqa: E402

NAMES = sorted(n[:-5] for n in os.listdir(GOLDENS) if n.endswith(".json"))


def load(name):
    with open(os.path.join(GOLDENS, name + ".json")) as f:
        return json.load(f)


def tolerance(name):
    # hf files carry no sensitivity: theirs is that of the same config under MLX names
    base = load(name.removesuffix(".hf"))
    return max(10 * base["sensitivity"], 1e-4)


def decode(text, vocab):
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, vocab)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            golden = load(name)
            out = tmp_path_factory.mktemp(name.replace(".", "_"))
            (out / "config.json").write_text(json.dumps(golden["config"]))
            make_model.write_safetensors(str(out / "model.safetensors"), make_model.tensors_of(golden))
            made[name] = out
        return made[name]

    return get


def run_logits(turbolm, directory, tokens, out, *extra):
    ids = " ".join(map(str, tokens))
    done = turbolm("logits", "--model", directory, "--ids", ids, "--out", out, *extra)
    assert done.returncode == 0, done.stderr
    return np.load(out)


WAYS = {
    "one-call": [],
    "chunks": ["--prefill-step-size", "7", "--decode-from", "14"],
    "token-by-token": ["--decode-from", "0"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_golden(turbolm, model_dirs, tmp_path, name, way):
    golden = load(name)
    vocab = golden["config"]["vocab_size"]
    want = decode(golden["logits"], vocab)
    if way != "one-call":
        # a base that grows with the call: each way has logits of its own
        if name.startswith("llama-dynamic"):
            if way == "token-by-token":
                pytest.skip("no golden of single calls for a dynamic rotary base")
            want = decode(load("llama-dynamic")["logits_chunked"], vocab)
    got = run_logits(turbolm, model_dirs(name), golden["tokens"], tmp_path / "l.npy", *WAYS[way])
    assert got.dtype == np.float32 and got.shape == want.shape
    assert np.abs(got - want).max() <= tolerance(name)


def test_goldens_differ():
    """Another model's logits are far outside the tolerance: the test can fail."""
    a, b = load("llama-linear"), load("llama-yarn")
    da, db = (decode(g["logits"], 128) for g in (a, b))
    assert np.abs(da - db).max() > 100 * tolerance("llama-linear")


GGUF_NAMES = ["llama.hf", "llama-linear.hf", "llama-yarn.hf", "mistral.hf", "qwen2.hf", "qwen3.hf"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", GGUF_NAMES)
def test_golden_as_gguf(turbolm, tmp_path, name, version):
    """The same weights under GGUF names, with its permuted rows, give the same logits."""
    import write_gguf

    golden = load(name)
    path = tmp_path / "model.gguf"
    write_gguf.write(path, golden["config"], make_model.tensors_of(golden), version)
    want = decode(golden["logits"], golden["config"]["vocab_size"])
    got = run_logits(turbolm, path, golden["tokens"], tmp_path / "l.npy")
    assert np.abs(got - want).max() <= tolerance(name)


def with_tensors(golden, change):
    return [(n, w) for n, w in change(dict(make_model.tensors_of(golden))).items()]


@pytest.mark.parametrize("change, message", [
    (lambda t: {k: v for k, v in t.items() if "layers.1.mlp.up_proj" not in k}, "layers.1.mlp.up_proj"),
    (lambda t: t | {"model.layers.9.extra.weight": np.zeros((2, 2), np.float32)}, "model.layers.9.extra.weight"),
    (lambda t: t | {"model.norm.weight": np.zeros(63, np.float32)}, "model.norm"),
    (lambda t: t | {"model.layers.0.self_attn.q_proj.weight": np.zeros((64, 64), np.int64)}, "q_proj"),
], ids=["missing", "unknown", "shape", "type"])
def test_wrong_tensors_are_refused(turbolm, tmp_path, change, message):
    golden = load("mistral.hf")
    (tmp_path / "config.json").write_text(json.dumps(golden["config"]))
    make_model.write_safetensors(str(tmp_path / "model.safetensors"), with_tensors(golden, change))
    done = turbolm("logits", "--model", tmp_path, "--ids", "1 2", "--out", tmp_path / "o.npy")
    assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize("change, message", [
    ({"model_type": "no_such_type"}, "Model type no_such_type not supported."),
    ({"hidden_size": "64"}, "hidden_size: found a string"),
    ({"num_attention_heads": None}, "num_attention_heads: missing"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide"),
    ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
    ({"hidden_act": "sine"}, "'sine'"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"vocab_size": -1}, "vocab_size"),
])
def test_wrong_configs_are_refused(turbolm, tmp_path, change, message):
    golden = load("llama-linear.hf")
    (tmp_path / "config.json").write_text(json.dumps(golden["config"] | change))
    make_model.write_safetensors(str(tmp_path / "model.safetensors"), make_model.tensors_of(golden))
    done = turbolm("logits", "--model", tmp_path, "--ids", "1 2", "--out", tmp_path / "o.npy")
    assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1


with open(os.path.join(HERE, "data", "mlx", "goldens.json")) as f:
    MLX = json.load(f)


@pytest.mark.parametrize("mode", MLX["logits"])
def test_mlx_formats(turbolm, tmp_path, mode):
    """Every quantised format of MLX, against mlx-lm in float32 (oracle/make_mlx_goldens.py)."""
    import mlx_model

    mlx_model.write(str(tmp_path), mode)
    want = decode(MLX["logits"][mode], 128)
    got = run_logits(turbolm, tmp_path, MLX["tokens"], tmp_path / "l.npy", "--decode-from", "4")
    assert np.abs(got - want).max() <= 2e-4
