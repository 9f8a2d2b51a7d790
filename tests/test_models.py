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


def test_last_of_equal_keys_counts(turbolm, tmp_path):
    golden = load("llama-linear.hf")
    text = json.dumps(golden["config"])
    (tmp_path / "config.json").write_text(text[:-1] + ', "hidden_size": 128}')
    make_model.write_safetensors(str(tmp_path / "model.safetensors"), make_model.tensors_of(golden))
    done = turbolm("logits", "--model", tmp_path, "--ids", "1", "--out", tmp_path / "o.npy")
    assert done.returncode == 1 and "expected [128, 128]" in done.stderr


@pytest.mark.parametrize("name, change", [
    ("gemma3_text.hf", {"hidden_activation": None, "hidden_act": "silu"}),
    ("llama.hf", {"hidden_activation": "relu"}),
])
def test_activation_is_named_by_the_key_of_the_type(turbolm, tmp_path, name, change):
    """transformers reads hidden_activation in Gemma 3 alone, and there nothing else."""
    golden = load(name)
    config = {k: v for k, v in (golden["config"] | change).items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    make_model.write_safetensors(str(tmp_path / "model.safetensors"), make_model.tensors_of(golden))
    got = run_logits(turbolm, tmp_path, golden["tokens"], tmp_path / "l.npy")
    assert np.abs(got - decode(golden["logits"], config["vocab_size"])).max() <= tolerance(name)


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


def test_shards_by_the_index(turbolm, tmp_path):
    """Tensors spread over two files that the index names; a stale third file is not read."""
    golden = load("qwen3.hf")
    (tmp_path / "config.json").write_text(json.dumps(golden["config"]))
    tensors = list(make_model.tensors_of(golden))
    parts = {"model-00001-of-00002.safetensors": tensors[::2], "model-00002-of-00002.safetensors": tensors[1::2]}
    for name, part in parts.items():
        make_model.write_safetensors(str(tmp_path / name), part)
    weight_map = {n: name for name, part in parts.items() for n, _ in part}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    make_model.write_safetensors(str(tmp_path / "model-old.safetensors"), [("stale", np.zeros(4, np.float32))])
    want = decode(golden["logits"], golden["config"]["vocab_size"])
    got = run_logits(turbolm, tmp_path, golden["tokens"], tmp_path / "l.npy")
    assert np.abs(got - want).max() <= tolerance("qwen3.hf")

    def refused(message):
        done = turbolm("logits", "--model", tmp_path, "--ids", "1", "--out", tmp_path / "o.npy")
        assert done.returncode == 1 and message in done.stderr

    index.write_text(json.dumps({"weight_map": weight_map | {"ghost.weight": "model-00001-of-00002.safetensors"}}))
    refused("ghost.weight is missing")
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "../model.safetensors"}}))
    refused("expected a file name")
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused("model-00002-of-00002.safetensors")


def to_e4m3(x):
    """Nearest e4m3 bytes and their values."""
    codes = np.arange(256, dtype=np.uint8)
    e, m = (codes >> 3 & 15).astype(int), (codes & 7).astype(float)
    value = np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7)) * np.where(codes & 128, -1, 1)
    finite = (codes & 127) != 127
    order = np.argsort(value[finite], kind="stable")
    table, byte = value[finite][order], codes[finite][order]
    at = np.clip(np.searchsorted(table, x), 1, len(table) - 1)
    at -= np.abs(x - table[at - 1]) < np.abs(x - table[at])
    return byte[at], table[at].astype(np.float32)


def rename_type(path, old, new):
    blob = path.read_bytes()
    n = int.from_bytes(blob[:8], "little")
    header = blob[8 : 8 + n].replace(b'"%s"' % old.encode(), b'"%s"' % new.encode())
    path.write_bytes(len(header).to_bytes(8, "little") + header + blob[8 + n :])


@pytest.mark.parametrize("kind", ["block", "row", "tensor"])
def test_fp8(turbolm, tmp_path, kind):
    """F8_E4M3 with scales gives the logits of the same weights written out in float32."""
    config = load("llama-linear.hf")["config"] | {
        "hidden_size": 160, "intermediate_size": 200, "num_attention_heads": 5, "num_key_value_heads": 5,
        "head_dim": 32}
    plain, packed = [], []
    sizes = {"embed": (128, 160), "gate_proj": (200, 160), "up_proj": (200, 160), "down_proj": (160, 200)}
    for name, shape, rule in load("llama-linear.hf")["tensors"]:
        key = next((k for k in sizes if k in name), None)
        w = make_model.hash_tensor(name, (160,) if len(shape) == 1 else sizes.get(key, (160, 160)), rule)
        if w.ndim < 2 or key == "embed":
            plain.append((name, w))
            packed.append((name, w))
            continue
        rows, cols = w.shape
        block = {"block": (128, 128), "row": (1, cols), "tensor": (rows, cols)}[kind]
        grid = (-(-rows // block[0]), -(-cols // block[1]))
        scales = (0.001 + 0.01 * np.abs(make_model.hash_tensor(name + "s", grid, "embed"))).astype(np.float32)
        full = np.kron(scales, np.ones(block, np.float32))[:rows, :cols]
        codes, values = to_e4m3(w / full)
        plain.append((name, values * full))
        packed.append((name, codes))
        leaf = "weight_scale_inv" if kind == "block" else "weight_scale"
        packed.append((name.removesuffix("weight") + leaf, scales.reshape(grid if kind != "tensor" else (1,))))
    got = []
    for i, tensors in enumerate((plain, packed)):
        directory = tmp_path / str(i)
        directory.mkdir()
        extra = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}} if i else {}
        (directory / "config.json").write_text(json.dumps(config | extra))
        path = directory / "model.safetensors"
        make_model.write_safetensors(str(path), tensors)
        rename_type(path, "U8", "F8_E4M3")
        got.append(run_logits(turbolm, directory, list(range(1, 20)), tmp_path / "l.npy"))
    assert got[0].std() > 0.1
    assert np.abs(got[0] - got[1]).max() <= 1e-4
