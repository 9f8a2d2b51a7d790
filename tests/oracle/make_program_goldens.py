"""A stored sample of random programs: the text that jinja2 gives, or null for an error.

python tests/oracle/make_program_goldens.py tests/data/jinja/programs.json
"""

import json
import pathlib
import sys

from compare_programs import MESSAGES, stable, timed
from jinja_peer import Engine, original, same
from jinja_programs import VARIABLES, Programs


def main(path):
    engine, programs, rows, size = Engine(), Programs(2026), [], 0
    while size < 150_000:
        source = programs.case()
        want = timed(lambda: original(source, MESSAGES, variables=VARIABLES))  # noqa: B023
        if want is None or not stable(want) or want.kind == "NameError":
            continue
        # Every third error is enough, and so are short texts.
        row = [source, want.text]
        if len(json.dumps(row)) > 700 or (want.error is not None and len(rows) % 3):
            continue
        handle = engine.compile(source)
        if not same(want, engine.render(handle, MESSAGES, variables=VARIABLES)):
            print("differs:", source)
            continue
        engine.free(handle)
        rows.append(row)
        size += len(json.dumps(row))
    data = {
        "made_by": "tests/oracle/make_program_goldens.py with jinja2 3.1.6, transformers 5.24.0",
        "vars": {**VARIABLES, "messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True},
        "cases": rows,
    }
    pathlib.Path(path).write_text(
        json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    print(len(rows), "programs,", sum(r[1] is None for r in rows), "of them errors")


if __name__ == "__main__":
    main(sys.argv[1])
