"""Models by name: a hub that answers well and badly, the cache that is left behind, manage."""
import contextlib
import fcntl
import glob
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

import cache_tree
import fake_hub
import tiny_model as tiny
import write_gguf

ROOT = os.path.dirname(os.path.abspath(__file__))
ARGS = ["-m", "4", "--verbose", "f", "--precision", "exact"]
MIB = 1 << 20


@pytest.fixture
def hub():
    h = fake_hub.FakeHub()
    yield h
    h.close()


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def run(turbolm, hub, cache):
    """run(model, **environment): generate with a model by its name."""

    def go(model, *args, env=None, **kwargs):
        return turbolm("generate", "--model", model, *(args or ARGS), env=hub.env(cache, **(env or {})), **kwargs)

    return go


@pytest.fixture
def inspect(turbolm, hub, cache):
    """The same without computing: only what comes before the model is opened is looked at."""

    def go(model, env=None, **kwargs):
        return turbolm("inspect", model, env=hub.env(cache, **(env or {})), **kwargs)

    return go


def expected():
    return tiny.greedy(tiny.encode(tiny.render([("user", "hello")])), 4) + "\n"


def add_tiny(hub, tiny_model, repo_id="org/tiny", **more):
    files = {}
    for name in os.listdir(tiny_model()):
        with open(os.path.join(tiny_model(), name), "rb") as f:
            files[name] = f.read()
    return hub.add(repo_id, files | more.pop("files", {}), **more)


def folder_of(cache, repo_id="org/tiny"):
    return os.path.join(cache, "models--" + repo_id.replace("/", "--"))


def check_cache(cache, repo, names=None, repo_id="org/tiny", ref="main"):
    """Every blob, link, listing and ref of a complete snapshot, and nothing else."""
    top = folder_of(cache, repo_id)
    names = sorted(repo.files if names is None else names)
    snapshot = os.path.join(top, "snapshots", repo.commit)
    found = sorted(os.path.relpath(os.path.join(d, f), snapshot) for d, _, fs in os.walk(snapshot) for f in fs)
    assert found == names
    for name in names:
        link, f = os.path.join(snapshot, name), repo.files[name]
        assert os.readlink(link) == "../" * (2 + name.count("/")) + "blobs/" + f.etag
        with open(link, "rb") as content:
            assert content.read() == f.data
    assert set(os.listdir(os.path.join(top, "blobs"))) >= {repo.files[n].etag for n in names}
    assert glob.glob(os.path.join(cache, "**", "*incomplete*"), recursive=True) == []
    assert glob.glob(os.path.join(cache, "**", "*.tmp"), recursive=True) == []
    if ref:
        with open(os.path.join(top, "refs", ref)) as content:
            assert content.read() == repo.commit


def incomplete(cache):
    return glob.glob(os.path.join(cache, "*", "blobs", "*.turbolm.incomplete"))


def recorded(cache):
    """How much of the one incomplete file, of one piece, its record says is there."""
    for path in incomplete(cache):
        if os.path.getsize(path) > 40:
            with open(path, "rb") as f:
                f.seek(-8, os.SEEK_END)
                return int.from_bytes(f.read(), "little")
    return 0


def one_line(got, status, *parts):
    assert (got.returncode, got.stdout) == (status, ""), got
    errors = [line for line in got.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and got.stderr.splitlines()[-1] == errors[0], got.stderr
    for part in parts:
        assert part in errors[0], errors[0]


def ranges(hub):
    with hub.lock:
        return [r[3].get("Range") for r in hub.log if r[0] == "cdn"]


# The good way --------------------------------------------------------------------

def test_fetch_and_run(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    got = run("org/tiny")
    assert (got.returncode, got.stdout) == (0, expected()), got.stderr
    assert got.stderr.startswith("fetching org/tiny: %d files, " % len(repo.files))
    assert got.stderr.count("\nfetched ") == len(repo.files)
    check_cache(cache, repo)
    assert hub.requests()[0] == "hub GET /api/models/org/tiny/revision/main?blobs=true"
    assert len(hub.requests()) == 1 + len(repo.files) + 1  # the listing, the files, one redirect
    with open(os.path.join(folder_of(cache), "trees", repo.commit + ".json")) as f:
        tree = json.load(f)
    weights = repo.files["model.safetensors"]
    assert tree["format_version"] == 1 and sorted(tree["files"]) == sorted(repo.files)
    assert tree["files"]["config.json"] == {"size": len(repo.files["config.json"].data),
                                           "blob_id": repo.files["config.json"].sha1}
    assert tree["files"]["model.safetensors"] == {"size": len(weights.data), "blob_id": fake_hub.git_sha1(b"pointer"),
                                                  "lfs_sha256": weights.sha256, "lfs_size": len(weights.data)}


def test_second_run_asks_once(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    run("org/tiny")
    hub.clear()
    got = run("org/tiny")
    assert (got.returncode, got.stdout, got.stderr) == (0, expected(), "")
    assert hub.requests() == ["hub GET /api/models/org/tiny/revision/main?blobs=true"]


def test_a_commit_is_never_asked_for_twice(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    assert run("org/tiny@" + repo.commit).stdout == expected()
    check_cache(cache, repo, ref=None)
    assert not os.path.exists(os.path.join(folder_of(cache), "refs"))
    hub.clear()
    assert run("org/tiny@" + repo.commit).stdout == expected()
    assert hub.requests() == []


def test_other_revisions(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.refs["refs/pr/1"] = repo.commit
    assert run("org/tiny@refs/pr/1").stdout == expected()
    assert hub.requests()[0] == "hub GET /api/models/org/tiny/revision/refs%2Fpr%2F1?blobs=true"
    check_cache(cache, repo, ref="refs/pr/1")


@pytest.mark.parametrize("name, value", [("HF_HUB_OFFLINE", "1"), ("HF_HUB_OFFLINE", "yes"),
                                         ("TRANSFORMERS_OFFLINE", "True")])
def test_offline(run, hub, tiny_model, name, value):
    add_tiny(hub, tiny_model)
    one_line(run("org/tiny", env={name: value}), 1, "org/tiny", "not in the cache", name)
    assert hub.requests() == []
    run("org/tiny")
    hub.clear()
    got = run("org/tiny", env={name: value})
    assert (got.stdout, got.stderr) == (expected(), "")
    assert hub.requests() == []


def test_offline_with_a_part_of_the_model(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    run("org/tiny")
    os.unlink(os.path.join(folder_of(cache), "snapshots", repo.commit, "tokenizer.json"))
    one_line(run("org/tiny", env={"HF_HUB_OFFLINE": "1"}), 1, "not complete", "tokenizer.json", "HF_HUB_OFFLINE")
    hub.clear()
    assert run("org/tiny").stdout == expected()  # the blob is there: only the link is made anew
    assert len(hub.requests()) == 1
    check_cache(cache, repo)


def test_hub_that_is_gone(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    run("org/tiny")
    hub.close()
    got = run("org/tiny")
    assert (got.returncode, got.stdout) == (0, expected())
    assert re.fullmatch(r"warning: org/tiny: cannot reach the hub at http://[^ ]+: .*; using the copy in the cache\n",
                        got.stderr)
    one_line(run("org/other"), 1, "org/other: cannot reach the hub at http://", "org/other is not in the cache (")


def test_name_that_no_server_has(inspect):
    one_line(inspect("org/x", env={"HF_ENDPOINT": "http://no-such-host.invalid"}), 1, "org/x: cannot reach the hub at")


def test_only_what_a_model_needs(inspect, hub, cache, tiny_model):
    extra = {"README.md": b"# x", "pytorch_model.bin": b"x", "onnx/config.json": b"{}", "other.safetensors": b"x",
             "code.py": b"", "a/b/c.txt": b"empty blobs too", "vocab.tiktoken": b"x", "sub/model.safetensors": b"x"}
    repo = add_tiny(hub, tiny_model, files=extra)
    assert inspect("org/tiny").returncode == 0
    check_cache(cache, repo, set(repo.files) - {"README.md", "pytorch_model.bin", "other.safetensors",
                                                "sub/model.safetensors"})


def test_ref_changes_between_runs(run, hub, cache, tiny_model):
    first = add_tiny(hub, tiny_model)
    run("org/tiny")
    hub.clear()
    second = add_tiny(hub, tiny_model, files={"generation_config.json": b"{}"})
    got = run("org/tiny")
    assert got.stdout == expected() and "fetching org/tiny: 1 files, 2 bytes" not in got.stderr
    # What did not change has its blob, but is not fetched again.
    assert [r for r in hub.requests("resolve")] == [
        "hub GET /org/tiny/resolve/%s/generation_config.json" % second.commit]
    check_cache(cache, second)
    assert sorted(os.listdir(os.path.join(folder_of(cache), "snapshots"))) == sorted([first.commit, second.commit])


def test_moved_repository(run, hub, tiny_model):
    add_tiny(hub, tiny_model, "new/name")
    hub.moved["org/tiny"] = "new/name"
    assert run("org/tiny", env={"HF_TOKEN": hub.token}).stdout == expected()


def test_listing_without_checksums(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.tells_blobs = False
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)
    heads = [r for r in hub.requests() if " HEAD " in r]
    assert len(heads) == len(repo.files) and all(r.startswith("hub ") for r in heads)


def test_two_names_of_one_content(inspect, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model, files={"a.json": b"[]", "b.json": b"[]", "c/d.json": b"[]"})
    assert "waiting" not in inspect("org/tiny").stderr
    check_cache(cache, repo)
    assert len(hub.requests("resolve")) == len(repo.files) - 2


def test_existing_paths_come_first(run, hub, tiny_model, tmp_path):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "tiny").symlink_to(tiny_model())
    assert run("org/tiny", cwd=tmp_path).stdout == expected()
    assert hub.requests() == []


@pytest.mark.parametrize("name", ["a/b/c", "org/", "/x", "org/.x", "org/x..y", "org/a--b", "org/x.git", "org/x.gguf",
                                  "org/x@", "org/x:", "org/x@a..b", "org/x@/a", "org/x:../y", "org/x y", "ä/b",
                                  "org/x@a@b", "a" * 60 + "/" + "b" * 60])
def test_what_is_no_name(inspect, hub, name):
    got = inspect(name)
    assert (got.returncode, got.stderr) == (1, "error: %s: no such file or directory\n" % name)
    assert hub.requests() == []


@pytest.mark.parametrize("command", ["generate", "benchmark", "logits", "inspect"])
def test_every_command(turbolm, hub, cache, tiny_model, tmp_path, command):
    add_tiny(hub, tiny_model)
    args = {"generate": ["--model", "org/tiny", "-m", "1"], "inspect": ["org/tiny"],
            "benchmark": ["--model", "org/tiny", "-p", "4", "-g", "4", "-n", "1"],
            "logits": ["--model", "org/tiny", "--ids", "1", "--out", str(tmp_path / "x.npy")]}[command]
    got = turbolm(command, *args, env=hub.env(cache))
    assert got.returncode == 0, got.stderr
    assert len(hub.requests("resolve")) > 0


def test_where_the_cache_is(turbolm, hub, cache, tiny_model, tmp_path):
    add_tiny(hub, tiny_model)
    env = hub.env(cache)
    del env["HF_HUB_CACHE"], env["HF_HOME"]
    env["HOME"] = str(tmp_path / "home")
    for changes, place in [({}, "home/.cache/huggingface/hub"), ({"XDG_CACHE_HOME": tmp_path / "xdg"},
                                                                  "xdg/huggingface/hub"),
                           ({"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/nowhere"}, "home/hf/hub"),
                           ({"HF_HUB_CACHE": str(tmp_path / "here") + "/", "HF_HOME": "/nowhere"}, "here")]:
        got = turbolm("inspect", "org/tiny", env=env | {k: str(v) for k, v in changes.items()})
        assert got.returncode == 0, got.stderr
        assert os.path.isdir(tmp_path / place / "models--org--tiny" / "snapshots")


# The token -------------------------------------------------------------------------

@pytest.mark.parametrize("way", ["variable", "file", "path"])
def test_token_goes_to_the_hub_alone(run, hub, cache, tiny_model, tmp_path, way):
    add_tiny(hub, tiny_model, private=True)
    one_line(run("org/tiny"), 1, "org/tiny", "private", "HTTP 401", "HF_TOKEN")
    hub.clear()
    env = {}
    if way == "variable":
        env["HF_TOKEN"] = hub.token
    else:
        path = cache + ".home/token" if way == "file" else str(tmp_path / "t")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(hub.token + "\n")
        if way == "path":
            env["HF_TOKEN_PATH"] = path
    assert run("org/tiny", env=env).stdout == expected()
    for server, _, _, headers in hub.log:
        assert headers.get("Authorization") == ("Bearer " + hub.token if server == "hub" else None)
    assert any(server == "cdn" for server, *_ in hub.log)


def test_no_token_when_told_so(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    assert run("org/tiny", env={"HF_TOKEN": "x", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).stdout == expected()
    assert all("Authorization" not in headers for *_, headers in hub.log)


@pytest.mark.parametrize("token", ["a b", "a\tb", "a\nX-Evil: 1", "ä"])
def test_bad_token(run, hub, token):
    one_line(run("org/tiny", env={"HF_TOKEN": token}), 2, "HF_TOKEN: the token has")
    assert hub.requests() == []


# No access ---------------------------------------------------------------------------

def test_no_access(inspect, hub, cache, tiny_model):
    add_tiny(hub, tiny_model, "org/gated", gated=True)
    add_tiny(hub, tiny_model, "org/tiny")
    token = {"HF_TOKEN": hub.token}
    one_line(inspect("org/none"), 1, "org/none: no such file here, and http", "(HTTP 401)")
    one_line(inspect("org/none", env=token), 1, "org/none: no such file here, and no such model", "(HTTP 404)")
    one_line(inspect("org/gated"), 1, "org/gated is gated (HTTP 401): accept its conditions at %s/org/gated and set "
             "HF_TOKEN" % hub.url)
    one_line(inspect("org/gated", env=token), 1, "org/gated is gated (HTTP 403)", "use a token of that account")
    one_line(inspect("org/tiny", env={"HF_TOKEN": "wrong"}), 1, "does not accept the token (HTTP 401); check HF_TOKEN")
    one_line(inspect("org/tiny@no-such"), 1, "org/tiny has no such revision", "(HTTP 404)")
    hub.fault("/api/", "status", 403, headers={"X-Error-Message": "Blocked for reasons"})
    one_line(inspect("org/tiny"), 1, "refuses access (HTTP 403): Blocked for reasons")
    assert incomplete(cache) == []


def test_revision_that_is_gone_is_no_reason_to_use_the_cache(inspect, hub, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.refs["v1"] = repo.commit
    assert inspect("org/tiny@v1").returncode == 0
    del hub.refs["v1"]
    one_line(inspect("org/tiny@v1"), 1, "org/tiny has no such revision")


# Trouble on the way --------------------------------------------------------------------

def test_breaks_are_continued(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "break", 100000, times=3)
    hub.fault("tokenizer.json", "break", 1000)
    hub.fault("config.json", "status", 503)
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)
    size = len(repo.files["model.safetensors"].data)
    begins = [0 if r is None else int(r[len("bytes=") :].split("-")[0]) for r in ranges(hub)]
    assert begins == [0, 100000, 200000, 300000] and size > 300000


def test_breaks_without_end(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "break", 3000, times=99)
    one_line(run("org/tiny"), 1, "org/tiny/model.safetensors: ", "connection")
    assert not os.path.exists(os.path.join(folder_of(cache), "refs"))
    assert len(incomplete(cache)) == 1
    n = len(ranges(hub))
    assert n == 6
    hub.clear()
    got = run("org/tiny")
    assert got.stdout == expected() and "of which" in got.stderr
    assert ranges(hub) == ["bytes=%d-%d" % (3000 * n, len(repo.files["model.safetensors"].data) - 1)]
    check_cache(cache, repo)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
def test_busy_server(run, hub, cache, tiny_model, status):
    repo = add_tiny(hub, tiny_model)
    for text in ("hub/api", "resolve", "cdn/blob"):
        hub.fault(text, "status", status, headers={"Retry-After": "1"} if status == 429 else {})
    start = time.monotonic()
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)
    assert status != 429 or time.monotonic() - start >= 2  # nobody may ask earlier than the server says


def test_server_that_stays_busy(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    hub.fault("hub/api", "status", 429, times=99, headers={"Retry-After": "100000"})
    one_line(run("org/tiny"), 1, "org/tiny: ", "too many requests (HTTP 429); try in 100000 s")
    assert len(hub.requests()) == 1
    hub.clear()
    hub.fault("cdn/blob", "status", 500, times=99)
    one_line(run("org/tiny"), 1, "org/tiny/model.safetensors: ", "HTTP 500")
    assert len(ranges(hub)) == 6


def test_server_without_ranges(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.ranges = False
    hub.fault("cdn/blob", "break", 100000, times=2)
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


def test_server_without_ranges_that_always_breaks(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    hub.ranges = False
    hub.fault("cdn/blob", "break", 100000, times=999)
    one_line(run("org/tiny"), 1, "org/tiny/model.safetensors: ", "cannot continue a file")
    assert len(ranges(hub)) < 20


@pytest.mark.parametrize("text, kind", [("cdn/blob", "sha256"), ("tokenizer.json", "git sha1")])
def test_wrong_bytes(run, hub, cache, tiny_model, text, kind):
    repo = add_tiny(hub, tiny_model)
    hub.fault(text, "bytes", times=2)
    one_line(run("org/tiny"), 1, "the %s of what arrived is" % kind, "tried twice")
    assert not any(f.etag in os.listdir(os.path.join(folder_of(cache), "blobs"))
                   for f in repo.files.values() if f.name in (text, "model.safetensors" if "cdn" in text else text))
    hub.fault(text, "bytes")
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


@pytest.mark.parametrize("value", [1, 100000, -1])
def test_wrong_size(run, hub, cache, tiny_model, value):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "size", value, times=99)
    size = len(repo.files["model.safetensors"].data)
    one_line(run("org/tiny"), 1, "the server sends %d bytes, expected %d" % (size + value, size))
    hub.clear()
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


def test_wrong_range(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "break", 100000)
    hub.fault("cdn/blob", "range", 77, times=99)
    one_line(run("org/tiny"), 1, "the server sends bytes 77 of", "expected 100000 of")
    hub.clear()
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


@pytest.mark.parametrize("headers, message", [
    ({"X-Linked-Etag": '"%s"' % ("0" * 64)}, "the hub sends the file 000"),
    ({"X-Linked-Size": "5"}, "the hub sends a file of 5 bytes"),
    ({"X-Repo-Commit": "0" * 40}, "the hub sends commit 000"),
    ({"Location": "file:///etc/passwd"}, "redirects to no address that we follow"),
    ({"Location": "gopher://x/"}, "redirects to no address that we follow"),
])
def test_answer_that_does_not_fit(run, hub, tiny_model, headers, message):
    add_tiny(hub, tiny_model)
    hub.redirect_headers = headers
    one_line(run("org/tiny"), 1, message)


def test_redirects_without_end(run, hub, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.redirect_headers = {"Location": "/org/tiny/resolve/%s/model.safetensors" % repo.commit}
    one_line(run("org/tiny"), 1, "org/tiny: more than 10 redirects")


def test_slow_answers(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.fault("resolve", "slow", 1.5)
    hub.fault("cdn/blob", "stall", 100000)
    assert run("org/tiny", env={"HF_HUB_DOWNLOAD_TIMEOUT": "2"}).stdout == expected()
    assert ranges(hub)[1].startswith("bytes=100000-")
    check_cache(cache, repo)


def test_listing_that_never_comes(run, hub, tiny_model):
    add_tiny(hub, tiny_model)
    hub.fault("hub/api", "slow", 5, times=9)
    one_line(run("org/tiny", env={"HF_HUB_ETAG_TIMEOUT": "1"}), 1, "cannot reach the hub")


@pytest.mark.parametrize("name", [
    "../../evil.json", "/etc/evil.json", "a/../b.json", "a//b.json", "./a.json", "a\\b.json", "evil\n.json",
    "\x1b[31m.json", "a/.json/..", "", "x" * 300 + ".json", "\x9b.json", "/".join("a" * 40) + ".json"])
def test_hostile_names(inspect, hub, cache, tiny_model, name):
    add_tiny(hub, tiny_model)
    hub.extra_names = [name]
    got = inspect("org/tiny")
    one_line(got, 1, "unsafe file name")
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", got.stderr) is None
    assert not os.path.exists(cache)


@pytest.mark.parametrize("names", [["a.json", "a.json/b.json"], ["model.safetensors/x.json"]])
def test_file_that_is_also_a_folder(inspect, hub, tiny_model, names):
    add_tiny(hub, tiny_model, files={n: b"{%d}" % i for i, n in enumerate(names)})
    got = inspect("org/tiny")
    assert got.returncode == 1 and "error: " in got.stderr


@pytest.mark.parametrize("body, message", [
    (b"<html>", "is not valid JSON"), (b"[]", "found an array"), (b"{}", "expected a commit"),
    (b'{"sha": "../../x"}', "expected a commit"), (b'{"sha": "%s"}' % (b"a" * 40), "siblings: found nothing"),
    (b'{"sha": "%s", "siblings": [1]}' % (b"a" * 40), "siblings: found a number"),
    (b'{"sha": "%s", "siblings": [{}]}' % (b"a" * 40), "without rfilename"),
    (b'{"sha": "%s", "siblings": [{"rfilename": "x", "blobId": "../x"}]}' % (b"a" * 40), "expected 40 hexadecimal"),
    (b'{"sha": "%s", "siblings": [{"rfilename": "x", "size": -1}]}' % (b"a" * 40), "size"),
    (b'{"sha": "%s", "siblings": [{"rfilename": "x", "size": 1e300}]}' % (b"a" * 40), "size"),
    (b'{"sha": "%s", "siblings": [{"rfilename": "x.txt"}]}' % (b"a" * 40), "no weights in a format we read"),
    (b'{"sha": "%s", "siblings": [{"rfilename": "model.safetensors", "size": 9000000000000000, "blobId": "%s"}]}' % (
        b"a" * 40, b"b" * 40), "has room for"),
    (b"[" * 100000, "brackets are nested"),
], ids=range(13))
def test_hostile_listing(inspect, hub, body, message):
    hub.add("org/tiny", {})
    hub.listing_body = body
    one_line(inspect("org/tiny"), 1, message)


def test_hostile_cache_listing(run, hub, cache, tiny_model):
    """A trees file that makes no sense is as good as none."""
    repo = add_tiny(hub, tiny_model)
    run("org/tiny")
    path = os.path.join(folder_of(cache), "trees", repo.commit + ".json")
    for text in ("", "[]", '{"format_version": 2}', '{"format_version": 1, "files": {"../x": {"size": 1}}}'):
        with open(path, "w") as f:
            f.write(text)
        assert run("org/tiny", env={"HF_HUB_OFFLINE": "1"}).stdout == expected()


# Two at once, interruption, a full disk ----------------------------------------------------

def test_two_processes(turbolm_bin, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "drip", (50000, 0.1), times=1)
    command = [turbolm_bin, "generate", "--model", "org/tiny", *ARGS]
    runs = [subprocess.Popen(command, env=hub.env(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3)]
    results = [p.communicate(timeout=60) for p in runs]
    assert [out for out, _ in results] == [expected()] * 3, results
    assert len(ranges(hub)) == 1
    check_cache(cache, repo)


def test_lock_of_the_python_library(turbolm_bin, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    lock = os.path.join(cache, ".locks", "models--org--tiny", repo.files["model.safetensors"].etag + ".lock")
    os.makedirs(os.path.dirname(lock))
    with open(lock, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        process = subprocess.Popen([turbolm_bin, "generate", "--model", "org/tiny", *ARGS], env=hub.env(cache),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("waiting for another process"):
                break
        time.sleep(0.3)
        assert process.poll() is None and ranges(hub) == []
    out, _ = process.communicate(timeout=60)
    assert out == expected()
    check_cache(cache, repo)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupt_and_continue(turbolm_bin, run, hub, cache, tiny_model, number, status):
    repo = add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "drip", (20000, 0.3), times=1)
    process = subprocess.Popen([turbolm_bin, "generate", "--model", "org/tiny", *ARGS], env=hub.env(cache),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not ranges(hub):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    while not recorded(cache):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (status, "")
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "error: interrupted; what has arrived is kept, run again to continue"
    assert len(incomplete(cache)) == 1 and not os.path.exists(os.path.join(folder_of(cache), "refs"))
    hub.clear()
    assert run("org/tiny").stdout == expected()
    begin = int(ranges(hub)[0][len("bytes=") :].split("-")[0])
    assert begin >= 20000 and len(ranges(hub)) == 1
    check_cache(cache, repo)


def test_interrupt_while_the_listing_is_waited_for(turbolm_bin, hub, cache, tiny_model):
    add_tiny(hub, tiny_model)
    hub.fault("hub/api", "slow", 8)
    process = subprocess.Popen([turbolm_bin, "inspect", "org/tiny"], env=hub.env(cache), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not hub.requests():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=6)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


def test_full_disk(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200000, resource.RLIM_INFINITY))

    one_line(run("org/tiny", preexec_fn=limit), 1, "the file would be larger than allowed", "is kept")
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


def test_cache_that_cannot_be_written(inspect, hub, tiny_model, tmp_path):
    add_tiny(hub, tiny_model)
    (tmp_path / "file").write_text("")
    one_line(inspect("org/tiny", env={"HF_HUB_CACHE": str(tmp_path / "file")}), 1, "file", "ot a ")
    one_line(inspect("org/tiny", env={"HF_HUB_CACHE": "/sys/cache"}), 1, "/sys/cache: cannot write to the cache: ",
             "; HF_HUB_CACHE chooses another folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_read_only_cache(run, hub, cache, tiny_model):
    add_tiny(hub, tiny_model)
    run("org/tiny")
    for folder, _, _ in os.walk(cache):
        os.chmod(folder, 0o555)
    try:
        assert run("org/tiny").stdout == expected()
        one_line(run("org/tiny2"), 1, "org/tiny2")
    finally:
        for folder, _, _ in os.walk(cache):
            os.chmod(folder, 0o755)


def test_incomplete_file_of_another_shape(run, hub, cache, tiny_model):
    """Also one whose blob is there."""
    repo = add_tiny(hub, tiny_model)
    blobs = os.path.join(folder_of(cache), "blobs")
    os.makedirs(blobs)
    etag = repo.files["model.safetensors"].etag
    for size in (0, 5, 100000, len(repo.files["model.safetensors"].data) + 40):
        with open(os.path.join(blobs, etag + ".turbolm.incomplete"), "wb") as f:
            f.write(b"\xff" * size)
        for path in glob.glob(os.path.join(folder_of(cache), "snapshots", "*", "model.safetensors")):
            os.unlink(path)
        if size != 5:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(blobs, etag))
        assert run("org/tiny").stdout == expected()
        check_cache(cache, repo)


def test_blob_of_the_wrong_size(run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model)
    run("org/tiny")
    with open(os.path.join(folder_of(cache), "blobs", repo.files["model.safetensors"].etag), "r+b") as f:
        f.truncate(1000)
    assert run("org/tiny").stdout == expected()
    check_cache(cache, repo)


# Large files ------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def large():
    """150 MiB that differ everywhere."""
    return b"".join(i.to_bytes(8, "little") * (MIB // 8) for i in range(150))


def test_large_file_in_pieces(inspect, hub, cache, tiny_model, large):
    repo = add_tiny(hub, tiny_model, files={"model-2.safetensors": large})
    hub.fault("name=model-2", "break", 10 * MIB)
    hub.fault("name=model-2", "status", 403)  # an address that has expired
    inspect("org/tiny")
    check_cache(cache, repo)
    asked = {r for r in ranges(hub) if r}
    assert {"bytes=0-%d" % (64 * MIB - 1), "bytes=%d-%d" % (128 * MIB, 150 * MIB - 1)} <= asked
    assert any(int(r[6:].split("-")[0]) % (64 * MIB) == 10 * MIB for r in asked)


def test_large_file_without_ranges(inspect, hub, cache, tiny_model, large):
    repo = add_tiny(hub, tiny_model, files={"model-2.safetensors": large})
    hub.ranges = False
    inspect("org/tiny")
    check_cache(cache, repo)


# GGUF -------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("gguf") / "x.gguf")
    config = tiny.CONFIG
    write_gguf.write(path, config, tiny.weights(config).items())
    with open(path, "rb") as f:
        return f.read()


def test_gguf(inspect, hub, cache, gguf):
    repo = hub.add("org/m-GGUF", {"m-Q4_K_M.gguf": gguf, "m-Q8_0.gguf": b"other", "IQ4_XS/m-IQ4_XS.gguf": gguf,
                                  "mmproj-f16.gguf": b"", "config.json": b"{}", "README.md": b""})
    one_line(inspect("org/m-GGUF"), 2, "org/m-GGUF has only GGUF files; name one, as in org/m-GGUF:",
             "m-Q4_K_M.gguf (", "m-Q8_0.gguf (", "IQ4_XS/m-IQ4_XS.gguf (")
    one_line(inspect("org/m-GGUF:Q5_0"), 2, "org/m-GGUF has no GGUF file 'Q5_0'; there are: ", "m-Q8_0.gguf")
    one_line(inspect("org/m-GGUF:Q4_K"), 2, "has no GGUF file 'Q4_K'")
    one_line(inspect("org/m-GGUF:config.json"), 2, "has no GGUF file 'config.json'")
    assert not os.path.exists(cache)
    for pick in ("Q4_K_M", "q4_k_m", "m-Q4_K_M.gguf", "m-Q4_K_M"):
        got = inspect("org/m-GGUF:" + pick)
        assert got.returncode == 0, got.stderr
        check_cache(cache, repo, ["m-Q4_K_M.gguf"], "org/m-GGUF")
    assert "snapshots/%s/m-Q4_K_M.gguf" % repo.commit in got.stdout
    assert inspect("org/m-GGUF@main:IQ4_XS", env={"HF_ENDPOINT": hub.url}).returncode == 0
    check_cache(cache, repo, ["m-Q4_K_M.gguf", "IQ4_XS/m-IQ4_XS.gguf"], "org/m-GGUF")
    assert inspect("org/m-GGUF:Q4_K_M", env={"HF_HUB_OFFLINE": "1"}).returncode == 0
    one_line(inspect("org/m-GGUF:Q8_0", env={"HF_HUB_OFFLINE": "1"}), 1, "not complete", "m-Q8_0.gguf")


def test_only_one_gguf(inspect, hub, cache, gguf):
    repo = hub.add("org/m", {"m-Q4_0.gguf": gguf, "README.md": b"", "mmproj-m.gguf": b"x", "imatrix.gguf": b"x"})
    assert inspect("org/m").returncode == 0
    check_cache(cache, repo, ["m-Q4_0.gguf"], "org/m")


def test_several_gguf_of_a_format(inspect, hub):
    hub.add("org/m", {"m-Q4_0.gguf": b"1", "m-UD-Q4_0.gguf": b"2", "m-F16.gguf": b"3"})
    one_line(inspect("org/m:q4_0"), 2, "org/m has several GGUF files for 'q4_0'; name one of: m-Q4_0.gguf",
             "m-UD-Q4_0.gguf")


def test_split_gguf_is_fetched_whole(inspect, hub, cache):
    files = {"Q8_0/m-Q8_0-%05d-of-00003.gguf" % i: b"part %d" % i for i in (2, 1, 3)}
    repo = hub.add("org/m", files | {"m-Q4_0.gguf": b"x"})
    got = inspect("org/m:Q8_0")
    check_cache(cache, repo, files, "org/m")
    assert got.returncode == 1 and "m-Q8_0-00001-of-00003.gguf" in got.stderr.splitlines()[-1]  # no GGUF in it
    hub.add("org/n", dict(list(files.items())[:2]))
    one_line(inspect("org/n:Q8_0"), 1, "has 2 of 3 parts")


def test_no_weights(inspect, hub):
    hub.add("org/m", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    one_line(inspect("org/m"), 1, "org/m has no weights in a format we read")
    one_line(inspect("org/m:Q4_0"), 1, "org/m has no GGUF files")


# The program around it ----------------------------------------------------------------------

def test_progress_on_a_terminal(turbolm_bin, hub, cache, tiny_model):
    add_tiny(hub, tiny_model)
    hub.fault("cdn/blob", "drip", (40000, 0.15), times=1)
    master, slave = pty.openpty()
    process = subprocess.Popen([turbolm_bin, "generate", "--model", "org/tiny", *ARGS], env=hub.env(cache),
                               stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    text = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 4096):
            text += chunk
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert out.decode() == expected()
    lines = [line.strip() for line in text.decode().split("\r") if "%" in line]
    assert len(lines) > 3 and lines[-1].split("\x1b")[0].endswith("files")
    assert re.match(r"org/tiny \[[#.]{24}\] +\d+%  [\d.]+ kB of [\d.]+ kB  [\d.]+ (kB|MB|bytes)/s  ", lines[-2])
    assert any(re.search(r"\d:\d\d left", line) for line in lines)


def test_missing_libcurl(inspect, hub, tiny_model, tmp_path):
    add_tiny(hub, tiny_model)
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"):
        (tmp_path / name).write_text("no library")
    bad = {"LD_LIBRARY_PATH": str(tmp_path)}
    one_line(inspect("org/tiny", env=bad), 1, "fetching models needs libcurl, which is not there: install libcurl4")
    assert inspect("org/tiny").returncode == 0
    got = inspect("org/tiny", env=bad)  # what is in the cache needs none
    assert got.returncode == 0 and "using the copy in the cache" in got.stderr


@pytest.mark.parametrize("env, message", [
    ({"HF_ENDPOINT": "ftp://x"}, "HF_ENDPOINT: found 'ftp://x', expected an http or https address"),
    ({"HF_ENDPOINT": "http://a b"}, "HF_ENDPOINT"),
    ({"HF_HUB_DOWNLOAD_TIMEOUT": "x"}, "HF_HUB_DOWNLOAD_TIMEOUT: found 'x', expected seconds from 1 to 86400"),
    ({"HF_HUB_ETAG_TIMEOUT": "0"}, "HF_HUB_ETAG_TIMEOUT"),
    ({"MLXLM_USE_MODELSCOPE": "True"}, "MLXLM_USE_MODELSCOPE: fetching from ModelScope is not supported"),
])
def test_bad_environment(inspect, hub, env, message):
    one_line(inspect("org/tiny", env=env), 1 if "MLXLM_USE_MODELSCOPE" in env else 2, message)
    assert hub.requests() == []


# https --------------------------------------------------------------------------------------

@pytest.fixture
def certificate(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path,
                   check=True, capture_output=True)
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


def test_https(run, hub, cache, tiny_model, certificate):
    repo = add_tiny(hub, tiny_model)
    hub.use_tls(*certificate)
    one_line(run("org/tiny", env={"HF_ENDPOINT": hub.url}), 1, "cannot reach the hub at https://", "ertificate")
    trusted = {"HF_ENDPOINT": hub.url, "CURL_CA_BUNDLE": certificate[0], "HF_TOKEN": hub.token}
    assert all("Authorization" not in headers for *_, headers in hub.log)
    hub.redirect_headers = {"Location": hub.cdn_url.replace("https", "http") + "/x"}
    one_line(run("org/tiny", env=trusted), 1, "redirects from https to http")
    hub.redirect_headers = {}
    assert run("org/tiny", env=trusted).stdout == expected()
    check_cache(cache, repo)


# manage ---------------------------------------------------------------------------------------

def manage_cases():
    with open(os.path.join(ROOT, "data", "hub", "manage.json")) as f:
        return json.load(f)["cases"]


def clean_env(cache):
    return {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"HF_HUB_CACHE": cache}


def test_manage_prints_what_mlx_lm_prints(turbolm, tmp_path):
    cache = cache_tree.make(cache_tree.padded(tmp_path))
    for case in manage_cases():
        got = turbolm("manage", *case["args"], env=clean_env(cache), input=case["answers"])
        assert (got.returncode, got.stdout.replace(cache, "CACHE")) == (0, case["stdout"]), case["args"]
        warnings = got.stderr.splitlines()
        assert len(warnings) == 2 * len(set(case["args"]) & {"--scan", "--delete"})
        assert all(re.match("warning: models--mlx--broken-(link|ref) is left out: ", w) for w in warnings)
    assert not os.path.exists(os.path.join(cache, "models--org--mlx-other"))
    assert os.listdir(os.path.join(cache, ".locks")) == []
    assert {"datasets--org--mlx-data", "spaces--org--mlx-space", "models--gpt2"} <= set(os.listdir(cache))


def test_delete_follows_no_links(turbolm, tmp_path):
    cache, outside = str(tmp_path / "cache"), tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("keep")
    repos = {"models--org--%s" % n: ({"a" * 40: {"x": "b"}}, {"b": (5, 0, 0)}, {"main": "a" * 40}) for n in "pq"}
    cache_tree.make(cache, repos)
    os.symlink(outside, os.path.join(cache, "models--org--p", "out"))
    os.symlink(outside / "keep", os.path.join(cache, "models--org--p", "blobs", "c"))
    os.symlink(outside, os.path.join(cache, "models--org--p", "snapshots", "a" * 40, "folder"))
    os.rename(os.path.join(cache, "models--org--q"), outside / "q")
    os.symlink(outside / "q", os.path.join(cache, "models--org--q"))
    got = turbolm("manage", "--delete", "--pattern", "org", env=clean_env(cache), input="y\n")
    assert got.returncode == 1 and "successfully" not in got.stdout
    assert re.fullmatch("error: cannot delete org/q: .* is a link, which is not followed; remove it by hand\n",
                        got.stderr.replace("error: /", "error: cannot delete org/q: /"))
    assert not os.path.exists(os.path.join(cache, "models--org--p"))
    assert (outside / "keep").read_text() == "keep" and (outside / "q" / "blobs" / "b").exists()


def test_delete_needs_an_answer(turbolm, tmp_path):
    cache = cache_tree.make(str(tmp_path / "cache"))
    got = turbolm("manage", "--delete", env=clean_env(cache), input="")
    assert got.returncode == 1 and "nothing is deleted" in got.stderr
    assert os.path.exists(os.path.join(cache, "models--mlx-community--Tiny-4bit", "refs", "main"))


def test_the_tail_of_a_long_line_is_no_answer(turbolm, tmp_path):
    cache = cache_tree.make(str(tmp_path / "cache"))
    got = turbolm("manage", "--delete", env=clean_env(cache), input="n" * 255 + "y\n")
    assert got.returncode == 1 and "Invalid input" in got.stdout and "nothing is deleted" in got.stderr
    assert os.path.exists(os.path.join(cache, "models--mlx-community--Tiny-4bit", "refs", "main"))


def test_manage_without_a_cache(turbolm, tmp_path):
    got = turbolm("manage", "--scan", env=clean_env(str(tmp_path / "none")))
    assert got.returncode == 1 and got.stdout == 'Scanning Hugging Face cache for models with pattern "mlx".\n'
    assert got.stderr == "error: the cache %s cannot be read: No such file or directory\n" % (tmp_path / "none")


def test_manage_on_what_was_fetched(turbolm, run, hub, cache, tiny_model):
    repo = add_tiny(hub, tiny_model, "mlx-community/tiny")
    run("mlx-community/tiny")
    got = turbolm("manage", "--scan", env=hub.env(cache))
    size = "%.1fK" % (sum(len(f.data) for f in repo.files.values()) / 1000)
    row = got.stdout.splitlines()[3].split()
    assert row[:4] == ["mlx-community/tiny", "model", size, str(len(repo.files))]
    got = turbolm("manage", "--delete", "--pattern", "tiny", env=hub.env(cache), input="yes\n")
    assert got.returncode == 0 and got.stdout.endswith("\nModel(s) deleted successfully.\n")
    assert sorted(os.listdir(cache)) == [".locks", "CACHEDIR.TAG"]
    assert run("mlx-community/tiny").stdout == expected()
