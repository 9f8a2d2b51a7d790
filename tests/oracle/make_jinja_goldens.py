"""Goldens of the template engine: what jinja2, set up as transformers does it,
renders for random templates and for chat templates over conversations.

    python tests/oracle/make_jinja_goldens.py goldens tests/data/jinja
    python tests/oracle/make_jinja_goldens.py compare PROGRAM [CASES [SEED [TEMPLATE…]]]

`goldens` writes the stored subset (jinja2 3.1.6, transformers 5.24.0).
`compare` runs a large set through PROGRAM, which reads lines of JSON
{"t": template, "v": variables} and answers lines {"o": text} or {"e": message};
TEMPLATE are files of further chat templates.
"""

import json
import logging
import pathlib
import random
import subprocess
import sys
import warnings

from jinja_programs import PLAIN_TESTS

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from transformers.utils.chat_template_utils import _cached_compile_jinja_template  # noqa: E402

VARS = {
    "s": "Hello World",
    "e": "",
    "u": "Straße ÄÖ 日本語 🙂 ǆ",
    "ws": "  a b\t c\n\n",
    "ml": "one\ntwo\r\nthree\n",
    "n": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "big": 123456789012345678901234567890,
    "t": True,
    "no": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "le": [],
    "nest": [[1, 2], [3, [4, 5]]],
    "mix": [1, "x", None, 2.0],
    "d": {"a": 1, "b": "two", "items": "hidden", "c": [1, 2]},
    "de": {},
    "ms": [
        {"role": "user", "content": "hi", "n": 2},
        {"role": "assistant", "content": "yo <b>", "n": 1},
        {"role": "user", "content": "", "n": 3, "x": {"y": 5}},
    ],
    "num": ["10", "3.5", "x", "0x1f", "-7", " 12 "],
}


def render(source, variables):
    try:
        return {"o": _cached_compile_jinja_template(source).render(**variables)}
    except RecursionError:
        return None
    except Exception as error:  # noqa: BLE001  whatever the original raises
        return {"e": f"{type(error).__name__}: {error}"}


# What the maker picks from.
OPTIONS_1 = (
    "upper",
    "lower",
    "title",
    "capitalize",
    "trim",
    "string",
    "length",
    "reverse",
    "wordcount",
    "urlencode",
    "first",
    "last",
    "list",
    "e",
)
OPTIONS_2 = ("5", "3, true", "4, false, repr", "5, true, repr, 0")
OPTIONS_3 = (repr("%s|%r"), repr("%5s-%d"), repr("%(a)s"), repr("%.2f %x"), repr("%%"), repr("%-4s|%03d"))
OPTIONS_4 = (
    repr("{} {}"),
    repr("{0}{1}{0}"),
    repr("{a}-{b!r}"),
    repr("{:>5}|{:<4}"),
    repr("{:05d}{:.2f}"),
    repr("{{}}"),
    repr("{0.a}{1[0]}"),
)
OPTIONS_5 = ("list", "reverse|list", "sort", "unique|list", "sort(reverse=true)", "dictsort", "items|list")
OPTIONS_6 = (
    "",
    repr("odd"),
    repr("string"),
    repr("defined"),
    repr("none"),
    repr("number"),
    repr("gt") + ", 1",
    repr("in") + ", [1, 2]",
)
OPTIONS_7 = (
    repr("n"),
    repr("role") + ", " + repr("equalto") + ", " + repr("user"),
    repr("x"),
    repr("n") + ", " + repr("gt") + ", 1",
    repr("x.y") + ", " + repr("defined"),
)
OPTIONS_9 = (
    "divisibleby 2",
    "divisibleby(3)",
    "sameas none",
    "eq 1",
    "gt 2",
    "in [1, 2]",
    "ne(0)",
    "lt 2.5",
    "ge 1",
    "le 2",
)
OPTIONS_10 = (
    "isdigit",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "istitle",
    "isnumeric",
    "isdecimal",
    "isascii",
    "isprintable",
)


class Maker:
    """Random templates, mostly well-typed."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = 0

    def pick(self, *options):
        return self.r.choice(options)

    def string(self, depth):
        p = self.pick
        if depth <= 0:
            return p(
                "s",
                "e",
                "u",
                "ws",
                "ml",
                "'ab'",
                '"x y"',
                "'a\\n\\'b'",
                "'\\u00e9\\x41'",
                "d.b",
                "ms[0].role",
                "'%'",
                "'-'",
                "''",
                "'abcabc'",
                "'<a&b>'",
                "num[1]",
                "'12'",
                "'ß'",
            )
        s, i = lambda: self.string(depth - 1), lambda: self.integer(depth - 1)
        return p(
            lambda: f"({s()} + {s()})",
            lambda: f"({s()} ~ {self.any(depth - 1)})",
            lambda: f"({s()} * {self.pick('0', '2', '3', '-1')})",
            lambda: f"{s()}[{i()}]",
            lambda: f"{s()}[{i()}:]",
            lambda: f"{s()}[:{i()}]",
            lambda: f"{s()}[::{p('-1', '2', '-2', '1')}]",
            lambda: f"{s()}[{i()}:{i()}:{p('1', '-1', '3')}]",
            lambda: f"{s()}.{p('strip', 'lstrip', 'rstrip', 'upper', 'lower', 'title', 'capitalize', 'swapcase')}()",
            lambda: f"{s()}.{p('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({s()})",
            lambda: f"{s()}.replace({s()}, {s()})",
            lambda: f"{s()}.replace({s()}, {s()}, {i()})",
            lambda: f"{s()}.join({self.strings(depth - 1)})",
            lambda: f"{s()}.{p('center', 'ljust', 'rjust', 'zfill')}({i()})",
            lambda: f"{s()}.center({i()}, '*')",
            lambda: (f"({s()}|{p(*OPTIONS_1)})"),
            lambda: f"({s()}|replace({s()}, {s()}))",
            lambda: f"({s()}|indent({p('2', '4, true', '3, false, true', repr('> '))}))",
            lambda: (f"({s()}|truncate({p(*OPTIONS_2).replace('repr', repr('.'))}))"),
            lambda: f"({s()}|center({i()}))",
            lambda: f"({self.any(depth - 1)}|string)",
            lambda: f"({self.any(depth - 1)}|tojson)",
            lambda: f"({self.any(depth - 1)}|tojson(indent={p('2', '0', '1')}))",
            lambda: (
                f"({self.any(depth - 1)}|tojson(separators=(',', ':'), sort_keys={p('true', 'false')},"
                f" ensure_ascii={p('true', 'false')}))"
            ),
            lambda: f"({self.seq(depth - 1)}|join({s()}))",
            lambda: f"({self.seq(depth - 1)}|join)",
            lambda: (f"({self.pick(*OPTIONS_3)}" f" % {self.pick('(s, n)', 'd', 'n', '(f, 255)', '()', 's')})"),
            lambda: (
                f"{self.pick(*OPTIONS_4)}.format({self.any(depth - 1)},"
                f" {self.any(depth - 1)}, a={s()}, b={self.any(depth - 1)})"
            ),
            lambda: f"({s()} if {self.any(depth - 1)} else {s()})",
            lambda: f"({s()} or {s()})",
            lambda: f"({self.any(depth - 1)}|default({s()}))",
            lambda: f"(undef|default({s()}, true))",
            lambda: f"({s()}|format({self.any(depth - 1)}))",
            lambda: f"({s()}|attr('upper'))()",
        )()

    def integer(self, depth):
        p = self.pick
        if depth <= 0:
            return p(
                "n", "z", "neg", "1", "2", "-1", "0", "10", "3", "0x1f", "1_000", "l[0]", "d.a", "true", "ms|length"
            )
        i = lambda: self.integer(depth - 1)
        return p(
            lambda: f"({i()} {p('+', '-', '*', '//', '%', '/')} {i()})",
            lambda: f"({i()} ** {p('2', '0', '-1', '3')})",
            lambda: f"(-{i()})",
            lambda: f"({self.any(depth - 1)}|length)",
            lambda: f"({self.string(depth - 1)}|int)",
            lambda: f"({self.any(depth - 1)}|int({i()}))",
            lambda: f"({i()}|abs)",
            lambda: f"({self.seq(depth - 1)}|{p('sum', 'min', 'max', 'first', 'last', 'count')})",
            lambda: (
                f"({self.num(depth - 1)}|round({p('', '1', '2', '-1', '0, ' + repr('ceil'), '1, ' + repr('floor'))}))"
            ),
            lambda: (
                f"{self.string(depth - 1)}.{p('find', 'rfind', 'index', 'count', 'rindex')}({self.string(depth - 1)})"
            ),
            lambda: f"{self.seq(depth - 1)}.{p('index', 'count')}({self.any(depth - 1)})",
            lambda: f"({i()} if {self.any(depth - 1)} else {i()})",
        )()

    def num(self, depth):
        return self.pick(
            self.integer(depth),
            "f",
            "2.675",
            "1e16",
            "1e-5",
            "0.1",
            "-2.5",
            "3.0",
            "1.5e300",
            "(f * 3)",
            "(1 / 3)",
            "(num[1]|float)",
            "(-7 // 2.0)",
            "(7.5 % -2)",
            "1e22",
            "123456789.125",
        )

    def strings(self, depth):
        p = self.pick
        if depth <= 0:
            return p("ls", "['x', 'y']", "num", "s", "d", "le")
        return p(
            lambda: f"{self.string(depth - 1)}.split()",
            lambda: f"{self.string(depth - 1)}.{p('split', 'rsplit')}({self.string(depth - 1)})",
            lambda: (
                f"{self.string(depth - 1)}.{p('split', 'rsplit')}({p(repr(' '), 'none', repr('a'))},"
                f" {p('1', '2', '0', '-1')})"
            ),
            lambda: f"{self.string(depth - 1)}.splitlines({p('', 'true')})",
            lambda: f"{self.string(depth - 1)}.partition({self.string(depth - 1)})",
            lambda: (
                f"({self.strings(depth - 1)}|map('{p('upper', 'lower', 'trim', 'length', 'title', 'int')}')|list)"
            ),
            lambda: f"({self.strings(depth - 1)}|sort)",
            lambda: f"({self.strings(depth - 1)}|unique|list)",
        )()

    def seq(self, depth):
        p = self.pick
        if depth <= 0:
            return p(
                "l",
                "ls",
                "le",
                "nest",
                "mix",
                "(1, 2)",
                "[1, 'a', 2.0]",
                "range(4)",
                "d",
                "s",
                "ms",
                "num",
                "(5,)",
                "()",
                "d.items()",
                "d.keys()",
                "undef",
            )
        q = lambda: self.seq(depth - 1)
        return p(
            lambda: f"({q()} + {q()})",
            lambda: f"({q()} * {p('2', '0')})",
            lambda: f"{q()}[{p('1:', ':2', '::-1', '-2:', '1:3', '::2')}]",
            lambda: (f"({q()}|{p(*OPTIONS_5)})"),
            lambda: (f"({q()}|{p('select', 'reject')}({p(*OPTIONS_6)})|list)"),
            lambda: (f"({p('ms', q())}|{p('selectattr', 'rejectattr')}({p(*OPTIONS_7)})|list)"),
            lambda: (
                f"({p('ms', q())}|map(attribute={p(repr('role'), repr('n'), repr('x.y') + ', default=0', '0')})|list)"
            ),
            lambda: f"({q()}|{p('batch', 'slice')}({p('2', '3', '2, 0', '0', '1')})|list)",
            lambda: f"(ms|groupby('{p('role', 'n', 'x')}'))",
            lambda: f"(ms|sort(attribute='{p('n', 'role', 'role,n', 'content')}'))",
            lambda: f"range({self.integer(depth - 1)}, {self.integer(depth - 1)})",
            lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
            lambda: f"({self.any(depth - 1)}, {self.any(depth - 1)})",
            lambda: f"{{{self.any(depth - 1)}: {self.any(depth - 1)}, 'k': {self.any(depth - 1)}}}",
            lambda: f"dict(a={self.any(depth - 1)}, **d)",
            lambda: f"{q()}.{p('copy', 'keys', 'values', 'items')}()",
            lambda: f"d.get({self.any(depth - 1)}, {self.any(depth - 1)})",
        )()

    def boolean(self, depth):
        a, p = lambda: self.any(depth - 1), self.pick
        return p(
            lambda: f"({a()} {p('==', '!=', '<', '>', '<=', '>=')} {a()})",
            lambda: f"({a()} {p('in', 'not in')} {self.any(depth - 1)})",
            lambda: f"({self.string(depth - 1)} in {self.string(depth - 1)})",
            lambda: f"(not {a()})",
            lambda: f"({a()} {p('and', 'or')} {a()})",
            lambda: (f"({a()} is" f" {p('', 'not ')}{p(*PLAIN_TESTS)})"),
            lambda: (f"({a()} is" f" {p(*OPTIONS_9)})"),
            lambda: f"({self.integer(depth - 1)} < {self.integer(depth - 1)} <= {self.integer(depth - 1)})",
            lambda: (f"{self.string(depth - 1)}.{p(*OPTIONS_10)}()"),
            lambda: (
                f"{self.string(depth - 1)}.{p('startswith', 'endswith')}"
                f"({p(self.string(depth - 1), '(' + self.string(depth - 1) + ', ' + self.string(depth - 1) + ')')})"
            ),
        )()

    def any(self, depth):
        if depth <= 0:
            return self.pick(
                "s",
                "n",
                "l",
                "d",
                "undef",
                "no",
                "t",
                "f",
                "ms[1]",
                "mix",
                "'k'",
                "1",
                "big",
                "d.items",
                "d['items']",
                "ms[0].nope",
                "le",
                "(1, 'a')",
                "2.0",
            )
        return self.pick(self.string, self.integer, self.num, self.strings, self.seq, self.boolean, self.any)(
            depth - 1
        )

    def body(self, depth):
        out = []
        for _ in range(self.r.randint(1, 3)):
            out.append(self.statement(depth))
            out.append(self.pick("", "", " ", "\n", "\n  ", "x", "  \n", "\t"))
        return "".join(out)

    def tag(self, inside):
        return self.pick("{%", "{%", "{%-", "{%+") + " " + inside + " " + self.pick("%}", "%}", "-%}", "+%}")

    def statement(self, depth):
        p, e = self.pick, lambda: self.any(2)
        if depth <= 0:
            return p(
                lambda: p("{{", "{{-", "{{ ")
                + " "
                + p(e(), "a", "x", "ns.v", "loop.index", "loop.last")
                + " "
                + p("}}", "-}}"),
                lambda: self.tag(f"set {p('a', 'x', 'ns.v', 'a, x')} = {e()}"),
                lambda: p("text", "\n", "  ", "{# c #}", "{#- c\n -#}", "  {# #}\n"),
                lambda: "{% raw %} {{ x }} \n{% endraw %}",
                lambda: (
                    self.tag("if " + e()) + self.tag(p("break", "continue")) + "{% endif %}" if self.loops else ""
                ),
                lambda: "{{ m(" + p("", "1", "a=2", "1, 2, 3", "b=x, k=1") + ") }}",
            )()
        b = lambda: self.body(depth - 1)

        def loop_body():
            self.loops += 1
            text = b()
            self.loops -= 1
            return text

        def function_body():
            loops, self.loops = self.loops, 0
            text = b()
            self.loops = loops
            return text

        return p(
            lambda: self.tag("if " + e())
            + b()
            + (self.tag("elif " + e()) + b() if self.r.random() < 0.3 else "")
            + (self.tag("else") + b() if self.r.random() < 0.5 else "")
            + self.tag("endif"),
            lambda: self.tag(
                f"for {p('a', 'x', 'a, x', 'i')} in {self.seq(2)}"
                + p("", "", " if " + p("x", "a", "loop", "i") + " is defined", " if " + e())
            )
            + loop_body()
            + p(
                "",
                "{{ loop."
                + p(
                    "index",
                    "index0",
                    "revindex",
                    "revindex0",
                    "first",
                    "last",
                    "length",
                    "previtem",
                    "nextitem",
                    "depth",
                    "cycle(1, 2)",
                    "changed(a)",
                )
                + " }}",
            )
            + (self.tag("else") + b() if self.r.random() < 0.3 else "")
            + self.tag("endfor"),
            lambda: "{% set " + p("a", "x") + p("", "|upper", "|replace('a', 'b')") + " %}" + b() + "{% endset %}",
            lambda: "{% set ns = namespace(v=" + e() + ") %}" + b(),
            lambda: "{% macro m("
            + p("", "a", "a, b=1", "a=x, b=a", "a, b=2, c=3")
            + ") %}"
            + function_body()
            + p("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else '-' }}")
            + "{% endmacro %}"
            + b(),
            lambda: "{% call" + p("", "(q)") + " m(" + p("", "1") + ") %}" + function_body() + "{% endcall %}",
            lambda: "{% filter " + p("upper", "trim", "replace('a', 'b')|title") + " %}" + b() + "{% endfilter %}",
            lambda: "{% with a = " + e() + ", x = a %}" + b() + "{% endwith %}",
            lambda: "{% generation %}" + function_body() + "{% endgeneration %}",
            lambda: "{% for q in nest recursive %}{{ q if q is number else loop(q) }}"
            + p("", ",", "{{ loop.depth }}")
            + "{% endfor %}",
        )()

    def case(self):
        depth = self.r.randint(1, 3)
        if self.r.random() < 0.5:
            return "{{ " + self.any(depth + 1) + " }}"
        head = (
            "{% set ns = namespace(v=1) %}{% macro m(a=1, b=2, c=3) %}[{{ a }} {{ b }}{{ kwargs }}{{ varargs }}]{%"
            " endmacro %}"
        )
        return self.pick(head, head, "") + self.body(depth) + self.pick("", "\n", "\n\n", " ")


def deterministic(answer):
    """Addresses of objects and messages about classes differ from run to run."""
    text = answer.get("o", "").lower() if answer else "<class"
    return not any(mark in text for mark in ("t 0x", "<built-in", "<class", "object>", "<bound"))


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "city"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name"},
                    "days": {"type": "integer", "default": 1},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call12345",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"city": "Zürich", "days": 2, "x": 1.0, "ok": True, "none": None},
            },
        }
    ],
}
U, A = (lambda c: {"role": "user", "content": c}), (lambda c: {"role": "assistant", "content": c})
S = {"role": "system", "content": "Be <brief> & kind."}
CONVERSATIONS = {
    "one": [U("Hello")],
    "system": [S, U("Hello 🙂")],
    "turns": [U("a"), A("b"), U("c")],
    "system_turns": [S, U(" a "), A("b\n"), U("c")],
    "ends_assistant": [U("a"), A("b")],
    "empty": [U("")],
    "only_system": [S],
    "double_user": [U("a"), U("b")],
    "reasoning": [
        U("a"),
        {**A("b"), "reasoning_content": "because"},
        U("c"),
        {
            **A("<think>\nhm\n</think>\n\nd"),
        },
    ],
    "multimodal": [U([{"type": "text", "text": "look"}, {"type": "image"}])],
    "tool_call": [U("w?"), CALL],
    "tool_result": [
        S,
        U("w?"),
        CALL,
        {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": '{"t": 20}'},
    ],
    "tool_turns": [
        U("w?"),
        CALL,
        {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "20"},
        A("It is 20."),
        U("ok"),
    ],
    "two_results": [
        U("w?"),
        CALL,
        {"role": "tool", "tool_call_id": "call12345", "content": "1"},
        {"role": "tool", "tool_call_id": "call12345", "content": "2"},
    ],
    "unknown_role": [{"role": "critic", "content": "x"}],
}


def chat_variables():
    for name, messages in CONVERSATIONS.items():
        for tools in (None, TOOLS):
            for extra in (
                {"add_generation_prompt": True},
                {"add_generation_prompt": False, "enable_thinking": False},
            ):
                yield name, {
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "unk_token": "<unk>",
                    "pad_token": "<pad>",
                    "date_string": "26 Jul 2024",
                    **extra,
                }


def compare(program, cases, seed, files):
    wanted, lines = [], []

    def add(label, source, variables):
        answer = render(source, variables)
        if deterministic(answer):
            wanted.append((label, source, answer))
            lines.append(json.dumps({"t": source, "v": variables}))

    maker = Maker(seed)
    for _ in range(cases):
        add("random", maker.case(), VARS)
    for file in files:
        for name, variables in chat_variables():
            add(f"{file}:{name}", pathlib.Path(file).read_text(encoding="utf-8"), variables)
    done = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    answers = done.stdout.splitlines()
    if len(answers) != len(wanted):
        print(f"{len(answers)} answers to {len(wanted)} cases: {done.stderr[-3000:]}")
    bad = 0
    for (label, source, want), line in zip(wanted, answers):
        got = json.loads(line)
        if ("o" in want) != ("o" in got) or want.get("o") != got.get("o"):
            bad += 1
            if bad <= 40:
                print(f"--- {label}\n{source if label == 'random' else ''}\nwant {want}\ngot  {got}")
    errors = sum("e" in want for _, _, want in wanted)
    print(f"{len(wanted)} cases, {errors} of them errors, {bad} differ")
    return bad or len(answers) != len(wanted)


def goldens(folder):
    folder = pathlib.Path(folder)
    maker, rows, size = Maker(20240), [], 0
    while size < 200_000:
        source = maker.case()
        answer = render(source, VARS)
        if not deterministic(answer):
            continue
        row = [source, answer["o"] if "o" in answer else None]
        if len(json.dumps(row)) > 900:
            continue
        size += len(json.dumps(row))
        rows.append(row)
    chats = []
    for file in sorted(folder.glob("*.jinja")):
        for name, variables in chat_variables():
            answer = render(file.read_text(encoding="utf-8"), variables)
            chats.append(
                [file.name, name, variables["tools"] is not None, variables["add_generation_prompt"], answer.get("o")]
            )
    data = {
        "made_by": "tests/oracle/make_jinja_goldens.py with jinja2 3.1.6, transformers 5.24.0",
        "vars": VARS,
        "cases": rows,
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "chats": chats,
    }
    (folder / "goldens.json").write_text(
        json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    print(len(rows), "random,", len(chats), "chat cases")


if __name__ == "__main__":
    if sys.argv[1] == "goldens":
        goldens(sys.argv[2])
    else:
        count, seed = list(map(int, sys.argv[3:5])) + [2000, 1][len(sys.argv[3:5]) :]
        sys.exit(compare(sys.argv[2], count, seed, sys.argv[5:]))
