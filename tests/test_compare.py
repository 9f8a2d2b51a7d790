"""compare: figures against numpy's from the logits of the program; models, tokenizers and caches that differ."""
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import engine_api
import eval_api
import tiny_model as tiny
from test_perplexity import TEXT, WIDE, logits_of, losses, make_rows, relative, with_error

HEADING = "kl_mean,kl_p99,top1,ppl_a,ppl_b,tokens".split(",")
EXACT = ["--precision", "exact"]
OTHER = {"rope_theta": 500.0}  # the same weights, but another model


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def compare(turbolm, text):
    def run(a, b, *args, **kwargs):
        return turbolm("compare", a, b, "--data-path", text, *args, **kwargs)

    return run


def table(got):
    assert got.returncode == 0, got.stderr
    heading, *rows = csv.reader(got.stdout.splitlines())
    assert heading == HEADING and len(rows) == 1
    return dict(zip(HEADING, map(float, rows[0]), strict=True))


def check(got, x, y, rows, score_from=1):
    """x: logits of B, y: of A."""
    want = relative(x, y, rows, score_from)
    assert got["tokens"] == len(rows) * (len(rows[0]) - score_from)
    assert got["kl_mean"] == pytest.approx(want["kl_mean"], rel=1e-3, abs=1e-7)
    assert got["kl_p99"] == pytest.approx(want["kl_p99"], rel=1e-3, abs=2e-6)
    assert got["top1"] == pytest.approx(want["top1"], rel=1e-8)
    assert got["ppl_a"] == pytest.approx(with_error(losses(y, rows, score_from))[0], rel=1e-6)
    assert got["ppl_b"] == pytest.approx(with_error(losses(x, rows, score_from))[0], rel=1e-6)


# Figures --------------------------------------------------------------------

@pytest.mark.parametrize("length, n, args, score_from", [
    (100, 3, [], 1), (200, 2, ["--score-from", "100"], 100), (2, 7, [], 1), (130, 3, ["--batch-size", "2"], 1)])
def test_two_models(turbolm, compare, tiny_model, tmp_path, length, n, args, score_from):
    a, b, rows = tiny_model(), tiny_model(**OTHER), make_rows(length, n)
    y, x = (logits_of(turbolm, m, rows, tmp_path, *EXACT) for m in (a, b))
    got = table(compare(a, b, *EXACT, "--sequence-length", length, "--num-samples", n, "--csv", "-", *args))
    if length > 2:
        assert got["kl_mean"] > 1e-3 and 0 < got["top1"] < 1 and got["ppl_a"] != got["ppl_b"]
    check(got, x, y, rows, score_from)


def test_a_is_the_measure(turbolm, compare, tiny_model, tmp_path):
    """Divergence is not symmetric."""
    a, b = tiny_model(), tiny_model(**OTHER)
    args = [*EXACT, "--sequence-length", "150", "--csv", "-"]
    one, two = table(compare(a, b, *args)), table(compare(b, a, *args))
    assert (one["ppl_a"], one["ppl_b"], one["top1"]) == (two["ppl_b"], two["ppl_a"], two["top1"])
    assert one["kl_mean"] != two["kl_mean"]


@pytest.mark.parametrize("copied", [False, True])
def test_a_model_against_itself(compare, tiny_model, tmp_path, copied):
    a = b = tiny_model(**WIDE)
    if copied:
        b = str(shutil.copytree(a, tmp_path / "copy"))
    got = table(compare(a, b, "--sequence-length", "200", "--kv-format", "turbo3", "--csv", "-"))
    assert (got["kl_mean"], got["kl_p99"], got["top1"]) == (0, 0, 1) and got["ppl_a"] == got["ppl_b"] > 1


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("of_a, of_b, flags", [
    ("f16", "turbo2", ["--kv-format-b", "turbo2", "--kv-format-a", "f16"]),
    ("f32", "tq3", ["--kv-format-b", "tq3"]),
    ("affine4g64", "bf16", ["--kv-format", "bf16", "--kv-format-a", "affine4g64"]),
])
def test_cache_formats(turbolm, compare, tiny_model, tmp_path, copied, of_a, of_b, flags):
    a, rows = tiny_model(**WIDE), make_rows(200, 3)
    b = str(shutil.copytree(a, tmp_path / "copy")) if copied else a
    y, x = (logits_of(turbolm, a, rows, tmp_path, *EXACT, "--kv-sink", 0, "--kv-format", f) for f in (of_a, of_b))
    got = compare(a, b, *EXACT, "--kv-sink", 0, "--sequence-length", 200, "--num-samples", 3, "--csv", "-", *flags)
    check(table(got), x, y, rows)


def test_automatic_formats(compare, tiny_model, tmp_path):
    """auto beside a model's own cache is what auto is as its own."""
    a = shutil.copytree(tiny_model(**WIDE), tmp_path / "a")
    weights = tiny.weights(tiny.CONFIG | WIDE)
    weights["model.layers.0.self_attn.q_proj.weight"] *= 30
    tiny._write_weights(a / "model.safetensors", weights)
    b = shutil.copytree(a, tmp_path / "b")
    for of_a, of_b in [("f16", "auto"), ("auto", "f16")]:
        args = ["--kv-format-a", of_a, "--kv-format-b", of_b, "--sequence-length=200", "--kv-sink=0", "--csv", "-"]
        one, two = compare(a, a, *args), compare(a, b, *args)
        assert table(one) == table(two)
        assert re.search(r"cache: chan[568]|;[01]=chan[568]", two.stderr) and "sink" not in two.stderr


def test_precisions(turbolm, compare, model, tmp_path):
    """fast against exact, of one file: two models in memory."""
    path = model("smollm2")
    got = table(compare(path, path, "--precision-a", "exact", "--kv-format", "f16", "--precision-b", "fast",
                        "--sequence-length", "64", "--num-samples", "2", "--csv", "-"))
    assert 0 < got["kl_mean"] < 1e-2 and got["top1"] > 0.95 and got["ppl_a"] != got["ppl_b"]
    one = [turbolm("perplexity", "--model", path, "--data-path", tmp_path / "text.txt", "--precision", p, "--kv-format",
                   "f16", "--sequence-length", "64", "--num-samples", "2", "--csv", "-") for p in ("exact", "fast")]
    assert [got["ppl_a"], got["ppl_b"]] == [float(p.stdout.splitlines()[1].split(",")[4]) for p in one]


def padded(tiny_model, n, tmp_path, name):
    """The tiny model with a vocabulary of n more tokens that its tokenizer does not have."""
    folder = shutil.copytree(tiny_model(), tmp_path / name)
    weights = tiny.weights()
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        more = np.full((n, weights[key].shape[1]), 0.25, np.float32)
        weights[key] = np.concatenate([weights[key], more])
    tiny._write_weights(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(tiny.CONFIG | {"vocab_size": 260 + n}))
    return str(folder)


@pytest.mark.parametrize("larger", ["a", "b"])
def test_padded_vocabulary(compare, tiny_model, tmp_path, larger):
    """What only one of the models predicts is left out, of its softmax as well."""
    pair = [tiny_model(), tiny_model()]
    pair["ab".index(larger)] = padded(tiny_model, 40, tmp_path, "padded")
    got = compare(*pair, *EXACT, "--sequence-length", "150", "--csv", "-")
    sizes = (300, 260) if larger == "a" else (260, 300)
    assert got.stderr == "warning: A predicts %d tokens, B %d: the first 260 are compared\n" % sizes
    got = table(got)
    assert (got["kl_mean"], got["kl_p99"], got["top1"]) == (0, 0, 1) and got["ppl_a"] == got["ppl_b"]


def test_cutting_changes_no_bit(turbolm_lib, tiny_model):
    made = [eval_api.Model(turbolm_lib, tiny_model(**c)) for c in (WIDE, WIDE | OTHER)]
    ids = sum(make_rows(140, 5), [])
    want = made[1].compare(made[0], ids, 140, ["turbo4"], "bf16", score_from=3)
    for batch, step in [(1, 0), (2, 7), (3, 64), (8, 1), (10**6, 10**9)]:
        assert made[1].compare(made[0], ids, 140, ["turbo4"], "bf16", batch=batch, pass_tokens=step,
                               score_from=3) == want
    of_a, of_b = want
    assert (of_a["kl_mean"], of_a["top1"], of_a["ratio"]) == (0, 1, 1)
    assert of_b["ratio"] == pytest.approx(of_b["perplexity"] / of_a["perplexity"], rel=1e-12)
    assert of_a["perplexity"] == made[0].perplexity(ids, 140, ["bf16"], score_from=3)[0]["perplexity"]
    with pytest.raises(engine_api.Failed, match="2 cache formats of one model"):
        made[1].compare(made[0], ids, 140, ["turbo4", "f16"])
    for m in made:
        m.close()


# Output ---------------------------------------------------------------------

def test_output(compare, tiny_model):
    a, b = tiny_model(**WIDE), tiny_model(**WIDE, **OTHER)
    args = ["--sequence-length", "100", "--batch-size", "3", "--num-samples", "7", "--kv-format-b", "turbo4"]
    got = compare(a, b, *args)
    value = table(compare(a, b, *args, "--csv", "-"))
    million = sum(w.size for w in tiny.weights(tiny.CONFIG | WIDE).values()) / 1e6
    rule, n = "=" * 60, r"\d+\.\d\d\d ± \d+\.\d\d\d\n"
    assert got.returncode == 0 and got.stderr == "[INFO] Key-value cache: chan4+pre+mix:tq4, 4.39 bits per element\n"
    out = got.stdout.replace("\r", "\n")
    assert re.fullmatch(
        r"Loading model from {a}\.\.\.\nLoading model from {b}\.\.\.\n"
        r"Models loaded: {m:.1f}M and {m:.1f}M parameters\n\n"
        r"Loading dataset\.\.\.\n  Sequence length: 100\n  Loaded 7 samples\n\nComparing with batch size 3\.\.\.\n"
        r"\n  Processed 1/3 batches\.\.\.\n  Processed 2/3 batches\.\.\.\n  Processed 3/3 batches\.\.\.\n\n"
        r"{rule}\nCOMPARISON RESULTS\n{rule}\nModel A: {a} \(f32, fast, cache f16\)\n"
        r"Model B: {b} \(f32, fast, cache chan4\+pre\+mix:tq4\)\n"
        r"Perplexity A: {n}Perplexity B: {n}KL divergence: mean \d\.\d{{5}}, p99 \d\.\d{{5}}\n"
        r"Top-1 agreement: \d+\.\d\d%\nPerplexity ratio: \d\.\d{{4}} ± \d\.\d{{4}}\n"
        r"Evaluation time: \d+\.\d\d seconds\nPeak memory: \d+\.\d\d GB\nTokens per second: \d+\n\n"
        r"Dataset statistics:\n  Total samples: 7\n  Total tokens: 700\n".format(
            a=re.escape(a), b=re.escape(b), m=million, rule=rule, n=n), out), got.stdout
    assert "KL divergence: mean %.5f, p99 %.5f\nTop-1 agreement: %.2f%%\n" % (
        value["kl_mean"], value["kl_p99"], 100 * value["top1"]) in got.stdout
    for side in "AB":
        assert "Perplexity %s: %.3f ±" % (side, value["ppl_" + side.lower()]) in got.stdout


def test_csv_is_appended(compare, tiny_model, tmp_path):
    path = tmp_path / "out.csv"
    for n in (1, 2):
        got = compare(tiny_model(), tiny_model(**OTHER), "--sequence-length", "50", "--num-samples", n, "--csv", path)
        assert got.returncode == 0 and "COMPARISON RESULTS" in got.stdout
    with open(path, newline="") as f:
        heading, *rows = csv.reader(f)
    assert heading == HEADING and [r[-1] for r in rows] == ["49", "98"]


def test_data_set(compare, turbolm, tiny_model, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"text": "document %d" % i}) + "\n" for i in range(50)))
    args = ["--data-path", path, "--seed", "5", "--sequence-length", "40", "--num-samples", "4", "--csv", "-"]
    got = table(turbolm("compare", tiny_model(), tiny_model(**OTHER), *args))
    one = turbolm("perplexity", "--model", tiny_model(**OTHER), *args)
    assert got["ppl_b"] == float(one.stdout.splitlines()[1].split(",")[4]) and got["tokens"] == 4 * 39


# Tokenizers -----------------------------------------------------------------

def test_tokenizers_that_differ(compare, tiny_model):
    a, other = tiny_model(), tiny_model(renamed=((ord("w"), "<w>"),), special=(*tiny.SPECIAL, "<w>"))
    got = compare(a, other, "--sequence-length", "100")
    assert (got.returncode, got.stderr) == (1, "error: the tokenizers differ: id 119 is 'w' in %s, but '<w>' in %s\n"
                                            % (a, other))
    merged = tiny_model(merges=(("w", "o"),))
    got = compare(a, merged, "--sequence-length", "100")
    assert got.returncode == 1
    assert re.fullmatch(r"error: the tokenizers differ: token \d+ of the same text is 119 in %s, but 260 in %s\n"
                        % (re.escape(a), re.escape(merged)), got.stderr), got.stderr


def test_tokens_that_the_text_does_not_have(compare, tiny_model):
    a, b = tiny_model(), tiny_model(renamed=((7, "<bell>"),))
    got = compare(a, b, "--sequence-length", "100")
    assert got.returncode == 0
    assert got.stderr == "warning: 1 tokens that the text does not have differ between A and B\n"


def test_no_tokenizer(compare, tiny_model):
    for pair in [(tiny_model(tokenizer=False), tiny_model()), (tiny_model(), tiny_model(tokenizer=False))]:
        got = compare(*pair, "--sequence-length", "100")
        assert got.returncode == 1 and "no tokenizer" in got.stderr and got.stderr.count("\n") == 1


# Errors ---------------------------------------------------------------------

@pytest.mark.parametrize("args, status, message", [
    (["--num-samples", "0"], 2, "argument --num-samples: must be -1 or at least 1, but is 0"),
    (["--score-from", "512"], 2, "argument --score-from: must be below --sequence-length, but is 512"),
    (["--precision-a", "best"], 2, "argument --precision-a: invalid choice: 'best'"),
    (["--kv-format-b", "f17"], 2, "'f17'"),
    (["--kv-format-a", "f17"], 2, "'f17'"),
    (["--kv-format-a", "f16", "--kv-bits", "4"], 2, "argument --kv-format-a: not allowed with argument --kv-bits"),
    (["--data-path", "absent.txt"], 1, "absent.txt: no such file"),
    (["--csv", "/nonexistent/x"], 1, "cannot write"),
    (["--device", "gpu"], 2, "--device gpu is not supported yet"),
])
@pytest.mark.parametrize("same", [True, False])
def test_errors(compare, tiny_model, same, args, status, message):
    got = compare(tiny_model(), tiny_model(**({} if same else OTHER)), *args)
    assert got.returncode == status and message in got.stderr and "RESULTS" not in got.stdout
    assert got.stderr.count("error:") == 1


def test_models_that_are_not_there(compare, tiny_model, turbolm):
    got = turbolm("compare", tiny_model())
    assert got.returncode == 2 and got.stderr.endswith("error: the following arguments are required: B\n")
    for pair in [(tiny_model(), "/absent"), ("/absent", tiny_model())]:
        got = compare(*pair)
        assert (got.returncode, got.stderr) == (1, "error: /absent: no such file or directory\n")


def test_interrupt(turbolm_bin, tiny_model, tmp_path):
    path, out = tmp_path / "long.txt", tmp_path / "out.csv"
    path.write_text("The same line again and again.\n" * 30000)
    p = subprocess.Popen([turbolm_bin, "compare", tiny_model(), tiny_model(**OTHER), "--data-path", path,
                          "--num-samples", "-1", "--sequence-length", "100000", "--csv", out],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while b"Comparing" not in p.stdout.readline():
        assert p.poll() is None
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=120)
    assert p.returncode == 130 and b"RESULTS" not in rest and err == b""
    assert not os.path.exists(out)
