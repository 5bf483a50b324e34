"""A stand-in for the hub on this machine: takes a repository and a commit of files, and remembers them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What it was sent. refuse: a part of an address that is answered with 403. exists_public: the repository is there."""

    address: str = ""
    refuse: str | None = None
    exists_public: bool = False
    created: list[dict] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub that answers at `address` meanwhile."""
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, value: dict, code: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.take(b"")

        def do_POST(self) -> None:
            self.take(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def take(self, body: bytes) -> None:
            state.asked.append(self.path)
            state.tokens.add(str(self.headers.get("Authorization")))
            if state.refuse and state.refuse in self.path:
                self.answer({"error": "no, you may not"}, 403)
            elif self.path == "/api/repos/create":
                state.created.append(json.loads(body))
                self.answer({"url": f"{state.address}/me/mine"}, 409 if state.exists_public else 200)
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                regular = {"uploadMode": "regular", "shouldIgnore": False}
                self.answer({"files": [{"path": name, **regular} for name in names]})
            elif "/commit/" in self.path:
                for line in body.decode().splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        state.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                self.answer({"commitUrl": f"{state.address}/me/mine/commit/1", "commitOid": "1" * 40})
            elif self.path == "/api/validate-yaml":
                self.answer({"errors": [], "warnings": []})
            else:
                self.answer({"id": "me/mine", "private": not state.exists_public, "siblings": [], "sha": "1" * 40})

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
