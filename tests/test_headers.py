"""Every public header compiles alone, as C and as C++, without a warning."""
import glob
import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = sorted(os.path.basename(p) for p in glob.glob(os.path.join(ROOT, "include", "turbolm", "*.h")))
COMPILERS = {
    "c": ["cc", "-x", "c", "-std=c17"],
    "c99": ["cc", "-x", "c", "-std=c99"],
    "c++": ["c++", "-x", "c++", "-std=c++17"],
}
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wundef", "-pedantic", "-Werror"]

pytestmark = pytest.mark.static


def compile_text(language, text):
    compiler = COMPILERS[language]
    if not shutil.which(compiler[0]):
        pytest.skip("no %s" % compiler[0])
    command = [*compiler, *WARNINGS, "-fsyntax-only", "-I", os.path.join(ROOT, "include"), "-"]
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8")


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize("header", HEADERS)
def test_header_alone(header, language):
    # Twice, so that the include guard is seen to work.
    result = compile_text(language, "#include <turbolm/%s>\n#include <turbolm/%s>\nint only;\n" % (header, header))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("language", COMPILERS)
def test_bad_header_is_seen(language):
    assert compile_text(language, "#include <turbolm/status.h>\nstruct s { tlm_no_such_type x; };\n").returncode != 0


@pytest.mark.parametrize("header", HEADERS)
def test_header_of_all_includes(header):
    with open(os.path.join(ROOT, "include", "turbolm", "turbolm.h"), encoding="utf-8") as f:
        assert header == "turbolm.h" or '#include "%s"' % header in f.read()
