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
