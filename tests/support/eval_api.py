"""Measuring text through ctypes, for tests that need every bit of the figures."""
import ctypes as c

from engine_api import EXACT, Error, Failed, ModelOptions

REPORT = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.c_size_t)


class Options(c.Structure):
    _fields_ = [("row_length", c.c_size_t), ("score_from", c.c_size_t), ("batch", c.c_size_t),
                ("pass_tokens", c.c_size_t), ("reference", c.c_char_p), ("formats", c.POINTER(c.c_char_p)),
                ("n_formats", c.c_size_t), ("report", REPORT), ("user", c.c_void_p)]


class Perplexity(c.Structure):
    _fields_ = [("kv_format", c.c_char * 64), ("kv_bits", c.c_double), ("cache_bytes", c.c_uint64),
                ("perplexity", c.c_double), ("error", c.c_double), ("tokens", c.c_size_t), ("kl_mean", c.c_double),
                ("kl_p99", c.c_double), ("top1", c.c_double), ("ratio", c.c_double), ("ratio_error", c.c_double),
                ("logit_error", c.c_double), ("logit_distance", c.c_double)]


def as_dict(p):
    return {name: getattr(p, name) for name, _ in Perplexity._fields_}


class Model:
    def __init__(self, lib_path, model_path, precision=EXACT, **options):
        self.lib, self.handle, self.err = c.CDLL(lib_path), c.c_void_p(), Error()
        self.lib.tlm_kv_preset.argtypes, self.lib.tlm_kv_preset.restype = [c.c_size_t], c.c_char_p
        o = ModelOptions(precision=precision, **options)
        self.check(self.lib.tlm_model_open(str(model_path).encode(), c.byref(o), c.byref(self.handle),
                                           c.byref(self.err)))

    def check(self, status):
        if status:
            message, self.err = self.err.message.decode(), Error()
            raise Failed(message)

    def close(self):
        self.lib.tlm_model_close(self.handle)

    def presets(self):
        names = []
        while (name := self.lib.tlm_kv_preset(len(names))) is not None:
            names.append(name.decode())
        return names

    def perplexity(self, ids, row_length, formats=(), reference=None, report=None, **options):
        """[figures of a format], as dicts."""
        o, out, ids, n = self._arguments(ids, row_length, formats, reference, report, options)
        self.check(self.lib.tlm_model_perplexity(self.handle, ids, n, c.byref(o), out, c.byref(self.err)))
        return [as_dict(p) for p in out]

    def compare(self, a, ids, row_length, formats=(), reference=None, report=None, **options):
        """Figures of model a, which is the measure, and of this one."""
        o, out, ids, n = self._arguments(ids, row_length, formats, reference, report, options)
        of_a = Perplexity()
        self.check(self.lib.tlm_model_compare(a.handle, self.handle, ids, n, c.byref(o), c.byref(of_a), out,
                                              c.byref(self.err)))
        return as_dict(of_a), as_dict(out[0])

    def _arguments(self, ids, row_length, formats, reference, report, options):
        n = len(ids) // row_length
        o = Options(row_length=row_length, reference=reference and reference.encode(), n_formats=len(formats),
                    report=REPORT(report) if report else REPORT(), **options)
        o.formats = (c.c_char_p * max(len(formats), 1))(*[f.encode() for f in formats])
        out = (Perplexity * max(len(formats), 1))()
        return o, out, (c.c_int32 * max(len(ids), 1))(*ids), c.c_size_t(n)
