"""A stand-in for the Hugging Face Hub on loopback: repositories of models, whose files are in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class HubServer(ThreadingHTTPServer):
    """A server with repositories {name: {path: content}}, which accepts the token `token`."""

    daemon_threads = True

    def __init__(self, token: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.repositories, self.private, self.requests = token, {}, {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        if self.headers.get("authorization") != f"Bearer {self.server.token}":
            self._read()
            self._send({"error": "Invalid username or password."}, 401)
            return
        body, path = self._read(), self.path.partition("?")[0]
        self.server.requests.append(path)
        if path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about['organization']}/{about['name']}" if about.get("organization") else about["name"]
            self.server.repositories.setdefault(name, {})
            self.server.private[name] = about.get("private") or about.get("visibility") == "private"
            self._send({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [{**each, "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]]
            self._send({"files": files})
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[match[1]][line["value"]["path"]] = content
            self._send({"commitUrl": f"{self.server.address}/{match[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        elif path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        else:
            self._send({"error": f"no POST {path}"}, 404)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        repositories = self.server.repositories
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            if match[1] not in repositories:
                self._send({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            files = [{"rfilename": name, "size": len(content)} for name, content in repositories[match[1]].items()]
            self._send({"id": match[1], "sha": COMMIT, "siblings": files, "private": False, "tags": [], "downloads": 0})
        elif match := re.fullmatch(r"/api/models/(.+)/tree/[^/]+", path):
            files = repositories[match[1]].items()
            self._send(
                [{"type": "file", "path": name, "size": len(content), "oid": "0" * 40} for name, content in files]
            )
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = repositories.get(match[1], {}).get(match[2])
            if content is None:
                self._send({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            etag = hashlib.sha1(content).hexdigest()  # noqa: S324
            self._send(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self._send({"error": f"no GET {path}"}, 404)

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _send(self, content, status=200, headers=()) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
