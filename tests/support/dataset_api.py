"""Data sets through ctypes: the ids of single rows, and orders."""
import ctypes as c

from engine_api import Error, Failed


class Info(c.Structure):
    _fields_ = [("format", c.c_char_p), ("rows", c.c_size_t), ("remote", c.c_int)]


class DataSet:
    """model: an eval_api.Model, whose tokenizer and template are used."""

    def __init__(self, model, path, split="train"):
        self.lib, self.model, self.handle, self.err = model.lib, model.handle, c.c_void_p(), Error()
        for name in ("tlm_model_tokenizer", "tlm_model_chat_template"):
            getattr(self.lib, name).restype = c.c_void_p
        self.lib.tlm_free.argtypes = [c.c_void_p]
        self.check(self.lib.tlm_dataset_open(str(path).encode(), split.encode(), c.byref(self.handle),
                                             c.byref(self.err)))
        info = Info()
        self.lib.tlm_dataset_info_get(self.handle, c.byref(info))
        self.format, self.rows, self.remote = info.format.decode(), info.rows, info.remote

    def check(self, status):
        if status:
            message, self.err = self.err.message.decode(), Error()
            raise Failed(message)

    def close(self):
        self.lib.tlm_dataset_close(self.handle)

    def encode(self, i, kwargs=None):
        ids, n = c.POINTER(c.c_int32)(), c.c_size_t()
        tokenizer = c.c_void_p(self.lib.tlm_model_tokenizer(self.model))
        template = c.c_void_p(self.lib.tlm_model_chat_template(self.model))
        self.check(self.lib.tlm_dataset_encode(self.handle, c.c_size_t(i), tokenizer, template,
                                               kwargs and kwargs.encode(), c.byref(ids), c.byref(n),
                                               c.byref(self.err)))
        out = ids[: n.value]
        self.lib.tlm_free(ids)
        return out


def order(lib, seed, n):
    out = (c.c_size_t * n)()
    lib.tlm_dataset_order(c.c_uint32(seed), c.c_size_t(n), out)
    return list(out)
