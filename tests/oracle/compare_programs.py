"""Random programs of jinja_programs.py, rendered by jinja2 in transformers' set-up
and by this library.

    python tests/oracle/compare_programs.py [--count N] [--seed S] [--lib build/libturbolm.so] [--show N]
"""

import argparse
import collections
import signal
import sys

from jinja_peer import Engine, original, same
from jinja_programs import VARIABLES, Programs

MESSAGES = [{"role": "user", "content": "x"}]
# What differs from run to run, or is refused here on purpose (docs/internals/text.md).
UNSTABLE = ("t 0x", " at 0x", "<built-in", "<class", "object>", "<bound", "<function", "<generator")


def stable(answer):
    text = (answer.text or "").lower()
    return not any(mark in text for mark in UNSTABLE)


def timed(function, seconds=2):
    """None when the original takes too long."""

    def stop(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return function()
    except KeyboardInterrupt:
        return None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lib")
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument(
        "--own-errors", action="store_true", help="count our errors by message, where jinja2 has none"
    )
    args = parser.parse_args()
    engine, programs = Engine(args.lib), Programs(args.seed)
    counts, own = collections.Counter(), collections.Counter()
    for _ in range(args.count):
        source = programs.case()
        want = timed(lambda: original(source, MESSAGES, variables=VARIABLES))  # noqa: B023
        # A constant that is no literal of Python makes jinja2 write wrong code.
        if want is None or not stable(want) or want.kind == "NameError":
            counts["skipped"] += 1
            continue
        handle = engine.compile(source)
        got = engine.render(handle, MESSAGES, variables=VARIABLES)
        engine.free(handle)
        counts["errors"] += want.error is not None
        counts["cases"] += 1
        if same(want, got):
            continue
        if got.limit or "not supported" in (got.error or ""):
            counts["refused"] += 1
            own[got.error.split(": ", 2)[-1][:80]] += 1
            continue
        counts["differ"] += 1
        if counts["differ"] <= args.show:
            print(f"--- {source!r}\nwant {str(want)[:700]}\ngot  {str(got)[:700]}")
    print(dict(counts))
    for message, n in own.most_common(30):
        print(n, message)
    return counts["differ"] > 0


if __name__ == "__main__":
    sys.exit(main())
