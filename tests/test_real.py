"""SmolLM2-135M-Instruct as tests fetch it (GGUF, Q4_1) against transformers on the same weights.

Goldens: tests/data/real, made by tests/oracle/make_real_goldens.py.
"""
import json
import os

import numpy as np
import pytest

import engine_api as api

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "real", "smollm2.json")) as f:
    GOLDEN = json.load(f)


def logits(turbolm, model, tmp_path, *extra):
    out = tmp_path / "l.npy"
    done = turbolm("logits", "--model", model("smollm2"), "--ids", " ".join(map(str, GOLDEN["ids"])), "--out", out,
                   *extra)
    assert done.returncode == 0, done.stderr
    return np.load(out)


@pytest.mark.parametrize("extra", [[], ["--prefill-step-size", "13", "--decode-from", "80"]],
                         ids=["one-call", "chunks"])
def test_logits(turbolm, model, tmp_path, extra):
    got = logits(turbolm, model, tmp_path, *extra)
    assert got.shape == (len(GOLDEN["ids"]), 49152)
    for row, want in zip(got, GOLDEN["rows"]):
        assert np.abs(row[want["top"]] - want["values"]).max() < 2e-3
        assert np.abs(row[GOLDEN["columns"]] - want["spread"]).max() < 2e-3
        assert row.argmax() == want["top"][0] or want["values"][0] - want["values"][1] < 2e-3


def test_fast_agrees_with_exact(turbolm, model, tmp_path):
    """The bound that fast mode must hold to be the default."""
    exact = logits(turbolm, model, tmp_path, "--precision", "exact").astype(np.float64)
    fast = logits(turbolm, model, tmp_path, "--precision", "fast").astype(np.float64)
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (exact, fast))
    assert (np.exp(a) * (a - b)).sum(-1).mean() < 1e-3
    assert (a.argmax(-1) == b.argmax(-1)).mean() >= 0.995
    assert np.abs(exact - fast).max() > 0  # two modes, not one


def test_greedy_tokens(turbolm_lib, model):
    engine = api.Engine(turbolm_lib, model("smollm2"))
    request = engine.submit(GOLDEN["ids"][:32], max_tokens=64)
    got = engine.run([request])[request][0]
    engine.close()
    assert got == GOLDEN["greedy"]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_answer(turbolm, model, precision):
    done = turbolm("generate", "--model", model("smollm2"), "--precision", precision, "-m", "48", "--prompt",
                   GOLDEN["question"])
    assert (done.returncode, done.stderr) == (0, "")
    rule, text = "==========\n", done.stdout.split("==========\n")
    assert done.stdout.startswith(rule) and text[1] == GOLDEN["answer"] + "\n"
    assert text[2].startswith("Prompt: %d tokens, " % len(GOLDEN["chat_ids"]))
    assert "\nGeneration: 48 tokens, " in text[2]
