"""A program on a terminal of its own: what is typed, what it shows, what it leaves behind."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

ESCAPE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")


def visible(data):
    """Without escape sequences and carriage returns, as text."""
    return ESCAPE.sub(b"", data).replace(b"\r", b"").decode("utf-8", "replace")


def take_terminal():
    """In the child: the terminal is its own, and signals act even where those who started us ignore them."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    def __init__(self, command, env=None, rows=24, columns=80, cwd=None):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns, tell=False)
        self.before = self.modes()
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=env,
                                        cwd=cwd, start_new_session=True,
                                        preexec_fn=take_terminal)
        self.data = b""   # everything shown so far
        self.seen = 0     # what expect() has gone past

    def modes(self):
        """Input, output, control and local modes, and the special characters."""
        m = termios.tcgetattr(self.slave)
        return m[:4] + [m[6]]

    def resize(self, rows, columns, tell=True):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def send(self, text):
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self.master, data):]

    def read(self, seconds):
        """Whether something came."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.data += os.read(self.master, 65536)
        return True

    def expect(self, pattern, seconds=60):
        """Waits for a regular expression in what is shown from here on; the match."""
        end = time.monotonic() + seconds
        while True:
            match = re.compile(pattern, re.S).search(visible(self.data), self.seen)
            if match:
                self.seen = match.end()
                return match
            assert time.monotonic() < end, "no %r in %r" % (pattern, visible(self.data)[self.seen :])
            if not self.read(0.1):
                assert self.process.poll() is None or self.read(0), "ended: %r" % visible(self.data)[self.seen :]

    def wait(self, seconds=60):
        """The exit status; all of the output is in data then."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            self.read(0.05)
            assert time.monotonic() < end, "no end: %r" % visible(self.data)[self.seen :]
        while self.read(0):
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
