"""Ending what runs: a pass over a whole text, and output that cannot be written."""
import ctypes as c
import os
import signal
import subprocess
import threading

import pytest

TOKENS = 6000
CANCELED = "TLM_ECANCELED"


def status_number(root, name):
    with open(os.path.join(root, "include", "turbolm", "status.def"), encoding="utf-8") as f:
        rows = [line.split("(")[1].split(",")[0] for line in f if line.startswith("TLM_STATUS(")]
    return rows.index(name)


def test_logits_end_inside_a_pass(turbolm_lib, tiny_model, root):
    """All rows are one pass, so a row that arrives would mean that the pass went to its end."""
    lib = c.CDLL(turbolm_lib)
    error = c.create_string_buffer(8192)
    model = c.c_void_p()
    path = tiny_model(num_hidden_layers=16).encode()
    assert lib.tlm_model_open(path, None, c.byref(model), error) == 0
    rows, result = [], []

    @c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.POINTER(c.c_float), c.c_size_t)
    def take(user, row, logits, n):
        rows.append(row)
        return 0

    ids = (c.c_int32 * TOKENS)(*[65] * TOKENS)
    size = c.c_size_t

    def compute():
        result.append(lib.tlm_model_logits(model, ids, size(TOKENS), size(TOKENS), size(TOKENS), take, None, error))

    thread = threading.Thread(target=compute)
    thread.start()
    while thread.is_alive():  # the first may come before the pass begins
        lib.tlm_model_cancel(model)
        thread.join(0.01)
    assert result == [status_number(root, CANCELED)] and rows == []
    few = (c.c_int32 * 3)(1, 2, 3)
    error = c.create_string_buffer(8192)
    assert lib.tlm_model_logits(model, few, size(3), size(3), size(3), take, None, error) == 0 and rows == [0, 1, 2]
    lib.tlm_model_close(model)


@pytest.mark.parametrize("name, status", [("SIGINT", 130), ("SIGTERM", -signal.SIGTERM), ("SIGHUP", -signal.SIGHUP)])
def test_signal_in_one_long_pass(turbolm_bin, tiny_model, tmp_path, name, status):
    """The file in the making goes with the program."""
    ids = " ".join(["65"] * 30000)
    args = ["logits", "--model", tiny_model(num_hidden_layers=16), "--ids", ids, "--prefill-step-size", "65536",
            "--out", tmp_path / "x.npy"]
    p = subprocess.Popen([turbolm_bin, *args], stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    while not os.listdir(tmp_path):
        assert p.poll() is None
    p.send_signal(getattr(signal, name))
    _, err = p.communicate(timeout=120)
    assert (p.returncode, err) == (status, b"") and os.listdir(tmp_path) == []


SIGNAL_AT_BIRTH = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

static void born(const char *path)
{
    size_t n = strlen(path);
    if ((n > 4 && strcmp(path + n - 4, ".tmp") == 0) || strstr(path, ".part-"))
        raise(SIGTERM);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    int fd = ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
    born(path);
    return fd;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *f = ((FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen"))(path, mode);
    born(path);
    return f;
}
"""


@pytest.mark.parametrize("command, text, whole", [
    (["logits", "--ids", "1 2", "--out", "x.npy"], "", []), (["chat"], "/save x\n", []),
    (["cache_prompt", "--prompt", "Hello", "--prompt-cache-file", "x.safetensors"], "", ["x.safetensors"])])
def test_signal_at_the_birth_of_a_file(turbolm_bin, tiny_model, tmp_path, command, text, whole):
    """The signal arrives when the file has just been made: no part of it stays."""
    shim, here = str(tmp_path / "shim.so"), tmp_path / "here"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=SIGNAL_AT_BIRTH.encode(), check=True)
    here.mkdir()
    done = subprocess.run([turbolm_bin, *command, "--model", tiny_model()], input=text.encode(), capture_output=True,
                          timeout=60, cwd=here, env={**os.environ, "LD_PRELOAD": shim})
    assert done.returncode == -signal.SIGTERM and os.listdir(here) in ([], whole)


@pytest.mark.parametrize("lines", ["", "hello\n", "hello\n/stats\n/help\n", "hello\n/save x\n"])
def test_chat_on_a_full_disk(turbolm_bin, tiny_model, tmp_path, lines):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([turbolm_bin, "chat", "--model", tiny_model(), "-m", "4"], input=lines.encode(),
                              stdout=full, stderr=subprocess.PIPE, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count(b"error:") == 1
    assert done.stderr.endswith(b"error: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize("command", [["logits", "--ids", "1 2", "--out", "x.npy", "--model"], ["inspect"],
                                     ["generate", "-p", "hi", "-m", "2", "--model"]])
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_descriptors(turbolm_bin, tiny_model, tmp_path, command, closed):
    """No file that is opened may take the place of a closed stream."""
    folder = tiny_model()
    before = {f: os.stat(os.path.join(folder, f)).st_size for f in os.listdir(folder)}
    script = "exec \"$0\" \"$@\" " + " ".join("%d>&-" % fd for fd in closed)
    done = subprocess.run(["sh", "-c", script, turbolm_bin, *command, folder], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=60, cwd=tmp_path)
    prints = command[0] != "logits"
    assert done.returncode == (1 if 1 in closed and prints else 0)
    assert before == {f: os.stat(os.path.join(folder, f)).st_size for f in os.listdir(folder)}
