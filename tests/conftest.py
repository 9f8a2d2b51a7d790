"""What the tests of the program share: where it and the models are, as tests/run says."""
import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {
    "smollm2": "smollm2-135m-instruct.Q4_1.gguf",
    "gemma": "gemma-3-270m.Q4_K_M.gguf",
    "qwen": "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
}


@pytest.fixture(scope="session")
def root():
    """The top of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def turbolm_bin():
    """Path of the program."""
    path = os.environ.get("TURBOLM_BIN") or os.path.join(ROOT, "build", "turbolm")
    assert os.path.exists(path), "%s: not built" % path
    return path


@pytest.fixture(scope="session")
def turbolm_lib():
    """Path of the shared library, for ctypes; not there under sanitizers."""
    path = os.environ.get("TURBOLM_LIB", os.path.join(ROOT, "build", "libturbolm.so"))
    if not path:
        pytest.skip("Python cannot load a library with a sanitizer")
    assert os.path.exists(path), "%s: not built" % path
    return path


@pytest.fixture(scope="session")
def turbolm(turbolm_bin):
    """turbolm("generate", ..., input=text) runs the program: .returncode, .stdout, .stderr as text."""

    def run(*args, input=None, timeout=300, **kwargs):
        return subprocess.run([turbolm_bin, *map(str, args)], input=input, timeout=timeout, capture_output=True,
                              encoding="utf-8", errors="replace", **kwargs)

    return run


@pytest.fixture(scope="session")
def model():
    """model("smollm2") is the path of a real model; the test is skipped when it is not there."""

    def find(name):
        folder = os.environ.get("TURBOLM_TEST_MODELS") or os.path.join(ROOT, "models")
        path = os.path.join(folder, MODELS.get(name, name))
        if not os.path.exists(path):
            pytest.skip("no model %s (scripts/get-models %s)" % (os.path.basename(path), name))
        return path

    return find


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """tiny_model(**changes) is a directory that support/tiny_model.py makes; equal calls share it."""
    import tiny_model as maker

    made = {}

    def make(**changes):
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = maker.make(tmp_path_factory.mktemp("tiny"), **changes)
        return made[key]

    return make
