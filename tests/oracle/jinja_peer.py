"""jinja2 as transformers 5.24 sets it up, and this library's engine through its
shared library: two functions that render the same thing, for comparisons."""

import ctypes
import datetime
import json
import logging
import os
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from transformers.utils import chat_template_utils as hf  # noqa: E402

NOW = 1_700_000_000
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Clock(datetime.datetime):
    """The clock of strftime_now, stopped."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


hf.datetime = Clock


class Answer:
    """text, or the error's message, its class ("": ours) and whether a limit stopped it."""

    def __init__(self, text=None, error=None, kind="", limit=False):
        self.text, self.error, self.kind, self.limit = text, error, kind, limit

    def __repr__(self):
        return repr(self.text) if self.error is None else f"{self.kind}: {self.error}"


def original(source, messages, tools=None, documents=None, variables=None, generate=True, go_on=False):
    """What apply_chat_template(tokenize=False) gives."""
    try:
        if not messages:
            raise ValueError("empty conversation")
        if generate and go_on:
            raise ValueError("not compatible")
        return Answer(
            hf.render_jinja_template(
                conversations=[hf._normalize_chat_messages(messages)],
                tools=tools,
                documents=documents,
                chat_template=source,
                continue_final_message=go_on,
                add_generation_prompt=generate,
                **(variables or {}),
            )[0][0]
        )
    except RecursionError as error:
        return Answer(error=str(error), kind="RecursionError", limit=True)
    except Exception as error:  # noqa: BLE001  whatever the original raises
        return Answer(error=str(error), kind=type(error).__name__)


class Error(ctypes.Structure):
    """struct tlm_error"""

    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class Request(ctypes.Structure):
    """struct tlm_chat_request"""

    _fields_ = [
        ("messages", ctypes.c_char_p),
        ("tools", ctypes.c_char_p),
        ("documents", ctypes.c_char_p),
        ("kwargs", ctypes.c_char_p),
        ("add_generation_prompt", ctypes.c_int),
        ("continue_final_message", ctypes.c_int),
        ("now", ctypes.c_int64),
    ]


class Engine:
    """The library's templates; path: libturbolm.so."""

    def __init__(self, path=None):
        self.lib = ctypes.CDLL(path or os.environ.get("TURBOLM_LIB") or os.path.join(ROOT, "build", "libturbolm.so"))
        self.lib.tlm_status_name.restype = ctypes.c_char_p
        for name in ("tlm_chat_template_free", "tlm_free"):
            getattr(self.lib, name).argtypes = [ctypes.c_void_p]

    def fail(self, e):
        limit = self.lib.tlm_status_name(e.status).decode() == "limit exceeded"
        return Answer(error=e.message.decode("utf-8", "replace"), limit=limit)

    def compile(self, source):
        """A handle, or the Answer with the error."""
        handle, e = ctypes.c_void_p(), Error()
        text = source.encode("utf-8")
        if self.lib.tlm_chat_template_new(text, b"chat template", None, None, ctypes.byref(handle), ctypes.byref(e)):
            return self.fail(e)
        return handle

    def render(self, handle, messages, tools=None, documents=None, variables=None, generate=True, go_on=False):
        """handle: from compile."""
        if isinstance(handle, Answer):
            return handle
        pack = lambda v: None if v is None else json.dumps(v).encode()  # noqa: E731
        r = Request(pack(messages), pack(tools), pack(documents), pack(variables), generate, go_on, NOW)
        text, n, e = ctypes.c_void_p(), ctypes.c_size_t(), Error()
        if self.lib.tlm_chat_template_render(
            handle, ctypes.byref(r), ctypes.byref(text), ctypes.byref(n), ctypes.byref(e)
        ):
            return self.fail(e)
        out = ctypes.string_at(text, n.value).decode("utf-8")
        self.lib.tlm_free(text)
        return Answer(out)

    def free(self, handle):
        """Every handle from compile, answers included."""
        if not isinstance(handle, Answer):
            self.lib.tlm_chat_template_free(handle)


def same(want, got):
    """Both the same text, or both an error; a template's own message word for word."""
    if want.error is None or got.error is None:
        return want.text == got.text and (want.error is None) == (got.error is None)
    return want.kind != "TemplateError" or want.error == got.error
