"""Ctrl-C inside a pass over a long prompt: what runs ends after the layer it is in, not after the pass,
which takes far longer than the time it gets here."""
import signal
import subprocess
import time

import pytest

import tiny_model as maker

TOKENS, SECONDS = 16000, 30
STEP = ("--prefill-step-size", "65536")


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return maker.make(tmp_path_factory.mktemp("deep"), num_hidden_layers=96)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("a" * (TOKENS + 10))
    return path


def start(turbolm_bin, *args):
    return subprocess.Popen([turbolm_bin, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            stdin=subprocess.DEVNULL)


def busy_seconds(p):
    """Of processor time."""
    with open("/proc/%d/stat" % p.pid, encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def interrupt_when_busy(p, seconds=1):
    while p.poll() is None and busy_seconds(p) < seconds:
        time.sleep(0.05)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    try:
        out, err = p.communicate(timeout=SECONDS)
    finally:
        p.kill()
    return p.returncode, out, err


@pytest.mark.parametrize("batch", [1, 3])
def test_benchmark(turbolm_bin, deep, batch, tmp_path):
    table = tmp_path / "x.csv"
    got = interrupt_when_busy(start(turbolm_bin, "benchmark", "--model", deep, "-p", TOKENS // batch, "-g", "1", "-b",
                                    batch, *STEP, "--csv", table))
    assert got == (130, b"Running warmup..\n", b"") and not table.exists()


def test_perplexity(turbolm_bin, deep, text, tmp_path):
    table = tmp_path / "x.csv"
    status, _, err = interrupt_when_busy(
        start(turbolm_bin, "perplexity", "--model", deep, "--data-path", text, "--sequence-length", TOKENS,
              "--score-from", TOKENS - 1, *STEP, "--csv", table))
    assert (status, err) == (130, b"") and not table.exists()


def test_turboquant_eval(turbolm_bin, deep, text, tmp_path):
    table = tmp_path / "x.csv"
    got = interrupt_when_busy(
        start(turbolm_bin, "turboquant", "eval", "--model", deep, "--data-path", text, "--sequence-length", TOKENS,
              "--score-from", TOKENS - 1, "--formats", "f16", *STEP, "--csv", table))
    assert got == (130, b"", b"") and not table.exists()
