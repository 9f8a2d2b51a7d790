"""A Hugging Face hub in this process: its listing, its files, redirects of large files to a second
server, and everything that goes wrong on the way.

hub = FakeHub(); hub.add("org/name", {"config.json": b"{}", ...}); hub.env(cache) is the environment
of a client. hub.log is what was asked: (server, method, path, headers). hub.fault("model", ...)
makes the next requests for paths with that text go wrong.
"""
import hashlib
import json
import os
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".gguf", ".bin")


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    def __init__(self, name, data):
        self.name, self.data = name, data
        self.large = name.endswith(LARGE)
        self.sha1 = git_sha1(data)
        self.sha256 = hashlib.sha256(data).hexdigest()

    @property
    def etag(self):
        return self.sha256 if self.large else self.sha1


class Repo:
    def __init__(self, files, gated=False, private=False):
        self.files = {name: File(name, data) for name, data in files.items()}
        self.gated, self.private = gated, private
        self.commit = hashlib.sha1(repr(sorted((f.name, f.etag) for f in self.files.values())).encode()).hexdigest()


class Fault:
    """kind: status, break, bytes, size, slow, stall, drip, full (the range is ignored), range."""

    def __init__(self, text, kind, value=None, times=1, headers=()):
        self.text, self.kind, self.value, self.times, self.headers = text, kind, value, times, dict(headers)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.unquote(self.path)
        with hub.lock:
            hub.log.append((self.server.role, self.command, self.path, dict(self.headers)))
        self.fault = hub.take_fault(self.server.role + path)
        if self.fault and self.fault.kind == "slow":
            time.sleep(self.fault.value)
        if self.fault and self.fault.kind == "status":
            return self.answer(self.fault.value, b"trouble", self.fault.headers)
        try:
            if self.server.role == "cdn":
                self.get_blob(path)
            elif "/tree/" in path:
                self.get_tree(path)
            elif path.startswith("/api/models/"):
                self.get_listing(path)
            else:
                self.get_file(path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, text=""):
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": text or code})

    def find(self, repo_id):
        """The repository, or None after a refusal, as the hub refuses."""
        hub, auth = self.server.hub, self.headers.get("Authorization")
        repo = hub.repos.get(repo_id)
        if auth and auth != "Bearer " + hub.token:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if repo is None or repo.private and not auth:
            return self.refuse(404 if auth else 401, "RepoNotFound", "Repository not found")
        return repo

    def get_tree(self, path):
        """What huggingface_hub 2 asks; turbolm does not."""
        repo = self.find(path[len("/api/models/") :].split("/tree/")[0])
        rows = []
        for f in repo.files.values() if repo else ():
            row = {"type": "file", "path": f.name, "size": len(f.data), "oid": f.sha1}
            if f.large:
                row |= {"oid": git_sha1(b"pointer"),
                        "lfs": {"oid": f.sha256, "size": len(f.data), "pointerSize": 134}}
            rows.append(row)
        if repo:
            self.answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def get_listing(self, path):
        hub = self.server.hub
        path, _, query = path.partition("?")
        repo_id, revision = path[len("/api/models/") :].split("/revision/")
        if repo_id in hub.moved:
            return self.answer(307, b"", {"Location": self.path.replace(repo_id, hub.moved[repo_id])})
        repo = self.find(repo_id)
        if repo is None:
            return
        if revision not in ("main", repo.commit) and revision not in hub.refs:
            return self.refuse(404, "RevisionNotFound")
        rows = []
        for f in repo.files.values():
            row = {"rfilename": f.name}
            if "blobs=true" in query and hub.tells_blobs:
                row |= {"size": len(f.data), "blobId": git_sha1(b"pointer") if f.large else f.sha1}
                if f.large:
                    row["lfs"] = {"sha256": f.sha256, "size": len(f.data), "pointerSize": 134}
            rows.append(row)
        rows += [{"rfilename": name, "size": 1, "blobId": "0" * 40} for name in hub.extra_names]
        body = json.dumps({"id": repo_id, "sha": repo.commit, "siblings": rows}).encode()
        self.answer(200, hub.listing_body or body, {"Content-Type": "application/json"})

    def get_file(self, path):
        hub = self.server.hub
        repo_id, rest = path[1:].split("/resolve/")
        if repo_id in hub.moved:
            return self.answer(307, b"", {"Location": self.path.replace(repo_id, hub.moved[repo_id])})
        revision, name = rest.split("/", 1)
        repo = self.find(repo_id)
        if repo is None:
            return
        if repo.gated and self.headers.get("Authorization") is None:
            return self.refuse(401, "GatedRepo", "Access to model is restricted")
        if repo.gated and repo.gated != "open":
            return self.refuse(403, "GatedRepo", "You are not in the authorized list")
        if revision not in ("main", repo.commit):
            return self.refuse(404, "RevisionNotFound")
        f = repo.files.get(name)
        if f is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"X-Repo-Commit": repo.commit}
        if not f.large:
            return self.send_data(f.data, headers | {"ETag": '"%s"' % f.sha1})
        headers |= {"X-Linked-Etag": '"%s"' % f.sha256, "X-Linked-Size": str(len(f.data)), "ETag": '"abc"',
                    "Location": hub.cdn_url + "/blob/" + f.sha256 + "?name=" + urllib.parse.quote(name)}
        self.answer(302, b"", headers | hub.redirect_headers)

    def get_blob(self, path):
        hub = self.server.hub
        digest = path[len("/blob/") :].split("?")[0]
        for repo in hub.repos.values():
            for f in repo.files.values():
                if f.sha256 == digest:
                    return self.send_data(f.data, {"ETag": '"something-else"'})
        self.answer(404)

    def send_data(self, data, headers):
        hub, fault = self.server.hub, self.fault
        kind = fault.kind if fault else ""
        begin, end, status = 0, len(data), 200
        asked = self.headers.get("Range")
        if asked and hub.ranges and kind != "full":
            first, last = asked[len("bytes=") :].split("-")
            begin, end = int(first), min(int(last or len(data) - 1) + 1, len(data))
            if begin >= len(data):
                return self.answer(416)
            status = 206
            shown = fault.value if kind == "range" else begin
            headers = headers | {"Content-Range": "bytes %d-%d/%d" % (shown, end - 1, len(data))}
        body = memoryview(data)[begin:end]
        if kind == "bytes":
            body = bytes(body[:-1]) + bytes([body[-1] ^ 1])
        if kind == "size":
            body = bytes(body) + b"x" * fault.value if fault.value > 0 else body[: fault.value]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind in ("break", "stall"):
            self.wfile.write(body[: fault.value])
            self.wfile.flush()
            if kind == "stall":
                hub.released.wait(60)
            self.close_connection = True
            self.connection.shutdown(2)
        elif kind == "drip":
            step, pause = fault.value
            for i in range(0, len(body), step):
                self.wfile.write(body[i : i + step])
                self.wfile.flush()
                if hub.released.wait(pause):
                    break
            self.close_connection = True
        else:
            self.wfile.write(body)


class FakeHub:
    token = "hf_secret"

    def __init__(self):
        self.repos, self.refs, self.moved, self.log, self.faults = {}, {}, {}, [], []
        self.ranges = self.tells_blobs = True
        self.extra_names, self.redirect_headers, self.listing_body = [], {}, None
        self.lock, self.released = threading.Lock(), threading.Event()
        self.servers = {}
        for role in ("hub", "cdn"):
            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = True
            server.hub, server.role = self, role
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self.servers[role] = server
        self.url = "http://127.0.0.1:%d" % self.servers["hub"].server_address[1]
        self.cdn_url = "http://127.0.0.1:%d" % self.servers["cdn"].server_address[1]

    def use_tls(self, certificate, key):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        for server in self.servers.values():
            server.handle_error = lambda *args: None  # clients that do not like the certificate
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.url, self.cdn_url = (u.replace("http:", "https:") for u in (self.url, self.cdn_url))

    def add(self, repo_id, files, **kwargs):
        self.repos[repo_id] = Repo(files, **kwargs)
        return self.repos[repo_id]

    def add_folder(self, repo_id, folder):
        files = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as f:
                files[name] = f.read()
        return self.add(repo_id, files)

    def fault(self, text, kind, value=None, times=1, headers=()):
        self.faults.append(Fault(text, kind, value, times, headers))

    def take_fault(self, path):
        with self.lock:
            for f in self.faults:
                if f.times > 0 and f.text in path:
                    f.times -= 1
                    return f
        return None

    def requests(self, text=""):
        with self.lock:
            return ["%s %s %s" % r[:3] for r in self.log if text in r[2]]

    def clear(self):
        with self.lock:
            self.log.clear()
            self.faults.clear()

    def env(self, cache, **more):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) and not k.lower().endswith("_proxy")}
        return clean | {"HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache) + ".home"} | more

    def close(self):
        self.released.set()
        for server in self.servers.values():
            server.shutdown()
            server.server_close()
