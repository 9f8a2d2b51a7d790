"""perplexity: figures against numpy's from the logits of the program, and from transformers; every error."""
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

HEADING = ("model,kv_format,bits,allocated_bytes,ppl,ppl_se,kl_mean,kl_p99,top1,ppl_ratio,ppl_ratio_se,tokens,seconds,"
           "peak_bytes").split(",")
TEXT = "".join("%d: the %s of line %d.\n" % (i * 7919 % 1000, "é" if i % 3 else "word", i) for i in range(40))
WIDE = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
LINE = 64  # tokens of a block


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def lib_model(turbolm_lib, tiny_model):
    made = []

    def make(changes=WIDE, **options):
        made.append(eval_api.Model(turbolm_lib, tiny_model(**changes), **options))
        return made[-1]

    yield make
    for m in made:
        m.close()


def make_rows(length, n, bos=True):
    ids = [tiny.START] * bos + list(TEXT.encode())
    return [[tiny.START] * bos + ids[i * length + bos : (i + 1) * length] for i in range(n)]


def logits_of(turbolm, model, rows, tmp_path, *args):
    """float64 [rows, length, vocabulary] as `turbolm logits` writes them."""
    out = []
    for ids in rows:
        path = tmp_path / "logits.npy"
        got = turbolm("logits", "--model", model, "--ids", " ".join(map(str, ids)), "--out", path, *args)
        assert got.returncode == 0, got.stderr
        out.append(np.load(path).astype(np.float64))
    return np.array(out)


def log_softmax(x):
    m = x.max(-1, keepdims=True)
    return x - m - np.log(np.exp(x - m).sum(-1, keepdims=True))


def losses(x, rows, score_from=1):
    p = log_softmax(x)
    return np.array([[-p[r, t - 1, row[t]] for t in range(score_from, len(row))] for r, row in enumerate(rows)])


def with_error(loss):
    loss = loss.ravel()
    ppl = np.exp(loss.mean())
    return ppl, ppl * loss.std(ddof=1) / np.sqrt(loss.size)


def relative(x, y, rows, score_from=1):
    """The figures of logits x against those of the reference y."""
    places = slice(score_from - 1, -1)
    p, q = log_softmax(x)[:, places], log_softmax(y)[:, places]
    kl = np.sort((np.exp(q) * (q - p)).sum(-1).ravel())
    more = losses(x, rows, score_from) - losses(y, rows, score_from)
    distance = np.abs(x - y)[:, places]
    ratio, ratio_error = with_error(more)
    return {"kl_mean": kl.mean(), "kl_p99": kl[int(0.99 * (kl.size - 1) + 0.5)],
            "top1": (p.argmax(-1) == q.argmax(-1)).mean(), "ratio": ratio, "ratio_error": ratio_error,
            "logit_error": distance.mean(), "logit_distance": distance.max()}


def run(turbolm, model, text, *args, **kwargs):
    return turbolm("perplexity", "--model", model, "--data-path", text, "--precision", "exact", *args, **kwargs)


def run_csv(turbolm, model, text, *args):
    got = run(turbolm, model, text, "--csv", "-", *args)
    assert got.returncode == 0, got.stderr
    heading, row = csv.reader(got.stdout.splitlines())
    assert heading == HEADING
    return dict(zip(heading, row))


# Figures --------------------------------------------------------------------

@pytest.mark.parametrize("length, n, args, bos, score_from", [
    (100, 3, ["--num-samples", "3"], True, 1),
    (100, 2, ["--num-samples", "2", "--bos", "false"], False, 1),
    (2, 7, ["--num-samples", "7", "--bos", "true"], True, 1),
    (200, 2, ["--num-samples", "2", "--score-from", "100"], True, 100),
    (65, 3, ["--num-samples", "3", "--score-from", "64", "--batch-size", "4096"], True, 64),
    (130, (len(TEXT.encode()) + 1) // 130, ["--num-samples", "-1"], True, 1),
])
def test_perplexity_is_numpys(turbolm, tiny_model, text, tmp_path, length, n, args, bos, score_from):
    rows = make_rows(length, n, bos)
    ppl, error = with_error(losses(logits_of(turbolm, tiny_model(), rows, tmp_path, "--precision", "exact"), rows,
                                   score_from))
    got = run_csv(turbolm, tiny_model(), text, "--sequence-length", length, *args)
    assert int(got["tokens"]) == n * (length - score_from)
    assert float(got["ppl"]) == pytest.approx(ppl, rel=1e-6)
    assert float(got["ppl_se"]) == pytest.approx(error, rel=1e-5)
    assert got["kv_format"] == "f32" and float(got["bits"]) == 32
    assert [got[k] for k in ("kl_mean", "kl_p99", "top1", "ppl_ratio", "ppl_ratio_se")] == [""] * 5


@pytest.mark.parametrize("fmt, reference, sink", [
    ("chan4+pre+mix:tq4", "f16", 64), ("turbo2", "f16", 0), ("rot4+qjl", "f32", 0), ("affine4g64", "bf16", 64),
    ("f16", "tq2", 0),
])
def test_difference_is_numpys(turbolm, tiny_model, text, tmp_path, fmt, reference, sink):
    model, rows = tiny_model(**WIDE), make_rows(200, 3)
    cache = ["--precision", "exact", "--kv-sink", sink]
    x = logits_of(turbolm, model, rows, tmp_path, *cache, "--kv-format", fmt)
    y = logits_of(turbolm, model, rows, tmp_path, *cache, "--kv-format", reference)
    want = relative(x, y, rows)
    got = run_csv(turbolm, model, text, "--sequence-length", 200, "--num-samples", 3, "--kv-format", fmt,
                  "--kl-reference", reference, "--kv-sink", sink)
    ppl, error = with_error(losses(x, rows))
    assert want["kl_mean"] > 1e-5 or reference == "bf16"
    assert float(got["ppl"]) == pytest.approx(ppl, rel=1e-6)
    assert float(got["ppl_se"]) == pytest.approx(error, rel=1e-5)
    assert float(got["kl_mean"]) == pytest.approx(want["kl_mean"], rel=1e-3, abs=1e-7)
    assert float(got["kl_p99"]) == pytest.approx(want["kl_p99"], rel=1e-3, abs=2e-6)
    assert float(got["top1"]) == pytest.approx(want["top1"], rel=1e-8)
    assert float(got["ppl_ratio"]) == pytest.approx(want["ratio"], rel=1e-6)
    assert float(got["ppl_ratio_se"]) == pytest.approx(want["ratio_error"], rel=1e-3)
    assert got["kv_format"] == fmt


def test_format_that_is_the_reference(turbolm, tiny_model, text):
    got = run_csv(turbolm, tiny_model(**WIDE), text, "--sequence-length", 150, "--kv-format", "turbo4",
                  "--kl-reference", "turbo4")
    assert [float(got[k]) for k in ("kl_mean", "kl_p99", "top1", "ppl_ratio", "ppl_ratio_se")] == [0, 0, 1, 1, 0]


def test_formats_in_lockstep(turbolm, lib_model, tiny_model, tmp_path):
    rows = make_rows(150, 3)
    formats = ["f16", "turbo4", "affine8", "turbo4"]
    together = lib_model(kv_sink=-1).perplexity(sum(rows, []), 150, formats, "f16")
    y = logits_of(turbolm, tiny_model(**WIDE), rows, tmp_path, "--precision", "exact", "--kv-format", "f16")
    for fmt, got in zip(formats, together):
        alone = lib_model(kv_sink=-1).perplexity(sum(rows, []), 150, [fmt], "f16")[0]
        own = lib_model(kv_sink=-1, kv_format=fmt.encode()).perplexity(sum(rows, []), 150, (), "f16")[0]
        assert got == alone == own
        x = logits_of(turbolm, tiny_model(**WIDE), rows, tmp_path, "--precision", "exact", "--kv-format", fmt,
                      "--kv-sink", "0")
        for name, value in relative(x, y, rows).items():
            assert got[name] == pytest.approx(value, rel=1e-3, abs=2e-6), name
    assert together[0]["kl_mean"] == 0 < together[2]["kl_mean"] < together[1]["kl_mean"]
    assert together[0]["logit_error"] == 0 < together[2]["logit_error"] < together[2]["logit_distance"]


@pytest.mark.parametrize("fmt", ["f16", "turbo4"])
def test_cutting_changes_no_bit(lib_model, fmt):
    m, ids = lib_model(), sum(make_rows(140, 5), [])
    want = m.perplexity(ids, 140, [fmt], "bf16", score_from=3)
    for batch, step in [(1, 0), (2, 7), (3, 64), (8, 1), (5, 200), (10**6, 10**9)]:
        assert m.perplexity(ids, 140, [fmt], "bf16", batch=batch, pass_tokens=step, score_from=3) == want


def test_rows_do_not_know_each_other(lib_model):
    m, rows = lib_model(), make_rows(100, 3)
    one = [m.perplexity(r, 100, ["turbo2"], "f16")[0] for r in rows]
    all_of = m.perplexity(sum(rows, []), 100, ["turbo2"], "f16")[0]
    assert all_of["kl_mean"] == pytest.approx(np.mean([r["kl_mean"] for r in one]), rel=1e-12)
    assert all_of["cache_bytes"] == one[0]["cache_bytes"]


@pytest.mark.parametrize("length", [100, 128, 129, 320])
@pytest.mark.parametrize("sink", [0, 64])
@pytest.mark.parametrize("fmt", ["f16", "affine4g64", "turbo4", "chan4:tq4"])
def test_bytes_of_the_cache(lib_model, fmt, sink, length):
    """Blocks of 64 tokens: the sink's and the open one hold float16, the others the format's bits."""
    got = lib_model(kv_sink=sink or -1).perplexity([65] * length, length, [fmt], "f16")[0]
    elements = 2 * LINE * WIDE["num_key_value_heads"] * WIDE["head_dim"] * tiny.CONFIG["num_hidden_layers"]
    blocks, open_blocks = -(-length // LINE), int(length % LINE > 0)
    exact = open_blocks + sink // LINE
    if fmt == "f16":
        exact, sealed = blocks, 0
    else:
        sealed = blocks - exact
    want = exact * elements * 2 + sealed * elements * got["kv_bits"] / 8
    assert want <= got["cache_bytes"] <= want + sealed * 64 * tiny.CONFIG["num_hidden_layers"] * 2  # padding of blocks
    assert (got["kv_bits"] == 16) == (fmt == "f16")


def test_transformers(turbolm, tiny_model, text, root):
    with open(os.path.join(root, "tests", "data", "perplexity", "tiny.json")) as f:
        golden = json.load(f)
    text.write_text(golden["text"])
    for case in golden["cases"]:
        got = run_csv(turbolm, tiny_model(), text, "--sequence-length", case["length"], "--bos", case["bos"],
                      "--num-samples", "-1")
        assert int(got["tokens"]) == case["tokens"]
        assert float(got["ppl"]) == pytest.approx(case["ppl"], rel=2e-6)
        assert float(got["ppl_se"]) == pytest.approx(case["ppl_se"], rel=2e-5)


# Output ---------------------------------------------------------------------

def test_output(turbolm_bin, tiny_model, text):
    model = tiny_model()
    got = subprocess.run([turbolm_bin, "perplexity", "--model", model, "--data-path", text, "--sequence-length", "100",
                          "--batch-size", "3", "--num-samples", "7"], capture_output=True)
    assert got.returncode == 0 and got.stderr == b""
    n_parameters = sum(w.size for w in tiny.weights().values())
    rule = "=" * 60
    assert re.fullmatch(
        r"Loading model from %s\.\.\.\nModel loaded: %.1fM parameters\n\nLoading dataset\.\.\.\n"
        r"  Sequence length: 100\n  Loaded 7 samples\n\nEvaluating perplexity with batch size 3\.\.\.\n"
        r"\r  Processed 1/3 batches\.\.\.\r  Processed 2/3 batches\.\.\.\r  Processed 3/3 batches\.\.\.\n\n"
        r"%s\nEVALUATION RESULTS\n%s\nModel: %s\nPerplexity: \d+\.\d{3} ± \d+\.\d{3}\n"
        r"Evaluation time: \d+\.\d{2} seconds\nPeak memory: \d+\.\d{2} GB\nTokens per second: \d+\n\n"
        r"Dataset statistics:\n  Total samples: 7\n  Total tokens: 700\n"
        % (re.escape(model), n_parameters / 1e6, rule, rule, re.escape(model)), got.stdout.decode()), got.stdout


def test_output_of_a_difference(turbolm, tiny_model, text):
    model = tiny_model(**WIDE)
    args = ["--sequence-length", "200", "--kv-format", "turbo3", "--kl-reference", "f16", "--kv-sink", "0"]
    figures = run_csv(turbolm, model, text, *args)
    got = run(turbolm, model, text, *args)
    value = {k: float(figures[k]) for k in HEADING[2:]}
    assert ("Perplexity: %.3f ± %.3f\nKL divergence: mean %.5f, p99 %.5f\nTop-1 agreement: %.2f%%\n"
            "Perplexity ratio: %.4f ± %.4f\n"
            "Key-value cache: chan3+pre+mix:tq4, %.2f bits per element, %d bytes for a row\n"
            % (value["ppl"], value["ppl_se"], value["kl_mean"], value["kl_p99"], 100 * value["top1"],
               value["ppl_ratio"], value["ppl_ratio_se"], value["bits"], value["allocated_bytes"])) in got.stdout


def test_text_from_standard_input(turbolm, tiny_model, text):
    want = run_csv(turbolm, tiny_model(), text, "--sequence-length", "100")
    got = run(turbolm, tiny_model(), "-", "--sequence-length", "100", "--csv", "-", input=TEXT)
    assert got.stdout.splitlines()[1].split(",")[:7] == list(want.values())[:7]


def test_rows_longer_than_the_context(turbolm, tiny_model, text):
    model = tiny_model(max_position_embeddings=100)
    assert run(turbolm, model, text, "--sequence-length", "100").stderr == ""
    got = run(turbolm, model, text, "--sequence-length", "101")
    assert (got.returncode, got.stderr) == (0, "warning: rows have 101 tokens, the model's context 100\n")


# CSV ------------------------------------------------------------------------

def test_csv_is_appended(turbolm, tiny_model, text, tmp_path):
    model, path = tmp_path / 'a "b", c\nd', tmp_path / "out.csv"
    shutil.copytree(tiny_model(), model)
    for n in (100, 110):
        got = run(turbolm, model, text, "--sequence-length", n, "--num-samples", 2, "--csv", path,
                  "--kv-format", "chan4;0,1=f16")
        assert got.returncode == 0 and "EVALUATION RESULTS" in got.stdout
    with open(path, newline="") as f:
        rows = list(csv.reader(f))
    assert rows[0] == HEADING and [len(r) for r in rows] == [14] * 3
    assert [(r[0], r[1], r[11]) for r in rows[1:]] == [(str(model), "chan4;0,1=f16", "198"),
                                                       (str(model), "chan4;0,1=f16", "218")]


@pytest.mark.parametrize("content, message", [
    ("a,b\n1,2\n", "its first line is not the heading of this table"),
    (",".join(HEADING)[:20], "its first line is not the heading of this table"),
    (",".join(HEADING) + "\n1,2", "its last line has no end"),
])
def test_csv_file_of_something_else(turbolm, tiny_model, text, tmp_path, content, message):
    path = tmp_path / "out.csv"
    path.write_text(content)
    got = run(turbolm, tiny_model(), text, "--sequence-length", "100", "--csv", path)
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s: %s\n" % (path, message))
    assert path.read_text() == content


def test_csv_that_cannot_be_written(turbolm, turbolm_bin, tiny_model, text, tmp_path):
    for path, why in [(tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file or directory")]:
        got = run(turbolm, tiny_model(), text, "--csv", path)
        assert (got.returncode, got.stdout) == (1, "")
        assert got.stderr == "error: %s: cannot write: %s\n" % (path, why)
    got = run(turbolm, tiny_model(), text, "--sequence-length", "100", "--csv", "/dev/full")
    assert got.returncode == 1 and got.stderr == "error: /dev/full: cannot write: No space left on device\n"
    with open("/dev/full", "w") as full:
        p = subprocess.run([turbolm_bin, "perplexity", "--model", tiny_model(), "--data-path", text,
                            "--sequence-length", "100", "--csv", "-"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1
    assert p.stderr == "error: cannot write to standard output: No space left on device\n"


def test_words_of_bos(turbolm, tiny_model, text):
    def value(word):
        args = ("--sequence-length", "40", "--num-samples", "2", "--bos", word)
        return run_csv(turbolm, tiny_model(), text, *args)["ppl"]
    assert len({value(word) for word in ("true", "True", "t", "yes", "on", "1")}) == 1
    assert len({value(word) for word in ("false", "FALSE", "f", "no", "off", "0")}) == 1
    assert value("1") != value("0")


def test_rows_that_are_never_quantised(turbolm, tiny_model, text):
    def warnings(start):
        got = run(turbolm, tiny_model(), text, "--sequence-length", "70", "--kv-format", "tq4",
                  "--quantized-kv-start", start)
        assert got.returncode == 0, got.stderr
        return [x for x in got.stderr.splitlines() if x.startswith("warning:")]
    message = "warning: rows of 70 tokens are shorter than --quantized-kv-start (71): nothing is quantised"
    assert warnings(71) == [message] and warnings(70) == []


# Errors ---------------------------------------------------------------------

@pytest.mark.parametrize("args, status, message", [
    (["--num-samples", "0"], 2, "argument --num-samples: must be -1 or at least 1, but is 0"),
    (["--score-from", "512"], 2, "argument --score-from: must be below --sequence-length, but is 512"),
    (["--sequence-length", "1"], 2, "argument --sequence-length"),
    (["--seed", "-1"], 2, "argument --seed: must be from 0 to 4294967295, but is -1"),
    (["--seed", "4294967296"], 2, "must be from 0 to 4294967295, but is 4294967296"),
    (["--trust-remote-code"], 2, "--trust-remote-code is not supported yet"),
    (["--sequence-length", "1000000000"], 1, "has %d tokens, but a row takes 999999999" % len(TEXT.encode())),
    (["--bos", "maybe"], 2, "argument --bos: must be true or false, but is maybe"),
    (["--bos", ""], 2, "argument --bos: must be true or false"),
    (["--kl-reference", "f17", "--sequence-length", "9"], 2, "'f17'"),
    (["--kl-reference", "rot4", "--sequence-length", "9"], 2, "rot4"),
])
def test_bad_options(turbolm, tiny_model, text, args, status, message):
    got = run(turbolm, tiny_model(), text, *args)
    assert got.returncode == status and message in got.stderr and "RESULTS" not in got.stdout
    assert got.stderr.count("error:") == 1
    if "--kl-reference" in args:
        assert "Loading dataset" not in got.stdout


@pytest.mark.parametrize("data, message", [
    (b"", "has 0 tokens, but a row takes 8"),
    (b"abcdefg", "has 7 tokens, but a row takes 8"),
    (b"abcdefgh\xff", "is not valid UTF-8 at byte 8"),
    (b"abcdefgh\xe2\x82", "is not valid UTF-8 at byte 8"),
    (b"abcdefgh\0", "has a NUL byte"),
], ids=["empty", "short", "last", "cut", "nul"])
def test_bad_text(turbolm, tiny_model, text, data, message):
    text.write_bytes(data)
    got = run(turbolm, tiny_model(), text, "--sequence-length", "9")
    assert (got.returncode, got.stderr) == (1, "error: %s %s\n" % (text, message))
    text.write_bytes(b"abcdefgh")
    assert run(turbolm, tiny_model(), text, "--sequence-length", "9").returncode == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(turbolm, tiny_model, text, tmp_path, value):
    """No perplexity of nan; compare says which model it is."""
    bad, good = tiny.make(tmp_path / "bad", with_weights=False), tiny_model()
    weights = tiny.weights()
    weights["lm_head.weight"][70, 3] = value
    tiny._write_weights(os.path.join(bad, "model.safetensors"), weights)
    for args in (["perplexity", "--model", bad], ["compare", good, bad], ["compare", bad, good]):
        got = turbolm(*args, "--data-path", text, "--sequence-length", "32", "--num-samples", "2")
        last = got.stderr.splitlines()[-1]
        assert got.returncode == 1 and last.startswith("error: %s: logit of token 70 is " % bad), got.stderr
        assert "Perplexity" not in got.stdout


def test_seed_without_effect(turbolm, tiny_model, text):
    got = turbolm("perplexity", "--model", tiny_model(), "--data-path", text, "--sequence-length", "32",
                  "--num-samples", "2", "--seed", "5")
    assert (got.returncode, got.stderr) == (0, "warning: --seed has no effect on a text, which is read in its order\n")


def test_text_without_end(turbolm, tiny_model):
    got = turbolm("perplexity", "--model", tiny_model(), "--data-path", "/dev/zero", timeout=60)
    assert (got.returncode, got.stderr) == (1, "error: /dev/zero has a NUL byte\n")


def test_text_that_is_not_there(turbolm, tiny_model, text, tmp_path):
    for name in ("/absent/text", tmp_path / "absent.txt"):
        got = run(turbolm, tiny_model(), name)
        assert got.returncode == 1 and got.stderr.startswith("error: %s: no such file" % name)
    got = run(turbolm, tiny_model(), tmp_path)
    assert got.returncode == 1 and got.stderr == "error: %s: no file train.jsonl in this folder\n" % tmp_path


def test_model_without_tokenizer(turbolm, tiny_model, text):
    got = run(turbolm, tiny_model(tokenizer=False), text)
    assert got.returncode == 1 and "no tokenizer" in got.stderr


def test_bad_calls(lib_model):
    m = lib_model()
    for ids, length, options in [([65] * 4, 1, {}), ([], 4, {}), ([65] * 4, 4, {"score_from": 4}),
                                 ([65, 66, 260, 1], 4, {}), ([65, -1], 2, {}), ([65] * 4, 4, {"formats": ["f17"]}),
                                 ([65] * 4, 4, {"reference": "tq9"})]:
        with pytest.raises(engine_api.Failed):
            m.perplexity(ids, length, **options)
    assert m.perplexity([65] * 4, 4)[0]["tokens"] == 3


# Interruption ---------------------------------------------------------------

def test_report_ends_the_work(lib_model):
    m, seen = lib_model(), []

    def report(_, done, rows):
        seen.append((done, rows))
        return len(seen) == 4

    with pytest.raises(engine_api.Failed, match="interrupted"):
        m.perplexity([65] * 300, 100, ["turbo4", "tq2"], "f16", report=report, batch=1)
    assert seen == [(0, 3)] * 3 + [(1, 3)]  # the reference and two formats, the row's end


def test_interrupt(turbolm_bin, tiny_model, tmp_path):
    path, out = tmp_path / "long.txt", tmp_path / "out.csv"
    path.write_text("The same line again and again.\n" * 30000)
    p = subprocess.Popen([turbolm_bin, "perplexity", "--model", tiny_model(), "--data-path", path,
                          "--num-samples", "-1", "--sequence-length", "100000", "--csv", out],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while b"Evaluating" not in p.stdout.readline():
        assert p.poll() is None
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=120)
    assert p.returncode == 130 and b"RESULTS" not in rest and err == b""
    assert not out.exists()
