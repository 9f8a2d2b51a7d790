"""Writes tests/data/kv/kv.safetensors: what numpy, MLX and mlx_turboquant make of cache keys.

    PYTHONPATH=<unpacked mlx_turboquant> python tests/oracle/make_kv_goldens.py

Made with numpy 2.4.6, mlx 0.32.4 (its CPU build), mlx-lm 0.32.2 and mlx_turboquant 0.0.2. Tensors:

  pcg.<seed>                     default_rng(seed).random(64) * 2^53
  hadamard.<n>.x, .y             mlx_turboquant's rht with its key seed, in float32
  affine.x                       rows of keys; affine.<bits>.<group>.codes, .scales, .biases: mx.quantize of them
  rot.<dim>.k, .q                keys and queries, float16
  rot.<dim>.<bits>.*             codes, scales, biases, norms, signs, and scores without and with the sketch:
                                 mlx_turboquant on float32 keys, its cache's scales in float16
  half.<dim>.<bits>.*            codes and scores as a float16 model on Metal has them
  levels.<dim>.<bits>            Lloyd-Max levels times sqrt(dim), then the distortion of a unit vector

mlx_turboquant runs here but for three things that are restated below: its probe of Hadamard sizes, which
writes past its memory on the CPU; its Metal kernel for signs; and MLX's Metal Hadamard kernel, which in
float16 rounds after each radix-16 pass and after the scale, where the CPU kernel rounds after each butterfly.
"""
import os
from importlib.metadata import version

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

import mlx_turboquant.kv_cache as tq_cache  # noqa: E402
import mlx_turboquant.qjl as qjl  # noqa: E402
import mlx_turboquant.rotation as rotation  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "kv", "kv.safetensors")
KEY_SEED = tq_cache._KV_ROT_SEED
SIZES = [8, 12, 16, 20, 24, 28, 36, 40, 56, 64, 80, 96, 100, 112, 128, 160, 192, 256, 7, 33]


def block(n):
    """The largest divisor of n that MLX transforms: 2^k times 1, 12, 20 or 28."""
    good = {m << k for m in (1, 12, 20, 28) for k in range(14)}
    return max(h for h in range(1, n + 1) if n % h == 0 and h in good)


for module in (tq_cache, qjl, rotation):
    module.supported_hadamard_block = block


def pcg(out):
    for seed in (KEY_SEED, qjl.QJL_SEED, 0, 2**40 + 5):
        x = np.random.default_rng(seed).random(64) * 2.0**53
        out["pcg.%d" % seed] = x.astype(np.uint64)


def hadamard(out):
    rng = np.random.default_rng(1)
    for n in SIZES:
        x = rng.standard_normal((3, n)).astype(np.float32)
        out["hadamard.%d.x" % n] = x
        out["hadamard.%d.y" % n] = np.array(rotation.rht(mx.array(x), KEY_SEED))


def unpack(packed, bits, n):
    """MLX packs codes from the low bits of 32-bit words up, without gaps."""
    stream = np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=-1, bitorder="little")
    return np.packbits(stream.reshape(*packed.shape[:-1], n, bits), axis=-1, bitorder="little")[..., 0]


def affine(out):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((16, 128)).astype(np.float32)
    x[1] *= 1e-6
    x[2] = 0
    x[3] = 0.25
    x[4] = rng.uniform(-6e4, 6e4, 128)
    x[5, ::7] *= 30
    x[6] = np.abs(x[6])
    x[7] = -np.abs(x[7]) - 3
    x[8] = rng.integers(-2, 3, 128)
    x[9, :64] = -0.0
    out["affine.x"] = x
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            codes, scales, biases = mx.quantize(mx.array(x), group, bits)
            name = "affine.%d.%d." % (bits, group)
            out[name + "codes"] = unpack(np.array(codes), bits, 128)
            out[name + "scales"] = np.array(scales.astype(mx.float16))
            out[name + "biases"] = np.array(biases.astype(mx.float16))


def keys_and_queries(dim):
    rng = np.random.default_rng(dim)
    k = rng.standard_normal((64, dim)) * 0.7
    k[:, 5] += 6
    k[:, 11] *= 5
    q = rng.standard_normal((8, dim)) + 0.3 * k[:8]
    return k.astype(np.float16), q.astype(np.float16)


def sign_dot(q, signs, factor):
    """The Metal kernel qjl_sign_dot: sums of +-q, times the scaled norms."""
    pm = np.unpackbits(signs.view(np.uint8), axis=-1, bitorder="little").astype(np.float32) * 2 - 1
    return (q.astype(np.float32) @ pm.T) * factor.astype(np.float32)


def rot(out, dim, bits):
    k, q = keys_and_queries(dim)
    out["rot.%d.k" % dim], out["rot.%d.q" % dim] = k, q
    name = "rot.%d.%d." % (dim, bits)
    cache = tq_cache.TurboQuantKVCache(group_size=64, bits=bits)
    k32, q32 = mx.array(k.astype(np.float32)), mx.array(q.astype(np.float32))
    (codes, scales, biases), _ = cache.update_and_fetch(k32[None, None], k32[None, None])
    codes, scales, biases = (a[0, 0] for a in (codes, scales.astype(mx.float16), biases.astype(mx.float16)))
    khat = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), 64, bits)
    rk, rq = cache.rotate_key(k32), cache.rotate_query(q32)
    norms, signs = qjl.sketch_residual(rk - khat)
    norms = norms.astype(mx.float16)
    scores = np.array(rq @ khat.T)
    factor = np.array(norms[:, 0].astype(mx.float32)) * np.float32(qjl.qjl_constant(dim))
    out[name + "codes"] = unpack(np.array(codes), bits, dim)
    out[name + "scales"], out[name + "biases"] = np.array(scales), np.array(biases)
    out[name + "norms"], out[name + "signs"] = np.array(norms[:, 0]), np.array(signs).view(np.uint8)
    out[name + "scores"] = scores
    out[name + "sketched"] = scores + sign_dot(np.array(qjl.project_query(rq)), np.array(signs), factor)


def half_rht(x, seed):
    """rht of float16 rows as MLX's Metal kernel does it; sizes are powers of two."""
    h = x.shape[-1]
    done = 1
    x = x.astype(np.float32)
    while done < h:
        radix = min(16, h // done)
        for _ in range(radix.bit_length() - 1):
            y = x.reshape(-1, h // (2 * done), 2, done)
            x = np.stack([y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]], 2).reshape(-1, h)
            done *= 2
        x = x.astype(np.float16).astype(np.float32)
    x = (x * np.float32(h**-0.5)).astype(np.float16)
    return x * np.array(rotation.signs_for(seed, h)).astype(np.float16)


def half(out, dim, bits):
    k, q = keys_and_queries(dim)
    name = "half.%d.%d." % (dim, bits)
    rk, rq = half_rht(k, KEY_SEED), half_rht(q, KEY_SEED)
    codes, scales, biases = mx.quantize(mx.array(rk), 64, bits)
    khat = mx.dequantize(codes, scales, biases, 64, bits)
    r = mx.array(rk) - khat
    norms = mx.sqrt(mx.sum(r * r, axis=-1)).astype(mx.float16)
    signs = np.array(qjl.pack_signs(mx.array(half_rht(np.array(r), qjl.QJL_SEED))))
    factor = (norms * qjl.qjl_constant(dim)).astype(mx.float16)
    scores = (rq.astype(np.float32) @ np.array(khat.astype(mx.float32)).T).astype(np.float16).astype(np.float32)
    out[name + "codes"] = unpack(np.array(codes), bits, dim)
    out[name + "sketched"] = scores + sign_dot(half_rht(rq, qjl.QJL_SEED), signs, np.array(factor))


def levels(out, dim, bits):
    """Lloyd's iteration on the whole density, by the trapezoid rule over angles x = sin(a), from quantiles."""
    a = np.linspace(-np.pi / 2, np.pi / 2, 400001)
    x, f = np.sin(a), np.cos(a) ** (dim - 2)
    step = a[1] - a[0]
    cumulate = lambda y: np.concatenate([[0], np.cumsum((y[1:] + y[:-1]) / 2 * step)])  # noqa: E731
    mass, first, second = cumulate(f), cumulate(f * x), cumulate(f * x * x)
    level = np.interp((np.arange(2**bits) + 0.5) / 2**bits, mass / mass[-1], x)
    for _ in range(20000):
        edges = np.concatenate([[-1], (level[1:] + level[:-1]) / 2, [1]])
        m, s = (np.diff(np.interp(edges, x, y)) for y in (mass, first))
        new = s / m
        moved, level = abs(new - level).max(), new
        if moved < 1e-14:
            break
    error = second[-1] - (s * s / m).sum()
    out["levels.%d.%d" % (dim, bits)] = np.append(level * dim**0.5, dim * error / mass[-1]).astype(np.float32)


def main():
    from safetensors.numpy import save_file
    out = {}
    pcg(out)
    hadamard(out)
    affine(out)
    for dim in (64, 128):
        for bits in (2, 3, 4, 8):
            rot(out, dim, bits)
            half(out, dim, bits)
    for dim in (64, 80, 128, 256):
        for bits in (1, 2, 3, 4, 5):
            levels(out, dim, bits)
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, OUT,
              metadata={p: version(p) for p in ("numpy", "mlx", "mlx-lm")} | {"mlx_turboquant": "0.0.2"})


if __name__ == "__main__":
    main()
