"""turbolm and huggingface_hub on one cache: each must find complete what the other fetched, and the
scan must count alike.

usage: compare_hub_cache.py TURBOLM    (needs huggingface_hub and mlx-lm's patterns, no network)
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import fake_hub  # noqa: E402
import tiny_model  # noqa: E402

PATTERNS = ["*.json", "model*.safetensors", "*.py", "tokenizer.model", "*.tiktoken", "tiktoken.model", "*.txt",
            "*.jsonl", "*.jinja"]


def run(turbolm, hub, cache, *args, **env):
    got = subprocess.run([turbolm, *args], env=hub.env(cache, **env), capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    return got.stdout


def main():
    turbolm = os.path.abspath(sys.argv[1])
    hub = fake_hub.FakeHub()
    os.environ |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    import huggingface_hub

    def download(cache, offline):
        return huggingface_hub.snapshot_download("org/tiny", cache_dir=cache, allow_patterns=PATTERNS,
                                                 local_files_only=offline)

    with tempfile.TemporaryDirectory() as folder:
        repo = hub.add_folder("org/tiny", tiny_model.make(os.path.join(folder, "model")))
        hub.add("org/tiny", {f.name: f.data for f in repo.files.values()} | {"sub/x.json": b"{}", "README.md": b"#"})
        ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")

        run(turbolm, hub, ours, "inspect", "org/tiny")
        hub.clear()
        snapshot = download(ours, True)
        assert hub.requests() == [] and os.path.isdir(snapshot)
        assert download(ours, False) == snapshot
        assert hub.requests() == ["hub GET /api/models/org/tiny/revision/main"], hub.requests()
        print("huggingface_hub %s finds complete what turbolm fetched" % huggingface_hub.__version__)

        snapshot = download(theirs, False)
        hub.clear()
        run(turbolm, hub, theirs, "inspect", "org/tiny", HF_HUB_OFFLINE="1")
        assert hub.requests() == []
        assert snapshot in run(turbolm, hub, theirs, "inspect", "org/tiny")
        assert hub.requests() == ["hub GET /api/models/org/tiny/revision/main?blobs=true"], hub.requests()
        print("turbolm finds complete what huggingface_hub fetched")

        for cache in (ours, theirs):
            info = huggingface_hub.scan_cache_dir(cache)
            assert not info.warnings and not info.incomplete_files
            (r,) = info.repos
            row = run(turbolm, hub, cache, "manage", "--scan", "--pattern", "tiny").splitlines()[3].split()
            assert row[:4] == [r.repo_id, r.repo_type, r.size_on_disk_str, str(r.nb_files)], row
        a, b = (sorted(os.path.relpath(os.path.join(d, f), top) for d, _, fs in os.walk(top) for f in fs)
                for top in (ours, theirs))
        print("only of turbolm: %s; only of huggingface_hub: %s" % (sorted(set(a) - set(b)), sorted(set(b) - set(a))))
    hub.close()


main()
