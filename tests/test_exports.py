"""The libraries offer tlm_* and nothing else, and everything the public headers declare."""
import glob
import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

pytestmark = pytest.mark.static


def defined_symbols(path, *options):
    output = subprocess.run(["nm", "--defined-only", "--extern-only", "--format=posix", *options, path],
                            check=True, capture_output=True, encoding="utf-8").stdout
    names = set()
    for line in output.splitlines():
        fields = line.split()
        if len(fields) >= 2 and not fields[0].endswith(":"):
            names.add(fields[0])
    return names


def declared_symbols():
    names = set()
    for path in glob.glob(os.path.join(ROOT, "include", "turbolm", "*.h")):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", f.read(), flags=re.S)
        names.update(re.findall(r"^TLM_API\b[^;(]*?\b(tlm_\w+)\s*[\[(;]", text, flags=re.M))
    return names


@pytest.fixture(params=["shared", "static"])
def exported(request, turbolm_lib):
    if request.param == "shared":
        return defined_symbols(turbolm_lib, "--dynamic")
    return defined_symbols(os.path.join(os.path.dirname(turbolm_lib), "libturbolm.a"))


def test_only_public_names(exported):
    assert exported, "no symbols at all"
    assert sorted(name for name in exported if not name.startswith("tlm_")) == []


def test_everything_declared_is_there(exported):
    assert sorted(declared_symbols() - exported) == []


def test_everything_there_is_declared(exported):
    assert sorted(exported - declared_symbols()) == []


def test_declarations_are_found():
    assert {"tlm_version", "tlm_status_name", "tlm_engine_submit"} <= declared_symbols()


def test_internal_library_keeps_every_name(turbolm_lib):
    """The C tests link it; that the other two differ from it is what makes their checks mean something."""
    names = defined_symbols(os.path.join(os.path.dirname(turbolm_lib), "libturbolm-internal.a"))
    assert {"mem_alloc", "tlm_version"} <= names
