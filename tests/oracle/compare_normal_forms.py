"""Compares unicode_normalize with the normalizers of the HF tokenizers library
(0.23): all characters, and all marks with marks of other classes around them.
Prints what differs; the table `fixed` in src/text/unicode.c comes from this.

    TURBOLM_LIB=…/a shared library with all symbols visible compare_normal_forms.py"""
import ctypes
import os
import sys
import unicodedata

from tokenizers import normalizers

FORMS = [(0, normalizers.NFC()), (1, normalizers.NFD()), (2, normalizers.NFKC()), (3, normalizers.NFKD())]


class Buf(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t), ("cap", ctypes.c_size_t),
                ("max", ctypes.c_size_t), ("status", ctypes.c_int)]


lib = ctypes.CDLL(os.environ["TURBOLM_LIB"])


def own(s, form):
    b, data = Buf(None, 0, 0, 1 << 30, 0), s.encode()
    lib.unicode_normalize(ctypes.byref(b), data, ctypes.c_size_t(len(data)), form)
    text = ctypes.string_at(b.data, b.len).decode() if b.len else ""
    lib.buf_deinit(ctypes.byref(b))
    return text


bad = {}
for c in range(0x80, 0x110000):
    if 0xd800 <= c < 0xe000 or 0x3400 <= c < 0xac00 and c % 64 or 0x30000 <= c < 0xe0000:
        continue
    texts = [chr(c)]
    if c >= 0x300 and unicodedata.category(chr(c))[0] in "MC" or 0x1100 <= c < 0x1200:
        texts += [s for x in "\u0334\u0301\u0316\u0345\u05b0\u3099"
                  for s in ("a" + x + chr(c), "a" + chr(c) + x, "\uac00" + chr(c) + x, "\u1100" + chr(c))]
    for form, ref in FORMS:
        if any(ref.normalize_str(s) != own(s, form) for s in texts):
            bad.setdefault(c, []).append(form)
print({hex(c): f for c, f in bad.items()} or "no difference")
sys.exit(bool(bad))
