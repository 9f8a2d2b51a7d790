"""Hard lines for tokenizers: every assigned character, mixed scripts, emoji
sequences, combining marks, control characters, line ends, long runs, code,
names of special tokens. Deterministic."""
import random
import unicodedata

SAMPLES = [
    "Hello, world! It's 3.14159 o'clock; we'll SHE'D I'M they've 'tis 'S 'T 'RE 'll'd'm",
    "Der schnelle braune Fuchs, größer als Übermut — Straße №5 ſ 'ſ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία",
    "いろはにほへと ちりぬるを 漢字カタカナ半角ｶﾅ、。「」",
    "天地玄黃宇宙洪荒。１２３４ 五六七八 百万",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت ١٢٣٤٥",
    "עטלף אבק נס דרך מזגן שהתפוצץ כי חם שְׁמַע",
    "ऋषियों को सताने वाले दुष्ट राक्षसों १२३",
    "นายสังฆภัณฑ์ เฮงพิทักษ์ฝั่ง ผู้เฒ่า",
    "ກຂຄງຈ ສວັດດີ ໑໒໓",
    "ཨོཾ་མ་ཎི་པ་དྨེ་ཧཱུྃ།",
    "ዘይት ከወይን ይጠጣል",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "ᚠᛇᚻ᛫ᛒᛦᚦ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐌀𐌁 𓀀𓂀 𒀀 🜁",
    "👩‍👩‍👧‍👦👨🏽‍💻🏳️‍🌈🇩🇪🇫🇷1️⃣☕️❤️‍🔥👍🏿 🧑‍🚀",
    "e\u0301 a\u0308\u0304 o\u0328\u0301 Å\u0327 q\u0323\u0307 q\u0307\u0323 ṩ s\u0323\u0307 \u0301start",
    "Z̸̢̛͎a̶͇͝l̷̰̍g̵̣̈o̴̙͌ " + "a" + "\u0301\u0323" * 40,
    "한\u1112\u1161\u11ab가\u11a8 각\u11a8 \uac00\u11a7",
    "\ufb01ﬀ ① ㍿ Ⅷ ½ ²³ ª Ω Å K ℃ \u1e9b\u0323 ǆ \u0344 \u0958 \u2126",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1b\x1f\x7f\x80\x85\x9f\xa0\xad",
    "a\r\nb\rc\n\rd\n\n\r\n\r\r\n  \r\n \n ",
    "\t\ttabs \t mixed\t \n\t\n \t",
    " leading",
    "trailing ",
    "  two",
    "three   ",
    "    ",
    "\n",
    "\n\n\n",
    " \n",
    "\n ",
    "\u00a0\u2003\u3000\u200b\u2028\u2029\u202f\u205f\u180e\ufeff",
    "a\u2028b \u2029 c\u0085d",
    "def f(x: int) -> str:\n    if x != 0:\n\t\treturn f\"{x:>08.3f}\"  # comment\n\n\n    return None\n",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n\tprintf(\"%d\\n\", 0x1F << 3);\r\n}\r\n",
    "<html><body class=\"a\">&nbsp;<br/></body></html> <td><tr></h1><s></s>",
    "SELECT * FROM t WHERE a>=10 AND b<>'x''y'; -- ok",
    "https://example.com/a/b?c=d&e=%20f#g me@x.org /usr/lib/x86_64",
    "1 12 123 1234 12345 1,234,567.89 1e-10 0xFF 2024-01-31T12:00:00Z ٣٤ ²³¹ Ⅻ ½⅓",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><|im_start|><|im_start|>",
    "<bos><eos><pad><unk><mask> <start_of_turn>user\n<end_of_turn> [multimodal] <unused0><unused6241>",
    "<tool_call>{\"a\": 1}</tool_call> <|fim_prefix|>x<|fim_suffix|>",
    "<|im_start|",
    "<|im_start |>",
    " <|im_end|> ",
    "a<|im_end|>b",
    "<<|im_end|>>",
    "<repo_name>x<reponame><file_sep>",
    "<0x0A> <0xFF> <0x00> <0x+F>",
    "▁ ▁▁ a▁b ▁a >▁</ > </ >  </",
    "Ġ Ċ ĉ Ã© Ġhello",
    "\ufffd\ufffe\uffff\U0010ffff\ue000\U000f0000",
    "",
    "!!!??!?!...,,,;;;::: -- --- —— …… ***__~~ ``` '''''' \"\"\"",
    "don't DON'T Don'T can’t l’été 's's 'sss '",
    "camelCaseAndPascalCase snake_case_name kebab-case SCREAMING_SNAKE",
    "ǅ ǲ ᾳ ᾼ İ ı ß ẞ ﬅ ŉ",
    "\u0600\u0601 \u06dd \U0001f3fb \u20e3 \ufe0f \u200d\u200c",
    "\u1100\u1161\u11a8\u1100",
    "\u0f71\u0f72\u0f74 \u0fb2\u0f71\u0f80 \u0cc6\u0cc2\u0cd5",
    "\U0001d15e \U0001d160 \u2adc \u0340\u0341\u0343",
]


def chars(per_line=64):
    """Every character but surrogates, some as neighbours of letters."""
    line = []
    for c in range(0x110000):
        if 0xd800 <= c < 0xe000 or unicodedata.category(chr(c)) in ("Cn", "Co"):
            continue
        if 0x3500 < c < 0x4d00 or 0x5000 < c < 0x9e00 or 0xad00 < c < 0xd700 or 0x20100 < c < 0x31000 \
                or 0x17100 < c < 0x18700:
            if c % 64:
                continue
        line.append(chr(c))
        if len(line) == per_line:
            yield "".join(line)
            yield " a".join(line)
            line = []
    yield "".join(line)


def mixed(n, seed=1):
    rng = random.Random(seed)
    atoms = [s for s in SAMPLES if s]
    pool = "".join(atoms)
    blanks = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "", "", ""]
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.randint(0, 5)
            if kind == 0:
                s = rng.choice(atoms)
                i = rng.randint(0, len(s))
                parts.append(s[i:i + rng.randint(1, 20)])
            elif kind == 1:
                parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 12))))
            elif kind == 2:
                parts.append(rng.choice(pool) * rng.randint(1, 70))
            elif kind == 3:
                parts.append(rng.choice(["<|im_start|>", "<|im_end|>", "<eos>", "<pad>", "\n\n", "<td>",
                                         "<tool_call>"]))
            elif kind == 4:
                parts.append(str(rng.randint(0, 10 ** rng.randint(1, 20))))
            else:
                parts.append(chr(rng.choice([rng.randint(0x20, 0x2ff), rng.randint(0x300, 0x1fff),
                                             rng.randint(0x2000, 0xd7ff), rng.randint(0xe000, 0x1ffff)])))
            parts.append(rng.choice(blanks))
        yield "".join(parts)


def runs():
    for c in ("a", " ", "\n", "\t", "é", "漢", "🙂", "\u0301", "1", "!", "ab", "the ", "\r\n", "▁", " \n", "<", "aA"):
        for n in (2, 3, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 100, 257, 1000):
            yield c * n
            yield "x" + c * n + "y"


def scripts(n=3):
    """Words of every block of 128 characters that has letters, with punctuation between."""
    rng = random.Random(11)
    for start in range(0x80, 0x32000, 128):
        letters = [chr(c) for c in range(start, start + 128) if unicodedata.category(chr(c))[0] in "LM"]
        if not letters:
            continue
        for _ in range(n):
            words = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 9))) for _ in range(6)]
            yield "".join(w + rng.choice([" ", " ", ", ", ". ", "-", "\u3002", "\n", "'s ", "1 "]) for w in words)


def emoji(n=400):
    rng = random.Random(12)
    people = "👨👩🧑👶👧👦🧔👮🕵🧙"
    tones = ["", "", *map(chr, range(0x1f3fb, 0x1f400))]
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 8)):
            kind = rng.randint(0, 4)
            if kind == 0:
                parts.append("\u200d".join(rng.choice(people) + rng.choice(tones) for _ in range(rng.randint(1, 4))))
            elif kind == 1:
                parts.append("".join(chr(0x1f1e6 + rng.randrange(26)) for _ in range(rng.randint(1, 5))))
            elif kind == 2:
                parts.append(rng.choice("0123456789#*") + "\ufe0f\u20e3")
            elif kind == 3:
                parts.append(chr(rng.choice([rng.randint(0x1f300, 0x1faff), rng.randint(0x2600, 0x27bf)]))
                             + rng.choice(["", "\ufe0f", "\ufe0e", "\u200d♂\ufe0f"]))
            else:
                parts.append("🏴" + "".join(chr(0xe0000 + ord(c)) for c in "gbsct") + "\U000e007f")
            parts.append(rng.choice(["", "", " ", "a", "\n"]))
        yield "".join(parts)


def marks(n=400):
    """Letters with many combining marks, in and out of canonical order."""
    rng = random.Random(13)
    pool = [chr(c) for c in range(0x300, 0x1100) if unicodedata.category(chr(c)) == "Mn"]
    for _ in range(n):
        yield "".join(rng.choice("aeoAnqsßקम漢가1. ") + "".join(rng.choice(pool) for _ in range(count))
                      for count in rng.choices([0, 1, 1, 2, 5], k=rng.randint(1, 20)))


def code(n=500):
    rng = random.Random(14)
    words = ["if", "else", "for", "return", "self", "x", "i", "foo_bar", "FooBar", "0x1F", "1e-9", "\"a\\n\"", "'c'",
             "//", "/*", "*/", "#", "{", "}", "(", ")", "[", "]", ";", ",", "==", "!=", "->", "=>", "::", "&&", "||",
             "<<=", "@x"]
    for _ in range(n):
        out, end = [], rng.choice(["\n", "\r\n", "\r", "\n\n"])
        for _ in range(rng.randint(1, 8)):
            indent = rng.choice([" " * 4, "\t", " "]) * rng.randint(0, 5)
            out.append(indent + rng.choice(["", " "]).join(rng.choice(words) for _ in range(rng.randint(0, 10))))
        yield end.join(out)


def specials(names, n=600):
    """Names of tokens whole, cut, doubled and inside words."""
    rng = random.Random(15)
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 6)):
            s = rng.choice(names)
            i, j = sorted(rng.sample(range(len(s) + 1), 2)) if len(s) > 1 else (0, len(s))
            parts.append(rng.choice([s, s, s, s + s, s[i:j], s[:-1], s.upper(), s + "\u0301"]))
            parts.append(rng.choice(["", " ", "  ", "\n", "word", "é", "<", "|>"]))
        yield "".join(parts)


def controls(n=300):
    rng = random.Random(16)
    pool = [chr(c) for c in (*range(0x21), *range(0x7f, 0xa1), 0xad, *range(0x2000, 0x2010), *range(0x2028, 0x2030),
                             *range(0x2060, 0x2070), 0xfeff, *range(0xfff9, 0x10000), 0xe0001)]
    for _ in range(n):
        yield "".join(rng.choice(pool) * rng.choice([1, 1, 1, 2, 3]) if rng.random() < .7 else rng.choice("ab 1.é漢")
                      for _ in range(rng.randint(1, 25)))


def hard(mixed_lines=3000, names=("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<pad>", "[UNK]")):
    """(kind, line) of everything: more than 8,000 lines."""
    for kind, lines in (("sample", SAMPLES), ("characters", chars()), ("mixed", mixed(mixed_lines)), ("run", runs()),
                        ("script", scripts()), ("emoji", emoji()), ("marks", marks()), ("code", code()),
                        ("specials", specials(list(names))), ("controls", controls())):
        for s in lines:
            yield kind, s
