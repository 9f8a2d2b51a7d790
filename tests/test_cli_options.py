"""The option parser against argparse itself, help, and the manual page."""
import argparse
import json
import os
import re
import subprocess

import pytest

COMMANDS = ["generate", "chat", "benchmark", "cache_prompt", "convert", "perplexity", "compare", "inspect", "logits",
            "manage", "tokenize", "template"]
GROUPS = {"turboquant": ["eval", "generate", "convert"]}
LATER_PARTS = ["turboquant serve"]
LATER = ["awq", "dwq", "dynamic_quant", "evaluate", "fuse", "gptq", "lora",
         "server", "share", "upload"]
ABSENT = "/nonexistent/model"
RUN_OPTIONS = ["--threads", "--device", "--precision", "--prefill-step-size", "--kv-format", "--kv-sink", "--qjl"]
CACHE_OPTIONS = ["--max-kv-size", "--kv-bits", "--kv-group-size", "--quantized-kv-start"]


def str2bool(text):
    return text.lower() not in ("false", "f")


def generate_parser():
    """The options of mlx_lm.generate."""
    p = argparse.ArgumentParser(prog="turbolm generate")
    p.add_argument("--model")
    p.add_argument("--trust-remote-code", action="store_true")
    p.add_argument("--adapter-path")
    p.add_argument("--extra-eos-token", nargs="+", default=())
    p.add_argument("--system-prompt")
    p.add_argument("--prompt", "-p", default="hello")
    p.add_argument("--prefill-response")
    p.add_argument("--max-tokens", "-m", type=int, default=100)
    for name in ("--temp", "--top-p", "--min-p"):
        p.add_argument(name, type=float)
    p.add_argument("--top-k", type=int)
    p.add_argument("--xtc-probability", type=float)
    p.add_argument("--xtc-threshold", type=float)
    p.add_argument("--min-tokens-to-keep", type=int)
    p.add_argument("--seed", type=int)
    p.add_argument("--ignore-chat-template", action="store_true")
    p.add_argument("--use-default-chat-template", action="store_true")
    p.add_argument("--chat-template-config", type=json.loads)
    p.add_argument("--verbose", type=str2bool, default=True)
    p.add_argument("--max-kv-size", type=int)
    p.add_argument("--prompt-cache-file")
    p.add_argument("--quantize-activations", "-qa", action="store_true")
    p.add_argument("--kv-bits", type=int)
    p.add_argument("--kv-group-size", type=int, default=64)
    p.add_argument("--quantized-kv-start", type=int, default=5000)
    p.add_argument("--draft-model")
    p.add_argument("--num-draft-tokens", type=int, default=3)
    return p


def argparse_verdict(parser, args, capsys):
    """The line of argparse's error, or None when it takes the arguments."""
    try:
        parser.parse_args(args)
    except SystemExit as e:
        assert e.code == 2
        return capsys.readouterr().err.splitlines()[-1]
    return None


WITH_MODEL = [
    # taken
    "", "--max-t 5", "--max-tokens=5", "-m5", "-m 5", "-m=5", "-m -1", "-m-1", "--max-tokens=-1", "--te 0.5",
    "--pre x", "--see 1", "--v f", "-p x -p y", "--extra-eos-token a b c", "--extra-eos-token a --temp 0",
    "--extra-eos-token=a", "--extra-eos-token -5", "--extra a", "-p-x", "-p=-x", "--seed 1_000", "--temp 1e-1",
    "--temp .5", "--ignore", "--xtc-p 0.5", "--chat {}", "-p -", "--seed=+7", "--system-prompt=--", "--us",
    # refused
    "--max-tokens a", "--max-tokens 1.5", "--max-tokens", "--max-tokens --temp 1", "--temp x", "--temp=", "--temp 0x1",
    "--bogus", "--bogus=1", "stray", "stray --temp 1 other", "-x", "--extra-eos-token", "--extra-eos-token --temp 1",
    "--m 5", "--max 5", "--kv 1", "--x 1", "--top 1", "--t 1", "--p x", "--ignore-chat-template=1", "--help=1",
    "--chat-template-config {x", "--seed 1__0", "--seed _1", "--seed 0x10", "-p", "-p --temp 1", "--", "-- -p",
    "--temp 1 -- a b", "-p -- x", "--extra-eos-token a -- b", "-5", "-m -x", "--prompt=a b=c", "--max-tokens '",
    '--seed "', "--seed \\", "--no-such -5 -6", "-z5", "--mod", "--quantize", "--quantize-activations=1",
]


@pytest.mark.parametrize("line", WITH_MODEL)
def test_same_verdict_as_argparse(turbolm, capsys, line):
    args = ["--model", ABSENT, *line.split(" ")] if line else ["--model", ABSENT]
    want = argparse_verdict(generate_parser(), args, capsys)
    got = turbolm("generate", *args)
    assert got.stdout == ""
    if want is None:
        assert (got.returncode, got.stderr) == (1, "error: %s: no such file or directory\n" % ABSENT)
    else:
        assert got.returncode == 2
        assert got.stderr.startswith("usage: turbolm generate [-h] [--model MODEL]")
        last = got.stderr.splitlines()[-1]
        # Where mlx-lm's own options make a prefix ambiguous, ours are listed behind them.
        assert last == want or ": ambiguous option: " in want and last.startswith(want + ", --")


@pytest.mark.parametrize("args", [[], ["--kv-bits", "4"], ["--kv-bits", "x"], ["x"], ["--bogus"], ["--model"],
                                  ["--model", "x", "--prompt", "y"]])
def test_required_as_argparse(turbolm, capsys, args):
    p = argparse.ArgumentParser(prog="turbolm cache_prompt")
    for name in ("--model", "--prompt-cache-file", "--prompt"):
        p.add_argument(name, required=True)
    p.add_argument("--kv-bits", type=int)
    got = turbolm("cache_prompt", *args)
    assert got.returncode == 2
    assert got.stderr.splitlines()[-1] == argparse_verdict(p, args, capsys)


@pytest.mark.parametrize("args", [[], ["a", "b"], ["--json"], ["--json", "--", "a", "b"], ["a", "--json", "b", "c"]])
def test_positional_as_argparse(turbolm, capsys, args):
    p = argparse.ArgumentParser(prog="turbolm inspect")
    p.add_argument("MODEL")
    p.add_argument("--json", action="store_true")
    got = turbolm("inspect", *args)
    assert got.returncode == 2
    assert got.stderr.splitlines()[-1] == argparse_verdict(p, args, capsys)


def test_positional_behind_dashes(turbolm):
    got = turbolm("inspect", "--json", "--", ABSENT)
    assert (got.returncode, got.stderr) == (1, "error: %s: no such file or directory\n" % ABSENT)


@pytest.mark.parametrize("option, text, message", [
    ("--temp", "-0.5", "must be at least 0, but is -0.5"),
    ("--temp", "inf", "must be a finite number, but is inf"),
    ("--temp", "nan", "must be a finite number, but is nan"),
    ("--top-p", "1.5", "must be from 0 to 1, but is 1.5"),
    ("--min-p", "-1", "must be from 0 to 1, but is -1"),
    ("--xtc-threshold", "0.6", "must be from 0 to 0.5, but is 0.6"),
    ("--xtc-probability", "2", "must be from 0 to 1, but is 2"),
    ("--min-tokens-to-keep", "0", "must be from 1 to 2147483647, but is 0"),
    ("--top-k", "-1", "must be from 0 to 2147483647, but is -1"),
    ("--max-tokens", "-2", "must be at least -1, but is -2"),
    ("--max-tokens", "99999999999999999999", "too large: 99999999999999999999 does not fit into 64 bits"),
    ("--seed", "-1", "must be from 0 to 18446744073709551615, but is -1"),
    ("--seed", "18446744073709551616", "must be from 0 to 18446744073709551615, but is 18446744073709551616"),
    ("--threads", "0", "must be from 1 to 1024, but is 0"),
    ("--prefill-step-size", "0", "must be from 1 to 1048576, but is 0"),
    ("--precision", "half", "invalid choice: 'half' (choose from 'exact', 'fast')"),
    ("--chat-template-config", "[1]", "must be a JSON object, but is [1]"),
])
def test_ranges(turbolm, option, text, message):
    got = turbolm("generate", "--model", ABSENT, option, text)
    names = {"--max-tokens": "--max-tokens/-m"}
    assert got.returncode == 2
    assert got.stderr.splitlines()[-1] == "turbolm generate: error: argument %s: %s" % (names.get(option, option),
                                                                                      message)


@pytest.mark.parametrize("text", ["0", "18446744073709551615"])
def test_seeds_are_64_bits(turbolm, text):
    assert turbolm("generate", "--model", ABSENT, "--seed", text).stderr.startswith("error: " + ABSENT)


@pytest.mark.parametrize("command, option", [
    ("generate", o) for o in (
        "--trust-remote-code", "--adapter-path x", "--quantize-activations",
        "-qa", "--draft-model x", "--num-draft-tokens 2")
] + [("chat", o) for o in ("--trust-remote-code", "--adapter-path x", "--pipeline")
] + [("benchmark", o) for o in ("--pipeline", "--quantize-activations", "-qa", "--trust-remote-code")])
def test_later_options_are_refused(turbolm, command, option):
    name = "--quantize-activations" if option == "-qa" else option.split()[0]
    for model in ([], ["--model", ABSENT]):
        got = turbolm(command, *model, *option.split())
        assert (got.returncode, got.stdout, got.stderr) == (2, "", "error: %s is not supported yet\n" % name)


@pytest.mark.parametrize("args, message", [
    (["--device", "cuda"], "error: --device cuda is not supported yet\n"),
])
def test_later_values_are_refused(turbolm, args, message):
    got = turbolm("generate", "--model", ABSENT, *args)
    assert (got.returncode, got.stdout, got.stderr) == (2, "", message)


@pytest.mark.parametrize("args, message", [
    (["--kv-bits", "7"], "error: --kv-bits 7: expected 2, 3, 4, 5, 6 or 8\n"),
    (["--kv-bits", "5", "--qjl"], "error: --kv-bits 5: expected 2, 3, 4 or 8 with --qjl\n"),
    (["--kv-bits", "4", "--kv-group-size", "48"], "error: --kv-group-size 48: expected 32, 64 or 128\n"),
    (["--kv-bits", "4", "--kv-format", "f16"], "error: --kv-bits and --kv-format exclude each other\n"),
    (["--qjl"], "error: --qjl needs --kv-bits\n"),
])
def test_cache_options_are_checked(turbolm, tmp_path, args, message):
    got = turbolm("generate", "--model", tmp_path, *args)
    assert (got.returncode, got.stdout, got.stderr) == (2, "", message)


@pytest.mark.parametrize("args, names", [
    (["--kv-sink", "128"], ["--kv-sink"]),
    (["--quantized-kv-start", "10"], ["--quantized-kv-start"]),
    (["--kv-format", "f16", "--kv-sink", "0", "--quantized-kv-start", "9"], ["--kv-sink", "--quantized-kv-start"]),
    (["--kv-format", "tq4", "--kv-sink", "0", "--quantized-kv-start", "9"], []),
    (["--kv-bits", "4", "--kv-group-size", "32", "--quantized-kv-start", "9"], []),
])
def test_cache_options_without_effect_are_said(turbolm, tiny_model, args, names):
    got = turbolm("generate", "--model", tiny_model(head_dim=32), "-p", "ab", "-m", "1", *args)
    warnings = [line for line in got.stderr.splitlines() if line.startswith("warning:")]
    assert got.returncode == 0
    assert warnings == ["warning: %s has no effect on a cache that is not quantised" % n for n in names]


@pytest.mark.parametrize("path", ["absent", "./org/name", "/org/name", "org/name.gguf", "a/b/c"])
def test_absent_model(turbolm, path, tmp_path):
    for args in (["generate", "--model", path], ["inspect", path], ["benchmark", "--model", path],
                 ["logits", "--model", path, "--ids", "1", "--out", "x.npy"]):
        got = turbolm(*args, cwd=tmp_path)
        assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s: no such file or directory\n" % path)
    assert os.listdir(tmp_path) == []


# Dispatch ------------------------------------------------------------------

def test_version(turbolm):
    got = turbolm("--version")
    lines = got.stdout.splitlines()
    assert got.returncode == 0 and got.stderr == "" and len(lines) == 2
    assert re.fullmatch(r"turbolm \d+\.\d+\.\d+", lines[0])
    assert lines[1].startswith("cpu: ") and "scalar" in lines[1]


def test_no_command(turbolm):
    got = turbolm()
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "error: a command is needed, one of: %s\n" % ", ".join([*COMMANDS, *GROUPS])


def test_unknown_command(turbolm):
    got = turbolm("generat")
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "error: unknown command 'generat'; the commands are: %s\n" % ", ".join([*COMMANDS, *GROUPS])


@pytest.mark.parametrize("name", LATER)
def test_later_commands(turbolm, name):
    got = turbolm(name, "--help")
    assert (got.returncode, got.stdout, got.stderr) == (2, "", "error: %s is not supported yet\n" % name)


@pytest.mark.parametrize("name", ["generate", "benchmark", "chat", "server", "nonsense"])
def test_names_of_mlx_lm(turbolm_bin, tmp_path, name):
    link = tmp_path / ("mlx_lm." + name)
    link.symlink_to(os.path.abspath(turbolm_bin))
    got = subprocess.run([link, "--model"], capture_output=True, text=True)
    assert got.returncode == 2 and got.stdout == ""
    if name in COMMANDS:
        assert got.stderr.startswith("usage: mlx_lm.%s [-h]" % name)
        assert got.stderr.endswith("\nmlx_lm.%s: error: argument --model: expected one argument\n" % name)
    elif name in LATER:
        assert got.stderr == "error: %s is not supported yet\n" % name
    else:
        assert got.stderr.startswith("error: unknown command 'nonsense'; the commands are: ")


# Help ----------------------------------------------------------------------

def options_of(help_text):
    return re.findall(r"^  (--[a-z-]+)", help_text, re.M)


def test_overview(turbolm):
    for flag in ("-h", "--help"):
        got = turbolm(flag)
        assert got.returncode == 0 and got.stderr == ""
        assert all(re.search(r"^  %s +\S" % c, got.stdout, re.M) for c in [*COMMANDS, *GROUPS])


@pytest.mark.parametrize("command", COMMANDS)
def test_help(turbolm, command):
    texts = [turbolm(command, *flag, env=os.environ | {"COLUMNS": "80"}) for flag in (["-h"], ["--help"], ["--he"])]
    got = texts[0]
    assert got.returncode == 0 and got.stderr == "" and len({t.stdout for t in texts}) == 1
    assert got.stdout.startswith("usage: turbolm %s [-h]" % command)
    assert all(len(line) <= 78 for line in got.stdout.splitlines()
               if "[EXTRA" not in line and "[--quant-predicate" not in line)  # one option is one piece
    options = options_of(got.stdout)
    assert len(options) == len(set(options)) > 0
    usage = got.stdout.split("\n\n")[0]
    assert all(re.search(re.escape(o) + r"[] \n]", usage + "\n") for o in options)
    if command in ("generate", "chat", "benchmark", "perplexity", "compare", "logits"):
        own = {"generate": 4, "chat": 1}.get(command, 0)  # cache options that are mlx-lm's there too
        ours = RUN_OPTIONS + CACHE_OPTIONS[own:]
        assert options[-len(ours):] == ours


def test_help_has_the_options_of_mlx_lm(turbolm):
    got = options_of(turbolm("generate", "--help").stdout)
    want = [a.option_strings[0] for a in generate_parser()._actions if a.dest != "help"]
    assert got == want + RUN_OPTIONS


def test_usage_is_wrapped_as_argparse_does(turbolm):
    p = argparse.ArgumentParser(prog="turbolm inspect")
    p.add_argument("--json", action="store_true")
    p.add_argument("MODEL")
    assert turbolm("inspect", "-h").stdout.startswith(p.format_usage())
    # Without our own options generate's usage is that of argparse, line for line.
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        want = generate_parser().format_usage().splitlines()
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    got = turbolm("generate", "--temp", "x", "--model", "y", env=os.environ | {"COLUMNS": "80"}).stderr.splitlines()
    assert got[: len(want) - 1] == want[:-1]


def test_manual_has_every_option(turbolm):
    page = turbolm("--man").stdout
    sections = dict(zip(re.findall(r"^\.SS (.+)", page, re.M), re.split(r"^\.SS .+\n", page, flags=re.M)[1:]))
    parts = ["%s %s" % (group, part) for group, names in GROUPS.items() for part in names]
    assert list(sections) == [*COMMANDS, *parts, *LATER_PARTS]
    for command in [*COMMANDS, *parts]:
        options = options_of(turbolm(*command.split(), "--help").stdout)
        in_page = re.findall(r"^\\fB(\\-\\-.*?)\\fR", sections[command].split(".SH")[0], re.M)
        assert [o.replace("\\-", "-") for o in in_page] == options


def test_stored_manual_is_current(turbolm, root):
    with open(os.path.join(root, "docs", "man", "turbolm.1"), encoding="utf-8") as f:
        assert f.read() == turbolm("--man").stdout, "make it again: build/turbolm --man > docs/man/turbolm.1"


@pytest.mark.parametrize("value, message", [
    ("99999999999999999999", "too large: 99999999999999999999 does not fit into 64 bits"),
    ("9" * 5000, "too large: 9{60,64}[.]{3}9{60,64} does not fit into 64 bits"),
    ("-99999999999999999999", "must be at least -1, but is -99999999999999999999"),
    ("-2", "must be at least -1, but is -2")], ids=["large", "very large", "small", "below"])
def test_integers_out_of_range(turbolm, value, message):
    got = turbolm("generate", "--model", "none", "-m=" + value)
    assert (got.returncode, got.stdout) == (2, "")
    assert re.search("error: argument --max-tokens/-m: %s\n$" % message, got.stderr), got.stderr
