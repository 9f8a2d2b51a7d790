"""Goldens of MLX quantised models: logits of mlx-lm for codes and scales from a hash.

    python make_mlx_goldens.py --out ../data/mlx

One llama config in every quantisation mode of MLX, and one with entries per layer. The
file holds the config, the modes' logits [tokens, vocab] as base64 float32, and the
versions. Scales are bfloat16, except where the name says f16 or f32; activations are
float32. Needs mlx and mlx-lm; mlx_model.py makes the same tensors without them.
"""
import argparse
import base64
import json
import os
import tempfile
from importlib.metadata import version

import numpy as np

import mlx_model
from hashinit import hash_tokens

MODES = (["affine%dg%d" % (b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
         + ["affine4g64-f16", "affine4g64-f32", "mxfp4", "nvfp4", "mxfp8", "mixed"])
TOKENS = 6


def logits(directory, ids):
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model
    from pathlib import Path

    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(directory))
    model.update(tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a,
                          model.parameters()))
    return np.array(model(mx.array([ids])).astype(mx.float32))[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    ids = hash_tokens(TOKENS, mlx_model.CONFIG["vocab_size"])
    golden = {"tokens": ids, "versions": {p: version(p) for p in ("mlx", "mlx-lm")}, "logits": {}}
    for mode in MODES:
        with tempfile.TemporaryDirectory() as d:
            mlx_model.write(d, mode)
            x = logits(d, ids)
        assert np.isfinite(x).all() and x.std() > 0.05, (mode, x.std())
        golden["logits"][mode] = base64.b64encode(x.astype("<f4").tobytes()).decode()
        print(mode, x.std())
    with open(os.path.join(args.out, "goldens.json"), "w") as f:
        json.dump(golden, f, indent=0)


if __name__ == "__main__":
    main()
