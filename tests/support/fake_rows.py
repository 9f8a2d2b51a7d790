"""The rows server of a hub in this process: /splits and /rows, and what goes wrong with them.

rows = FakeRows({("org/name", "default", "train"): [row, ...]}); rows.env() is the environment of a client.
rows.log is what was asked: (path, {parameter: value}, headers).
"""
import json
import os
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def setup(self):
        super().setup()
        self.server.rows.connections += 1

    def do_GET(self):
        server = self.server.rows
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, strict_parsing=True))
        with server.lock:
            server.log.append((url.path, query, dict(self.headers)))
            fault = server.faults.pop(0) if server.faults else None
        if fault:
            return self.answer(*fault)
        splits = {key: rows for key, rows in server.splits.items() if key[0] == query.get("dataset")}
        if not splits:
            return self.answer(404, {"error": "The dataset does not exist."})
        if url.path == "/splits":
            return self.answer(200, {"splits": [dict(zip(("dataset", "config", "split"), key)) for key in splits],
                                     "pending": [], "failed": []})
        rows = splits.get((query["dataset"], query["config"], query["split"]))
        first, n = int(query["offset"]), int(query["length"])
        if url.path != "/rows" or rows is None or not 0 < n <= 100 or first >= len(rows):
            return self.answer(422, {"error": "Parameters are wrong."})
        picked = [{"row_idx": i, "row": rows[i], "truncated_cells": server.cut(i, n)}
                  for i in range(first, min(first + n, len(rows)))]
        self.answer(200, {"features": [{"feature_idx": 0, "name": "text", "type": {"dtype": "string"}}],
                          "rows": picked, "num_rows_total": len(rows), "num_rows_per_page": 100,
                          "partial": server.partial})

    def answer(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class FakeRows:
    def __init__(self, splits):
        self.splits, self.log, self.faults, self.connections = splits, [], [], 0
        self.partial, self.cut = False, lambda row, length: []
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads, self.server.rows = True, self
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]

    def asked(self):
        """[(offset, length)] of /rows."""
        return [(int(q["offset"]), int(q["length"])) for path, q, _ in self.log if path == "/rows"]

    def env(self, **more):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) and not k.lower().endswith("_proxy")}
        return clean | {"HF_HOME": "/nonexistent", "TURBOLM_DATASETS_SERVER": self.url} | more

    def close(self):
        self.server.shutdown()
        self.server.server_close()
