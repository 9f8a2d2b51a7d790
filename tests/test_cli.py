"""The commands of the program on a tiny model: exact output, exit statuses, every error."""
import array
import csv
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import termios
import time

import numpy as np
import pytest

import tiny_model as tiny

RULE = "==========\n"
EXACT = ["--precision", "exact"]


def generate_args(model, *args):
    return ["generate", "--model", model, *EXACT, *args]


def answer(result):
    """(text, prompt tokens, generated tokens) of a verbose run."""
    m = re.fullmatch(RULE + r"(.*)\n" + RULE + r"Prompt: (\d+) tokens, (\d+\.\d{3}) tokens-per-sec\n"
                     r"Generation: (\d+) tokens, (\d+\.\d{3}) tokens-per-sec\nPeak memory: (\d+\.\d{3}) GB\n",
                     result.stdout, re.S)
    assert m, result.stdout + result.stderr
    assert float(m[3]) > 0 and 0.001 <= float(m[6]) < 100
    return m[1], int(m[2]), int(m[4])


# generate: prompts ---------------------------------------------------------

def test_generate(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(), "-p", "hello", "-m", "12"))
    assert got.returncode == 0 and got.stderr == ""
    ids = tiny.encode(tiny.render([("user", "hello")]))
    assert answer(got) == (tiny.greedy(ids, 12), len(ids), 12)


def test_generate_by_the_name_of_mlx_lm(turbolm_bin, tiny_model, tmp_path):
    link = tmp_path / "mlx_lm.generate"
    link.symlink_to(os.path.abspath(turbolm_bin))
    got = subprocess.run([link, *generate_args(tiny_model(), "-m", "3", "--verbose", "f")[1:]], capture_output=True,
                         text=True)
    ids = tiny.encode(tiny.render([("user", "hello")]))
    assert (got.returncode, got.stdout, got.stderr) == (0, tiny.greedy(ids, 3) + "\n", "")


@pytest.mark.parametrize("value, quiet", [("false", True), ("F", True), ("False", True), ("true", False), ("0", False)])
def test_verbose(turbolm, tiny_model, value, quiet):
    got = turbolm(*generate_args(tiny_model(), "-m", "2", "--verbose", value))
    assert got.returncode == 0
    assert got.stdout.startswith(RULE) != quiet


def test_defaults(turbolm, tiny_model):
    text, n_prompt, n = answer(turbolm(*generate_args(tiny_model())))
    assert (n_prompt, n, len(text)) == (len(tiny.encode(tiny.render([("user", "hello")]))), 100, 100)


@pytest.mark.parametrize("args, messages, kwargs", [
    (["-p", "a\\nb\\tc\\\\n"], [("user", "a\nb\tc\\\n")], {}),
    (["-p", ""], [("user", "")], {}),
    (["-p", "é<|end|>"], [("user", "é<|end|>")], {}),
    (["-p", "a\"b\\c"], [("user", "a\"b\\c")], {}),
    (["-p", "x", "--system-prompt", "Be\\nbrief"], [("system", "Be\\nbrief"), ("user", "x")], {}),
    (["--chat-template-config", '{"note": "!"}'], [("user", "hello")], {"note": "!"}),
    (["--chat-template-config", ' { } '], [("user", "hello")], {}),
    (["--chat-template-config", '{"enable_thinking": false}'], [("user", "hello")], {"thinking": False}),
    (["--chat-template-config", '{"note": "{", "enable_thinking": true}'], [("user", "hello")], {"note": "{"}),
    (["--use-default-chat-template"], [("user", "hello")], {}),
])
def test_prompt_through_the_template(turbolm, tiny_model, args, messages, kwargs):
    got = turbolm(*generate_args(tiny_model(), "-m", "6", *args))
    assert got.returncode == 0 and got.stderr == ""
    ids = tiny.encode(tiny.render(messages, **kwargs))
    assert answer(got) == (tiny.greedy(ids, 6), len(ids), 6)


@pytest.mark.parametrize("special, thinking", [
    (("<|start|>", "<|end|>"), False),
    (("<|start|>", "<|end|>", "<think>"), False),
    (tuple(tiny.SPECIAL), True),
])
def test_thinking_follows_the_vocabulary(turbolm, tiny_model, special, thinking):
    got = turbolm(*generate_args(tiny_model(special=special), "-m", "1"))
    ids = tiny.encode(tiny.render([("user", "hello")], thinking=thinking))
    assert answer(got)[1] == len(ids)


def test_prefill(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(), "-p", "x", "-m", "6", "--prefill-response", "Sure: "))
    assert got.returncode == 0 and got.stderr == ""
    ids = tiny.encode("<|start|>[user]x<|end|>[assistant]Sure: ")
    assert answer(got) == (tiny.greedy(ids, 6), len(ids), 6)


@pytest.mark.parametrize("text", ["two\nlines\n", "kept: \\n", "-", "x" * 3000, "é€😀"])
def test_prompt_from_standard_input(turbolm, tiny_model, text):
    got = turbolm(*generate_args(tiny_model(), "-p", "-", "-m", "2"), input=text)
    assert got.returncode == 0 and got.stderr == ""
    assert answer(got)[1] == len(tiny.encode(tiny.render([("user", text)])))


@pytest.mark.parametrize("data, message", [
    (b"a\0b", "error: the prompt on standard input has a NUL byte\n"),
    (b"ab\xff", "error: the prompt is not valid UTF-8 at byte 2\n"),
    (b"\xc3", "error: the prompt is not valid UTF-8 at byte 0\n"),
    (b"x\xed\xa0\x80", "error: the prompt is not valid UTF-8 at byte 1\n"),
    (b"x" * 300000 + b"\xff", "error: the prompt is not valid UTF-8 at byte 300000\n"),
], ids=["nul", "last", "cut", "surrogate", "long"])
def test_bad_standard_input(turbolm_bin, tiny_model, data, message):
    got = subprocess.run([turbolm_bin, *generate_args(tiny_model(), "-p", "-")], input=data, capture_output=True)
    assert (got.returncode, got.stdout, got.stderr.decode()) == (2, b"", message)


def test_standard_input_that_cannot_be_read(turbolm_bin, tiny_model, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        got = subprocess.run([turbolm_bin, *generate_args(tiny_model(), "-p", "-")], stdin=folder, capture_output=True)
    finally:
        os.close(folder)
    assert (got.returncode, got.stdout) == (1, b"")
    assert got.stderr == b"error: cannot read standard input: Is a directory\n"


@pytest.mark.parametrize("option", ["-p", "--system-prompt", "--prefill-response", "--chat-template-config"])
def test_bad_utf8_in_arguments(turbolm_bin, tiny_model, option):
    value = b'{"a": "\xff"}' if "config" in option else b"\xff"
    got = subprocess.run([turbolm_bin, *generate_args(tiny_model(), option), value], capture_output=True)
    assert (got.returncode, got.stdout) == (2, b"")
    assert re.fullmatch(rb"error: .* is not valid UTF-8 at byte \d\n", got.stderr)


# generate: without a template ----------------------------------------------

@pytest.mark.parametrize("changes, args", [({"template": None}, []), ({}, ["--ignore-chat-template"])])
def test_plain_prompt(turbolm, tiny_model, changes, args):
    got = turbolm(*generate_args(tiny_model(**changes), *args, "-m", "8", "-p", "A<|end|>B"))
    assert got.returncode == 0 and got.stderr == ""
    ids = [tiny.START, *tiny.encode("A<|end|>B")]
    assert answer(got) == (tiny.greedy(ids, 8), len(ids), 8)


@pytest.mark.parametrize("option, value", [("--system-prompt", "x"), ("--prefill-response", "x"),
                                           ("--chat-template-config", "{}")])
@pytest.mark.parametrize("ignore", [False, True])
def test_what_only_a_template_uses_is_warned_of(turbolm, tiny_model, option, value, ignore):
    model = tiny_model() if ignore else tiny_model(template=None)
    got = turbolm(*generate_args(model, "-m", "2", option, value, *(["--ignore-chat-template"] if ignore else [])))
    why = "--ignore-chat-template is given" if ignore else "the model has no chat template"
    assert (got.returncode, got.stderr) == (0, "warning: %s is not used: %s\n" % (option, why))
    assert answer(got)[1] == 6


def test_default_template_of_a_model_without_one(turbolm, tiny_model):
    model = tiny_model(template=None)
    got = turbolm(*generate_args(model, "--use-default-chat-template"))
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "error: --use-default-chat-template: %s has no chat template\n" % model
    got = turbolm(*generate_args(model, "--use-default-chat-template", "--ignore-chat-template"))
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "error: --ignore-chat-template and --use-default-chat-template exclude each other\n"


def test_template_that_raises(turbolm, tiny_model):
    model = tiny_model(template="{{ raise_exception('Only tools please') }}")
    got = turbolm(*generate_args(model))
    assert (got.returncode, got.stdout) == (1, "")
    assert re.fullmatch(r"error: %s/\w+\.\w+: Only tools please\n" % model, got.stderr)


def test_empty_prompt(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(template="{{ nothing }}")))
    assert (got.returncode, got.stdout, got.stderr) == (2, "", "error: the prompt is empty\n")


def test_model_without_tokenizer(turbolm, tiny_model):
    model = tiny_model(tokenizer=False, template=None)
    got = turbolm(*generate_args(model))
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s has no tokenizer\n" % model)


def test_model_without_weights(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(with_weights=False)))
    assert got.returncode == 1 and got.stdout == ""
    assert re.fullmatch(r"error: .*\n", got.stderr)


# generate: ends ------------------------------------------------------------

def test_max_tokens_zero(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(), "-m", "0"))
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == RULE + "\n" + RULE + "No text generated for this prompt\n"
    got = turbolm(*generate_args(tiny_model(), "-m", "0", "--verbose", "false"))
    assert (got.returncode, got.stdout) == (0, "\n")
    assert got.stderr == "warning: no text generated for this prompt: --max-tokens is 0\n"


@pytest.mark.parametrize("as_id", [False, True])
def test_extra_eos_token(turbolm, tiny_model, as_id):
    ids = tiny.encode(tiny.render([("user", "hello")]))
    full = tiny.greedy(ids, 12)
    last = next(c for i, c in enumerate(full) if i > 0 and c not in full[:i] and not c.isdigit())
    before = full.index(last)
    got = turbolm(*generate_args(tiny_model(), "--extra-eos-token", "<think>", str(ord(last)) if as_id else last,
                                 "-m", "12"))
    assert got.returncode == 0 and got.stderr == ""
    assert answer(got) == (full[:before], len(ids), before + 1)


def test_end_at_once(turbolm, tiny_model):
    first = tiny.greedy(tiny.encode(tiny.render([("user", "hello")])), 1)
    got = turbolm(*generate_args(tiny_model(), "--extra-eos-token", str(ord(first))))
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == RULE + "\n" + RULE + "No text generated for this prompt\n"


@pytest.mark.parametrize("token", ["nonsense", "260", "-1", "99999999999999999999", ""])
def test_unknown_eos_token(turbolm, tiny_model, token):
    got = turbolm(*generate_args(tiny_model(), "--extra-eos-token", token))
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "error: '%s' is not a token for this tokenizer\n" % token


def test_full_context(turbolm, tiny_model):
    args = generate_args(tiny_model(max_position_embeddings=48), "--ignore-chat-template", "-p", "0123456789", "-m")
    got = turbolm(*args, "-1")
    assert got.returncode == 0
    text, n_prompt, n = answer(got)
    assert (n_prompt, n, len(text)) == (11, 38, 38)
    assert got.stderr == "warning: the text ends after 38 tokens because the context is full\n"
    got = turbolm(*args, "38")
    assert got.returncode == 0 and answer(got)[2] == 38
    assert got.stderr == "warning: prompt and text have 49 tokens, the model's context 48\n"
    assert turbolm(*args, "37").stderr == ""


# generate: sampling --------------------------------------------------------

def test_seed(turbolm, tiny_model):
    def text(*args):
        got = turbolm(*generate_args(tiny_model(), "--temp", "1.5", "-m", "30", "--verbose", "f", *args))
        assert got.returncode == 0 and got.stderr == ""
        return got.stdout

    assert text("--seed", "1") == text("--seed", "1")
    assert text("--seed", "1") != text("--seed", "2")
    assert text() != text()


@pytest.mark.parametrize("option, value", [("--top-p", "0.5"), ("--min-p", "0.1"), ("--top-k", "5"),
                                           ("--xtc-probability", "0.5")])
def test_filters_at_temperature_zero_warn_once(turbolm, tiny_model, option, value):
    got = turbolm(*generate_args(tiny_model(), "-m", "4", option, value))
    assert got.returncode == 0
    name = option[2:].replace("-", "_")
    assert got.stderr == "warning: %s has no effect at temperature 0\n" % name
    got = turbolm(*generate_args(tiny_model(), "-m", "4", "--temp", "1", option, value))
    assert (got.returncode, got.stderr) == (0, "")


@pytest.mark.parametrize("option, value, other", [("--xtc-threshold", "0.2", "--xtc-probability"),
                                                  ("--min-tokens-to-keep", "2", "--min-p")])
def test_options_of_a_filter_that_is_off(turbolm, tiny_model, option, value, other):
    got = turbolm(*generate_args(tiny_model(), "-m", "2", "--temp", "1", option, value))
    assert (got.returncode, got.stderr) == (0, "warning: %s has no effect without %s\n" % (option, other))


def test_top_k_beyond_the_vocabulary(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(), "--temp", "1", "--top-k", "260"))
    assert got.returncode == 2 and got.stdout == ""
    assert re.fullmatch(r"error: .*top_k.*\n", got.stderr)


def test_top_k_of_one_is_greedy(turbolm, tiny_model):
    got = turbolm(*generate_args(tiny_model(), "--temp", "5", "--top-k", "1", "-m", "8"))
    assert answer(got)[0] == tiny.greedy(tiny.encode(tiny.render([("user", "hello")])), 8)


def cache_line(args):
    """What is said of a cache whose format was asked for."""
    if args[0] != "--kv-format":
        return ""
    return "[INFO] Key-value cache: %s, %d.00 bits per element\n" % (args[1], 32 if args[1] == "f32" else 16)


@pytest.mark.parametrize("args", [["--threads", "1"], ["--threads", "3"], ["--prefill-step-size", "1"],
                                  ["--prefill-step-size", "7"], ["--device", "cpu"], ["--kv-format", "f32"]])
def test_how_it_is_computed_changes_nothing(turbolm, tiny_model, args):
    got = turbolm(*generate_args(tiny_model(), "-m", "8", *args))
    assert got.stderr == cache_line(args)
    assert answer(got)[0] == tiny.greedy(tiny.encode(tiny.render([("user", "hello")])), 8)


@pytest.mark.parametrize("args", [["--kv-format", "f16"], ["--kv-format", "bf16"], ["--precision", "fast"]])
def test_other_formats_run(turbolm, tiny_model, args):
    got = turbolm("generate", "--model", tiny_model(), "-m", "8", *args)
    assert got.returncode == 0 and got.stderr == cache_line(args)
    assert answer(got)[2] == 8


# Signals and broken output -------------------------------------------------

def start(turbolm_bin, args, **kwargs):
    return subprocess.Popen([turbolm_bin, *args], stderr=subprocess.PIPE, **kwargs)


def test_text_comes_as_it_is_made(turbolm_bin, tiny_model):
    p = start(turbolm_bin, generate_args(tiny_model(), "-m", "-1", "--verbose", "f"), stdout=subprocess.PIPE)
    try:
        assert len(os.read(p.stdout.fileno(), 10)) > 0
        assert p.poll() is None
    finally:
        p.kill()
        p.communicate()


def test_interrupt_ends_with_statistics(turbolm_bin, tiny_model):
    p = start(turbolm_bin, generate_args(tiny_model(), "-m", "-1"), stdout=subprocess.PIPE)
    head = b""
    while len(head) < len(RULE) + 20:  # communicate() would lose what a buffered read holds
        head += os.read(p.stdout.fileno(), 64)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (130, b"")
    result = subprocess.CompletedProcess([], 130, (head + out).decode(), "")
    text, _, n = answer(result)
    assert len(text) == n >= 20


def test_interrupt_while_waiting_for_input(turbolm_bin, tiny_model):
    p = start(turbolm_bin, generate_args(tiny_model(), "-p", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: b"pipe" in sleeping_in(p.pid))
    p.send_signal(signal.SIGINT)
    p.wait(timeout=60)
    assert (p.returncode, p.stdout.read(), p.stderr.read()) == (130, b"", b"")
    p.communicate()


def sleeping_in(pid):
    try:
        with open("/proc/%d/wchan" % pid, "rb") as f:
            name = f.read()
    except OSError:
        name = b"0"
    if name in (b"0", b""):  # hidden by the system: a moment has to do
        time.sleep(1)
        return b"pipe"
    return name


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def bytes_waiting(fd):
    n = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, n)
    return n[0]


def test_second_interrupt_ends_at_once(turbolm_bin, tiny_model):
    """The first does nothing visible, because nobody reads what is to be written."""
    read, write = os.pipe()
    size = fcntl.fcntl(write, 1031, 4096)  # F_SETPIPE_SZ
    p = start(turbolm_bin, generate_args(tiny_model(), "-m", "-1"), stdout=write)
    os.close(write)
    try:
        wait_until(lambda: bytes_waiting(read) == size)
        p.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert p.poll() is None
        p.send_signal(signal.SIGINT)
        assert p.wait(timeout=60) == 130
        assert p.stderr.read() == b""
    finally:
        p.kill()
        p.communicate()
        os.close(read)


@pytest.mark.parametrize("args", [["-m", "-1"], ["-m", "1"], ["-m", "-1", "--verbose", "false"]])
def test_reader_goes_away(turbolm_bin, tiny_model, args):
    read, write = os.pipe()
    os.close(read)
    p = start(turbolm_bin, generate_args(tiny_model(), *args), stdout=write)
    os.close(write)
    _, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (141, b"")


def commands_that_print(model):
    return [generate_args(model, "-m", "-1"), generate_args(model, "-m", "3", "--verbose", "f"), ["inspect", model],
            ["inspect", "--json", model], ["--version"], ["--help"], ["generate", "--help"], ["--man"],
            ["benchmark", "--model", model, "-p", "4", "-g", "4", "-n", "2"],
            ["benchmark", "--model", model, "-p", "4", "-g", "4", "-n", "2", "--csv", "-"]]


@pytest.mark.parametrize("which", range(10))
def test_full_disk(turbolm_bin, tiny_model, which):
    with open("/dev/full", "wb") as full:
        p = start(turbolm_bin, commands_that_print(tiny_model())[which], stdout=full)
        _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert err.decode().endswith("error: cannot write to standard output: No space left on device\n")
    assert err.count(b"error: ") == 1


@pytest.mark.parametrize("which", range(10))
def test_closed_output(turbolm_bin, tiny_model, which):
    p = start(turbolm_bin, commands_that_print(tiny_model())[which], preexec_fn=lambda: os.close(1))
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert err.decode().endswith("error: cannot write to standard output: Bad file descriptor\n")


# benchmark -----------------------------------------------------------------

HEADER = "trial,prompt_tokens,generation_tokens,batch,depth,prompt_tps,generation_tps,peak_bytes,seconds"


def benchmark(turbolm, model, *args, **kwargs):
    return turbolm("benchmark", "--model", model, "-p", "10", "-g", "6", *args, **kwargs)


@pytest.mark.parametrize("batch", [1, 3])
def test_benchmark(turbolm, tiny_model, batch):
    got = benchmark(turbolm, tiny_model(), "-n", "2", "-b", batch)
    assert got.returncode == 0 and got.stderr == ""
    number = r"(\d+\.\d{3})"
    numbers = r"prompt_tps=%s, generation_tps=%s, peak_memory=%s" % (number, number, number)
    m = re.fullmatch("Running warmup..\nTiming with prompt_tokens=10, generation_tokens=6, batch_size=%d.\n" % batch +
                     "".join("Trial %d:  %s, total_time=%s\n" % (i, numbers, number) for i in (1, 2)) +
                     "Averages: %s\n" % numbers, got.stdout)
    assert m
    values = [float(x) for x in m.groups()]
    assert all(x > 0 for x in values[:3])
    for k in range(3):
        assert abs((values[k] + values[4 + k]) / 2 - values[8 + k]) <= 0.00101


def read_csv(text):
    lines = text.splitlines()
    assert lines[0] == HEADER
    return list(csv.DictReader(io.StringIO(text)))


def test_benchmark_csv(turbolm, tiny_model, tmp_path):
    path = tmp_path / "out.csv"
    got = benchmark(turbolm, tiny_model(), "-n", "3", "-b", "2", "--depth", "5", "--csv", path)
    assert got.returncode == 0 and got.stderr == "" and got.stdout.startswith("Running warmup..\n")
    rows = read_csv(path.read_text())
    assert [r["trial"] for r in rows] == ["1", "2", "3"]
    printed = re.findall(r"^Trial \d+:  prompt_tps=(.*), generation_tps=(.*), peak_memory=(.*), total_time=(.*)$",
                         got.stdout, re.M)
    for row, line in zip(rows, printed, strict=True):
        assert [row[k] for k in ("prompt_tokens", "generation_tokens", "batch", "depth")] == ["10", "6", "2", "5"]
        assert (row["prompt_tps"], row["generation_tps"]) == line[:2]
        assert "%.3f" % (int(row["peak_bytes"]) / 1e9) == line[2]
        assert abs(float(row["seconds"]) - float(line[3])) <= 0.000501


def test_benchmark_csv_on_standard_output(turbolm, tiny_model):
    got = benchmark(turbolm, tiny_model(), "-n", "2", "--csv", "-")
    assert got.returncode == 0
    assert len(read_csv(got.stdout)) == 2 and len(got.stdout.splitlines()) == 3
    assert got.stderr == ""


def test_benchmark_of_a_model_without_tokenizer(turbolm, tiny_model):
    got = benchmark(turbolm, tiny_model(tokenizer=False, template=None), "-n", "1")
    assert got.returncode == 0 and got.stderr == ""


def test_benchmark_never_ends_early(turbolm, tiny_model):
    """Whatever this model generates is an end of text of it, yet all tokens are made."""
    model = tiny_model(eos_token_id=list(range(32, 127)))
    assert turbolm(*generate_args(model)).stdout.endswith("No text generated for this prompt\n")
    got = benchmark(turbolm, model, "-n", "1")
    assert got.returncode == 0 and got.stderr == ""


def test_benchmark_delay(turbolm, tiny_model):
    begin = time.monotonic()
    assert benchmark(turbolm, tiny_model(), "-n", "2", "--delay", "1").returncode == 0
    assert time.monotonic() - begin >= 2


@pytest.mark.parametrize("depth", [48, 49])
def test_benchmark_beyond_the_context(turbolm, tiny_model, depth):
    got = benchmark(turbolm, tiny_model(max_position_embeddings=64), "-n", "1", "--depth", depth)
    assert got.returncode == 0
    assert got.stderr == ("" if depth == 48 else "warning: the sequences have 65 tokens, the model's context 64\n")


@pytest.mark.parametrize("option", ["--num-trials/-n", "--prompt-tokens/-p", "--generation-tokens/-g",
                                    "--batch-size/-b"])
def test_benchmark_of_nothing(turbolm, tiny_model, option):
    got = turbolm("benchmark", "--model", tiny_model(), option.split("/")[1], "0")
    assert (got.returncode, got.stdout) == (2, "")
    assert re.fullmatch("turbolm benchmark: error: argument %s: must be from 1 to \\d+, but is 0" % option,
                        got.stderr.splitlines()[-1])


def test_benchmark_csv_that_cannot_be_written(turbolm, tiny_model, tmp_path):
    got = benchmark(turbolm, tiny_model(), "-n", "1", "--csv", tmp_path / "no" / "x.csv")
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == "error: %s: cannot write: No such file or directory\n" % (tmp_path / "no" / "x.csv")
    got = benchmark(turbolm, tiny_model(), "-n", "1", "--csv", "")
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: : cannot write: No such file or directory\n")
    got = benchmark(turbolm, tiny_model(), "-n", "100000", "--csv", "/dev/full")
    assert got.returncode == 1 and got.stderr == "error: /dev/full: cannot write: No space left on device\n"
    assert "Trial 1:" in got.stdout and "Trial 2:" not in got.stdout


def test_benchmark_csv_is_appended(turbolm, tiny_model, tmp_path):
    path = tmp_path / "out.csv"
    for batch in (1, 2):
        assert benchmark(turbolm, tiny_model(), "-n", "2", "-b", batch, "--csv", path).returncode == 0
    assert [(r["trial"], r["batch"]) for r in read_csv(path.read_text())] == [
        ("1", "1"), ("2", "1"), ("1", "2"), ("2", "2")]


@pytest.mark.parametrize("content, message", [
    ("a,b\n1,2\n", "its first line is not the heading of this table"),
    (HEADER + "\n1,2", "its last line has no end"),
])
def test_benchmark_csv_file_of_something_else(turbolm, tiny_model, tmp_path, content, message):
    path = tmp_path / "out.csv"
    path.write_text(content)
    got = benchmark(turbolm, tiny_model(), "-n", "1", "--csv", path)
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s: %s\n" % (path, message))
    assert path.read_text() == content


@pytest.mark.parametrize("command", [["benchmark", "--model"], ["perplexity", "--data-path", "-", "--model"],
                                     ["turboquant", "eval", "--model"]])
def test_no_empty_table_is_left(turbolm, tmp_path, command):
    path = tmp_path / "out.csv"
    got = turbolm(*command, tmp_path / "no", "--csv", path, input="")
    assert got.returncode == 1 and got.stderr.count("error:") == 1
    assert os.listdir(tmp_path) == []


def test_benchmark_interrupt(turbolm_bin, tiny_model):
    p = start(turbolm_bin, ["benchmark", "--model", tiny_model(), "-p", "8", "-g", "8", "-n", "100000"],
              stdout=subprocess.PIPE)
    for line in p.stdout:
        if line.startswith(b"Trial 1:"):
            break
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (130, b"")
    assert b"Averages" not in out


# inspect -------------------------------------------------------------------

KEYS = ["architecture", "parameters", "bytes", "context_length", "tensors", "tokenizer", "chat_template",
        "quantization"]


def inspect_json(turbolm, model):
    got = turbolm("inspect", model, "--json")
    assert got.returncode == 0 and got.stderr == ""
    found = json.loads(got.stdout)
    assert list(found) == KEYS
    return found


def test_inspect_json(turbolm, tiny_model):
    found = inspect_json(turbolm, tiny_model())
    want = tiny.weights()
    n = sum(w.size for w in want.values())
    assert found["architecture"] == "llama" and found["quantization"] == "f32"
    assert (found["parameters"], found["bytes"], found["context_length"]) == (n, 4 * n, 262144)
    assert found["chat_template"] == tiny.TEMPLATE
    assert found["tokenizer"]["kind"] == "byte-level BPE"
    assert {k: found["tokenizer"][k] for k in ("vocab_size", "bos", "eos")} == {
        "vocab_size": 260, "bos": tiny.START, "eos": [tiny.END]}
    tensors = {t["name"]: t for t in found["tensors"]}
    assert len(tensors) == len(found["tensors"]) == len(want)
    for name, w in want.items():
        assert tensors[name] == {"name": name, "shape": list(w.shape), "format": "f32", "bytes": w.nbytes}


def test_inspect_without_weights_and_tokenizer(turbolm, tiny_model):
    found = inspect_json(turbolm, tiny_model(with_weights=False, tokenizer=False, template=None))
    assert found["architecture"] == "llama" and found["context_length"] == 262144
    assert (found["parameters"], found["bytes"], found["tensors"]) == (0, 0, [])
    assert found["tokenizer"] is None and found["chat_template"] is None


def test_inspect_text(turbolm, tiny_model):
    model = tiny_model()
    got = turbolm("inspect", model)
    assert got.returncode == 0 and got.stderr == ""
    lines = dict(re.findall(r"^(\S[a-z ]+?|  [a-z]+) {2,}(.*)$", got.stdout, re.M))
    assert (lines["model"], lines["architecture"], lines["quantization"]) == (model, "llama", "f32")
    assert lines["context"] == "262144 tokens"
    assert lines["layers"] == "2, hidden size 64, 4 heads of 16 (2 for keys and values)"
    assert (lines["  bos"], lines["  eos"]) == ("256 <|start|>", "257 <|end|>")
    assert lines["chat template"] == "%d bytes" % len(tiny.TEMPLATE)
    per_token = int(re.match(r"(\d+) bytes per token \(f(16|32)\)", lines["  cache"])[1])
    assert per_token in (256, 512)
    assert re.fullmatch(r"a cache of \d+ tokens \(\d+\.\d times the context\)", lines["  fits"])
    assert lines["tensors"] == str(len(tiny.weights()))
    assert re.search(r"^  model.norm.weight +f32 +\[64\] 256 bytes$", got.stdout, re.M)


def test_inspect_shows_no_control_characters(turbolm, tiny_model):
    folder = tiny_model(with_weights=False, tokenizer=False, template="\x1b[31mred \"quoted\"\n")
    assert inspect_json(turbolm, folder)["chat_template"] == "\x1b[31mred \"quoted\"\n"
    assert "\x1b" not in turbolm("inspect", folder, "--json").stdout
    assert "\x1b" not in turbolm("inspect", folder).stdout


def test_inspect_what_is_no_model(turbolm, tmp_path):
    (tmp_path / "file.gguf").write_bytes(b"GG")
    for path in (tmp_path, tmp_path / "file.gguf"):
        got = turbolm("inspect", path)
        assert got.returncode == 1 and got.stdout == ""
        assert re.fullmatch(r"error: .*\n", got.stderr)


# logits --------------------------------------------------------------------

IDS = [256, 72, 101, 108, 108, 111, 257, 0, 255, 10]


def logits(turbolm, model, path, *args):
    got = turbolm("logits", "--model", model, "--out", path, *args)
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    return np.load(path)


def test_logits(turbolm, tiny_model, tmp_path):
    got = logits(turbolm, tiny_model(), tmp_path / "x.npy", "--ids", " ".join(map(str, IDS)))
    assert got.dtype == np.float32 and got.shape == (len(IDS), 260) and not np.isfortran(got)
    assert np.abs(got - tiny.logits(IDS)).max() < 1e-4
    assert os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("args", [["--decode-from", "0"], ["--decode-from", "4"], ["--decode-from", "10"],
                                  ["--prefill-step-size", "1"], ["--prefill-step-size", "3"], ["--threads", "2"]])
def test_logits_in_parts(turbolm, tiny_model, tmp_path, args):
    ids = ["--ids", ",".join(map(str, IDS))]
    whole = logits(turbolm, tiny_model(), tmp_path / "x.npy", *ids)
    assert np.array_equal(logits(turbolm, tiny_model(), tmp_path / "y.npy", *ids, *args), whole)


def test_logits_of_text(turbolm, tiny_model, tmp_path):
    got = logits(turbolm, tiny_model(), tmp_path / "x.npy", "-p", "Hé\\n<|end|>")
    want = [tiny.START, *tiny.encode("Hé\\n<|end|>")]
    assert np.array_equal(got, logits(turbolm, tiny_model(), tmp_path / "y.npy", "--ids", " ".join(map(str, want))))


def test_logits_without_tokenizer(turbolm, tiny_model, tmp_path):
    model = tiny_model(tokenizer=False, template=None)
    assert logits(turbolm, model, tmp_path / "x.npy", "--ids", "1 2 3").shape == (3, 260)
    got = turbolm("logits", "--model", model, "-p", "x", "--out", tmp_path / "y.npy")
    assert (got.returncode, got.stderr) == (1, "error: %s has no tokenizer; --ids works without\n" % model)
    assert os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("args, message", [
    ([], "one of the arguments --ids --prompt/-p is required"),
    (["--ids", "1", "-p", "x"], "argument --prompt/-p: not allowed with argument --ids"),
    (["--ids", ""], "argument --ids: no token ids"),
    (["--ids", "1 x"], "argument --ids: invalid token id: 'x'"),
    (["--ids", "1 260"], "argument --ids: token ids must be from 0 to 259, but one is 260"),
    (["--ids", "-1"], "argument --ids: token ids must be from 0 to 259, but one is -1"),
    (["--ids", "99999999999999999999"],
     "argument --ids: token ids must be from 0 to 259, but one is 99999999999999999999"),
    (["--ids", "1", "--decode-from", "-1"], "argument --decode-from: must be at least 0, but is -1"),
])
def test_logits_usage(turbolm, tiny_model, tmp_path, args, message):
    got = turbolm("logits", "--model", tiny_model(), "--out", tmp_path / "x.npy", *args)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.splitlines()[-1] == "turbolm logits: error: " + message
    assert os.listdir(tmp_path) == []


def test_logits_decode_from_beyond_the_end(turbolm, tiny_model, tmp_path):
    got = turbolm("logits", "--model", tiny_model(), "--out", tmp_path / "x.npy", "--ids", "1 2", "--decode-from", "3")
    assert (got.returncode, got.stderr) == (2, "error: --decode-from 3 is beyond the 2 tokens\n")
    assert os.listdir(tmp_path) == []


def test_logits_needs_a_file(turbolm, tiny_model):
    got = turbolm("logits", "--model", tiny_model(), "--ids", "1")
    assert got.returncode == 2
    assert got.stderr.endswith("turbolm logits: error: the following arguments are required: --out\n")


def test_logits_replaces_and_keeps_the_link(turbolm, tiny_model, tmp_path):
    real, link = tmp_path / "real.npy", tmp_path / "link.npy"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    assert logits(turbolm, tiny_model(), link, "--ids", "1").shape == (1, 260)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["link.npy", "real.npy"]


@pytest.mark.parametrize("path, reason", [("no/x.npy", "No such file or directory"), (".", "Is a directory"),
                                          ("/dev/full", "No space left on device")])
def test_logits_that_cannot_be_written(turbolm, tiny_model, tmp_path, path, reason):
    got = turbolm("logits", "--model", tiny_model(), "--ids", "1 2 3", "--out", tmp_path / path)
    assert (got.returncode, got.stdout) == (1, "")
    assert re.fullmatch(r"error: .*: cannot write: %s\n" % reason, got.stderr)
    assert os.listdir(tmp_path) == []


def test_logits_interrupt_leaves_nothing(turbolm_bin, tiny_model, tmp_path):
    ids = " ".join(["65"] * 43000)
    p = start(turbolm_bin, ["logits", "--model", tiny_model(), "--ids", ids, "--decode-from", "0", "--out",
                            tmp_path / "x.npy"], stdout=subprocess.PIPE)
    wait_until(lambda: len(os.listdir(tmp_path)) == 1)
    assert os.listdir(tmp_path)[0].endswith(".tmp")
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (130, b"")
    assert os.listdir(tmp_path) == []


# A real model --------------------------------------------------------------

def test_generate_with_a_real_model(turbolm, model):
    got = turbolm(*generate_args(model("smollm2"), "-p", "What is the capital of France?", "-m", "40"))
    assert got.returncode == 0 and got.stderr == ""
    # Text and count are those of transformers; the template adds a system message.
    assert answer(got) == ("The capital of France is Paris.", 37, 8)


def test_inspect_of_a_real_model(turbolm, model):
    found = inspect_json(turbolm, model("smollm2"))
    assert found["architecture"] == "llama" and found["context_length"] == 8192
    assert found["tokenizer"]["vocab_size"] == 49152
    assert found["quantization"] == "q4_1"
    assert 134_000_000 < found["parameters"] < 165_000_000
    assert sum(t["bytes"] for t in found["tensors"]) == found["bytes"]
    assert "<|im_start|>" in found["chat_template"]


# the environment ------------------------------------------------------------

@pytest.mark.parametrize("name", ["foo", "AVX2", "scalar ", "avx2" if os.uname().machine == "aarch64" else "neon"])
@pytest.mark.parametrize("args", [["--version"], ["generate", "--model", "x"], ["inspect", "x"]])
def test_instruction_set_that_is_not_there(turbolm, name, args):
    got = turbolm(*args, env=dict(os.environ, TURBOLM_CPU=name))
    assert (got.returncode, got.stdout) == (2, "")
    assert re.fullmatch(r"error: TURBOLM_CPU: '%s', expected one of .*: scalar.*\n" % name, got.stderr)


@pytest.mark.parametrize("name", ["", "scalar"])
def test_instruction_set_that_is_there(turbolm, name):
    got = turbolm("--version", env=dict(os.environ, TURBOLM_CPU=name))
    assert (got.returncode, got.stderr) == (0, "") and ("scalar*" in got.stdout or not name)


@pytest.mark.parametrize("command", [["perplexity", "--model"], ["turboquant", "eval", "--model"]])
def test_text_is_read_before_the_model(turbolm, tmp_path, command):
    """A missing or bad text is told of without a look at the model, which is not even there."""
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    for text, message in ((tmp_path / "none", "no such file"), (tmp_path, "no file train.jsonl"),
                          (tmp_path / "bad.txt", "not valid UTF-8")):
        got = turbolm(*command, "/nonexistent", "--data-path", text)
        assert (got.returncode, got.stdout) == (1, "")
        assert got.stderr.startswith("error: ") and message in got.stderr and got.stderr.count("\n") == 1


def test_perplexity_without_a_text_fails_first(turbolm):
    got = turbolm("perplexity", "--model", "/nonexistent")
    assert (got.returncode, got.stdout) == (1, "") and "/nonexistent" not in got.stderr
