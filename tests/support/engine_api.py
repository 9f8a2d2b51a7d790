"""The public engine through ctypes, for tests that need more than the program shows."""
import ctypes as c


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 1024)]


class ModelOptions(c.Structure):
    _fields_ = [("threads", c.c_int), ("device", c.c_char_p), ("precision", c.c_int), ("kv_format", c.c_char_p),
                ("kv_sink", c.c_int64), ("max_kv_size", c.c_int64), ("max_kv_keep", c.c_int64),
                ("quantized_kv_start", c.c_int64), ("metadata_only", c.c_int)]


class Sampling(c.Structure):
    _fields_ = [("temperature", c.c_float), ("top_p", c.c_float), ("min_p", c.c_float),
                ("min_tokens_to_keep", c.c_int), ("top_k", c.c_int), ("xtc_probability", c.c_float),
                ("xtc_threshold", c.c_float), ("repetition_penalty", c.c_float), ("presence_penalty", c.c_float),
                ("frequency_penalty", c.c_float), ("repetition_context", c.c_int), ("presence_context", c.c_int),
                ("frequency_context", c.c_int), ("logit_bias", c.c_void_p), ("n_logit_bias", c.c_size_t),
                ("has_seed", c.c_int), ("seed", c.c_uint64)]


class EngineOptions(c.Structure):
    _fields_ = [("prefill_step_size", c.c_int), ("max_sequences", c.c_int), ("max_queue", c.c_int),
                ("prefix_cache_bytes", c.c_int64)]


class Request(c.Structure):
    _fields_ = [("prompt", c.POINTER(c.c_int32)), ("n_prompt", c.c_size_t), ("max_tokens", c.c_int64),
                ("sampling", Sampling), ("eos", c.POINTER(c.c_int32)), ("n_eos", c.c_size_t),
                ("stop", c.POINTER(c.c_char_p)), ("n_stop", c.c_size_t), ("assumed_depth", c.c_int64),
                ("prompt_cache", c.c_void_p), ("save", c.c_void_p)]


class PromptCacheInfo(c.Structure):
    _fields_ = [("model", c.c_char_p), ("tokenizer_config", c.c_char_p), ("n_tokens", c.c_size_t),
                ("tokens", c.c_void_p), ("text", c.c_char_p), ("kv_format", c.c_char_p), ("kv_bits", c.c_int),
                ("kv_group_size", c.c_int), ("kv_sink", c.c_int64), ("quantized_kv_start", c.c_int64),
                ("max_kv_size", c.c_int64), ("max_kv_keep", c.c_int64), ("chat_template", c.c_char_p),
                ("path", c.c_char_p)]


class Stats(c.Structure):
    _fields_ = [("prompt_tokens", c.c_size_t), ("cached_tokens", c.c_size_t), ("generated_tokens", c.c_size_t),
                ("prompt_seconds", c.c_double), ("generation_seconds", c.c_double)]


class Event(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_uint64), ("token", c.c_int32), ("logprob", c.c_float),
                ("text", c.c_void_p), ("text_len", c.c_size_t), ("processed", c.c_size_t), ("total", c.c_size_t),
                ("finish", c.c_int), ("status", c.c_int), ("message", c.c_char_p), ("stats", Stats)]


NONE, PROGRESS, TOKEN, DONE = range(4)
FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR = range(1, 5)
EXACT, FAST = 1, 2


class Failed(Exception):
    pass


class PromptCache:
    def __init__(self, lib_path, path):
        self.lib, self.handle, err = c.CDLL(lib_path), c.c_void_p(), Error()
        if self.lib.tlm_prompt_cache_open(str(path).encode(), c.byref(self.handle), c.byref(err)):
            raise Failed(err.message.decode())

    def options(self):
        """Of an Engine that can use the file."""
        i = PromptCacheInfo()
        self.lib.tlm_prompt_cache_info_get(self.handle, c.byref(i))
        keep = {"max_kv_keep": i.max_kv_keep or -1} if i.max_kv_size > 0 else {}
        return {"kv_format": i.kv_format and i.kv_format.decode(), "max_kv_size": max(i.max_kv_size, 0)} | keep

    def close(self):
        self.lib.tlm_prompt_cache_close(self.handle)


class Engine:
    def __init__(self, lib_path, model_path, precision=EXACT, threads=0, step=0, max_sequences=0, kv_format=None,
                 kv_sink=0, max_kv_size=0, quantized_kv_start=0, max_kv_keep=0):
        self.lib = c.CDLL(lib_path)
        self.err = Error()
        self.model = c.c_void_p()
        self.engine = c.c_void_p()
        self.logprobs = []  # of the tokens of the last finish
        self.cached = {}  # by request: tokens of its prompt that were there already
        options = ModelOptions(threads, None, precision, kv_format and kv_format.encode(), kv_sink, max_kv_size,
                               max_kv_keep, quantized_kv_start, 0)
        self.check(self.lib.tlm_model_open(str(model_path).encode(), c.byref(options), c.byref(self.model),
                                           c.byref(self.err)))
        engine_options = EngineOptions(step, max_sequences, 0)
        self.check(self.lib.tlm_engine_new(self.model, c.byref(engine_options), c.byref(self.engine),
                                           c.byref(self.err)))

    def check(self, status):
        if status:
            message = self.err.message.decode()
            self.err = Error()
            raise Failed(message)

    def submit(self, ids, max_tokens=16, seed=None, stop=(), use_eos=False, depth=0, prompt_cache=None,
               **sampling):
        r = Request()
        self.lib.tlm_sampling_default(c.byref(r.sampling))
        for name, value in sampling.items():
            setattr(r.sampling, name, value)
        if seed is not None:
            r.sampling.has_seed, r.sampling.seed = 1, seed
        prompt = (c.c_int32 * max(len(ids), 1))(*ids)
        none = (c.c_int32 * 1)()
        stops = (c.c_char_p * max(len(stop), 1))(*[s.encode() for s in stop])
        r.prompt, r.n_prompt, r.max_tokens, r.assumed_depth = prompt, len(ids), max_tokens, depth
        r.eos, r.n_eos = (None, 0) if use_eos else (none, 0)
        r.stop, r.n_stop = stops, len(stop)
        r.prompt_cache = prompt_cache
        ident = c.c_uint64()
        self.check(self.lib.tlm_engine_submit(self.engine, c.byref(r), c.byref(ident), c.byref(self.err)))
        return ident.value

    def cancel(self, ident):
        self.lib.tlm_engine_cancel(self.engine, c.c_uint64(ident))

    def next(self, timeout_ms=60000):
        ev = Event()
        self.check(self.lib.tlm_engine_next(self.engine, timeout_ms, c.byref(ev), c.byref(self.err)))
        text = c.string_at(ev.text, ev.text_len) if ev.text else b""
        return ev, text

    def run(self, waiting):
        """Runs until every id of waiting is done: {id: (tokens, text, finish)}."""
        out = {i: ([], b"", None) for i in waiting}
        while any(finish is None for _, _, finish in out.values()):
            ev, text = self.next()
            assert ev.type != NONE, "no event within a minute"
            tokens, so_far, finish = out.setdefault(ev.id, ([], b"", None))
            if ev.type == TOKEN:
                tokens.append(ev.token)
            if ev.type == DONE:
                finish = ev.finish
                self.cached[ev.id] = ev.stats.cached_tokens
            out[ev.id] = (tokens, so_far + text, finish)
        return out

    def finish(self, ident):
        """Runs one request alone: (tokens, text, finish)."""
        tokens, text, self.logprobs = [], b"", []
        while True:
            ev, more = self.next()
            text += more
            if ev.type == TOKEN:
                tokens.append(ev.token)
                self.logprobs.append(ev.logprob)
            if ev.type == DONE:
                assert ev.finish != FINISH_ERROR, ev.message
                return tokens, text, ev.finish

    def close(self):
        self.lib.tlm_engine_free(self.engine)
        self.lib.tlm_model_close(self.model)
        self.engine = self.model = None
