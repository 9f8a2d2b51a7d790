"""A grammar of random templates: statements and expressions of every kind with
arguments that mostly fit and sometimes do not. Seeded: Programs(7).case() is
always the same program."""

import random

VARIABLES = {
    "s": "Hello World",
    "e": "",
    "u": "Straße ÄÖ 日本語 🙂 ǆ ﬁ İ",
    "ws": "  a b\t c\n\n",
    "ml": "one\ntwo\r\nthree\n",
    "html": '<p class="x">a &amp; b</p> <!-- c -->\n"q" \'r\'',
    "n": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "g": -0.0,
    "inf": float("inf"),
    "nan": float("nan"),
    "max": 2**63 - 1,
    "big": 123456789012345678901234567890,
    "t": True,
    "no": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "le": [],
    "nest": [[1, 2], [3, [4, 5]]],
    "mix": [1, "x", None, 2.0, True],
    "d": {"a": 1, "b": "two", "items": "hidden", "c": [1, 2]},
    "de": {},
    "ms": [
        {"role": "user", "content": "hi", "n": 2},
        {"role": "assistant", "content": "yo <b>", "n": 1},
        {"role": "user", "content": "", "n": 3, "x": {"y": 5}},
    ],
    "num": ["10", "3.5", "x", "0x1f", "-7", " 12 ", "1_0", "1e3"],
}

STRINGS = [
    "s",
    "e",
    "u",
    "ws",
    "ml",
    "html",
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
    "'{}'",
    "'a,b,,c'",
    "'a\\tb'",
    "'x' 'y'",
    "'Ab_1'",
    "('<i>'|safe)",
    "('<i>'|e)",
    "'%s'",
    "'0x1F'",
    "'É' ",
    "'\\t'",
    "'_'",
    "'é日'",
]
INTEGERS = [
    "n",
    "z",
    "neg",
    "1",
    "2",
    "-1",
    "0",
    "10",
    "3",
    "0x1f",
    "1_000",
    "l[0]",
    "d.a",
    "true",
    "ms|length",
    "big",
    "max",
    "-max - 1",
    "2**64",
    "0b101",
    "0o17",
    "80",
    "false",
    "100",
    "-big",
]
NUMBERS = [
    "f",
    "2.675",
    "1e16",
    "1e-5",
    "0.1",
    "-2.5",
    "3.0",
    "1.5e300",
    "g",
    "1e22",
    "123456789.125",
    "1.5",
    "5e-324",
    "inf",
    "nan",
    "0.5",
    "1_0.5",
    "-0.5",
    "1e100",
]
SEQUENCES = [
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
    "d.values()",
    "undef",
    "range(5, 0, -2)",
    "[[1, 2], (3,)]",
    "de",
    "(l|reverse)",
    "(ls|map('upper'))",
    "[none]",
    "u",
    "ms|groupby('role')",
    "[2, 1.0, true]",
    "(l|batch(2))",
]
OTHERS = [
    "undef",
    "no",
    "t",
    "ms[1]",
    "d.items",
    "d['items']",
    "ms[0].nope",
    "loop",
    "ns",
    "ns.v",
    "m",
    "range",
    "cyc",
    "joi",
    "dict(a=1)",
    "dict",
    "namespace",
    "d.get",
    "s.upper",
    "self",
    "ms[5]",
    "undef.x",
    "nest[0][5]",
    "raise_exception",
    "caller",
    "varargs",
    "kwargs",
    "loop.index",
    "messages",
    "1 if false",
    "cyc.current",
    "joi()",
    "lipsum",
    "strftime_now",
    "(1 if t else 2)",
    "not t",
    "super",
    "cycler",
    "d|attr('a')",
    "{'k': 1, 2: 'v', none: 3}",
]
FILTERS = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "xmlattr",
]
# Arguments that make sense, by filter; A: anything, I integer, S string.
FITTING = {
    "attr": ["'upper'", "'a'", "S"],
    "batch": ["2", "I", "2, A", "3, 'x'"],
    "center": ["I", "20", "width=9"],
    "d": ["A", "A, true", "default_value=A, boolean=A"],
    "default": ["A", "A, true", "'', A"],
    "dictsort": ["true", "false, 'value'", "by='value'", "reverse=true", "by='nope'"],
    "filesizeformat": ["true", "A", ""],
    "float": ["A", "default=A", ""],
    "format": ["A", "A, A", "a=A", "S, I"],
    "groupby": ["'role'", "'n'", "'x.y'", "0", "'role', default='z'", "'content', case_sensitive=true", "A"],
    "indent": ["2", "4, true", "3, false, true", "'> '", "first=true", "width=I", "A"],
    "int": ["A", "0, 16", "default=7, base=2", "base=I", "5, 0", ""],
    "join": ["S", "', '", "'', 'role'", "attribute=0", "A"],
    "map": [
        "'upper'",
        "attribute='role'",
        "attribute='x.y', default=A",
        "'int'",
        "'default', 'x'",
        "'replace', 'a', 'b'",
        "attribute=0",
        "A",
        "'nope'",
        "'join', ','",
    ],
    "max": ["attribute='n'", "true", ""],
    "min": ["attribute='n'", "case_sensitive=true", ""],
    "reject": ["", "'odd'", "'none'", "'gt', 1", "'in', [1, 2]", "A"],
    "select": ["", "'odd'", "'string'", "'gt', 1", "A"],
    "rejectattr": ["'n'", "'role', 'equalto', 'user'", "'x.y', 'defined'", "A"],
    "selectattr": ["'n'", "'role', 'eq', 'user'", "'x'", "'n', 'gt', 1", "A", ""],
    "replace": ["S, S", "S, S, I", "old=S, new=S", "A, A"],
    "round": ["", "I", "1, 'floor'", "0, 'ceil'", "method='floor'", "2, S", "-1"],
    "slice": ["2", "I", "3, A", "fill_with='z', slices=2"],
    "sort": ["", "true", "attribute='n'", "attribute='role,n'", "false, true", "reverse=A, attribute=A"],
    "sum": ["", "attribute='n'", "start=I", "0, A", "start=[]"],
    "tojson": [
        "",
        "indent=2",
        "true",
        "indent=I",
        "separators=(',', ':')",
        "sort_keys=true",
        "false, 1, none, true",
        "indent='--'",
    ],
    "trim": ["", "S", "chars=S", "A"],
    "truncate": ["5", "3, true", "I, false, S", "6, true, S, 0", "length=9, leeway=A"],
    "unique": ["", "true", "attribute='role'", "A"],
    "urlize": ["", "10", "5, true", "target='_x'", "rel='a b'"],
    "wordwrap": ["", "5", "4, false", "10, true, '|'", "6, break_on_hyphens=false", "I"],
    "xmlattr": ["", "false", "A"],
    "pprint": [""],
    "urlencode": [""],
    "first": [""],
    "items": [""],
    "striptags": [""],
}
PLAIN_TESTS = (
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "callable",
    "odd",
    "even",
    "lower",
    "upper",
    "escaped",
    "filter",
    "test",
)
TESTS = [
    *PLAIN_TESTS,
    "divisibleby 2",
    "divisibleby(I)",
    "sameas none",
    "sameas A",
    "eq 1",
    "gt 2",
    "in [1, 2]",
    "in A",
    "ne(0)",
    "lt 2.5",
    "ge I",
    "le A",
    "equalto A",
    "not none",
    "not defined",
    "not in S",
    "== I",
    "divisibleby",
    "nope",
    "odd(1)",
]
METHODS = {
    "S": [
        "strip()",
        "lstrip()",
        "rstrip(S)",
        "strip(S)",
        "upper()",
        "lower()",
        "title()",
        "capitalize()",
        "swapcase()",
        "casefold()",
        "replace(S, S)",
        "replace(S, S, I)",
        "split()",
        "split(S)",
        "rsplit(S, I)",
        "split(none, I)",
        "split(sep=S, maxsplit=I)",
        "splitlines()",
        "splitlines(true)",
        "join(Q)",
        "center(I)",
        "ljust(I, '*')",
        "rjust(I)",
        "zfill(I)",
        "startswith(S)",
        "endswith((S, S))",
        "startswith(S, I, I)",
        "find(S)",
        "rfind(S, I)",
        "index(S)",
        "rindex(S)",
        "count(S)",
        "count(S, I, I)",
        "partition(S)",
        "rpartition(S)",
        "removeprefix(S)",
        "removesuffix(S)",
        "isdigit()",
        "isalpha()",
        "isalnum()",
        "isspace()",
        "isupper()",
        "islower()",
        "istitle()",
        "isnumeric()",
        "isdecimal()",
        "isascii()",
        "isprintable()",
        "isidentifier()",
        "format(A, A, a=A)",
        "format_map(d)",
        "format_map(A)",
        "expandtabs()",
        "expandtabs(I)",
        "translate({97: 'X', 98: none})",
        "translate(''.maketrans('ab', 'xy', 'c'))",
        "translate(A)",
        "nope()",
        "strip(A)",
        "join(A)",
        "replace(A, A)",
        "center(A, A)",
        "__class__",
        "split(A, A)",
    ],
    "Q": [
        "index(A)",
        "count(A)",
        "copy()",
        "items()|list",
        "keys()|list",
        "values()|list",
        "get(A)",
        "get('a', A)",
        "append(1)",
        "pop()",
        "update(a=1)",
        "start",
        "step",
        "nope",
        "fromkeys(Q, A)",
        "sort()",
        "get()",
        "0",
        "index(A, I)",
    ],
    "I": ["real", "imag", "numerator", "bit_length()", "denominator", "is_integer()", "conjugate()", "bit_count()"],
}
PERCENTS = [
    "'%s|%r'",
    "'%5s-%d'",
    "'%(a)s'",
    "'%.2f %x'",
    "'%%'",
    "'%-4s|%03d'",
    "'%c'",
    "'%+d %o'",
    "'%e'",
    "'%10.3g|'",
    "'%#x %X'",
    "'%*d'",
    "'%i%u'",
    "'%s'",
    "'%a'",
    "'%5%'",
    "'%z'",
    "'%'",
    "'%.3s|%8.4s'",
    "'% d'",
    "'%(b)5s%(a)d'",
    "'%.3d'",
    "'%G'",
]
FORMATS = [
    "'{} {}'",
    "'{0}{1}{0}'",
    "'{a}-{b!r}'",
    "'{:>5}|{:<4}'",
    "'{:05d}{:.2f}'",
    "'{{}}'",
    "'{0.a}{1[0]}'",
    "'{:,}'",
    "'{:^9}|'",
    "'{:*^{1}}'",
    "'{!s:>4}'",
    "'{:x}'",
    "'{:e}'",
    "'{:%}'",
    "'{:+}'",
    "'{:_}'",
    "'{'",
    "'}'",
    "'{0}{}'",
    "'{:g}'",
    "'{:n}'",
    "'{:b}'",
    "'{:#o}'",
    "'{:c}'",
    "'{x}'",
    "'{:10}'",
    "'{:<05}'",
    "'{:.3}'",
    "'{!a}'",
    "'{a.b.c}'",
]


class Programs:
    """Random programs."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = self.calls = self.blocks = 0

    def pick(self, options):
        return self.r.choice(options)

    def chance(self, p):
        return self.r.random() < p

    # expressions

    def fill(self, text, depth):
        """Letters A, S, I, Q alone stand for expressions."""
        out, i = [], 0
        while i < len(text):
            c = text[i]
            alone = (i == 0 or not (text[i - 1].isalnum() or text[i - 1] in "'_\"{%")) and (
                i + 1 == len(text) or not (text[i + 1].isalnum() or text[i + 1] in "'_\"")
            )
            if c in "ASIQ" and alone:
                out.append({"A": self.any, "S": self.string, "I": self.integer, "Q": self.seq}[c](depth - 1))
            else:
                out.append(c)
            i += 1
        return "".join(out)

    def filtered(self, value, name, depth):
        if self.chance(0.04):
            return f"({value}|{name}({', '.join(self.any(depth - 1) for _ in range(self.r.randint(0, 3)))}))"
        if name not in FITTING:
            return f"({value}|{name})"
        arguments = self.fill(self.pick(FITTING[name]), depth)
        return f"({value}|{name}({arguments}))" if arguments or self.chance(0.2) else f"({value}|{name})"

    def string(self, depth):
        if depth <= 0 or self.chance(0.25):
            return self.pick(STRINGS)
        k = self.r.randint(0, 11)
        s = self.string
        if k == 0:
            return f"({s(depth - 1)} {self.pick('+~~')} {self.any(depth - 1)})"
        if k == 1:
            return f"({s(depth - 1)} * {self.pick(['0', '2', '3', '-1', 't'])})"
        if k == 2:
            return f"{s(depth - 1)}[{self.subscript(depth)}]"
        if k <= 5:
            return f"{s(depth - 1)}.{self.fill(self.pick(METHODS['S']), depth)}"
        if k == 6:
            form = self.pick(PERCENTS)
            return f"({form} % {self.pick(['(s, n)', 'd', 'n', '(f, 255)', '()', 's', 'l', self.any(depth - 1)])})"
        if k == 7:
            return f"{self.pick(FORMATS)}.format({self.any(depth - 1)}, {self.any(depth - 1)}, a={s(depth - 1)}, b=n)"
        if k == 8:
            return f"({s(depth - 1)} if {self.any(depth - 1)} else {s(depth - 1)})"
        if k == 9:
            return self.filtered(
                self.any(depth - 1),
                self.pick(["string", "tojson", "pprint", "e", "safe", "join", "urlencode"]),
                depth,
            )
        return self.filtered(
            s(depth - 1),
            self.pick(
                [
                    "upper",
                    "title",
                    "trim",
                    "replace",
                    "indent",
                    "truncate",
                    "center",
                    "wordwrap",
                    "striptags",
                    "capitalize",
                    "wordcount",
                    "format",
                    "escape",
                    "forceescape",
                    "urlencode",
                    "reverse",
                    "lower",
                    "default",
                    "filesizeformat",
                ]
            ),
            depth,
        )

    def integer(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(INTEGERS)
        k, i = self.r.randint(0, 6), self.integer
        if k <= 2:
            left, op = i(depth - 1), self.pick(["+", "-", "*", "//", "%", "/", "**"])
            return f"({left} {op} {self.pick([i, self.num])(depth - 1)})"
        if k == 3:
            return f"({self.pick('-+')}{i(depth - 1)})"
        if k == 4:
            return self.filtered(
                self.any(depth - 1), self.pick(["length", "int", "abs", "round", "sum", "count"]), depth
            )
        if k == 5:
            return f"({self.fill(self.pick(['S.find(S)', 'S.count(S)', 'Q.index(A)', 'Q.count(A)']), depth)})"
        return f"({i(depth - 1)}).{self.fill(self.pick(METHODS['I']), depth)}"

    def num(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick(NUMBERS)
        k = self.r.randint(0, 3)
        if k == 0:
            left, op = self.num(depth - 1), self.pick(["+", "-", "*", "//", "%", "/", "**"])
            return f"({left} {op} {self.integer(depth - 1)})"
        if k == 1:
            return self.filtered(self.any(depth - 1), self.pick(["float", "round", "abs", "int"]), depth)
        return self.integer(depth)

    def subscript(self, depth):
        k = self.r.randint(0, 6)
        # Not a constant of another type: while jinja2 folds constants it loses the error.
        part = lambda: self.pick(
            ["", "", "(n + " + self.integer(depth - 1) + ")", "1", "-1", "2", "no", "f", "s", "big"]
        )  # noqa: E731
        if k <= 2:
            return f"{part()}:{part()}"
        if k == 3:
            return f"{part()}:{part()}:{part()}"
        return self.pick(["0", "-1", "'a'", "'role'", "99"]) if k == 4 else self.any(depth - 1)

    def seq(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(SEQUENCES)
        k, q = self.r.randint(0, 7), self.seq
        if k == 0:
            return f"({q(depth - 1)} + {q(depth - 1)})"
        if k == 1:
            return f"{q(depth - 1)}[{self.subscript(depth)}]"
        if k == 2:
            return f"{q(depth - 1)}.{self.fill(self.pick(METHODS['Q']), depth)}"
        if k == 3:
            a = ", ".join(self.any(depth - 1) for _ in range(self.r.randint(0, 3)))
            return self.pick(
                [f"[{a}]", f"({a},)" if a else "()", "{" + f"'k': {self.any(depth - 1)}, {self.any(0)}: 1" + "}"]
            )
        if k == 4:
            ends = [self.pick(["n", "(l|length)", "f", "3", "0", "-2", "d.a"]) for _ in range(self.r.randint(1, 3))]
            return f"range({', '.join(ends)})"
        name = self.pick(
            [
                "list",
                "sort",
                "unique",
                "reverse",
                "map",
                "select",
                "reject",
                "selectattr",
                "rejectattr",
                "batch",
                "slice",
                "groupby",
                "dictsort",
                "items",
                "first",
                "last",
                "max",
                "min",
                "sum",
                "join",
                "list",
                "map",
            ]
        )
        value = self.filtered(q(depth - 1), name, depth)
        return f"({value}|list)" if self.chance(0.4) else value

    def boolean(self, depth):
        k, a = self.r.randint(0, 5), self.any
        if k <= 2:
            return f"({a(depth - 1)} is {self.fill(self.pick(TESTS), depth)})"
        if k == 3:
            op = self.pick(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
            return f"({a(depth - 1)} {op} {a(depth - 1)})"
        if k == 4:
            return f"({a(depth - 1)} {self.pick(['and', 'or'])} {self.pick(['', 'not '])}{a(depth - 1)})"
        return f"({self.integer(depth - 1)} {self.pick(['<', '=='])} {self.num(depth - 1)} <= {a(depth - 1)})"

    def any(self, depth):
        if depth <= 0:
            return self.pick(self.pick([STRINGS, STRINGS, INTEGERS, NUMBERS, SEQUENCES, SEQUENCES, OTHERS]))
        if self.chance(0.07):
            return self.filtered(self.any(depth - 1), self.pick(FILTERS), depth)
        if self.chance(0.05):
            return (
                f"{self.pick(['m', 'loop', 'caller', 'self.b', 'cyc.next', 'ns', 'd.get', 'super', 'm2'])}("
                + self.pick(["", self.any(depth - 1), "1, 2, b=3", "*l", "**d", "a=1, *ls", f"*{self.any(0)}"])
                + ")"
            )
        return self.pick([self.string, self.integer, self.num, self.seq, self.boolean, self.any])(depth - 1)

    # statements

    def tag(self, inside):
        return self.pick(["{%", "{%", "{%-", "{%+"]) + " " + inside + " " + self.pick(["%}", "%}", "-%}", "+%}"])

    def body(self, depth):
        return "".join(
            self.statement(depth) + self.pick(["", "", " ", "\n", "\n  ", "x", "  \n", "\t", "<&"])
            for _ in range(self.r.randint(1, 3))
        )

    def function(self, depth):
        loops, self.loops = self.loops, 0
        text = self.body(depth)
        self.loops = loops
        return text

    def simple(self):
        k = self.r.randint(0, 9)
        if k <= 3:
            return self.pick(["{{", "{{-", "{{ "]) + " " + self.any(2) + " " + self.pick(["}}", "-}}"])
        if k == 4:
            return self.tag(f"set {self.pick(['a', 'x', 'ns.v', 'a, x', 's', 'n'])} = {self.any(2)}")
        if k == 5:
            return self.pick(
                [
                    "text",
                    "\n",
                    "  ",
                    "{# c #}",
                    "{#- c\n -#}",
                    "  {# #}\n",
                    "{% raw %} {{ x }} \n{% endraw %}",
                    "{%- raw -%} {% y \n{%- endraw %}",
                    "{{ a }}",
                    "{{ x }}",
                    "{{ loop.index }}",
                    "{{ ns.v }}",
                ]
            )
        if k == 6 and self.loops:
            return self.tag("if " + self.any(1)) + self.tag(self.pick(["break", "continue"])) + "{% endif %}"
        if k == 7:
            return "{{ m(" + self.pick(["", "1", "a=2", "1, 2, 3", "b=x, k=1", "1, 2, 3, 4", "caller=m"]) + ") }}"
        if k == 8:
            return self.pick(
                [
                    "{% if false %}{% include 'x' %}{% endif %}",
                    "{% print a, 1 %}",
                    "{% import 'x' as y %}",
                    "{% if no %}{% from 'x' import a %}{% endif %}",
                    "{% include [] ignore missing %}",
                    "{% if e %}{% extends 'x' %}{% endif %}",
                    "{{ joi() }}",
                    "{{ cyc.next() }}",
                    "{% if false %}{% set s = 1 %}{% endif %}",
                ]
            )
        return (
            "{{ loop."
            + self.pick(
                [
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
                    "depth0",
                    "nope",
                    "changed()",
                    "cycle()",
                ]
            )
            + " }}"
        )

    def statement(self, depth):
        if depth <= 0:
            return self.simple()
        k = self.r.randint(0, 13)
        if k <= 1:
            return (
                self.tag("if " + self.any(2))
                + self.body(depth - 1)
                + (self.tag("elif " + self.any(1)) + self.body(depth - 1) if self.chance(0.3) else "")
                + (self.tag("else") + self.body(depth - 1) if self.chance(0.5) else "")
                + self.tag("endif")
            )
        if k <= 4:
            head = self.tag(
                f"for {self.pick(['a', 'x', 'a, x', 'i', 'n'])} in {self.seq(2)}"
                + self.pick(["", "", "", " if x", f" if {self.any(1)}", " recursive", " if loop"])
            )
            self.loops += 1
            text = head + self.body(depth - 1)
            self.loops -= 1
            return text + (self.tag("else") + self.body(depth - 1) if self.chance(0.3) else "") + self.tag("endfor")
        if k == 5:
            return (
                "{% set "
                + self.pick(["a", "x", "ns.v"])
                + self.pick(["", "", "|upper", "|replace('a', 'b')|trim"])
                + " %}"
                + self.function(depth - 1)
                + "{% endset %}"
            )
        if k == 6:
            return (
                "{% macro "
                + self.pick(["m", "m2"])
                + "("
                + self.pick(["", "a", "a, b=1", "a=x, b=a", "a, b=2, c=3", "a, caller=none"])
                + ") %}"
                + self.function(depth - 1)
                + self.pick(
                    ["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else '-' }}", "{{ caller(1) }}"]
                )
                + "{% endmacro %}"
                + self.body(depth - 1)
            )
        if k == 7:
            return (
                "{% call"
                + self.pick(["", "(q)", "(q, a=2)"])
                + " "
                + self.pick(["m", "m2", "ns"])
                + "("
                + self.pick(["", "1", "a=1"])
                + ") %}"
                + self.function(depth - 1)
                + "{% endcall %}"
            )
        if k == 8:
            return (
                "{% filter "
                + self.pick(["upper", "trim", "replace('a', 'b')|title", "escape", "indent(1)"])
                + " %}"
                + self.function(depth - 1)
                + "{% endfilter %}"
            )
        if k == 9:
            return (
                "{% with "
                + self.pick([f"a = {self.any(1)}, x = a", "", f"n = {self.any(1)}", "a, x = l[:2]"])
                + " %}"
                + self.body(depth - 1)
                + "{% endwith %}"
            )
        if k == 10 and self.blocks < 3:
            self.blocks += 1
            name = "bcd"[self.blocks - 1]
            return (
                "{% block "
                + name
                + self.pick(["", "", " scoped", " required"])
                + " %}"
                + self.function(depth - 1)
                + "{% endblock"
                + self.pick(["", " " + name])
                + " %}"
            )
        if k == 11:
            return (
                "{% autoescape "
                + self.pick(["true", "false", "t", "z"])
                + " %}"
                + self.function(depth - 1)
                + "{% endautoescape %}"
            )
        if k == 12:
            return (
                "{% for q in nest recursive %}{{ q if q is number else loop(q) }}"
                + self.pick(["", ",", "{{ loop.depth }}"])
                + "{% endfor %}"
            )
        return "{% generation %}" + self.function(depth - 1) + "{% endgeneration %}"

    def case(self):
        """One template."""
        self.loops = self.blocks = 0
        depth = self.r.randint(1, 3)
        if self.chance(0.45):
            return "{{ " + self.any(depth + 1) + " }}"
        head = (
            "{% set ns = namespace(v=1) %}{% set cyc = cycler(1, '<', 3) %}{% set joi = joiner('|') %}"
            "{% macro m(a=1, b=2, c=3) %}[{{ a }} {{ b }}{{ kwargs }}{{ varargs }}]{% endmacro %}"
        )
        return (head if self.chance(0.8) else "") + self.body(depth) + self.pick(["", "\n", "\n\n", " "])
