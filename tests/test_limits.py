"""Requests and files that ask for more than there is: one clear line, soon."""
import ctypes as c
import json
import os
import resource
import subprocess

import pytest

import engine_api as api
import write_gguf

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}


def one_line(done, status, message):
    assert done.returncode == status and message in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("depth", ["1000000000000", "4611686018427387904"])
def test_depth_beyond_memory(turbolm, tiny_model, depth):
    done = turbolm("benchmark", "--model", tiny_model(), "-p", "4", "-g", "2", "-n", "1", "--depth", depth)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr and done.stderr.count("error:") == 1


def test_engine_lives_on_after_a_refused_depth(turbolm_lib, tiny_model):
    e = api.Engine(turbolm_lib, tiny_model())
    with pytest.raises(api.Failed, match="GB of cache; this machine has"):
        e.submit([65], depth=1 << 62)
    i = e.submit([65], max_tokens=2)
    assert len(e.run([i])[i][0]) == 2
    e.close()


def test_depth_times_batch_beyond_memory(turbolm, tiny_model):
    """200,000 of them alone are 200 MB."""
    done = turbolm("benchmark", "--model", tiny_model(), "-p", "4", "-g", "2", "-n", "1", "-b", "4096", "--depth",
                   "200000")
    one_line(done, 1, " tokens in each of 4096 sequences need ")


def test_prompt_beyond_memory(turbolm_bin, tiny_model):
    """Refused before room for its ids is made."""
    got = subprocess.run([turbolm_bin, "benchmark", "--model", tiny_model(), "-p", "1000000000", "-b", "4096"],
                         capture_output=True, text=True,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))
    assert (got.returncode, got.stdout) == (1, "")
    assert "1000000000 tokens in each of 4096 sequences need" in got.stderr


def test_requests_that_together_need_too_much(turbolm_lib, tiny_model):
    """One runs without end in the only place; those of the test wait behind it."""
    e = api.Engine(turbolm_lib, tiny_model(), max_sequences=1)

    def fits(tokens, sequences=1):
        return e.lib.tlm_engine_check_size(e.engine, c.c_int64(tokens), c.c_int64(sequences), c.byref(api.Error())) == 0

    low, high = 1, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    assert fits(low // 2 - 64, 2) and not fits(low // 2 + 64, 2) and not fits((1 << 63) - 1, 1 << 40)
    e.submit([65], max_tokens=-1)
    e.submit([65], depth=low // 5 * 3)
    with pytest.raises(api.Failed, match="GB of cache beside .* GB of those that wait or run"):
        e.submit([65], depth=low // 5 * 3)
    e.submit([65], depth=low // 5)
    e.close()


@pytest.mark.static  # a sanitizer's own memory does not fit
def test_little_address_space(turbolm_bin, tiny_model):
    command = "ulimit -v 900000; exec %s generate --model %s -p hi -m 2" % (turbolm_bin, tiny_model())
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_pipe_as_model(turbolm, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = turbolm("inspect", tmp_path / "pipe", timeout=20)
    one_line(done, 1, "neither a model directory nor a GGUF file")


def test_inspect_without_weights_and_tokenizer(turbolm, tmp_path):
    write_gguf.write(tmp_path / "m.gguf", CONFIG, [], extra={"llama.vocab_size": 64})
    done = turbolm("inspect", tmp_path / "m.gguf")
    assert done.returncode == 0 and "llama" in done.stdout


def test_quantization_without_weights(turbolm, tmp_path):
    write_gguf.write(tmp_path / "m.gguf", CONFIG, [], extra={"llama.vocab_size": 64})
    assert json.loads(turbolm("inspect", "--json", tmp_path / "m.gguf").stdout)["quantization"] is None


def test_one_warning_of_a_prompt_beyond_the_context(turbolm, tiny_model):
    done = turbolm("generate", "--model", tiny_model(max_position_embeddings=16), "--ignore-chat-template", "-m", "2",
                   "-p", "x" * 40)
    assert done.returncode == 0
    assert done.stderr == "warning: the prompt of 41 tokens is longer than the model's context of 16\n"


def test_one_warning_of_all_filters_at_temperature_zero(turbolm, tiny_model):
    done = turbolm("generate", "--model", tiny_model(), "-p", "x", "-m", "2", "--top-k", "5", "--min-p", "0.1")
    assert done.stderr == "warning: min_p, top_k have no effect at temperature 0\n"


def test_many_threads(turbolm, tiny_model):
    one, many = (turbolm("generate", "--model", tiny_model(), "--threads", n, "-m", "8", "--verbose", "f")
                 for n in (1, 50))
    assert one.stdout == many.stdout and many.returncode == 0
