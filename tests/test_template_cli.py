"""turbolm template: its request, its sources of templates and tokens, its errors."""
import json
import os
import struct

import pytest

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "jinja")
USER = [{"role": "user", "content": "hi"}]
PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}" \
        "{% if add_generation_prompt %}[assistant]{% endif %}"


@pytest.fixture
def template(turbolm, tmp_path):
    """template(source, request, *args): runs the command with the source in a file and the request on stdin."""

    def run(source, request, *args, **kwargs):
        (tmp_path / "t.jinja").write_text(source, encoding="utf-8", newline="")
        text = request if isinstance(request, str) else json.dumps(request, **kwargs)
        return turbolm("template", "--chat-template", tmp_path / "t.jinja", "--request", "-", *args, input=text)

    return run


def text_of(got):
    assert got.returncode == 0 and got.stderr == "", got.stderr
    return got.stdout


def error_of(got, status=1):
    assert (got.returncode, got.stdout) == (status, ""), got.stdout
    return got.stderr


def model(folder, config, **files):
    """A directory with tokenizer files alone."""
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    return folder


def gguf(path, metadata):
    """A vocabulary-only GGUF file."""
    def string(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    body = b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata))
    for key, v in metadata.items():
        body += string(key)
        if isinstance(v, list):
            body += struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(string, v))
        elif isinstance(v, str):
            body += struct.pack("<I", 8) + string(v)
        else:
            body += struct.pack("<II", 4, v)
    path.write_bytes(body)
    return path


def render(turbolm, path, request=None, *args):
    return turbolm("template", "--model", path, "--request", "-", *args,
                   input=json.dumps(request or {"messages": USER}))


# the request ---------------------------------------------------------------

def test_text_and_nothing_else(template):
    assert text_of(template(PLAIN, {"messages": USER}, "--bos-token", "<s>", "--eos-token", "</s>")) \
        == "<s>[user]hi</s>[assistant]"
    assert text_of(template(PLAIN, {"messages": USER, "add_generation_prompt": False})) == "[user]hi"
    assert text_of(template("", {"messages": USER})) == ""
    assert text_of(template("a\n\n", {"messages": USER})) == "a\n"


def test_request_from_a_file_and_template_from_stdin(turbolm, tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"messages": USER}))
    got = turbolm("template", "--chat-template", "-", "--request", tmp_path / "r.json", input=PLAIN)
    assert text_of(got) == "[user]hi[assistant]"


def test_variables(template):
    source = "{{ tools|tojson }}|{{ documents|length }}|{{ x|tojson }}|{{ enable_thinking is defined }}"
    request = {"messages": USER, "tools": [{"b": 1, "a": {}}], "documents": [{"title": "t"}],
               "chat_template_kwargs": {"x": [1, None]}}
    assert text_of(template(source, request)) == '[{"b": 1, "a": {}}]|1|[1, null]|False'
    assert text_of(template("{{ tools }}{{ documents }}", {"messages": USER, "tools": None})) == "NoneNone"


def test_numbers_and_text_as_pythons_json(template):
    value = {"f": 1.0, "e": 1e16, "small": 1e-7, "big": 10 ** 40, "neg": -0.0, "u": "é🙂\u2028\x7f", "c": "\x01\"\\",
             "list": [True, None, 0.1, 1e300]}
    request = {"messages": [{"role": "user", "content": value}]}
    assert text_of(template("{{ messages[0].content|tojson }}", request)) == json.dumps(value, ensure_ascii=False)
    raw = '{"messages": [{"role": "user", "v": [1E5, -0, 1e999, NaN, 2.50, 123456789012345678]}]}'
    assert text_of(template("{{ messages[0].v|tojson }}{{ messages[0].v }}", raw)) == (
        "[100000.0, 0, Infinity, NaN, 2.5, 123456789012345678][100000.0, 0, inf, nan, 2.5, 123456789012345678]")


def test_arguments_stay_what_they_are(template):
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments is string }}{{ c.function.arguments }};" \
             "{% endfor %}"
    calls = [{"function": {"arguments": '{"a": 1}'}}, {"function": {"arguments": {"a": 1}}}]
    assert text_of(template(source, {"messages": [{"role": "assistant", "tool_calls": calls}]})) \
        == "True{\"a\": 1};False{'a': 1};"


def test_continue(template):
    source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}" \
             "{{ c.text }}{% endfor %}{% endif %}{{ '</s>' }}{% endfor %}"

    def go_on(content):
        return {"messages": USER + [{"role": "assistant", "content": content}], "add_generation_prompt": False,
                "continue_final_message": True}

    assert text_of(template(source, go_on("so "))) == "hi</s>so "
    assert text_of(template(source, go_on([{"text": "a"}, {"text": "b"}]))) == "hi</s>ab"
    assert "not compatible" in error_of(template(source, {**go_on("x"), "add_generation_prompt": True}))
    assert "no text" in error_of(template(source, go_on([{"type": "image"}])))
    thought = {"messages": [{"role": "assistant", "reasoning": "r"}], "add_generation_prompt": False,
               "continue_final_message": "reasoning_content"}
    assert text_of(template("<think>{{ messages[0].thinking }}</think>", thought)) == "<think>r"
    assert 'does not use "reasoning_content"' in error_of(template("{{ messages }}", thought))


def test_clock(template, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    source = "{{ strftime_now('%Y-%m-%d %H:%M:%S|%z%Z|%f') }}"
    assert text_of(template(source, {"messages": USER}, "--now", "1700000000")) == "2023-11-14 22:13:20||000000"


@pytest.mark.parametrize("text, want", [
    ("100%", "100%"), ("%d %", "01 %"), ("%", "%"), ("%%", "%"), ("%%%", "%%"), ("%-", "%-"), ("%_", "%_"),
    ("%E", "%E"), ("%O", "%O"), ("a%-d%", "a1%"), ("", ""), ("%p%Z", "AM")])
def test_clock_with_a_percent_sign_at_the_end(template, monkeypatch, text, want):
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C")
    assert text_of(template("{{ strftime_now(%r) }}" % text, {"messages": USER}, "--now", "0")) == want


@pytest.mark.parametrize("request_text, message", [
    ('{"messages": []}', "the conversation is empty"),
    ('{"messages": null}', "the conversation is empty"),
    ("{}", "messages: the key is missing"),
    ('{"tools": []}', "messages: the key is missing"),
    ("[]", "request: found list, expected an object"),
    ('{"messages": [1]}', "found int, expected an object for each message"),
    ('{"messages": [{"role": "user"}],\n"tools": {}}', "tools: found dict, expected an array"),
    ('{"messages": [{"role": "user"}], "tools": ["x"]}', "expected an object for each entry"),
    ('{"messages": [{"role": "user"}], "add_generation_prompt": 1}', "found int, expected true or false"),
    ('{"messages": [{"role": "user"}], "chat_template_kwargs": {"messages": 1}}', "messages must not be given"),
    ('{"messages": [{"role": "user"}], "enable_thinking": true}', "chat_template_kwargs"),
    ('{"messages": [\n{]}', "JSON line 2"),
    ('{"messages": [{"role": "\\ud800"}]}', "lone surrogate"),
    ("", "a value is missing"),
])
def test_bad_requests(template, request_text, message):
    assert message in error_of(template("x", request_text))


@pytest.mark.parametrize("request_text, message", [
    ('{"messages": [\n{]}', "JSON line 2"), ("{}", "messages: the key is missing"), ("[]", "found list"),
    ('{"messages": [1]}', "messages: found int"), ('{"messages": [{"role": "user"}], "tools": 1}', "tools: found int"),
    ('{"messages": [{"role": "user"}], "functions": 1}', '"functions" is not a key')])
def test_request_file_is_named(turbolm, tmp_path, request_text, message):
    path = tmp_path / "r.json"
    path.write_text(request_text)
    got = turbolm("template", "--chat-template", "-", "--request", path, input="x")
    assert error_of(got).startswith("error: %s: %s" % (path, message))


def test_unknown_keys_are_told_of(template):
    got = template("x", {"messages": USER, "temperature": 1})
    assert (got.returncode, got.stdout) == (0, "x")
    assert got.stderr == 'warning: the request\'s key "temperature" is not known\n'


# errors of templates -------------------------------------------------------

def test_raised_words_alone(template):
    assert error_of(template("{{ raise_exception('roles must\nalternate') }}", {"messages": USER})) \
        == "error: roles must?alternate\n"


@pytest.mark.parametrize("source, message", [
    ("a\n{{ messages.x.y }}", "t.jinja: line 2: 'list object' has no attribute 'x'"),
    ("\n\n{% if %}", "t.jinja: line 3: Expected an expression, got 'end of statement block'"),
    ("{% for x in y %}", "line 1: Unexpected end of template"),
    ("{{ 'a'|nope }}", "line 1: No filter named 'nope'"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "limit"),
])
def test_errors_name_line_and_cause(template, source, message):
    assert message in error_of(template(source, {"messages": USER}))


def test_usage(turbolm, tmp_path):
    assert "--request is required" in error_of(turbolm("template", "--chat-template", "x"), 2).replace(
        "the following arguments are required: --request", "--request is required")
    assert "--model --chat-template" in error_of(turbolm("template", "--request", "-", input="{}"), 2)
    assert "standard input" in error_of(turbolm("template", "--chat-template", "-", "--request", "-", input=""), 2)
    assert "No such file" in error_of(turbolm("template", "--chat-template", tmp_path / "no", "--request", "-"), 1)


# models --------------------------------------------------------------------

TOKENS = "{{ bos_token }},{{ eos_token }},{{ pad_token }},{{ image_token }}"


def test_directory_with_tokenizer_files_alone(turbolm, tmp_path):
    path = model(tmp_path / "m", {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TOKENS,
                                  "extra_special_tokens": {"image_token": "<img>"}})
    assert text_of(render(turbolm, path)) == "<s>,</s>,,<img>"
    assert text_of(render(turbolm, path, None, "--bos-token", "B", "--eos-token", "")) == "B,,,<img>"
    (tmp_path / "own.jinja").write_text("own {{ bos_token }}")
    assert text_of(render(turbolm, path, None, "--chat-template", tmp_path / "own.jinja")) == "own <s>"
    request = {"messages": USER, "chat_template_kwargs": {"bos_token": "K"}}
    assert text_of(render(turbolm, path, request)) == "K,</s>,,<img>"


@pytest.mark.parametrize("decoder, want", [(False, "M,N,,"), (True, "<s>,,,")])
def test_special_tokens_map_of_older_directories(turbolm, tmp_path, decoder, want):
    config = {"bos_token": "<s>", "chat_template": TOKENS} | ({"added_tokens_decoder": {}} if decoder else {})
    path = model(tmp_path / "m", config, special_tokens_map_json={"bos_token": "M", "eos_token": {"content": "N"}})
    assert text_of(render(turbolm, path)) == want


@pytest.mark.parametrize("value", [
    [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}], {"default": "D", "tool_use": "T"}])
def test_named_templates(turbolm, tmp_path, value):
    path = model(tmp_path / "m", {"chat_template": value})
    assert text_of(render(turbolm, path)) == "D"
    assert text_of(render(turbolm, path, {"messages": USER, "tools": []})) == "T"


def test_template_files_come_first(turbolm, tmp_path):
    config = {"chat_template": "config"}
    path = model(tmp_path / "a", config, chat_template_jinja="file")
    assert text_of(render(turbolm, path, {"messages": USER, "tools": []})) == "file"
    path = model(tmp_path / "b", config, chat_template_jinja="file", additional_chat_templates__tool_use_jinja="more")
    assert text_of(render(turbolm, path, {"messages": USER, "tools": []})) == "more"
    path = model(tmp_path / "c", config, additional_chat_templates__rag_jinja="more")
    assert 'none is called "default"' in error_of(render(turbolm, path))
    assert "has no chat template" in error_of(render(turbolm, model(tmp_path / "d", {})))


def test_vocabulary_only_gguf(turbolm, tmp_path):
    path = gguf(tmp_path / "v.gguf", {
        "general.architecture": "llama", "tokenizer.ggml.tokens": ["<s>", "</s>", "a"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TOKENS, "tokenizer.chat_template.tool_use": "T{{ eos_token }}",
        "tokenizer.chat_templates": ["tool_use"]})
    assert text_of(render(turbolm, path)) == "<s>,</s>,,"
    assert text_of(render(turbolm, path, {"messages": USER, "tools": []})) == "T</s>"
    assert "has no chat template" in error_of(render(turbolm, gguf(tmp_path / "n.gguf", {
        "general.architecture": "llama"})))


def test_broken_template_of_a_model(turbolm, tmp_path):
    path = model(tmp_path / "m", {"chat_template": "\n{% if"})
    assert "line 2" in error_of(render(turbolm, path))
    (tmp_path / "own.jinja").write_text("own")
    assert text_of(render(turbolm, path, None, "--chat-template", tmp_path / "own.jinja")) == "own"


# deepseek_v32 --------------------------------------------------------------

@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    return model(tmp_path_factory.mktemp("v32") / "m", {"chat_template_type": "deepseek_v32", "chat_template": "x"})


def test_deepseek_as_the_original(turbolm, deepseek):
    with open(os.path.join(DATA, "deepseek_v32.json"), encoding="utf-8") as f:
        golden = json.load(f)
    assert sum(row["text"] is not None for row in golden["rows"]) > 90
    bad = []
    for row in golden["rows"]:
        got = render(turbolm, deepseek, row["request"] | ({"tools": golden["tools"]} if row["tools"] else {}))
        if row["text"] is None:
            ok = got.returncode == 1 and got.stderr.startswith("error: deepseek_v32: ")
        else:
            ok = got.returncode == 0 and got.stdout == row["text"]
        if not ok:
            bad.append((row, got.stdout, got.stderr))
    assert bad == []


CALL = {"role": "assistant", "content": "", "reasoning_content": "r",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": "x", "b": 1.0}}}]}


def test_deepseek_takes_arguments_as_objects(turbolm, deepseek):
    def ask(arguments):
        call = {**CALL, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        return text_of(render(turbolm, deepseek, {"messages": USER + [call, {"role": "tool", "content": "20"}]}))

    assert ask({"a": "x", "b": 1.0}) == ask('{"a": "x", "b": 1.0}')
    assert '<｜DSML｜parameter name="b" string="false">1.0</｜DSML｜parameter>' in ask({"b": 1.0})


def test_deepseek_loses_nothing(turbolm, deepseek):
    tools = [{"function": {"name": "f"}}]
    with_system = text_of(render(turbolm, deepseek, {"messages": [{"role": "system", "content": ""}] + USER,
                                                     "tools": tools}))
    assert text_of(render(turbolm, deepseek, {"messages": USER, "tools": tools})) == with_system
    early = [{"role": "developer", "content": "early"}, {"role": "assistant", "content": "ok"}]
    assert "early" in text_of(render(turbolm, deepseek, {"messages": early + USER}))
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    assert text_of(render(turbolm, deepseek, {"messages": parts})) == text_of(render(turbolm, deepseek))


@pytest.mark.parametrize("request_part, message", [
    ({"messages": [{"role": "user"}]}, "message 1: content is missing"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text is supported"),
    ({"messages": [{"role": "critic", "content": "x"}]}, "unknown role"),
    ({"messages": USER + [CALL] + [{"role": "tool", "content": "1"}] * 2}, "result without a call"),
    ({"messages": USER, "chat_template_kwargs": {"x": 1}}, 'the variable "x"'),
    ({"messages": USER, "chat_template_kwargs": {"thinking_mode": "deep"}}, 'the variable "thinking_mode"'),
    ({"messages": USER, "documents": [{"text": "x"}]}, "documents are not supported"),
    ({"messages": USER, "add_generation_prompt": False, "continue_final_message": True}, "can be continued"),
])
def test_deepseek_refuses(turbolm, deepseek, request_part, message):
    assert message in error_of(render(turbolm, deepseek, request_part))


def test_unknown_renderer(turbolm, tmp_path):
    path = model(tmp_path / "m", {"chat_template_type": "nope", "chat_template": "x"})
    assert 'chat_template_type: "nope" is not supported' in error_of(render(turbolm, path))
