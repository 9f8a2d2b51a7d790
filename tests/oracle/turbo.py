"""Rotated weights restated in numpy, float32 step by step: src/quant/turbo.c and src/quant/hadamard.c in other words.

The tables of levels are read from src/quant/turbo_levels.c; --levels finds them again, by Lloyd's iteration over
groups of 32 normal numbers with their best scale of either sign.
"""
import os
import re
import sys

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STARTS = np.float32([0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2])
ROUNDS = 2
F = np.float32


def source(name):
    with open(os.path.join(ROOT, "src", "quant", name)) as f:
        return f.read()


def table(bits):
    found = re.search(r"quant_table_turbo%d\[16\] = \{(.*?)\}" % bits, source("turbo_levels.c"), re.S).group(1)
    return np.float32([int(x) for x in found.split(",")])


def odd_matrix(m):
    """The m x m Hadamard matrix H; a vector x along m becomes x H."""
    if m == 1:
        return np.ones((1, 1), np.float32)
    found = re.search(r"m%d\[%d\]\[%d\] = \{(.*?)\};" % (m, m, m + 1), source("hadamard.c"), re.S).group(1)
    return np.float32([[1 if c == "+" else -1 for c in row] for row in re.findall('"([+-]+)"', found)])


def block(n):
    sizes = [m << k for m in (1, 12, 20, 28) for k in range(20)]
    return max(h for h in sizes if h <= n and n % h == 0)


def bf16(x):
    b = np.asarray(x, np.float32).view(np.uint32)
    return ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def hadamard(x, h):
    """Blocks of h along the last axis."""
    m = next(m for m in (28, 20, 12, 1) if h % m == 0 and (h // m) & (h // m - 1) == 0)
    y = x.astype(np.float32).reshape(-1, m, h // m)
    size = 1
    while size < h // m:
        pairs = y.reshape(len(y), m, -1, 2, size)
        y = np.stack([pairs[:, :, :, 0] + pairs[:, :, :, 1], pairs[:, :, :, 0] - pairs[:, :, :, 1]], 3)
        y = y.reshape(-1, m, h // m)
        size *= 2
    if m > 1:
        matrix, out = odd_matrix(m), np.zeros_like(y)
        for i in range(m):
            out += matrix[i][None, :, None] * y[:, i][:, None]
        y = out
    return (y * F(1 / np.sqrt(np.float64(h)))).reshape(x.shape)


def signs(seed, n):
    return np.where(np.random.default_rng(seed).random(n) < 0.5, F(-1), F(1))


def rotate(w, seed):
    h = block(w.shape[-1])
    return hadamard(w * signs(seed, w.shape[-1]), h) if h >= 16 else w.astype(np.float32)


def lanes(x):
    """Sums over the last axis in eight lanes."""
    parts = x.reshape(*x.shape[:-1], -1, 8)
    s = np.zeros(parts.shape[:-2] + (8,), np.float32)
    for i in range(parts.shape[-2]):
        s = s + parts[..., i, :]
    return ((s[..., 0] + s[..., 4]) + (s[..., 2] + s[..., 6])) + ((s[..., 1] + s[..., 5]) + (s[..., 3] + s[..., 7]))


class Levels:
    def __init__(self, bits, levels=None):
        self.bits = bits
        if bits > 4:
            self.edge = self.least = F(-(1 << (bits - 1)))
            self.top = -self.least - F(1)
        else:
            self.table = table(bits) if levels is None else levels
            self.edge = self.table[-1]
            cells = 256 - np.arange(512)[:, None]
            self.code = np.sum(cells > (self.table[:-1] + self.table[1:]), -1)

    def codes(self, y):
        if self.bits > 4:
            return (np.rint(np.clip(y, self.least, self.top)) - self.least).astype(np.int64)
        return self.code[np.clip(F(256) - F(2) * np.nan_to_num(y), 0, 511).astype(np.int32)]

    def values(self, codes):
        return codes.astype(np.float32) + self.least if self.bits > 4 else self.table[codes]


def encode(x, bits, group, levels=None):
    """Codes like x, and scales, of rotated rows."""
    level = Levels(bits, levels)
    g = np.ascontiguousarray(x, np.float32).reshape(-1, group)
    top = g[np.arange(len(g)), np.abs(g).argmax(1)]
    best, scale = np.full(len(g), np.inf, np.float32), np.zeros(len(g), np.float32)
    code = np.zeros(g.shape, np.int64)
    usable = lambda s: np.abs(s) >= F(2.0**-120)
    with np.errstate(all="ignore"):
        for start in STARTS:
            for sign in (F(1), F(-1)):
                s = top / level.edge * start * sign
                for _ in range(ROUNDS):
                    v = level.values(level.codes(g * (F(1) / s)[:, None]))
                    size = lanes(v * v)
                    fitted = np.where(size > 0, lanes(g * v) / size, F(0))
                    s = np.where(usable(s), fitted, s).astype(np.float32)
                s = bf16(s)
                c = level.codes(g * (F(1) / s)[:, None])
                d = g - s[:, None] * level.values(c)
                d = lanes(d * d)
                take = usable(s) & (d < best)
                best, scale = np.where(take, d, best), np.where(take, s, scale)
                code = np.where(take[:, None], c, code)
    return code.reshape(x.shape), scale.reshape(*x.shape[:-1], -1)


def pack(codes, bits):
    """Rows of codes as bytes, first code lowest."""
    planes = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1).astype(np.uint8)
    return np.packbits(planes, axis=1, bitorder="little")


def decode(codes, scales, bits, group, seed):
    """The matrix that codes stand for, in double."""
    n = codes.shape[-1]
    y = Levels(bits).values(codes).astype(np.float64) * np.repeat(scales.astype(np.float64), group, -1)
    h = block(n)
    if h < 16:
        return y
    m = hadamard(np.eye(h, dtype=np.float32), h).astype(np.float64)
    return (y.reshape(-1, h) @ m.T).reshape(y.shape) * signs(seed, n)


def find_levels(bits, groups=30000, rounds=40):
    x = np.random.default_rng(7).standard_normal((groups, 32)).astype(np.float32)
    levels = table(bits)
    for _ in range(rounds):
        c, s = encode(x, bits, 32, levels)
        num = np.bincount(c.ravel(), (x * s).ravel(), 1 << bits)
        den = np.bincount(c.ravel(), np.broadcast_to(s * s, x.shape).ravel(), 1 << bits)
        levels = np.sort(num / den)
        levels = np.rint(levels * 127 / np.abs(levels).max()).astype(np.float32)
    return levels.astype(int).tolist()


if __name__ == "__main__" and sys.argv[1:] == ["--levels"]:
    for width in (2, 3, 4):
        print(width, find_levels(width))
