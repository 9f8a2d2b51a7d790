"""Rotated weights: directories of mlx_turboquant, and our own mode turbo, through the program.

Goldens: tests/oracle/make_turbo_goldens.py.
"""
import json
import os
import struct
import sys
import zlib

import numpy as np
import pytest

import tiny_model as tiny

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data", "turbo")
sys.path.insert(0, os.path.join(HERE, "oracle"))
import turbo  # noqa: E402

IDS = list(range(40, 72))


def tensors(path):
    """Arrays of a safetensors file, bf16 as float32."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    out = {}
    for name, t in head.items():
        raw = data[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16, "U32": np.uint32}[t["dtype"]])
        out[name] = x.reshape(t["shape"])
    return out


def golden(name):
    path = os.path.join(DATA, "seed_%s.safetensors" % name)
    with open(path, "rb") as f:
        meta = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"]
    return tensors(path), json.loads(meta["config"]), meta["dtype"]


@pytest.fixture
def logits(turbolm, tmp_path):
    def run(model, *args):
        out, ids = tmp_path / ("logits%d.npy" % len(os.listdir(tmp_path))), " ".join(map(str, IDS))
        got = turbolm("logits", "--model", model, "--ids", ids, "--out", out, "--precision", "exact", *args)
        assert got.returncode == 0, got.stderr
        return np.load(out)

    return run


# mlx_turboquant --------------------------------------------------------------

@pytest.mark.parametrize("name", ["affine4", "affine3", "affine8", "lut4"])
def test_seed_directory(turbolm, tiny_model, logits, tmp_path, name):
    want, config, dtype = golden(name)
    out = tmp_path / "out"
    args = ["--bits", config["bits"], "--group-size", config["group_size"], "--seed", config["rot_base_seed"], "--mode",
            config["mode"]]
    model = tiny_model(torch_dtype=dtype)
    got = turbolm("turboquant", "convert", "--model", model, "--out", out, *args)
    assert got.returncode == 0, got.stderr
    assert got.stdout.splitlines() == [
        "[turboquant] loading %s" % model,
        "[turboquant] rotating + quantizing to %d-bit (group_size=%d, quantizer=%s)" % (
            config["bits"], config["group_size"], config["mode"]),
        "[turboquant] saving to %s" % out,
        "[turboquant] done",
    ]
    written = json.load(open(out / "config.json"))
    assert written["quantization_config"] == config and "quantization" not in written
    have = tensors(out / "model.safetensors")
    assert "lm_head.scales" not in have and "model.embed_tokens.scales" not in have
    for key, x in want.items():
        if key == "logits":
            continue
        assert have[key].shape == x.shape, key
        if name.startswith("lut"):  # the scale's sums may be taken in another order
            assert np.mean(have[key] == x) > 0.97 if x.dtype == np.uint32 else np.allclose(have[key], x, 1e-3), key
        else:
            assert np.array_equal(have[key].astype(x.dtype), x), key
    mine = logits(out)
    if "logits" in want:
        assert np.abs(mine - want["logits"]).max() < 2e-3
    else:  # its matmul runs on Metal alone: codes and levels in numpy
        config = dict(tiny.CONFIG)
        w = dict(tiny.weights())
        levels = 2.7317524, 2.0680566, 1.617044, 1.2552745, 0.9414954, 0.65607244, 0.38758284, 0.12822703
        levels = np.array([-x for x in levels] + list(reversed(levels)))
        for key in [k for k in have if k.endswith(".scales")]:
            stem = key[: -len(".scales")]
            code = (have[stem + ".weight"][..., None] >> np.arange(0, 32, 4)) & 15
            y = levels[code.reshape(code.shape[0], -1)] * np.repeat(have[key], 32, 1)
            h = turbo.block(y.shape[1])
            m = turbo.hadamard(np.eye(h, dtype=np.float32), h).astype(np.float64)
            y = y * turbo.signs(zlib.crc32(stem.encode()) & 0x7FFFFFFF, y.shape[1])
            w[stem + ".weight"] = ((y.reshape(-1, h)) @ m.T).reshape(y.shape)
        old, tiny.weights = tiny.weights, lambda _config: w
        try:
            assert np.abs(mine - tiny.logits(IDS)).max() < 1e-3
        finally:
            tiny.weights = old


def test_seed_errors(turbolm, tiny_model, tmp_path):
    model, out = tiny_model(), tmp_path / "out"
    os.makedirs(out)
    got = turbolm("turboquant", "convert", "--model", model, "--out", out)
    assert got.returncode == 1 and got.stderr == "error: %s already exists; pick a new --out path.\n" % out
    got = turbolm("turboquant", "convert", "--model", model, "--out", tmp_path / "x", "--mode", "lut", "--bits", "3")
    assert got.returncode == 2 and "mode lut: 3 bits, expected 2, 4 or 8" in got.stderr
    assert not os.path.exists(tmp_path / "x")


def edit(path, fn):
    config = json.load(open(path / "config.json"))
    fn(config)
    with open(path / "config.json", "w") as f:
        json.dump(config, f)


@pytest.mark.parametrize("change, message", [
    ({"rotation": "dense"}, 'rotation: "dense", expected "randomized_hadamard"'),
    ({"mode": "vq"}, 'mode: "vq", expected "affine" or "lut"'),
    ({"outliers": 3}, "outliers: not a setting of turboquant that is known"),
    ({"bits": 3}, "model.layers.0"),
    ({"skip": ["q_proj"]}, 'skip has "q_proj", but model.layers.0.self_attn.q_proj has scales'),
    ({"skip": "q_proj"}, "skip: found a string, expected an array"),
])
def test_seed_settings(turbolm, tiny_model, tmp_path, change, message):
    out = tmp_path / "out"
    args = ["--out", out, "--group-size", "32"]
    assert turbolm("turboquant", "convert", "--model", tiny_model(), *args).returncode == 0
    edit(out, lambda c: c["quantization_config"].update(change))
    got = turbolm("generate", "--model", out, "--max-tokens", "1")
    assert got.returncode == 1 and message in got.stderr and got.stderr.count("\n") == 1, got.stderr


def test_what_stays_plain_is_said(turbolm, tiny_model, tmp_path):
    source = tiny_model()

    def warnings(*args):
        got = turbolm("turboquant", "convert", "--model", source, "--out", tmp_path / ("out" + "".join(args)), *args)
        assert got.returncode == 0, got.stderr
        return got.stderr

    assert warnings("--group-size", "32") == ""
    assert warnings("--group-size", "64").endswith(
        ": 2 of 16 matrices are not quantised, because their inputs are no multiple of the group size 64\n")
    assert warnings("--skip", "model", "lm_head") == "warning: %s: none of the matrices is quantised\n" % source


def test_skip_and_dequantize(turbolm, tiny_model, logits, tmp_path):
    out, plain = tmp_path / "out", tmp_path / "plain"
    got = turbolm("turboquant", "convert", "--model", tiny_model(), "--out", out, "--group-size", "32", "--skip", "mlp",
                  "k_proj")
    assert got.returncode == 0, got.stderr
    have = tensors(out / "model.safetensors")
    assert {k.split(".")[-2] for k in have if k.endswith(".scales")} == {"q_proj", "v_proj", "o_proj", "lm_head"}
    assert json.load(open(out / "config.json"))["quantization_config"]["skip"] == ["mlp", "k_proj"]
    assert turbolm("convert", "--model", out, "--out", plain, "-d").returncode == 0
    assert not [k for k in tensors(plain / "model.safetensors") if k.endswith(".scales")]
    assert np.abs(logits(out) - logits(plain)).max() < 1e-4
    got = turbolm("turboquant", "convert", "--model", tiny_model(), "--out", tmp_path / "all", "--skip")
    assert got.returncode == 0 and "lm_head.scales" in tensors(tmp_path / "all" / "model.safetensors")


# Our own mode ----------------------------------------------------------------

def decoded(out):
    """The weights of a directory in mode turbo, decoded by numpy."""
    config, have = json.load(open(out / "config.json")), tensors(out / "model.safetensors")
    top, w = config["quantization"], dict(have)
    for key in [k for k in have if k.endswith(".scales")]:
        stem = key[: -len(".scales")]
        q = top.get(stem, top)
        bits = np.unpackbits(have[stem + ".weight"].view(np.uint8), axis=1, bitorder="little")
        code = (bits.reshape(len(bits), -1, q["bits"]) << np.arange(q["bits"])).sum(-1)
        w[stem + ".weight"] = turbo.decode(code, have[key], q["bits"], q["group_size"], q["seed"])
    return w


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_turbo(turbolm, tiny_model, logits, tmp_path, monkeypatch, bits):
    out = tmp_path / "out"
    args = ["-q", "--q-mode", "turbo", "--q-bits", bits, "--seed", "9"]
    got = turbolm("convert", "--model", tiny_model(), "--out", out, *args)
    assert got.returncode == 0, got.stderr
    config, have = json.load(open(out / "config.json")), tensors(out / "model.safetensors")
    settings = {"group_size": 32, "bits": bits, "mode": "turbo", "rotation": "hadamard", "seed": 9}
    assert config["quantization"] == config["quantization_config"] == settings
    size = sum(x.nbytes // (2 if "norm" not in k and x.dtype == np.float32 else 1) for k, x in have.items())
    count = sum(x.size for x in tiny.weights().values())
    assert "[INFO] Quantized model with %.3f bits per weight." % (size * 8 / count) in got.stdout
    original = tiny.weights()
    for name in ("model.embed_tokens", "lm_head", "model.layers.0.mlp.down_proj"):
        w = original[name + ".weight"]
        code, scale = turbo.encode(turbo.rotate(w, 9), bits, 32)
        assert np.array_equal(have[name + ".weight"].view(np.uint8), turbo.pack(code, bits)), name
        assert np.array_equal(have[name + ".scales"], scale), name
    w = decoded(out)
    monkeypatch.setattr(tiny, "weights", lambda _config: w)
    assert np.abs(logits(out) - tiny.logits(IDS)).max() < 2e-4
    assert np.abs(logits(out, "--precision", "fast") - tiny.logits(IDS)).max() < 2e-2


def test_turbo_parts(turbolm, tiny_model, logits, tmp_path):
    """Overrides with groups and other modes; kept as it is by a second conversion; dequantised; smaller groups where
    inputs ask for them."""
    out, again, plain = tmp_path / "out", tmp_path / "again", tmp_path / "plain"
    got = turbolm("convert", "--model", tiny_model(), "--out", out, "-q", "--q-mode", "turbo", "--q-group-size", "64",
                  "--q-override", "embed_tokens=8,32", "--q-override", "o_proj=4,64,affine", "--q-override",
                  "lm_head=false")
    assert got.returncode == 0, got.stderr
    q = json.load(open(out / "config.json"))["quantization"]
    turbo4 = {"mode": "turbo", "rotation": "hadamard", "seed": 0, "bits": 4, "group_size": 64}
    assert {k: v for k, v in q.items() if "." not in k and k != "lm_head"} == turbo4
    assert q["lm_head"] is False and q["model.embed_tokens"] == turbo4 | {"bits": 8, "group_size": 32}
    assert q["model.layers.1.mlp.down_proj"] == turbo4 | {"group_size": 32}  # of 96 inputs
    assert q["model.layers.1.self_attn.o_proj"] == {"mode": "affine", "bits": 4, "group_size": 64}
    assert "model.layers.1.self_attn.q_proj" not in q
    assert turbolm("convert", "--model", out, "--out", again).returncode == 0
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert json.load(open(again / "config.json"))["quantization"] | {"lm_head": False} == q
    assert turbolm("convert", "--model", out, "--out", plain, "-d").returncode == 0
    assert np.abs(logits(out) - logits(plain)).max() < 1e-4
    edit(out, lambda c: c["quantization"].update(rotation="none"))
    got = turbolm("generate", "--model", out, "--max-tokens", "1")
    assert got.returncode == 1 and 'rotation: "none", expected "hadamard"' in got.stderr
