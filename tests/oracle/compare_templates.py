"""Every template of a folder, rendered by transformers and by this library over a
matrix of conversations.

    python tests/oracle/compare_templates.py FOLDER… [--lib build/libturbolm.so] [--show N]

Templates are files *.jinja, and the chat_template of tokenizer_config.json and
chat_template.json files. Compared are the text, the fact of an error, and the
words of raise_exception.
"""

import argparse
import json
import pathlib
import sys
import time

from jinja_peer import Engine, original, same

SPECIAL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "sep_token": "<sep>",
    "cls_token": "<cls>",
    "mask_token": "<mask>",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "city"\nand <more> & such é 🙂',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name", "enum": ["Zürich", "Oslo"]},
                    "days": {"type": ["integer", "null"], "default": 1, "minimum": 0.5},
                    "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "any": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": ""},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
            "return": {"type": "string"},
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "No parameters",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
ODD_TOOLS = [
    {
        "name": "bare",
        "description": "not wrapped",
        "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}},
    },
    {"type": "builtin", "function": {"name": "f"}},
]
DOCUMENTS = [{"title": "A", "text": "first\ntext"}, {"title": "B", "text": "", "doc_id": 7}]
ARGUMENTS = {
    "city": 'Zürich "x"',
    "days": 2,
    "x": 1.0,
    "tiny": 1e-7,
    "huge": 12345678901234567890123,
    "ok": True,
    "none": None,
    "list": [1, [2.5], {}],
    "map": {"k": "v", "e": []},
}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(arguments, name="get_weather", number="call12345"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, number="call12345", **more):
    return {"role": "tool", "tool_call_id": number, "content": content, **more}


SYSTEM = {"role": "system", "content": "Be <brief> & kind."}
IMAGE = [
    {"type": "text", "text": "look"},
    {"type": "image"},
    {"type": "image_url", "image_url": {"url": "x"}},
    {"type": "text", "text": " here "},
]
THOUGHT = {"reasoning_content": "because\nof it"}
CONVERSATIONS = {
    "one": [user("Hello")],
    "system": [SYSTEM, user(" Hello 🙂\n")],
    "developer": [{"role": "developer", "content": "Do."}, user("x")],
    "turns": [user("a"), assistant("b"), user("c")],
    "system_turns": [SYSTEM, user(" a "), assistant("b\n"), user("c")],
    "ends_assistant": [user("a"), assistant("b ")],
    "empty": [user("")],
    "only_system": [SYSTEM],
    "double_user": [user("a"), user("b")],
    "late_system": [user("a"), assistant("b"), SYSTEM, user("c")],
    "thoughts": [user("a"), assistant("b", **THOUGHT), user("c"), assistant("<think>\nhm\n</think>\n\nd"), user("e")],
    "thought_last": [user("a"), assistant("b", **THOUGHT)],
    "thinking_key": [user("a"), assistant("b", thinking="t"), user("c")],
    "images": [user(IMAGE)],
    "parts": [
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        user([{"type": "text", "text": "u"}]),
        assistant([{"type": "text", "text": "v"}, {"type": "text", "text": "w"}]),
        user("x"),
    ],
    "call": [user("w?"), assistant("", tool_calls=[call(ARGUMENTS)])],
    "call_text": [SYSTEM, user("w?"), assistant("See:", tool_calls=[call(json.dumps(ARGUMENTS))])],
    "call_null": [user("w?"), assistant(None, tool_calls=[call({})]), result("20")],
    "no_content": [user("w?"), {"role": "assistant", "tool_calls": [call({"city": "B"})]}, result("20")],
    "result": [
        SYSTEM,
        user("w?"),
        assistant("", tool_calls=[call({"city": "B"})]),
        result('{"t": 20}', name="get_weather"),
    ],
    "result_object": [user("w?"), assistant("", tool_calls=[call({"city": "B"})]), result({"t": 20.5, "ok": [True]})],
    "result_parts": [
        user("w?"),
        assistant("", tool_calls=[call({"city": "B"})]),
        result([{"type": "text", "text": "t20"}, {"type": "image"}], name="get_weather"),
    ],
    "tool_turns": [
        user("w?"),
        assistant("", tool_calls=[call({"city": "B"})], **THOUGHT),
        result("20"),
        assistant("It is 20."),
        user("ok"),
    ],
    "two_calls": [
        user("w?"),
        assistant("go", tool_calls=[call({"city": "A"}), call({"city": "B", "days": 3}, "now", "call54321")]),
        result("1"),
        result("2", "call54321"),
        assistant("Done"),
        user("more"),
    ],
    "bare_call": [user("w?"), assistant("", tool_calls=[{"name": "now", "arguments": {"a": 1}}])],
    "odd_roles": [user("a"), {"role": "critic", "content": "x"}],
    "function_role": [
        user("w?"),
        assistant("", function_call={"name": "now", "arguments": "{}"}),
        {"role": "function", "name": "now", "content": "12"},
    ],
    "names": [{"role": "user", "name": "Ann", "content": "x"}, assistant("y", name="Bo"), user("z")],
    "ipython": [user("a"), {"role": "ipython", "content": {"output": 1}}],
}


def cases():
    """name, arguments of the renderers"""
    for name, messages in CONVERSATIONS.items():
        for tools in (None, TOOLS):
            yield name, {"messages": messages, "tools": tools, "variables": SPECIAL}
            yield name + "/off", {
                "messages": messages,
                "tools": tools,
                "generate": False,
                "variables": {**SPECIAL, "enable_thinking": False},
            }
        yield name + "/on", {
            "messages": messages,
            "tools": [],
            "variables": {
                **SPECIAL,
                "enable_thinking": True,
                "thinking": True,
                "reasoning_effort": "high",
                "date_string": "26 Jul",
                "builtin_tools": ["python", "code_interpreter"],
                "tools_in_user_message": False,
                "add_vision_id": True,
                "preserve_thinking": True,
                "clear_thinking": False,
            },
        }
        yield name + "/documents", {
            "messages": messages,
            "documents": DOCUMENTS,
            "generate": False,
            "variables": {
                "bos_token": "",
                "eos_token": "<|end|>",
                "thinking": False,
                "xml_tools": "x",
                "python_tools": "y",
                "controls": {"length": "LONG"},
                "role": "r",
                "reasoning_effort": "low",
                "thinking_budget": 512,
                "keep_past_thinking": True,
                "truncate_history_thinking": False,
            },
        }
        if messages[-1]["role"] == "assistant":
            yield name + "/continue", {"messages": messages, "generate": False, "go_on": True, "variables": SPECIAL}
    yield "odd_tools", {"messages": CONVERSATIONS["system"], "tools": ODD_TOOLS, "variables": SPECIAL}
    yield "no_tokens", {"messages": CONVERSATIONS["turns"]}


def templates(folders):
    """name, source of each distinct template"""
    seen = set()

    def new(name, source):
        if isinstance(source, str) and source not in seen:
            seen.add(source)
            yield name, source

    for folder in map(pathlib.Path, folders):
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if path.suffix in (".jinja", ".jinja2", ".j2"):
                yield from new(str(path), path.read_bytes().decode("utf-8"))
            elif path.name in ("tokenizer_config.json", "chat_template.json"):
                value = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
                for item in value if isinstance(value, list) else [value]:
                    item = item if isinstance(item, dict) else {"name": "default", "template": item}
                    yield from new(f"{path}:{item['name']}", item["template"])


def compare(engine, name, source, show):
    """(cases, errors of the original, differences)"""
    handle, counts = engine.compile(source), [0, 0, 0]
    for label, arguments in cases():
        want, got = original(source, **arguments), engine.render(handle, **arguments)
        counts[0] += 1
        counts[1] += want.error is not None
        if same(want, got):
            continue
        counts[2] += 1
        if counts[2] <= show:
            print(f"--- {name}: {label}\nwant {str(want)[:1500]}\ngot  {str(got)[:1500]}")
    engine.free(handle)
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="+")
    parser.add_argument("--lib")
    parser.add_argument("--show", type=int, default=1, help="differences to print of each template")
    args = parser.parse_args()
    engine, total, n, bad, start = Engine(args.lib), [0, 0, 0], 0, 0, time.time()
    for name, source in templates(args.folder):
        counts = compare(engine, name, source, args.show)
        total = [a + b for a, b in zip(total, counts)]
        n += 1
        bad += counts[2] > 0
    print(
        f"{n} templates, {total[0]} cases, {total[1]} of them errors, {total[2]} differ in {bad} templates"
        f" ({time.time() - start:.0f} s)"
    )
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
