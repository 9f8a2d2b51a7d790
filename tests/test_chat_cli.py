"""turbolm chat on a tiny model: pipes, a terminal, commands, files, thoughts, ids."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import terminal
import tiny_model as tiny

PLAIN = ("<|start|>", "<|end|>")  # without the tags of thoughts the template adds nothing behind [assistant]
STATISTICS = (r"  (\d+) tokens · (\d+\.\d) tok/s · prompt (\d+) tokens (\d+\.\d) tok/s · peak (\d+\.\d\d) GB\n")
AT = "› "


def chat_args(model, *args):
    return ["chat", "--model", model, "--precision", "exact", *args]


@pytest.fixture
def piped(turbolm, tmp_path):
    """piped(model, lines, ...) runs a chat on lines from a pipe."""

    def run(model, lines, *args, **kwargs):
        text = "".join(line + "\n" for line in lines) if isinstance(lines, list) else lines
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"HOME": str(tmp_path)}
        return turbolm(*chat_args(model, *args), input=text, env=env, cwd=tmp_path, **kwargs)

    return run


@pytest.fixture
def on_terminal(turbolm_bin, tmp_path):
    """on_terminal(model, ...) is a chat on a terminal that waits for its first message."""
    opened = []

    def run(model, *args, wait=True, columns=80, **env):
        base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG")}
        env = base | {"TERM": "xterm", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")} | env
        t = terminal.Terminal([turbolm_bin, *chat_args(model, *args)], env, columns=columns, cwd=tmp_path)
        opened.append(t)
        if wait:
            t.expect(AT)
        return t

    yield run
    for t in opened:
        t.close()


@pytest.fixture
def simple(tiny_model):
    return tiny_model(special=PLAIN)


def said(result):
    """The answers of a piped run and the numbers of prompt tokens."""
    body = result.stdout.split("h help\n\n", 1)[1]
    parts = re.split(r"(?:  stopped at \d+ tokens \(--max-tokens\)\n)?" + STATISTICS, body)
    return [p.strip("\n") for p in parts[:-1:6]], [int(p) for p in parts[3::6]]


def dialogue(texts, n, system=None):
    """The messages of a conversation with a tiny model that answers with n tokens, by the definition."""
    messages = [("system", system)] if system is not None else []
    for text in texts:
        messages.append(("user", text))
        ids = tiny.encode(tiny.render(messages, thinking=False))
        messages.append(("assistant", tiny.greedy(ids, n)))
    return messages


def as_json(messages):
    return [{"role": r, "content": c} for r, c in messages]


def saved(tmp_path, name="s.json"):
    with open(tmp_path / name, encoding="utf-8") as f:
        return json.load(f)


def saved_on(t, tmp_path, name="s.json"):
    """Saves the conversation of a chat on a terminal and reads it."""
    t.send("/save %s\r" % name)
    t.expect(r"messages? written to")
    t.expect(AT)
    return saved(tmp_path, name)


# Pipes ---------------------------------------------------------------------

def test_conversation(piped, simple):
    got = piped(simple, ["hello", "and more?", "third"], "-m", "8")
    assert (got.returncode, got.stderr) == (0, "")
    answers, prompts = said(got)
    want = dialogue(["hello", "and more?", "third"], 8)
    assert answers == [c for r, c in want if r == "assistant"]
    assert got.stdout.startswith("turbolm chat\n  model        %s\n  max tokens   8\n"
                                 "  commands    q exit   r reset   h help\n\n" % simple)
    assert prompts[0] == len(tiny.encode(tiny.render(want[:1], thinking=False)))
    assert "\x1b" not in got.stdout and "─" not in got.stdout and AT not in got.stdout


def test_by_the_name_of_mlx_lm(turbolm_bin, simple, tmp_path):
    link = tmp_path / "mlx_lm.chat"
    link.symlink_to(os.path.abspath(turbolm_bin))
    got = subprocess.run([link, *chat_args(simple, "-m", "3")[1:]], input="hi\n", capture_output=True, text=True)
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout.startswith("mlx_lm.chat\n")
    assert said(got)[0] == [tiny.greedy(tiny.encode(tiny.render([("user", "hi")], thinking=False)), 3)]


def test_panel(piped, simple):
    got = piped(simple, [], "-m", "1234567", "--system-prompt", "é" * 61)
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == ("turbolm chat\n  model        %s\n  max tokens   1,234,567\n  system       %s...\n"
                          "  commands    q exit   r reset   h help\n\n" % (simple, "é" * 57))
    got = piped(simple, [], "-m", "-1", "--system-prompt", "é" * 60)
    assert "  max tokens   no limit\n  system       %s\n" % ("é" * 60) in got.stdout


def test_defaults(piped, simple):
    got = piped(simple, ["x"])
    assert "  max tokens   256\n" in got.stdout
    assert re.search(r"\n  stopped at 256 tokens \(--max-tokens\)\n  256 tokens · ", got.stdout)


def test_same_ids_as_generate(turbolm, piped, simple):
    got = piped(simple, ["Why?"], "-m", "8", "--system-prompt", "Be brief")
    other = turbolm("generate", "--model", simple, "--precision", "exact", "-m", "8", "-p", "Why?", "--system-prompt",
                    "Be brief")
    answers, prompts = said(got)
    assert other.stdout.split("==========\n")[1] == answers[0] + "\n"
    assert "Prompt: %d tokens," % prompts[0] in other.stdout


@pytest.mark.parametrize("config, thinking, note", [(None, True, ""), ('{"note": "!"}', True, "!"),
                                                    ('{"enable_thinking": false}', False, "")])
def test_template_variables(piped, tiny_model, config, thinking, note):
    args = ["--chat-template-config", config] if config else []
    answers, prompts = said(piped(tiny_model(), ["x"], "-m", "6", *args))
    ids = tiny.encode(tiny.render([("user", "x")], thinking=thinking, note=note))
    assert (answers, prompts) == ([tiny.greedy(ids, 6)], [len(ids)])


def test_last_line_without_an_end(piped, simple):
    got = piped(simple, "hello", "-m", "4")
    assert (got.returncode, len(said(got)[0])) == (0, 1)


@pytest.mark.parametrize("text", ["", "\n\n  \n\t\n"])
def test_nothing_to_say(piped, simple, text):
    got = piped(simple, text)
    assert (got.returncode, got.stderr, got.stdout.count("\n")) == (0, "", 5)


@pytest.mark.parametrize("line, shown", [("q", "bye\n"), ("/exit", "bye\n"), ("r", "  reset context cleared\n"),
                                         ("/reset", "  reset context cleared\n")])
def test_letters_and_commands(piped, simple, line, shown):
    got = piped(simple, [line], "-m", "2")
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout.endswith("h help\n\n" + shown)


def test_leaving_stops_reading(piped, simple):
    got = piped(simple, ["q", "hello"], "-m", "2")
    assert "tok/s" not in got.stdout


@pytest.mark.parametrize("line", ["h", "/help"])
def test_help_lists_every_command(piped, simple, line):
    got = piped(simple, [line])
    for name in ("q", "r", "h", "/exit", "/reset", "/help", "/system", "/undo", "/retry", "/save", "/load", '"""'):
        assert re.search(r"^  (.*, )?%s" % re.escape(name), got.stdout.split("h help\n\n")[1], re.M), name


@pytest.mark.parametrize("line, message", [
    ("/nothing", "error: /nothing is not a command: /help lists them, a backslash before it sends it as text\n"),
    ("/usr/bin is a folder", "error: /usr/bin is not a command: /help lists them, a backslash before it sends it as "
                             "text\n"),
    ("/exit now", "error: /exit takes nothing behind it\n"),
    ("/undo 2", "error: /undo takes nothing behind it\n"),
    ("/save", "error: /save needs the name of a file\n"),
    ("/load  ", "error: /load needs the name of a file\n"),
    ("/undo", "error: there is nothing to undo\n"),
    ("/retry", "error: there is no message to answer again\n"),
])
def test_bad_commands(piped, simple, line, message):
    got = piped(simple, [line, "x"], "-m", "2")
    assert (got.returncode, got.stderr, len(said(got)[0])) == (0, message, 1)


@pytest.mark.parametrize("lines, message", [
    (["\\q"], "q"), (["\\/help"], "/help"), (["\\\\x"], "\\x"), (["\\\\"], "\\"), (["\\ "], " "),
    (["\\\"\"\"x"], "\"\"\"x"), (["qq"], "qq"), ([" q"], " q"), (["a/b"], "a/b"), (["  x  "], "  x  "),
    (["one\\", "two\\", "three"], "one\ntwo\nthree"), (["one\\\\"], "one\\\\"), (["one\\\\\\", "two"], "one\\\\\ntwo"),
    (["\\", "x"], "\nx"), (["\\q\\", "x"], "q\nx"), (["x\\"], "x"),
    (['"""one', "two\\", '/help"""'], "one\ntwo\\\n/help"), (['"""', "one", "", "two", '"""'], "one\n\ntwo"),
    (['"""', "", "x", "", '"""'], "\nx\n"),
    (['"""one"""'], "one"), (['"""', "open", "end"], "open\nend"), (['"""\\q"""'], "\\q"), (['"""""', '""""'], '""\n"'),
    (["é€😀\u202e"], "é€😀\u202e"),
])
def test_messages_from_lines(piped, simple, tmp_path, lines, message):
    got = piped(simple, lines, "-m", "2")
    assert (got.returncode, got.stderr) == (0, "")
    ids = tiny.encode(tiny.render([("user", message)], thinking=False))
    assert said(got) == ([tiny.greedy(ids, 2)], [len(ids)])


@pytest.mark.parametrize("lines", [['"""', '"""'], ['""""""']])
def test_empty_block(piped, simple, lines):
    got = piped(simple, lines, "-m", "2")
    assert (got.returncode, got.stderr) == (0, "") and "tok/s" not in got.stdout


@pytest.mark.parametrize("data, message", [
    (b"a\0b\n", b"error: the message has a NUL byte\n"),
    (b"ab\xff\n", b"error: the message is not valid UTF-8 at byte 2\n"),
    (b"one\\\n\xc3\n", b"error: the message is not valid UTF-8 at byte 4\n"),
    (b"x" * (2**24 + 1) + b"\n", b"error: the message is longer than 16777216 bytes\n"),
    (b'"""' + (b"x" * 2**23 + b"\n") * 3 + b'"""\n', b"error: the message is longer than 16777216 bytes\n"),
    (b'"""\na\0\n"""\n', b"error: the message has a NUL byte\n"),
], ids=["nul", "utf8", "continued", "long", "long-block", "nul-block"])
def test_bad_messages_are_refused_and_the_chat_goes_on(turbolm_bin, simple, data, message):
    got = subprocess.run([turbolm_bin, *chat_args(simple, "-m", "2")], input=data + b"x\n", capture_output=True)
    assert (got.returncode, got.stderr) == (0, message)
    assert said(subprocess.CompletedProcess([], 0, got.stdout.decode()))[1] == [
        len(tiny.encode(tiny.render([("user", "x")], thinking=False)))]


@pytest.mark.parametrize("option, value", [("--system-prompt", b"\xff"), ("--chat-template-config", b'{"a": "\xff"}')])
def test_bad_utf8_in_arguments(turbolm_bin, simple, option, value):
    got = subprocess.run([turbolm_bin, *chat_args(simple, option), value], input=b"", capture_output=True)
    assert (got.returncode, got.stdout) == (2, b"")
    assert re.fullmatch(rb"error: .* is not valid UTF-8 at byte \d\n", got.stderr)


# Models that do not fit ----------------------------------------------------

def test_model_without_template(piped, tiny_model):
    model = tiny_model(template=None)
    got = piped(model, ["x"])
    assert (got.returncode, got.stdout) == (2, "")
    message = r"error: %s has no chat template: .*chat_template\.jinja.*turbolm generate.*\n" % model
    assert re.fullmatch(message, got.stderr)


def test_model_without_tokenizer(piped, tiny_model):
    model = tiny_model(tokenizer=False)
    got = piped(model, ["x"])
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s has no tokenizer\n" % model)


def test_template_that_raises(piped, tiny_model, tmp_path):
    refuse = "{% if messages[0].content == 'bad' %}{{ raise_exception('Not this') }}{% endif %}"
    model = tiny_model(special=PLAIN, template=refuse + tiny.TEMPLATE)
    got = piped(model, ["bad", "good", "/save s.json"], "-m", "2")
    assert got.returncode == 0 and re.fullmatch(r"error: %s/\w+\.\w+: Not this\n" % model, got.stderr)
    assert saved(tmp_path) == as_json(dialogue(["good"], 2))


def test_full_context(piped, tiny_model):
    got = piped(tiny_model(special=PLAIN, max_position_embeddings=48), ["0123456789"], "-m", "-1")
    assert got.returncode == 0
    assert re.fullmatch(r"warning: the text ends after \d+ tokens because the context is full\n", got.stderr)


# Sampling ------------------------------------------------------------------

def test_seed(piped, simple, tmp_path):
    def answers(*args):
        got = piped(simple, ["x", "y", "/save s.json"], "--temp", "1.5", "-m", "20", *args)
        assert (got.returncode, got.stderr) == (0, "")
        return saved(tmp_path)

    first = answers()
    assert first == answers("--seed", "0") != answers("--seed", "1")


def test_retry_draws_again(piped, simple, tmp_path):
    got = piped(simple, ["x", "/save a", "/retry", "/save b"], "--temp", "1.5", "-m", "20")
    assert (got.returncode, got.stderr) == (0, "")
    a, b = saved(tmp_path, "a"), saved(tmp_path, "b")
    assert [m["role"] for m in a] == [m["role"] for m in b] == ["user", "assistant"]
    assert a[1]["content"] != b[1]["content"]


def test_filters_at_temperature_zero_warn_once(piped, simple):
    got = piped(simple, ["x", "y"], "-m", "2", "--top-k", "5", "--xtc-threshold", "0.2")
    assert got.returncode == 0
    assert got.stderr == ("warning: --xtc-threshold has no effect without --xtc-probability\n"
                          "warning: top_k has no effect at temperature 0\n")


def test_top_k_beyond_the_vocabulary(piped, simple):
    got = piped(simple, ["x"], "--temp", "1", "--top-k", "260")
    assert (got.returncode, got.stdout) == (2, "") and re.fullmatch(r"error: .*top_k.*\n", got.stderr)


# The conversation ----------------------------------------------------------

def test_reset_keeps_the_system_message(piped, simple, tmp_path):
    got = piped(simple, ["a", "r", "b", "/save s.json"], "-m", "4", "--system-prompt", "S")
    assert (got.returncode, got.stderr) == (0, "")
    assert saved(tmp_path) == as_json(dialogue(["b"], 4, system="S"))


def test_system(piped, simple, tmp_path):
    lines = ["/system", "a", "/system Be\\", "brief ", "/system", "b", "/save s.json", "/system -", "/save t.json"]
    got = piped(simple, lines, "-m", "4")
    assert (got.returncode, got.stderr) == (0, "")
    first = dialogue(["a"], 4)
    messages = [("system", "Be\nbrief"), *first, ("user", "b")]
    answer = tiny.greedy(tiny.encode(tiny.render(messages, thinking=False)), 4)
    assert saved(tmp_path) == as_json([*messages, ("assistant", answer)])
    assert saved(tmp_path, "t.json") == as_json([*messages[1:], ("assistant", answer)])
    assert "  there is no system message\n" in got.stdout and "  the system message is:\nBe\nbrief\n" in got.stdout
    assert "  system message set\n" in got.stdout and "  system message removed\n" in got.stdout


def test_undo(piped, simple, tmp_path):
    got = piped(simple, ["a", "b", "/undo", "c", "/save s.json", "/undo", "/undo", "/save t.json", "/undo"], "-m", "4",
                "--system-prompt", "S")
    assert got.stderr == "error: there is nothing to undo\n"
    assert saved(tmp_path) == as_json(dialogue(["a", "c"], 4, system="S"))
    assert saved(tmp_path, "t.json") == as_json([("system", "S")])


def test_retry(piped, simple, tmp_path):
    got = piped(simple, ["a", "b", "/retry", "/save s.json"], "-m", "4")
    assert (got.returncode, got.stderr) == (0, "")
    assert saved(tmp_path) == as_json(dialogue(["a", "b"], 4))
    assert said(got)[0][1] == said(got)[0][2]


def test_save_and_load(piped, simple, tmp_path):
    piped(simple, ["a\"\\é\u2028", "b", "/save s.json"], "-m", "4", "--system-prompt", "S")
    got = piped(simple, ["forgotten", "/load s.json", "c", "/save ~/t.json"], "-m", "4", "--system-prompt", "other")
    assert "  5 messages from s.json\n" in got.stdout
    assert saved(tmp_path, "t.json") == as_json(dialogue(["a\"\\é\u2028", "b", "c"], 4, system="S"))


def test_load_of_an_open_question(piped, simple, tmp_path):
    (tmp_path / "s.json").write_text('[{"role": "user", "content": "a"}]')
    got = piped(simple, ["/load s.json", "/retry", "/save s.json"], "-m", "4", "--system-prompt", "S")
    assert (got.returncode, got.stderr) == (0, "")
    assert saved(tmp_path) == as_json(dialogue(["a"], 4))


def test_save_replaces_the_file_whole(piped, simple, tmp_path):
    (tmp_path / "s.json").write_text("x" * 1000)
    os.chmod(tmp_path / "s.json", 0o604)
    piped(simple, ["/save s.json"])
    assert saved(tmp_path) == [] and os.stat(tmp_path / "s.json").st_mode & 0o777 == 0o604
    assert os.listdir(tmp_path) == ["s.json"]


@pytest.mark.parametrize("name, message", [
    ("absent/s.json", "error: absent/s.json: cannot save: No such file or directory\n"),
    (".", "error: .: not a regular file\n"),
    ("/dev/null", "error: /dev/null: not a regular file\n"),
])
def test_save_that_fails(piped, simple, name, message):
    got = piped(simple, ["/save " + name, "x"], "-m", "2")
    assert (got.returncode, got.stderr, len(said(got)[0])) == (0, message, 1)


USER = '{"role": "user", "content": "a"}'


@pytest.mark.parametrize("content, message", [
    (b"", "not a JSON array of messages"), (b"[", "not a JSON array of messages"),
    (b"{}", "not a JSON array of messages"),
    (b"[] x", "not a JSON array of messages"), (b"[1]", "message 1 is not an object"),
    (b"[{}]", "message 1 has no role or no content"),
    (('[%s, {"role": "user"}]' % USER).encode(), "message 2 has no role or no content"),
    (b'[{"role": "tool", "content": "a"}]', "message 1 has a role other than system, user and assistant"),
    (b'[{"role": "user", "content": null}]', "message 1 has a value that is not a string"),
    (b'[{"role": "user", "content": "a", "name": "x"}]', "message 1 has a key other than role, content and "
                                                         "reasoning_content"),
    (b'[{"role": "user", "content": "a", "content": "b"}]', "message 1 has a key twice"),
    (('[%s, {"role": "system", "content": "a"}]' % USER).encode(),
     "message 2 has the role system, which only the first may have"),
    (b'[{"role": "user", "content": "a", "reasoning_content": "b"}]',
     "message 1 has reasoning_content and is not the assistant's"),
    (b'[{"role": "user", "content": "a\xff"}]', "is not valid UTF-8 at byte 31"),
    (b'[{"role": "user", "content": "a\0"}]', "has a NUL byte"),
    (b'[{"role": "user", "content": "a\\u0000b"}]', "has a NUL byte"),
    (b"[" * 100000, "not a JSON array of messages"),
    (None, "No such file or directory"), ("folder", "not a regular file of at most 67108864 bytes"),
])
def test_load_of_bad_files(piped, simple, tmp_path, content, message):
    if content == "folder":
        (tmp_path / "f.json").mkdir()
    elif content is not None:
        (tmp_path / "f.json").write_bytes(content)
    got = piped(simple, ["a", "/load f.json", "/save s.json"], "-m", "4")
    assert (got.returncode, got.stderr) == (0, "error: f.json: %s\n" % message)
    assert saved(tmp_path) == as_json(dialogue(["a"], 4))


def test_escaped_backslash_before_u0000_is_no_nul(piped, simple, tmp_path):
    (tmp_path / "f.json").write_text('[{"role": "user", "content": "\\\\u0000"}]')
    piped(simple, ["/load f.json", "/save s.json"])
    assert saved(tmp_path) == as_json([("user", "\\u0000")])


# Thoughts ------------------------------------------------------------------

def thinker(tiny_model, template, prompt, n):
    """A model whose answer to prompt has tags where bytes were: (path, text of the answer)."""
    ids = tiny.encode(prompt)
    text = tiny.greedy(ids, n)
    used = set(prompt)
    once = [i for i in range(1, n - 2) if text.count(text[i]) == 1 and text[i] not in used]
    assert len(once) >= 2
    return text, once


OPENED = ("{% for m in messages %}({{ m.role }}){{ m.content }}{% if m.reasoning_content %}"
          "#{{ m.reasoning_content }}#{% endif %}{% endfor %}{% if add_generation_prompt %}:<think>\n{% endif %}")


def test_thoughts_that_the_template_opens(piped, tiny_model, tmp_path):
    prompt = "(user)hello:<think>\n"
    text, once = thinker(tiny_model, OPENED, prompt, 40)
    at = once[len(once) // 2]
    model = tiny_model(template=OPENED, renamed=((ord(text[at]), "</think>"),))
    got = piped(model, ["hello", "/save s.json"], "-m", "40")
    assert (got.returncode, got.stderr) == (0, "")
    thoughts, content = text[:at], text[at + 1 :]
    assert "h help\n\n[thinking]\n%s\n\n[answer]\n%s\n  stopped" % (thoughts.strip(), content.lstrip()) in got.stdout
    assert saved(tmp_path) == [{"role": "user", "content": "hello"},
                               {"role": "assistant", "content": content.lstrip(),
                                "reasoning_content": thoughts.strip()}]


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("<longcat_think>", "</longcat_think>")])
def test_thoughts_that_the_model_opens(piped, tiny_model, tmp_path, tags):
    template = OPENED.replace(":<think>\n", ":")
    prompt = "(user)hello:"
    text, once = thinker(tiny_model, template, prompt, 40)
    a, b = once[0], once[-1]
    special = PLAIN if tags[0] != "<think>" else tuple(tiny.SPECIAL)
    model = tiny_model(template=template, special=special, renamed=((ord(text[a]), tags[0]), (ord(text[b]), tags[1])))
    got = piped(model, ["hello", "/save s.json", "go on", "/save t.json"], "-m", "40")
    assert (got.returncode, got.stderr) == (0, "")
    before, thoughts, content = text[:a], text[a + 1 : b], text[b + 1 :]
    assert "%s\n\n[thinking]\n%s\n\n[answer]\n%s\n" % (before, thoughts.strip(), content.lstrip()) in got.stdout
    assert saved(tmp_path)[1] == {"role": "assistant", "content": (before + content).lstrip(),
                                  "reasoning_content": thoughts.strip()}
    # The template puts thoughts elsewhere, so the second prompt is another text than what was generated.
    assert saved(tmp_path, "t.json")[:2] == saved(tmp_path) and len(saved(tmp_path, "t.json")) == 4


def test_tags_that_are_special_tokens(piped, tiny_model, tmp_path):
    """<|channel>, "thought" and <channel|>: the text that the engine decodes has neither tag."""
    template = OPENED.replace(":<think>\n", ":")
    for question in "abcdefghijklmnopqrstuvwxyz":
        text, once = thinker(tiny_model, template, "(user)%s:" % question, 40)
        at = [i for i in once if i + 1 in once and i + 6 < once[-1]]
        if at:
            break
    a, b = at[0], once[-1]
    model = tiny_model(template=template, special=PLAIN, renamed=(
        (ord(text[a]), "<|channel>"), (ord(text[a + 1]), "thought"), (ord(text[b]), "<channel|>")))
    got = piped(model, [question, "/save s.json"], "-m", "40")
    assert (got.returncode, got.stderr) == (0, "")
    assert saved(tmp_path)[1] == {"role": "assistant", "content": (text[:a] + text[b + 1 :]).lstrip(),
                                  "reasoning_content": text[a + 2 : b].strip()}


def test_an_answer_of_thoughts_alone(piped, tiny_model, tmp_path):
    model = tiny_model(template=OPENED)
    got = piped(model, ["hello", "/save s.json"], "-m", "20")
    text = tiny.greedy(tiny.encode("(user)hello:<think>\n"), 20)
    assert saved(tmp_path)[1] == {"role": "assistant", "content": "", "reasoning_content": text.strip()}
    assert "[thinking]\n%s\n  stopped" % text.strip() in got.stdout and "[answer]" not in got.stdout


def test_tags_in_a_question_open_nothing(piped, tiny_model, tmp_path):
    model = tiny_model(template=OPENED.replace(":<think>\n", ":"))
    got = piped(model, ["what is <think>", "/save s.json"], "-m", "8")
    assert "reasoning_content" not in saved(tmp_path)[1] and "[thinking]" not in got.stdout


# Ids -----------------------------------------------------------------------

def test_generated_ids_come_back_as_they_were(piped, tiny_model):
    """The model says letters one by one; encoded again they would be pairs."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    merges = tuple((a, b) for a in letters for b in letters)
    config = tiny.CONFIG | {"vocab_size": 260 + len(merges)}
    template = tiny.TEMPLATE.replace("[{{ m.role }}]", "[]").replace("[assistant]", "[]")
    model = tiny_model(special=PLAIN, merges=merges, template=template)
    got = piped(model, ["?", "!"], "-m", "24")
    first = tiny.encode("<|start|>[]?<|end|>[]")
    one = tiny.greedy(first, 24, config)
    assert re.search("[A-Za-z0-9]{2}", one), "the answer has no pair: the test needs another question"
    second = tiny.encode("<|start|>[]?<|end|>[]" + one + "<|end|>[]!<|end|>[]")
    answers, _ = said(got)
    assert answers == [one, tiny.greedy(second, 24, config)]
    # A file has no ids: the chat that generated them goes on as before, another one encodes pairs.
    again = piped(model, ["?", "/save s.json", "/load s.json", "!"], "-m", "24")
    assert said(again)[0][1].splitlines()[-1] == answers[1]
    fresh = piped(model, ["/load s.json", "!"], "-m", "24")
    assert said(fresh)[0][0].splitlines()[-1] != answers[1]


def test_second_turn_computes_its_own_tokens(piped, simple):
    got = piped(simple, ["x" * 300, "and?"], "-m", "24")
    answers, prompts = said(got)
    own = len(tiny.encode("<|end|>[user]and?<|end|>[assistant]"))
    assert prompts[1] <= own + 1  # and the last token of the answer, which was drawn and not yet given


def test_history_that_the_template_changes(piped, tiny_model, tmp_path):
    """Answers are cut to three characters once they are history."""
    template = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content[:3] if m.role == 'assistant' else m.content }}")
    got = piped(tiny_model(special=PLAIN, template=template), ["a", "b"], "-m", "8")
    one = tiny.greedy(tiny.encode(tiny.render([("user", "a")], thinking=False)), 8)
    history = [("user", "a"), ("assistant", one[:3]), ("user", "b")]
    two = tiny.greedy(tiny.encode(tiny.render(history, thinking=False)), 8)
    assert said(got)[0] == [one, two]


def test_real_conversation(piped, model, tmp_path):
    """A conversation goes on in the same way from its file, where ids are made anew."""
    path = model("smollm2")
    first = piped(path, ["What is the capital of France?", "/save s.json", "And of Spain?", "/save t.json"], "-m", "24")
    assert (first.returncode, first.stderr) == (0, "")
    second = piped(path, ["/load s.json", "And of Spain?", "/save u.json"], "-m", "24")
    assert (second.returncode, second.stderr) == (0, "")
    t = saved(tmp_path, "t.json")
    assert "Paris" in t[1]["content"] and "Madrid" in t[3]["content"]
    assert saved(tmp_path, "u.json") == t


# The terminal --------------------------------------------------------------

def test_terminal(on_terminal, simple):
    t = on_terminal(simple, "-m", "8", columns=60)
    assert re.match(r"╭─ turbolm chat ─+╮\n│  model        .* +│\n│  max tokens   8 +│\n╰─+╯\n"
                    r"  commands    q exit   r reset   h help\n\n─{59}\n\n─{59}\n› $", terminal.visible(t.data))
    assert len({len(line) for line in terminal.visible(t.data).split("\n")[:4]}) == 1
    t.send("hello\r")
    answer = re.escape(dialogue(["hello"], 8)[1][1])
    t.expect(r"─{59}\n%s\n  stopped at 8 tokens \(--max-tokens\)\n" % answer + STATISTICS)
    t.expect(AT)
    t.send("q\r")
    assert t.wait() == 0 and terminal.visible(t.data).endswith("bye\n")
    assert t.modes() == t.before and b"\x1b[2m" in t.data


@pytest.mark.parametrize("keys, message", [
    ("helo\x1b[Dl\r", "hello"), ("bd\x01a\x05e\x02c\r", "abdce"), ("abc\x7fd\r", "abd"),
    ("wrong\x15right\r", "right"), ("tail\x01\x0bnew\r", "new"), ("é€\x7f😀\r", "é😀"),
    ("two words\x17one\r", "two one"), ("\x1b[A\x1b[Bx\r", "x"),
])
def test_editing_keys(on_terminal, simple, tmp_path, keys, message):
    t = on_terminal(simple, "-m", "2")
    t.send(keys)
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == message


def test_history(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    for line in ("first", "second", "second"):
        t.send(line + "\r")
        t.expect("tok/s · peak")
        t.expect(AT)
    t.send("\x1b[A\x1b[A!\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    t.send("\x04")
    assert t.wait() == 0
    path = tmp_path / "state" / "turbolm" / "chat_history"
    assert path.read_text() == "first\nsecond\nfirst!\n" and path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_text(path.read_text() + "bad\x1b[2J\nh\xe9llo\n")
    t = on_terminal(simple, "-m", "2")
    t.send("\x1b[A\x1b[A?\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == "first!?"


def test_history_below_home(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2", XDG_STATE_HOME="relative")
    t.send("x\r")
    t.expect("tok/s · peak")
    assert (tmp_path / ".local" / "state" / "turbolm" / "chat_history").read_text() == "x\n"


def test_history_that_cannot_be_kept(on_terminal, simple, tmp_path):
    (tmp_path / "state").write_text("")
    t = on_terminal(simple, "-m", "2", wait=False)
    t.expect("warning: .*chat_history: cannot read the history: Not a directory")
    t.expect(AT)
    t.send("x\r")
    t.expect("tok/s · peak")


def test_long_history_is_shortened(on_terminal, simple, tmp_path):
    path = tmp_path / "state" / "turbolm" / "chat_history"
    path.parent.mkdir(parents=True)
    path.write_text("".join("line %06d\n" % i for i in range(100000)))
    t = on_terminal(simple, "-m", "2")
    t.send("\x1b[A?\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == "line 099999?"
    assert path.stat().st_size < 600000 and path.read_text().startswith("line ")


def test_lines_that_go_on(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    t.send("one\\\r")
    t.expect("· ")
    t.send("two\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    t.send('"""\r')
    t.expect("· ")
    t.send("q\r")
    t.expect("· ")
    t.send('/help"""\r')
    t.expect("tok/s · peak")
    t.expect(AT)
    assert [m["content"] for m in saved_on(t, tmp_path)[::2]] == ["one\ntwo", "q\n/help"]


def test_interrupt_ends_an_answer(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "-1")
    t.send("hello\r")
    t.expect("─{79}\n[!-~ ]{20}")
    t.send("\x03")
    tokens = int(t.expect(r"\n  stopped\n" + STATISTICS)[1])
    t.expect(AT)
    got = saved_on(t, tmp_path)[1]["content"]
    assert got.startswith(tiny.greedy(tiny.encode(tiny.render([("user", "hello")], thinking=False)), 20))
    assert len(got) == tokens  # all that was generated is kept
    t.send("/undo\r")
    t.expect("took back")
    t.expect(AT)
    t.send("q\r")
    assert t.wait() == 0 and t.modes() == t.before


def test_interrupt_before_an_answer(on_terminal, simple, tmp_path):
    """While the prompt is computed nothing is said, and nothing stays of the message."""
    (tmp_path / "long.json").write_text(json.dumps(as_json([("user", "x" * 60000), ("assistant", "y")])))
    t = on_terminal(simple, "-m", "-1")
    t.send("/load long.json\r")
    t.expect("2 messages from")
    t.expect(AT)
    t.send("hello\r")
    t.expect("─{79}\n")
    time.sleep(0.2)
    t.send("\x03")
    t.expect("  stopped before anything was said\n")
    t.expect(AT)
    assert len(saved_on(t, tmp_path)) == 2


def test_interrupt_clears_the_line(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    t.send("unwanted")
    t.expect("unwanted")
    t.send("\x03")
    t.expect("Ctrl-C again or Ctrl-D leaves")
    t.expect(AT)
    t.send("wanted\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == "wanted"
    for i in range(2):
        assert t.process.poll() is None
        t.send("\x03")
        if i == 0:
            t.expect("Ctrl-C again or Ctrl-D leaves")
            t.expect(AT)
    assert t.wait() == 130 and t.modes() == t.before


def test_interrupt_drops_a_block(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    t.send('"""one\r')
    t.expect("· ")
    t.send("\x03")
    t.expect(AT)
    t.send("two\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == "two"


@pytest.mark.parametrize("ending", ["\x04", "q\r", "/exit\r", signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_left_as_it_was(on_terminal, simple, ending):
    t = on_terminal(simple)
    t.send("text")
    t.expect("text")
    if isinstance(ending, str):
        t.send("\x15" + ending)
        assert t.wait() == 0
    else:
        assert t.modes() != t.before
        t.process.send_signal(ending)
        assert t.wait() == -ending
    assert t.modes() == t.before and t.data.rstrip().endswith(b"\x1b[0m")


def test_endings_during_thoughts_undo_the_colour(on_terminal, tiny_model):
    t = on_terminal(tiny_model(template=OPENED), "-m", "-1")
    t.send("hello\r")
    t.expect("thinking\n[!-~ ]{20}")
    t.process.send_signal(signal.SIGTERM)
    assert t.wait() == -signal.SIGTERM
    assert t.modes() == t.before and t.data.endswith(b"\x1b[0m")


def test_stop_and_go_on(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    t.send("ab")
    t.expect("ab")
    t.process.send_signal(signal.SIGTSTP)
    end = time.monotonic() + 60
    while not os.waitid(os.P_PID, t.process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert t.modes() == t.before
    t.process.send_signal(signal.SIGCONT)
    t.expect("ab")
    assert t.modes() != t.before
    t.send("c\r")
    t.expect("tok/s · peak")
    t.expect(AT)
    assert saved_on(t, tmp_path)[0]["content"] == "abc"


def test_new_width(on_terminal, simple):
    t = on_terminal(simple, "-m", "2")
    t.resize(24, 40)
    t.send("x\r")
    t.expect("\n─{39}\n")


def test_bytes_that_are_not_utf8(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "2")
    t.send(b"ab\xff\r")
    t.expect("error: the message is not valid UTF-8\n")
    t.expect(AT)
    t.send(b"\xc3x\r")
    t.expect("error: the message is not valid UTF-8\n")
    t.expect(AT)
    assert saved_on(t, tmp_path) == []


def test_no_color(on_terminal, tiny_model):
    t = on_terminal(tiny_model(template=OPENED), "-m", "8", NO_COLOR="1")
    t.send("x\r")
    t.expect(r"\[thinking\]\n")
    t.expect(AT)
    t.send("q\r")
    assert t.wait() == 0
    assert not re.search(rb"\x1b\[[0-9;]*m", t.data) and "╭" in terminal.visible(t.data)
    t = on_terminal(tiny_model(template=OPENED), "-m", "8", NO_COLOR="")
    assert b"\x1b[2m" in t.data


def test_dumb_terminal(on_terminal, simple, tmp_path):
    t = on_terminal(simple, "-m", "8", TERM="dumb")
    t.send("x\n")
    t.expect("tok/s · peak")
    t.expect(AT)
    t.send("\x04")
    assert t.wait() == 0 and b"\x1b" not in t.data and t.modes() == t.before
    assert not (tmp_path / "state").exists()


def test_thoughts_are_dim(on_terminal, tiny_model):
    prompt = "(user)hello:<think>\n"
    text, once = thinker(tiny_model, OPENED, prompt, 40)
    at = once[len(once) // 2]
    t = on_terminal(tiny_model(template=OPENED, renamed=((ord(text[at]), "</think>"),)), "-m", "40", columns=200)
    t.send("hello\r")
    t.expect("tok/s · peak")
    shown = t.data.decode().replace("\r\n", "\n")
    assert "\x1b[2mthinking\n%s\x1b[0m\n\n%s\n" % (text[:at].strip(), text[at + 1 :].lstrip()) in shown


def test_control_characters_of_the_model_are_shown(piped, on_terminal, tiny_model):
    text, once = thinker(tiny_model, None, "<|start|>[user]hello<|end|>[assistant]", 40)
    evil = "\x1b[31m\x07\r\x08\x7f\u009b\u202eé\tz"
    model = tiny_model(special=PLAIN, renamed=((ord(text[once[0]]), evil),))
    before, behind = text[: once[0]], text[once[0] + 1 :]
    t = on_terminal(model, "-m", "40", columns=200)
    t.send("hello\r")
    t.expect(re.escape(before + "^[[31m^G^M^H^?<U+009B><U+202E>é\tz" + behind))
    assert b"\x1b[31m" not in t.data and b"\x07" not in t.data and "\u009b".encode() not in t.data
    got = piped(model, "hello\n", "-m", "40")
    assert before + evil.replace("\r", "\n") + behind in got.stdout  # the reader of this test turns \r into \n


def test_interrupt_of_a_pipe_ends_the_program(turbolm_bin, simple):
    p = subprocess.Popen([turbolm_bin, *chat_args(simple, "-m", "-1")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdin.write(b"hello\nnot answered\n")
    p.stdin.flush()
    head = b""
    while b"h help\n\n" not in head or len(head.split(b"h help\n\n")[1]) < 20:
        head += os.read(p.stdout.fileno(), 64)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (130, b"")
    shown = (head + out).decode()
    assert re.search(r"\n  stopped\n" + STATISTICS, shown) and shown.count("tok/s · prompt") == 1


def test_interrupt_of_a_waiting_pipe(turbolm_bin, simple):
    p = subprocess.Popen([turbolm_bin, *chat_args(simple)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    head = b""
    while b"h help\n\n" not in head:
        head += os.read(p.stdout.fileno(), 4096)
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    p.wait(timeout=60)
    assert (p.returncode, p.stderr.read()) == (130, b"")
    p.communicate()


def test_reader_goes_away(turbolm_bin, simple):
    read, write = os.pipe()
    os.close(read)
    p = subprocess.Popen([turbolm_bin, *chat_args(simple, "-m", "-1")], stdin=subprocess.PIPE, stdout=write,
                         stderr=subprocess.PIPE)
    os.close(write)
    _, err = p.communicate(b"hello\n" * 3, timeout=60)
    assert (p.returncode, err) == (141, b"")


# Hostile surroundings ------------------------------------------------------

@pytest.mark.parametrize("args", [(), ("--system-prompt", "x")])
def test_standard_input_that_cannot_be_read(turbolm_bin, simple, tmp_path, args):
    folder = os.open(tmp_path, os.O_RDONLY)
    got = subprocess.run([turbolm_bin, *chat_args(simple, *args)], stdin=folder, capture_output=True, text=True)
    os.close(folder)
    assert got.returncode == 1
    assert re.fullmatch("error: cannot read standard input: .*\n", got.stderr)


def test_lines_that_end_with_a_carriage_return(piped, simple, tmp_path):
    got = piped(simple, 'hello\r\n\r\na\\\r\nb\r\n"""c\r\nd"""\r\n/save s.json\r\nq\r\nnever\r\n', "-m", "2")
    assert (got.returncode, got.stderr) == (0, "")
    assert saved(tmp_path) == as_json(dialogue(["hello", "a\nb", "c\nd"], 2))
    for end in ("/exit\r\n", "/exit\r", "q\r"):
        got = piped(simple, "x\r\n" + end, "-m", "2")
        assert (got.returncode, got.stderr) == (0, "") and got.stdout.endswith("bye\n"), end
    got = piped(simple, ["a\rb\r\r", "/save s.json"], "-m", "2")  # only the last one belongs to the line's end
    assert saved(tmp_path) == as_json(dialogue(["a\rb\r"], 2))


def test_load_takes_regular_files_only(piped, simple, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "/dev/null"):
        got = piped(simple, ["/load " + name, "x"], "-m", "2", timeout=60)
        assert got.returncode == 0 and re.fullmatch("error: %s: not a regular file.*\n" % re.escape(name), got.stderr)
        assert len(said(got)[0]) == 1


def test_save_keeps_links(piped, simple, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "real.json").write_text("old")
    (tmp_path / "deep" / "real.json").chmod(0o640)
    (tmp_path / "link").symlink_to("deep/real.json")
    (tmp_path / "link2").symlink_to("link")
    (tmp_path / "broken").symlink_to("nowhere/x")
    got = piped(simple, ["x", "/save link2", "/save broken"], "-m", "2")
    assert re.fullmatch("error: broken: cannot save: .*\n", got.stderr)
    assert (tmp_path / "link2").is_symlink() and (tmp_path / "link").is_symlink() and (tmp_path / "broken").is_symlink()
    assert saved(tmp_path, "deep/real.json") == as_json(dialogue(["x"], 2))
    assert (tmp_path / "deep" / "real.json").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path / "deep") == ["real.json"]


@pytest.mark.skipif(os.environ.get("TURBOLM_LIB") == "", reason="sanitizers have a handler of their own")
def test_model_file_that_shrinks_while_in_use(turbolm_bin, tmp_path):
    model = tiny.make(tmp_path / "model", special=PLAIN)
    p = subprocess.Popen([turbolm_bin, *chat_args(model, "-m", "2")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    p.stdin.write("hi\n")
    p.stdin.flush()
    while "tok/s" not in p.stdout.readline():
        pass
    os.truncate(os.path.join(model, "model.safetensors"), 100)
    _, err = p.communicate("there\n", timeout=100)
    assert (p.returncode, err) == (
        1, "error: %s: a file was shortened, or cannot be read any more, while in use\n" % model)
