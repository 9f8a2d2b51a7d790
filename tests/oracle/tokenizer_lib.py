"""libturbolm's tokenizer through ctypes, for the comparison scripts."""
import ctypes
import os


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class Info(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char_p)] + [(n, ctypes.c_int32) for n in ("vocab_size", "bos", "eos", "unk", "pad")] \
        + [("adds_bos", ctypes.c_int)]


class Tokenizer:
    SPECIAL, PLAIN = 1, 2

    def __init__(self, path, lib=None):
        self.lib = lib = ctypes.CDLL(lib or os.environ["TURBOLM_LIB"])
        lib.tlm_tokenizer_free.argtypes = [ctypes.c_void_p]
        lib.tlm_free.argtypes = [ctypes.c_void_p]
        self.t = ctypes.c_void_p()
        self.call("tlm_tokenizer_open", path.encode(), ctypes.byref(self.t))

    def call(self, name, *args):
        e = Error()
        if getattr(self.lib, name)(*args, ctypes.byref(e)):
            raise ValueError(e.message.decode())

    def info(self):
        info = Info()
        self.lib.tlm_tokenizer_info_get(self.t, ctypes.byref(info))
        return info

    def encode(self, data, flags=0):
        if isinstance(data, str):
            data = data.encode()
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.call("tlm_tokenizer_encode", self.t, data, ctypes.c_size_t(len(data)), ctypes.c_uint(flags),
                  ctypes.byref(ids), ctypes.byref(n))
        out = ids[:n.value]
        self.lib.tlm_free(ids)
        return out

    def decode(self, ids, skip=False):
        a = (ctypes.c_int32 * len(ids))(*ids)
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("tlm_tokenizer_decode", self.t, a, ctypes.c_size_t(len(ids)), ctypes.c_uint(int(skip)),
                  ctypes.byref(text), ctypes.byref(n))
        out = ctypes.string_at(text, n.value)
        self.lib.tlm_free(text)
        return out

    def stream(self, ids, skip=False):
        d, piece, n = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        self.call("tlm_detokenizer_new", self.t, ctypes.c_uint(int(skip)), ctypes.byref(d))
        out = []
        for i in ids:
            self.call("tlm_detokenizer_push", d, ctypes.c_int32(i), ctypes.byref(piece), ctypes.byref(n))
            out.append(ctypes.string_at(piece, n.value))
        self.call("tlm_detokenizer_finish", d, ctypes.byref(piece), ctypes.byref(n))
        out.append(ctypes.string_at(piece, n.value))
        self.lib.tlm_detokenizer_free.argtypes = [ctypes.c_void_p]
        self.lib.tlm_detokenizer_free(d)
        return out

    def close(self):
        self.lib.tlm_tokenizer_free(self.t)
