"""Writes src/text/unicode_fix.def: where the character classes and lower-case mappings
of the HF tokenizers library (0.23: several tables, from Unicode 8 to 17) differ from
what src/text/unicode.c makes of utf8proc (2.8, Unicode 14).

    python tests/oracle/make_unicode_fix.py > src/text/unicode_fix.def
"""
import ctypes
import ctypes.util
import unicodedata

from tokenizers import normalizers, pre_tokenizers

lib = ctypes.CDLL(ctypes.util.find_library("utf8proc") or "libutf8proc.so.2")
lib.utf8proc_category_string.restype = ctypes.c_char_p


def bert(**on):
    return normalizers.BertNormalizer(**(dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                                              lowercase=False) | on)).normalize_str


def pieces(p):
    return lambda s: len(p.pre_tokenize_str(s))


MARK, CLEAN, ACCENTS = bert(strip_accents=True), bert(clean_text=True), normalizers.StripAccents().normalize_str
PUNCT, DIGITS, WORDS = map(pieces, (pre_tokenizers.Punctuation(), pre_tokenizers.Digits(), pre_tokenizers.Whitespace()))
LETTERS = ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc")
SYMBOL_WORDS = [(0x200c, 0x200d), (0x24b6, 0x24e9), (0x1f130, 0x1f149), (0x1f150, 0x1f169), (0x1f170, 0x1f189)]
CLASSES = {  # (what the library says, what the category says)
    "MARK": (lambda s: MARK("x" + s + "y") == "xy", lambda c, k: k == "Mn"),
    "ANY_MARK": (lambda s: ACCENTS("x" + s + "y") == "xy", lambda c, k: k[0] == "M"),
    "OTHER": (lambda s: CLEAN("x" + s + "y") == "xy", lambda c, k: k in ("Cc", "Cf", "Co")),
    "PUNCT": (lambda s: PUNCT("a" + s + "b") == 3, lambda c, k: k[0] == "P"),
    "NUMERIC": (lambda s: DIGITS("a" + s + "b") == 3, lambda c, k: k[0] == "N"),
    "WORD": (lambda s: WORDS("a" + s + "b") == 1,
             lambda c, k: k in LETTERS or any(a <= c <= b for a, b in SYMBOL_WORDS)),
}
CHARS = [c for c in range(0x80, 0x110000) if not 0xd800 <= c < 0xe000]
KIND = {c: lib.utf8proc_category_string(c).decode() for c in CHARS}

print("/* Made by tests/oracle/make_unicode_fix.py. Characters of which the HF tokenizers library says other than\n"
      " * utf8proc: class, first, last, whether it has them. Then lower-case mappings: from, to. */")
for name, (theirs, ours) in CLASSES.items():
    rows = []
    for c in CHARS:
        s = chr(c)
        if name in ("MARK", "OTHER") and (c == 0xfffd or unicodedata.normalize("NFD", s) != s):
            continue
        want = theirs(s)
        if want == ours(c, KIND[c]):
            continue
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == want:
            rows[-1][1] = c
        else:
            rows.append([c, c, want])
    for first, last, want in rows:
        print("FIX(%s, 0x%x, 0x%x, %d)" % (name, first, last, want))
LOWER = normalizers.Lowercase().normalize_str
for c in CHARS:
    if c != 0x130 and LOWER(chr(c)) != chr(lib.utf8proc_tolower(c)):
        print("LOWER(0x%x, 0x%x)" % (c, ord(LOWER(chr(c)))))
