"""turboquant: the table of cache formats as text, CSV and plot, and the command with its parts."""
import csv
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

import eval_api
import tiny_model as tiny

HEADING = ("model,format,kv_format,bits,allocated_bytes,ppl,ppl_se,kl_mean,kl_p99,top1,ppl_ratio,ppl_ratio_se,"
           "logit_error,logit_max,rows,row_length,tokens").split(",")
OTHERS = ["affine8", "affine4", "rot8", "rot4", "rot4+qjl", "rot3", "rot3+qjl"]
WIDE = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
ROW = ["--sequence-length", "200", "--num-samples", "2", "--precision", "exact"]


@pytest.fixture
def evaluate(turbolm, tiny_model):
    def run(*args, **kwargs):
        return turbolm("turboquant", "eval", "--model", tiny_model(**WIDE), *args, **kwargs)

    return run


def table(got, path=None):
    """{format: {column: value}}, from a CSV file or standard output."""
    assert got.returncode == 0, got.stderr
    lines = list(csv.reader(open(path, newline="") if path else got.stdout.splitlines()))
    assert lines[0] == HEADING
    return {r["format"]: r for r in (dict(zip(HEADING, line, strict=True)) for line in lines[1:])}


# Figures --------------------------------------------------------------------

def test_every_format(evaluate, turbolm_lib, tiny_model):
    m = eval_api.Model(turbolm_lib, tiny_model(**WIDE))
    presets = m.presets()
    m.close()
    got = evaluate(*ROW, "--csv", "-")
    rows = table(got)
    assert got.stderr == "" and list(rows) == ["f16", *presets, *OTHERS] and "turbo4" in presets
    exact = rows["f16"]
    columns = ("bits", "kl_mean", "kl_p99", "top1", "ppl_ratio", "logit_error", "logit_max")
    assert [float(exact[k]) for k in columns] == [16, 0, 0, 1, 1, 0, 0]
    elements = 2 * WIDE["num_key_value_heads"] * WIDE["head_dim"] * tiny.CONFIG["num_hidden_layers"]
    for name, r in rows.items():
        # 200 tokens: the sink's block, two sealed ones, and the open one
        bits = float(r["bits"])
        want = 64 * elements * (2 * 16 + 2 * bits) / 8
        assert want <= int(r["allocated_bytes"]) <= want + 1024, name
        assert (r["rows"], r["row_length"], r["tokens"]) == ("2", "200", "398")
        assert name == "f16" or 0 < float(r["kl_mean"]) < 1 and 0 < float(r["logit_error"]) < float(r["logit_max"])
    kl = {name: float(r["kl_mean"]) for name, r in rows.items()}
    assert kl["affine8"] < kl["affine4"] and kl["rot8"] < kl["rot4"] < kl["rot3"] and kl["turbo5"] < kl["turbo2"]


def test_figures_are_those_of_perplexity(evaluate, turbolm, tiny_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join("Line %d is not line %d.\n" % (i, i * i) for i in range(60)))
    formats = ["turbo3", "rot4+qjl", "chan4:tq3;0=f16", "f32"]
    common = ["--data-path", text, *ROW, "--score-from", "70", "--kv-sink", "0"]
    rows = table(evaluate(*common, "--formats", *formats, "--csv", "-"))
    assert list(rows) == formats
    for fmt in formats:
        got = turbolm("perplexity", "--model", tiny_model(**WIDE), *common, "--kv-format", fmt, "--kl-reference", "f16",
                      "--csv", "-")
        heading, want = csv.reader(got.stdout.splitlines())
        for name, value in zip(heading[3:12], want[3:12], strict=True):
            assert rows[fmt][name] == value, (fmt, name)


@pytest.mark.parametrize("args", [["--batch-size", "2"], ["--prefill-step-size", "33"], ["--threads", "1"]])
def test_batches_change_nothing(evaluate, args):
    common = [*ROW, "--csv", "-", "--formats", "turbo4", "f16", "rot3"]
    assert evaluate(*common, *args).stdout == evaluate(*common).stdout


def test_own_text(evaluate, turbolm):
    """With no options it works, whatever the tokenizer: every token of this model is a byte."""
    rows = table(evaluate("--csv", "-", "--formats", "f16", "--num-samples", "-1", "--sequence-length", "100"))
    assert 5000 < int(rows["f16"]["rows"]) * 100 < 8000
    got = evaluate("--formats", "f16", "--num-samples", "1")
    assert got.returncode == 0 and "\nText: the program's own, 1 rows of 512 tokens, 511 scored\n" in got.stdout


def test_own_text_of_a_real_tokenizer(turbolm, model):
    got = turbolm("turboquant", "eval", "--model", model("smollm2"), "--formats", "f16", "--csv", "-")
    assert int(table(got)["f16"]["rows"]) == 2  # of 512 tokens


def test_table(evaluate, tmp_path):
    path = tmp_path / "out.csv"
    formats = ["f16", "turbo4", "chan4+pre:tq2;1=f16"]
    got = evaluate(*ROW, "--formats", *formats, "--csv", path, "--kv-sink", "65")
    rows = table(got, path)
    lines = got.stdout.splitlines()
    assert lines[2] == "Reference: f16; sink of the others: 128 tokens"
    assert re.split(r"  +", lines[4]) == ["format", "bits/elem", "allocated bytes", "perplexity", "KL mean", "KL p99",
                                          "top-1", "logit error", "ppl ratio"]
    assert len(set(map(len, lines[4:8]))) == 1
    for fmt, line in zip(formats, lines[5:8], strict=True):
        r = {k: float(v) for k, v in rows[fmt].items() if k not in ("model", "format", "kv_format")}
        assert re.split(r"  +", line) == [
            fmt, "%.3f" % r["bits"], "%d" % r["allocated_bytes"], "%.3f +- %.3f" % (r["ppl"], r["ppl_se"]),
            "%.6f" % r["kl_mean"], "%.6f" % r["kl_p99"], "%.2f%%" % (100 * r["top1"]), "%.5f" % r["logit_error"],
            "%.4f" % r["ppl_ratio"]]


# Formats and heads ----------------------------------------------------------

def test_formats_that_do_not_suit_the_heads(turbolm, tiny_model):
    got = turbolm("turboquant", "eval", "--model", tiny_model(), *ROW, "--csv", "-")
    assert "affine4" not in table(got) and "f16" in table(got)
    assert re.search(r"^warning: affine4 is left out: .*head", got.stderr, re.M)
    got = turbolm("turboquant", "eval", "--model", tiny_model(), *ROW, "--csv", "-", "--formats", "f16", "affine4")
    assert (got.returncode, got.stdout) == (2, "") and re.fullmatch(r"error: .*head.*\n", got.stderr)


# Plot -----------------------------------------------------------------------

def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


@pytest.mark.skipif(not shutil.which("gnuplot"), reason="gnuplot is not installed")
def test_plot(evaluate, tmp_path):
    path = tmp_path / "it's a \"plot\"; `touch x`.png"
    got = evaluate(*ROW, "--formats", "f16", "turbo4", "chan4;0,1=f16", "rot3+qjl", "--plot", path, cwd=tmp_path)
    assert got.returncode == 0 and got.stderr == "" and got.stdout.startswith("Model: ")
    assert png_size(path.read_bytes()) == (960, 640)
    assert os.listdir(tmp_path) == [path.name]


def fake_gnuplot(folder, script):
    path = folder / "bin" / "gnuplot"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return {"env": os.environ | {"PATH": "%s:/usr/bin:/bin" % path.parent}}


def test_script_of_the_plot(turbolm, tiny_model, tmp_path):
    env = fake_gnuplot(tmp_path, "cat\n")
    model, out = tmp_path / "a'b`c$d@e\"f\\g\nh", tmp_path / "out.png"
    shutil.copytree(tiny_model(**WIDE), model)
    got = turbolm("turboquant", "eval", "--model", model, *ROW, "--formats", "f16", "turbo4", "rot3+qjl", "--plot", out,
                  "--csv", "-", **env)
    rows, script = table(got), out.read_text()
    assert "set title 'a?b?c?d?e?f?g?h: cache formats against f16'\n" in script
    points = [line.split() for line in re.search(r"\$points << END\n(.*)END\n", script, re.S)[1].splitlines()]
    assert [p[2] for p in points] == ["turbo4", "rot3+qjl"]  # no divergence, no point
    for x, y, name in points:
        assert float(x) == float(rows[name]["bits"])
        assert float(y) == pytest.approx(float(rows[name]["kl_mean"]), rel=1e-8)


@pytest.mark.parametrize("script, message", [
    ("exit 1\n", "gnuplot failed"), ("kill -9 $$\n", "gnuplot failed"), ("exit 0\n", "gnuplot made no picture"),
])
def test_gnuplot_that_fails(evaluate, tmp_path, script, message):
    out = tmp_path / "out.png"
    got = evaluate(*ROW, "--formats", "f16", "turbo4", "--plot", out, **fake_gnuplot(tmp_path, script))
    assert got.returncode == 1 and got.stderr.startswith("error: ") and message in got.stderr
    assert "turbo4" in got.stdout  # the figures are not lost


def test_no_gnuplot(evaluate, tmp_path):
    got = evaluate(*ROW, "--plot", tmp_path / "out.png", env=os.environ | {"PATH": str(tmp_path)})
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == ("error: --plot needs the program gnuplot, which is not installed (not in PATH); --csv has "
                          "the same figures\n")


def test_nothing_to_plot(evaluate, tmp_path):
    got = evaluate(*ROW, "--formats", "f16", "--plot", tmp_path / "out.png", **fake_gnuplot(tmp_path, "cat\n"))
    assert got.returncode == 1 and "nothing to plot" in got.stderr and not (tmp_path / "out.png").exists()


def test_plot_that_cannot_be_written(evaluate, tmp_path):
    got = evaluate(*ROW, "--formats", "turbo4", "--plot", "/dev/full", **fake_gnuplot(tmp_path, "cat\n"))
    assert (got.returncode, got.stderr) == (1, "error: /dev/full: cannot write: No space left on device\n")


def test_plot_is_tried_first(evaluate, tmp_path):
    where, env = tmp_path / "none" / "out.png", fake_gnuplot(tmp_path, "cat\n")
    got = evaluate(*ROW, "--formats", "turbo4", "--plot", where, **env)
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == "error: %s: cannot write: No such file or directory\n" % where
    got = evaluate(*ROW, "--formats", "turbo4", "--plot", tmp_path, **env)
    assert (got.returncode, got.stderr) == (1, "error: %s: cannot write: Is a directory\n" % tmp_path)


def test_plot_through_a_link(evaluate, tmp_path):
    """The trial leaves the link and makes no file; the plot comes where it leads."""
    link, target, env = tmp_path / "link.png", tmp_path / "target.png", fake_gnuplot(tmp_path, "cat\n")
    link.symlink_to(target)
    got = evaluate(*ROW, "--formats", "turbo9", "--plot", link, **env)
    assert got.returncode == 2 and link.is_symlink() and not target.exists()
    got = evaluate(*ROW, "--formats", "turbo4", "--plot", link, **env)
    assert got.returncode == 0 and link.is_symlink() and target.stat().st_size > 0


# Errors ---------------------------------------------------------------------

@pytest.mark.parametrize("args, status, message", [
    (["--formats", "f16", "turbo9"], 2, "turbo9"),
    (["--formats"], 2, "expected at least one argument"),
    (["--num-samples", "0"], 2, "argument --num-samples: must be -1 or at least 1, but is 0"),
    (["--score-from", "200", "--sequence-length", "200"], 2, "argument --score-from: must be below --sequence-length"),
    (["--sequence-length", "100000"], 1, "the program's own text has"),
    (["--data-path", "/nonexistent"], 1, "no such file"),
    (["--device", "gpu"], 2, "--device gpu is not supported yet"),
    (["--kv-format", "f16"], 2, "unrecognized arguments: --kv-format"),
    (["--csv", "/nonexistent/x"], 1, "cannot write"),
])
def test_errors(evaluate, args, status, message):
    got = evaluate(*args)
    assert (got.returncode, got.stdout) == (status, "") and message in got.stderr


def test_interrupt(turbolm_bin, tiny_model, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("The same line again and again.\n" * 30000)
    p = subprocess.Popen([turbolm_bin, "turboquant", "eval", "--model", tiny_model(**WIDE), "--data-path", path,
                          "--sequence-length", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(3)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=120) == (b"", b"") and p.returncode == 130


# Generating -----------------------------------------------------------------

def text_of(got):
    assert got.returncode == 0, got.stderr
    first, text, statistics = re.split(r"^==========\n", got.stdout, flags=re.M)
    assert first == "" and statistics.startswith("Prompt: ")
    return text


@pytest.mark.parametrize("args, same_as", [
    ([], ["--max-tokens", "256"]),
    (["--max-tokens", "70", "--kv-bits", "4"], ["--max-tokens", "70", "--kv-format", "rot4"]),
    (["--max-tokens=90", "--kv-bits", "2", "--kv-group-size", "64", "--threads", "1", "--prefill-step-size", "9"],
     ["--max-tokens", "90", "--kv-format", "rot2"]),
    (["--max-tokens", "5", "--precision", "exact"], ["--max-tokens", "5", "--precision", "exact"]),
])
def test_generate(turbolm, tiny_model, args, same_as):
    for prompt in ("hello" * 40, "-x --kv-bits 9 = \\n 'é'"):
        pair = [turbolm(*command, "--model", tiny_model(**WIDE), "--prompt=" + prompt, *rest) for command, rest in (
            (["turboquant", "generate"], args), (["generate"], same_as))]
        assert text_of(pair[0]) == text_of(pair[1]) and pair[0].stderr == pair[1].stderr


def test_generate_from_standard_input(turbolm, tiny_model):
    pair = [turbolm(*command, "--model", tiny_model(), "--prompt", "-", "--max-tokens", "9", input="some text")
            for command in (["turboquant", "generate"], ["generate"])]
    assert text_of(pair[0]) == text_of(pair[1])


@pytest.mark.parametrize("args, message", [
    (["--kv-bits", "5"], "argument --kv-bits: must be 2, 3, 4 or 8, but is 5"),
    (["--kv-bits", "9"], "argument --kv-bits: must be from 2 to 8, but is 9"),
    (["--kv-bits", "4", "--kv-group-size", "32"], "argument --kv-group-size: must be 64, but is 32"),
    (["--kv-group-size", "64"], "argument --kv-group-size: needs --kv-bits"),
    (["--qjl"], "unrecognized arguments: --qjl"),
    (["--temp", "1"], "unrecognized arguments: --temp 1"),
    (["--max-tokens", "-2"], "argument --max-tokens: must be at least -1, but is -2"),
])
def test_generate_errors(turbolm, tiny_model, args, message):
    got = turbolm("turboquant", "generate", "--model", tiny_model(), "--prompt", "x", *args)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.startswith("usage: turbolm turboquant generate [-h] --model MODEL --prompt PROMPT")
    assert got.stderr.endswith("turbolm turboquant generate: error: %s\n" % message)


def test_generate_needs_a_prompt(turbolm, tiny_model):
    got = turbolm("turboquant", "generate", "--model", tiny_model())
    assert got.returncode == 2 and got.stderr.endswith("error: the following arguments are required: --prompt\n")


# The command ----------------------------------------------------------------

USAGE = "usage: %s [-h] {eval,generate,convert,serve} ...\n"


def test_parts(turbolm, turbolm_bin, tmp_path):
    got = turbolm("turboquant")
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == (USAGE + "%s: error: the following arguments are required: command\n") % (
        ("turbolm turboquant",) * 2)
    got = turbolm("turboquant", "x\n")
    assert got.returncode == 2 and got.stderr.endswith(
        "error: argument command: invalid choice: 'x?' (choose from 'eval', 'generate', 'convert', 'serve')\n")
    got = turbolm("turboquant", "--help")
    assert got.returncode == 0 and got.stdout.startswith(USAGE % "turbolm turboquant") and "eval" in got.stdout
    for name in ("serve",):
        got = turbolm("turboquant", name, "--model", "x")
        assert (got.returncode, got.stdout, got.stderr) == (2, "", "error: turboquant %s is not supported yet\n" % name)
    got = turbolm("turboquant", "eval")
    assert got.returncode == 2 and got.stderr.endswith(
        "turbolm turboquant eval: error: the following arguments are required: --model\n")
    link = tmp_path / "turboquant"
    link.symlink_to(os.path.abspath(turbolm_bin))
    got = subprocess.run([link, "eval", "--help"], capture_output=True, text=True)
    assert got.returncode == 0 and got.stdout.startswith("usage: turboquant eval [-h] --model MODEL")
    assert "turboquant" in turbolm("--help").stdout and "turboquant" in turbolm("nothing").stderr


def test_link_of_the_build(turbolm_bin):
    link = os.path.join(os.path.dirname(turbolm_bin), "turboquant")
    assert os.readlink(link) == "turbolm"
    assert not os.path.lexists(os.path.join(os.path.dirname(turbolm_bin), "mlx_lm.turboquant"))
