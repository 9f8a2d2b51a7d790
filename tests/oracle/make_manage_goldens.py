"""What mlx_lm.manage prints about the cache of support/cache_tree.py: tests/data/hub/manage.json.

usage: make_manage_goldens.py    (needs mlx-lm and huggingface_hub)
Data sets and spaces, which the original counts as models, are taken out before it prints.
"""
import contextlib
import importlib.metadata
import io
import json
import os
import sys
import tempfile
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import cache_tree  # noqa: E402


def main():
    import dataclasses
    import huggingface_hub
    from mlx_lm import manage

    out = {"made by": "mlx-lm %s, huggingface_hub %s" % (importlib.metadata.version("mlx-lm"),
                                                        importlib.metadata.version("huggingface_hub")), "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        cache = cache_tree.make(cache_tree.padded(folder))

        def scan():
            info = huggingface_hub.scan_cache_dir(cache)
            return dataclasses.replace(info, repos=frozenset(r for r in info.repos if r.repo_type == "model"))

        for args, answers in [
            (["--scan"], ""), (["--scan", "--pattern", ""], ""), (["--scan", "--pattern", "nothing"], ""),
            (["--delete", "--pattern", "nothing"], ""), (["--delete"], "n\n"), (["--delete"], "\n"),
            (["--delete"], "what\nNO\n"), (["--scan", "--delete", "--pattern", "gpt"], "0\n"),
            (["--delete", "--pattern", "other"], "Yes\n"), (["--scan", "--pattern", "org"], ""), ([], ""),
        ]:
            text = io.StringIO()
            with mock.patch.object(manage, "scan_cache_dir", scan), mock.patch.object(sys, "argv", ["manage", *args]), \
                    mock.patch.object(sys, "stdin", io.StringIO(answers)), contextlib.redirect_stdout(text):
                manage.main()
            out["cases"].append({"args": args, "answers": answers, "stdout": text.getvalue().replace(cache, "CACHE")})
    path = os.path.join(os.path.dirname(HERE), "data", "hub", "manage.json")
    with open(path, "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
