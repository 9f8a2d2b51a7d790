"""Writes src/text/unicode_scripts.def: classes of characters that the UnicodeScripts
pre-tokenizer of the HF tokenizers library (0.23) keeps together, found by asking it.
Characters that are in no row go with whatever stands before them.

    python tests/oracle/make_scripts.py > src/text/unicode_scripts.def
"""
from tokenizers import pre_tokenizers

split = pre_tokenizers.UnicodeScripts().pre_tokenize_str


def together(a, b):
    return len(split(a + b)) == 1


known, rows, last = ["a", "я"], [], None
for c in range(0x110000):
    if 0xd800 <= c < 0xe000:
        continue
    s = chr(c)
    if len(split("a" + s + "я")) == 2 and together("a", s) and together("я", s):
        continue  # any
    if last is not None and together(known[last], s):
        k = last
    else:
        k = next((i for i, other in enumerate(known) if together(other, s)), len(known))
        if k == len(known):
            known.append(s)
    if rows and rows[-1][1] == c - 1 and rows[-1][2] == k:
        rows[-1][1] = c
    else:
        rows.append([c, c, k])
    last = k
print("/* Made by tests/oracle/make_scripts.py: first and last character, class. */")
for first, end, k in rows:
    print("SCRIPT(0x%x, 0x%x, %d)" % (first, end, k + 1))
