"""A cache of models in the layout of huggingface_hub, with known times, for tests of what counts it."""
import os
import time

DAY = 86400.0
A, B, C = "a" * 40, "b" * 40, "c" * 40
# folder: (revisions {commit: {file: blob}}, blobs {name: (size, days since access, days since change)}, refs)
REPOS = {
    "models--mlx-community--Tiny-4bit": (
        {A: {"config.json": "b1", "model.safetensors": "b2", "sub/dir/x.json": "b1"},
         B: {"config.json": "b3", "model.safetensors": "b2"}},
        {"b1": (700, 3, 10), "b2": (269100000, 2, 40), "b3": (999, 1, 3), "b4.incomplete": (5000, 0, 0)},
        {"main": B, "refs/pr/1": A}),
    "models--org--mlx-other": ({C: {"w.gguf": "b5"}}, {"b5": (999949, 0.1, 400)}, {"main": C}),
    "models--gpt2": ({A: {"mlx.txt": "b6"}}, {"b6": (999950, 0.001, 800)}, {"main": A}),
    "models--org--mlx--three--parts": ({A: {"x": "b7"}}, {"b7": (0, 21, 49)}, {}),
    "models--mlx--empty": ({A: {}}, {}, {"main": A}),
    "datasets--org--mlx-data": ({A: {"x": "b8"}}, {"b8": (10, 1, 1)}, {"main": A}),
    "spaces--org--mlx-space": ({A: {"x": "b9"}}, {"b9": (10, 1, 1)}, {"main": A}),
    # these two are left out, as the original does
    "models--mlx--broken-link": ({A: {"x": "none"}}, {}, {"main": A}),
    "models--mlx--broken-ref": ({A: {}}, {}, {"main": B}),
}


PATH_LENGTH = 160  # of the cache's path: the widths of the table hang on it


def padded(folder):
    """A folder below `folder` whose path has PATH_LENGTH characters."""
    left = PATH_LENGTH - len(os.path.realpath(folder)) - 1
    assert left > 0, "%s is too long" % folder
    return os.path.join(os.path.realpath(folder), "x" * left)


def make(cache, repos=None):
    now = time.time()
    for folder, (revisions, blobs, refs) in (repos or REPOS).items():
        top = os.path.join(cache, folder)
        os.makedirs(os.path.join(top, "blobs"))
        for name, (size, accessed, changed) in blobs.items():
            path = os.path.join(top, "blobs", name)
            with open(path, "wb") as f:
                f.truncate(size)
            os.utime(path, (now - accessed * DAY, now - changed * DAY))
        for commit, files in revisions.items():
            os.makedirs(os.path.join(top, "snapshots", commit))
            for name, blob in files.items():
                path = os.path.join(top, "snapshots", commit, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink("../" * (2 + name.count("/")) + "blobs/" + blob, path)
        for name, commit in refs.items():
            path = os.path.join(top, "refs", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(commit)
        if not blobs:
            os.utime(top, (now - 5 * DAY, now - 6 * DAY))
    os.makedirs(os.path.join(cache, ".locks", "models--org--mlx-other"))
    with open(os.path.join(cache, "CACHEDIR.TAG"), "w") as f:
        f.write("Signature: 8a477f597d28d172789f06886806bc55\n")
    return str(cache)
