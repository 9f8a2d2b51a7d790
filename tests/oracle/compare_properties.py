"""Characters that the regex engine of the HF tokenizers library (0.23) counts
to a property and Python's unicodedata (3.11: Unicode 14, as PCRE2 10.42) does
not. src/text/pretok_later.def holds the ranges after the plus signs."""
import unicodedata

from tokenizers import Regex, pre_tokenizers

CHARS = [c for c in range(0x80, 0x110000) if not 0xd800 <= c < 0xe000]
TEXT = "".join(map(chr, CHARS))


def members(pattern):
    kept = set()
    for _, (a, b) in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(TEXT):
        kept.update(range(a, b))
    return {c for i, c in enumerate(CHARS) if i not in kept}


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return " ".join("%x-%x" % tuple(r) for r in out)


for name in ("L", "N", "M", "P", "S", "Nd", "Lu", "Ll", "Lo", "Lm"):
    theirs = members(r"\p{%s}" % name)
    ours = {c for c in CHARS if unicodedata.category(chr(c)).startswith(name)}
    print(name, "+", ranges(theirs - ours), "| -", ranges(ours - theirs))
