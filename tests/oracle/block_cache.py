"""turbolm's rule for quantised caches in MLX: a file's codes for what was sealed, exact keys and values behind it,
MLX's quantiser where a block of 64 is full.

mlx-lm itself quantises the newest tokens too, so with few bits its text is another one.
"""
import mlx.core as mx

BLOCK = 64


class BlockCache:
    """A quantised part, in blocks, and an exact one behind it."""

    def __init__(self, q, exact_from):
        self.offset, self.q = exact_from, (q.group_size, q.bits)
        parts = [tuple(x[..., : q.offset, :] for x in part) for part in (q.keys, q.values)]
        whole = [self.floats(p) for p in parts]
        at = exact_from // BLOCK * BLOCK
        self.sealed = [x[..., :at, :] for x in whole]
        self.open = [x[..., at:exact_from, :].astype(mx.float16) for x in whole]

    def floats(self, part):
        codes, scales, biases = part
        return mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), *self.q)

    def update_and_fetch(self, keys, values):
        assert keys.shape[2] == 1
        if self.open[0].shape[2] == BLOCK:
            self.sealed = [mx.concatenate([s, self.floats(mx.quantize(o, *self.q))], 2)
                           for s, o in zip(self.sealed, self.open)]
            self.open = [o[..., :0, :] for o in self.open]
        self.open = [mx.concatenate([o, x.astype(mx.float16)], 2) for o, x in zip(self.open, (keys, values))]
        self.offset += 1
        return [mx.concatenate([s, o.astype(mx.float32)], 2) for s, o in zip(self.sealed, self.open)]

    def make_mask(self, n, **_):
        return None

    @property
    def state(self):
        return self.sealed, self.open
