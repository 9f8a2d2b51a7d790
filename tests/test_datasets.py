"""Data sets of perplexity and compare: rows and figures of mlx-lm and datasets; a hub's rows; every error."""
import csv
import ctypes
import json
import os

import pytest

import dataset_api
import engine_api
import eval_api
import fake_rows
import tiny_model as tiny

with open(os.path.join(os.path.dirname(__file__), "data", "datasets", "goldens.json"), encoding="utf-8") as f:
    GOLDEN = json.load(f)
CASES = GOLDEN["cases"]
THINKING = '{"enable_thinking": true}'  # what mlx-lm gives the template of a model with thoughts
TEXTS = [{"text": "document %d: %s" % (i, "word " * (i % 7))} for i in range(250)]


@pytest.fixture
def lib_model(turbolm_lib, tiny_model):
    made = []

    def make(**changes):
        made.append(eval_api.Model(turbolm_lib, tiny_model(**changes)))
        return made[-1]

    yield make
    for m in made:
        m.close()


@pytest.fixture
def server():
    made = []

    def start(splits):
        made.append(fake_rows.FakeRows(splits))
        return made[-1]

    yield start
    for s in made:
        s.close()


def write(folder, files, ascii=False):
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        with open(folder / name, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r, ensure_ascii=ascii) + "\n" for r in rows)
    return folder


def run(turbolm, model, data, *args, **kwargs):
    return turbolm("perplexity", "--model", model, "--data-path", data, "--precision", "exact", *args, **kwargs)


def figures(got):
    assert got.returncode == 0, got.stderr
    heading, row = csv.reader(got.stdout.splitlines())
    r = dict(zip(heading, row))
    return float(r["ppl"]), float(r["ppl_se"]), int(r["tokens"])


def text_ids(row):
    ids = [tiny.START, *tiny.encode(row["text"])]
    return ids if ids[-1] == tiny.END else ids + [tiny.END]


# Equal to the original -------------------------------------------------------

@pytest.mark.parametrize("case", CASES, ids=["%d-%s" % (i, c["form"]) for i, c in enumerate(CASES)])
def test_rows_and_figures_of_mlx_lm(turbolm, lib_model, tiny_model, tmp_path, case):
    folder = write(tmp_path / "data", case["files"], case["ascii"])
    m = lib_model(template=GOLDEN["template"])
    d = dataset_api.DataSet(m, folder)
    assert (d.format, d.remote) == (case["form"], 0)
    ids, length = [], case["length"]
    for i in dataset_api.order(m.lib, case["seed"], d.rows):
        ids += d.encode(i, THINKING)
    d.close()
    assert [ids[k * length : (k + 1) * length] for k in range(case["samples"])] == case["rows"]
    got = run(turbolm, tiny_model(template=GOLDEN["template"]), folder, "--seed", case["seed"], "--sequence-length",
              length, "--num-samples", case["samples"], "--csv", "-")
    ppl, error, tokens = figures(got)
    assert tokens == case["samples"] * (length - 1)
    assert ppl == pytest.approx(case["ppl"], rel=1e-5) and error == pytest.approx(case["ppl_se"], rel=1e-4)


@pytest.mark.parametrize("case", GOLDEN["orders"], ids=lambda c: str(c["n"]))
def test_orders_of_numpy(turbolm_lib, case):
    order = dataset_api.order(ctypes.CDLL(turbolm_lib), case["seed"], case["n"])
    assert order[:40] == case["first"] and sorted(order) == list(range(case["n"]))
    assert sum(v * (k % 1009 + 1) for k, v in enumerate(order)) == case["sum"]


def test_default_seed(turbolm, tiny_model, tmp_path):
    folder = write(tmp_path / "data", {"train.jsonl": TEXTS})
    args = ["--sequence-length", "50", "--num-samples", "5", "--csv", "-"]
    by_seed = [figures(run(turbolm, tiny_model(), folder, *args, *seed)) for seed in ([], ["--seed=123"], ["--seed=5"])]
    assert by_seed[0] == by_seed[1] != by_seed[2]


def test_all_samples(turbolm, lib_model, tiny_model, tmp_path):
    """-1 takes every document; so does a number that is larger than the data set."""
    folder = write(tmp_path / "data", {"train.jsonl": TEXTS[:30]})
    m = lib_model()
    ids = sum((text_ids(TEXTS[i]) for i in dataset_api.order(m.lib, 123, 30)), [])
    n = len(ids) // 64
    want = m.perplexity(ids[: n * 64], 64)[0]
    for samples in (-1, n, n + 1, 10**9):
        args = ["--sequence-length", 64, "--num-samples", samples, "--csv", "-"]
        got = figures(run(turbolm, tiny_model(), folder, *args))
        assert got == (pytest.approx(want["perplexity"], rel=1e-8), pytest.approx(want["error"], rel=1e-8), n * 63)


# Local files ----------------------------------------------------------------

def test_rows_have_no_beginning_token_of_their_own(turbolm, lib_model, tiny_model, tmp_path):
    folder = write(tmp_path / "data", {"train.jsonl": TEXTS[:20]})
    m, args = lib_model(), ["--sequence-length", 40, "--num-samples", 4, "--csv", "-"]
    ids = sum((text_ids(TEXTS[i]) for i in dataset_api.order(m.lib, 123, 20)), [])
    with_token = sum(([tiny.START] + ids[k * 40 : k * 40 + 39] for k in range(4)), [])
    for flag, rows in [("false", ids[:160]), ("true", with_token)]:
        got = figures(run(turbolm, tiny_model(), folder, *args, "--bos", flag))
        assert got[0] == pytest.approx(m.perplexity(rows, 40)[0]["perplexity"], rel=1e-8)


def test_lines(lib_model, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "caf\\u00e9 \\ud83d\\ude00", "x": {"text": [1, 2]}}\r\n\n  \r\n'
                     b'{"text": "a", "text": "b\\u0000c"}\n{"text": "last", "messages": null}')
    m = lib_model()
    d = dataset_api.DataSet(m, path)
    assert (d.format, d.rows) == ("text", 3)
    assert [d.encode(i) for i in (0, 2, 1)] == [text_ids({"text": t}) for t in ("café 😀", "last", "b\0c")]
    with pytest.raises(engine_api.Failed, match="row 3, expected 0 to 2"):
        d.encode(3)
    d.close()


def test_text_that_ends_itself(lib_model, tmp_path):
    path = write(tmp_path / "d", {"train.jsonl": [{"text": ""}, {"text": "x<|end|>"}]})
    d = dataset_api.DataSet(lib_model(), path)
    assert [d.encode(0), d.encode(1)] == [[tiny.START, tiny.END], [tiny.START, ord("x"), tiny.END]]
    d.close()


def test_numbers_of_messages_keep_their_form(lib_model, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "q", "n": 1.0, "big": 12345678901234567890}]}\n')
    d = dataset_api.DataSet(lib_model(template="{{ messages[0].n }} {{ messages[0].big }}"), path)
    assert bytes(d.encode(0)) == b"1.0 12345678901234567890"
    d.close()


@pytest.mark.parametrize("lines, message", [
    ([], "the file is empty"),
    (["", " "], "the data set has no rows"),
    (['{"texts": 1}'], "line 1, byte 12: expected a row with prompt and completion, with messages, or with text"),
    (['["text"]'], "line 1, byte 0: expected an object"),
    (['{"text": "a"} x'], "line 1, byte 14: text after the end of the JSON value"),
    (['{"text": "a"', '"b": 1}'], "line 1, byte 12: the text ends inside an array or object"),
    (['{"text": 5}'], "line 1, byte 9: text: expected a string"),
    (['{"text": "a"}', '{"prompt": "b"}'], "line 2, byte 29: text: expected a string"),
    (['{"text": "\\ud800"}'], "line 1, byte 16: an invalid escape in a string"),
    (['{"messages": {}}'], "messages: expected an array"),
    (['{"messages": [], "tools": "x"}'], "tools: expected an array or null"),
    (['{"prompt": "a", "completion": null}'], "completion: expected a string"),
    (['{"messages": [{"role": 1e}]}'], "line 1, byte"),
])
def test_bad_lines(turbolm, tiny_model, tmp_path, lines, message):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    got = run(turbolm, tiny_model(), path, "--seed", 0, "--sequence-length", 4)
    assert got.returncode == 1 and message in got.stderr and got.stderr.startswith("error: %s: " % path), got.stderr
    assert got.stderr.count("\n") == 1


def test_template_that_raises(turbolm, tiny_model, tmp_path):
    path = write(tmp_path / "d", {"train.jsonl": [{"messages": [{"role": "user", "content": "a"}]}]})
    got = run(turbolm, tiny_model(template="{{ raise_exception('no user') }}"), path)
    assert got.returncode == 1 and got.stderr == "error: %s: row 0: no user\n" % path
    got = run(turbolm, tiny_model(template=None), path)
    assert got.returncode == 1
    assert got.stderr == "error: %s: the rows are conversations, and the model has no chat template\n" % path
    got = run(turbolm, tiny_model(template="{% if %}"), path)
    assert got.returncode == 1 and "chat_template.jinja" in got.stderr and got.stderr.count("\n") == 1


@pytest.mark.parametrize("files, message", [
    ([], "no file train.jsonl in this folder"),
    (["valid.jsonl", "test.jsonl"], "no file train.jsonl in this folder"),
    (["train.parquet"], "train.parquet: Parquet is not read; expected train.jsonl in this folder"),
    ([".train.jsonl", "train.json"], "no file train.jsonl in this folder"),
])
def test_folders_without_data(turbolm, tiny_model, tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text('{"text": "a"}\n')
    got = run(turbolm, tiny_model(), tmp_path)
    assert got.returncode == 1 and got.stderr in ("error: %s: %s\n" % (tmp_path, message),
                                                  "error: %s/%s\n" % (tmp_path, message))


def test_too_few_tokens(turbolm, tiny_model, tmp_path):
    path = write(tmp_path / "d", {"train.jsonl": [{"text": "abc"}]})
    got = run(turbolm, tiny_model(), path, "--sequence-length", 6)
    assert (got.returncode, got.stderr) == (1, "error: %s has 5 tokens, but a row takes 6\n" % path)


@pytest.mark.parametrize("name", ["absent.txt", "data/absent.jsonl", "x.parquet"])
def test_files_that_are_not_there(turbolm, tiny_model, name):
    got = run(turbolm, tiny_model(), name)
    assert (got.returncode, got.stdout, got.stderr) == (1, "", "error: %s: no such file\n" % name)


@pytest.mark.parametrize("name", ["absent", "/absent/x", "a/b/c", "org/name@main", "org/na me", "org/..", "org/name:"])
def test_names_that_are_none(turbolm, tiny_model, name):
    got = run(turbolm, tiny_model(), name)
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == "error: %s: no such file, and no name of a data set like org/name\n" % name


# A hub ----------------------------------------------------------------------

def remote(turbolm, model, hub, *args, name="org/texts", **env):
    return run(turbolm, model, name, "--sequence-length", 40, *args, env=hub.env(**env))


def test_rows_of_a_hub(turbolm, tiny_model, turbolm_lib, server, tmp_path):
    """The figures are those of the same rows in a file; only the rows that are needed are asked for."""
    hub = server({("org/texts", "default", "train"): TEXTS, ("org/texts", "default", "test"): TEXTS[:3]})
    local = write(tmp_path / "data", {"train.jsonl": TEXTS})
    want = figures(run(turbolm, tiny_model(), local, "--sequence-length", 40, "--num-samples", 6, "--csv", "-"))
    got = remote(turbolm, tiny_model(), hub, "--num-samples", 6, "--csv", "-")
    assert figures(got) == want and got.stderr == ""
    order, tokens, needed = dataset_api.order(ctypes.CDLL(turbolm_lib), 123, len(TEXTS)), 0, []
    while tokens < 240:
        needed.append(order[len(needed)])
        tokens += len(text_ids(TEXTS[needed[-1]]))
    assert hub.asked() == [(0, 1), *((i, 1) for i in needed)] and hub.connections == 1
    assert [q for path, q, _ in hub.log if path == "/splits"] == [{"dataset": "org/texts"}]
    assert hub.log[1][1] == {"dataset": "org/texts", "config": "default", "split": "train", "offset": "0",
                             "length": "1"}
    assert all("Authorization" not in headers for _, _, headers in hub.log)


def test_every_row_of_a_hub(turbolm, tiny_model, server, tmp_path):
    """All rows come in pages, in their own order."""
    hub = server({("org/texts", "x", "train"): TEXTS})
    local = write(tmp_path / "data", {"train.jsonl": TEXTS})
    want = figures(run(turbolm, tiny_model(), local, "--sequence-length", 40, "--num-samples", -1, "--csv", "-"))
    assert figures(remote(turbolm, tiny_model(), hub, "--num-samples", -1, "--csv", "-")) == want
    assert hub.asked() == [(0, 1), (1, 100), (101, 100), (201, 100)]


def test_small_data_set_comes_at_once(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS[:90]})
    assert remote(turbolm, tiny_model(), hub, "--num-samples", 10).returncode == 0
    assert hub.asked() == [(0, 1), (0, 100)]


def test_output_names_the_data_set(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS})
    got = remote(turbolm, tiny_model(), hub, "--num-samples", 2)
    assert "\n  Sequence length: 40\nLoading Hugging Face dataset org/texts.\n  Loaded 2 samples\n" in got.stdout


def test_conversations_of_a_hub(turbolm, tiny_model, server, tmp_path):
    case = CASES[3]
    hub = server({("org/chat", "default", "train"): case["files"]["train.jsonl"]})
    got = run(turbolm, tiny_model(template=GOLDEN["template"]), "org/chat", "--seed", case["seed"], "--sequence-length",
              case["length"], "--num-samples", case["samples"], "--csv", "-", env=hub.env())
    assert figures(got)[0] == pytest.approx(case["ppl"], rel=1e-5)


def test_configurations(turbolm, tiny_model, server):
    a, b = TEXTS[:50], TEXTS[50:100]
    hub = server({("org/texts", "a b", "train"): a, ("org/texts", "c&d", "train"): b, ("org/texts", "e", "test"): b,
                  ("org/default", "z", "train"): a, ("org/default", "default", "train"): b})
    got = remote(turbolm, tiny_model(), hub)
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == "error: org/texts has 2 configurations (a b, c&d): choose one, as in org/texts:a b\n"
    one = [figures(remote(turbolm, tiny_model(), hub, "--csv", "-", name=n))
           for n in ("org/texts:a b", "org/texts:c&d", "org/default", "org/default:z")]
    assert one[0] == one[3] != one[1] == one[2]
    got = remote(turbolm, tiny_model(), hub, name="org/texts:e")
    assert (got.returncode, got.stderr) == (1, "error: org/texts has no split 'train' in a configuration e\n")


def test_rows_that_are_cut(turbolm, tiny_model, server):
    """A page may be too large for the server, a row alone hardly."""
    hub = server({("org/texts", "default", "train"): TEXTS[:90]})
    want = figures(remote(turbolm, tiny_model(), hub, "--num-samples", 10, "--csv", "-"))
    hub.cut, hub.log = lambda row, length: ["text"] if length > 1 and row % 5 == 0 else [], []
    assert figures(remote(turbolm, tiny_model(), hub, "--num-samples", 10, "--csv", "-")) == want
    assert all(i % 5 == 0 for i, n in hub.asked() if n == 1)
    hub.cut = lambda row, length: ["text"] if row == 7 else []
    got = remote(turbolm, tiny_model(), hub, "--num-samples", -1)
    assert got.returncode == 1
    assert got.stderr == "error: org/texts: the server sends only the beginning of row 7\n"


def test_part_of_a_data_set(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS})
    hub.partial = True
    got = remote(turbolm, tiny_model(), hub, "--num-samples", 2)
    assert got.returncode == 0
    assert got.stderr == "warning: org/texts: the server has only the first 250 rows of the data set\n"


def test_token(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS})
    assert remote(turbolm, tiny_model(), hub, "--num-samples", 1, HF_TOKEN="hf_x").returncode == 0
    assert {h.get("Authorization") for _, _, h in hub.log} == {"Bearer hf_x"}


def test_a_busy_server_is_asked_again(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS})
    hub.faults = [(500, {"error": "not ready"}), None, (503, b"", {"Retry-After": "0"})]
    assert remote(turbolm, tiny_model(), hub, "--num-samples", 1).returncode == 0


PAGE = {"rows": [{"row_idx": 0, "row": {"text": "a"}, "truncated_cells": []}], "num_rows_total": 1}


@pytest.mark.parametrize("faults, message", [
    ([(404, {"error": "The dataset does not exist."})], "no such file here, and URL has no such data set or it is not "
     "public (HTTP 404: The dataset does not exist.); private ones need HF_TOKEN"),
    ([(401, b"")], "no such file here, and URL has no such data set or it is not public (HTTP 401); private ones need "
     "HF_TOKEN"),
    ([None, (422, {"error": "bad\nthing \x1b[1m"})], "URL answers HTTP 422: bad?thing ?[1m"),
    ([(429, b"", {"Retry-After": "1000"})], "too many requests (HTTP 429); try in 1000 s"),
    ([(200, b"<html>")], "/splits?dataset=org%2Ftexts: line 1 is not valid JSON"),
    ([(200, {"splits": 5})], "URL/splits: splits: found a number, expected an array"),
    ([(200, {"splits": [5, {"config": 1, "split": "train"}, {"config": "x"}]})], "has no split 'train'"),
    ([None, (200, {})], "rows from 0: line 1, byte 2: rows: found none"),
    ([None, (200, PAGE | {"rows": []})], "rows: found none"),
    ([None, (200, {"rows": PAGE["rows"]})], "num_rows_total: found -1, expected 1 to 100000000"),
    ([None, (200, PAGE | {"num_rows_total": -5})], "num_rows_total: found -5, expected 1 to 100000000"),
    ([None, (200, PAGE | {"num_rows_total": 100000001})], "num_rows_total: found 100000001"),
    ([None, (200, PAGE | {"rows": PAGE["rows"] * 2})], "row_idx: expected that of the next row"),
    ([None, (200, PAGE | {"rows": [{"row_idx": 0}]})], "row: expected an object, found nothing"),
    ([None, (200, PAGE | {"rows": [{"row_idx": i, "row": {}} for i in range(101)]})], "more than were asked for"),
    ([None, (200, PAGE | {"rows": [{"row_idx": 0, "row": 5}]})], "expected an object"),
    ([None, (200, PAGE | {"rows": [{"row_idx": 0, "row": {"txt": "a"}}]})], "expected a row with prompt"),
    ([None, (200, b'{"rows": [{"row_idx": 0, "row": ' + b"[" * 100)], "nested too deeply"),
])
def test_bad_answers(turbolm, tiny_model, server, faults, message):
    hub = server({("org/texts", "default", "train"): TEXTS})
    hub.faults = faults
    got = remote(turbolm, tiny_model(), hub)
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr.startswith("error: org/texts") or got.stderr.startswith("error: %s/splits" % hub.url)
    assert message.replace("URL", hub.url) in got.stderr and got.stderr.count("\n") == 1, got.stderr


def test_a_page_without_the_row(turbolm, tiny_model, server):
    hub = server({("org/texts", "default", "train"): TEXTS})
    hub.faults = [None, (200, PAGE | {"num_rows_total": 50}), (200, PAGE | {"num_rows_total": 50})]
    got = remote(turbolm, tiny_model(), hub, "--seed", 1)
    assert got.returncode == 1 and "the server sent 1 rows, without row" in got.stderr


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline(turbolm, tiny_model, server, variable):
    hub = server({})
    got = turbolm("perplexity", "--model", tiny_model(), env=hub.env(**{variable: "1"}))
    assert (got.returncode, got.stdout) == (1, "") and hub.log == []
    assert got.stderr == ("error: allenai/tulu-3-sft-mixture: no such file here, and %s forbids to fetch a data set\n"
                          % variable)


def test_no_network(turbolm, tiny_model, server):
    """The rows server has the hub's address with datasets-server before it."""
    env = server({}).env(HF_ENDPOINT="http://hub.invalid/")
    env.pop("TURBOLM_DATASETS_SERVER")
    got = run(turbolm, tiny_model(), "org/texts", env=env)
    assert (got.returncode, got.stdout) == (1, "") and got.stderr.count("\n") == 1
    assert got.stderr.startswith("error: org/texts: cannot reach the hub at http://datasets-server.hub.invalid: ")
    got = run(turbolm, tiny_model(), "org/texts", env=env | {"TURBOLM_DATASETS_SERVER": "ftp://x"})
    assert got.returncode == 1
    assert got.stderr == "error: TURBOLM_DATASETS_SERVER: found 'ftp://x', expected an http or https address\n"
