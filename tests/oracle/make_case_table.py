"""Writes src/text/jinja_case.c: where Python's str.lower, upper and title of a
single character differ from utf8proc's simple mappings (libutf8proc 2.8,
Unicode 14; Python 3.11 has Unicode 14 too).

    python tests/oracle/make_case_table.py > src/text/jinja_case.c
"""
import ctypes
import ctypes.util

lib = ctypes.CDLL(ctypes.util.find_library("utf8proc") or "libutf8proc.so.2")
kinds = [("CASE_LOWER", str.lower, lib.utf8proc_tolower), ("CASE_UPPER", str.upper, lib.utf8proc_toupper),
         ("CASE_TITLE", str.title, lib.utf8proc_totitle)]
rows = []
for c in range(0x110000):
    if 0xD800 <= c < 0xE000:
        continue
    for name, want, simple in kinds:
        mapped = want(chr(c))
        if c == 0x3A3 and name == "CASE_LOWER":
            continue
        if mapped != chr(simple(c)):
            to = [ord(x) for x in mapped]
            assert len(to) <= 3 and max(to) < 0x10000, hex(c)
            rows.append((c, name, to + [0] * (3 - len(to))))
print('/* Made by tests/oracle/make_case_table.py. Sorted by character, then kind. */')
print('#include "text/jinja_case.h"\n\n#include <stddef.h>\n\nstatic const struct case_row rows[] = {')
for c, name, to in rows:
    print("    {0x%04x, %s, {%s}}," % (c, name, ", ".join("0x%04x" % x if x else "0" for x in to)))
print("""};

const struct case_row *case_find(uint32_t c, enum case_kind kind)
{
    if (c < rows[0].from)
        return NULL;
    size_t low = 0, high = sizeof rows / sizeof rows[0];
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (rows[mid].from < c || (rows[mid].from == c && rows[mid].kind < kind))
            low = mid + 1;
        else
            high = mid;
    }
    if (low < sizeof rows / sizeof rows[0] && rows[low].from == c && rows[low].kind == kind)
        return &rows[low];
    return NULL;
}""")
