"""A small reader of GGUF version 3: metadata with types, tensors with their bytes."""
import math
import struct

TYPES = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64"]
FORMATS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q",
           "i64": "q", "f64": "d"}
# number: name, elements and bytes of a block
TENSORS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34),
           30: ("BF16", 1, 2)}
ALIGN = 32


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        assert self.at + n <= len(self.data), "the file ends too early"
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, kind):
        fmt = "<" + FORMATS[kind]
        return struct.unpack(fmt, self.take(struct.calcsize(fmt)))[0]

    def text(self):
        return self.take(self.number("u64")).decode()

    def value(self, kind):
        if kind == "str":
            return self.text()
        if kind != "array":
            return self.number(kind)
        inner, n = TYPES[self.number("u32")], self.number("u64")
        return [self.value(inner) for _ in range(n)]


def read(path):
    """({key: value}, {key: type}, {name: (type, shape from outermost, bytes)}); checks the layout on the way."""
    with open(path, "rb") as f:
        c = Cursor(f.read())
    assert c.take(4) == b"GGUF" and c.number("u32") == 3
    n_tensors, n_kv = c.number("u64"), c.number("u64")
    meta, kinds, infos = {}, {}, []
    for _ in range(n_kv):
        key = c.text()
        assert key not in meta, key
        kinds[key] = TYPES[c.number("u32")]
        meta[key] = c.value(kinds[key])
    for _ in range(n_tensors):
        name, dims = c.text(), c.number("u32")
        shape = [c.number("u64") for _ in range(dims)][::-1]
        infos.append((name, shape, c.number("u32"), c.number("u64")))
    start, tensors = -(-c.at // ALIGN) * ALIGN, {}
    for name, shape, kind, offset in infos:
        label, block, size = TENSORS[kind]
        assert offset % ALIGN == 0 and shape[-1] % block == 0, name
        assert not any(c.take(start + offset - c.at)), "%s: padding" % name
        tensors[name] = (label, shape, c.take(math.prod(shape) // block * size))
    assert not any(c.take(-c.at % ALIGN)) and c.at == len(c.data)
    return meta, kinds, tensors
