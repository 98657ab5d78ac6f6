"""A small HTTP server for tests of downloads: it knows ranges, and can misbehave on request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# for the start of a script: the package without its data sets, whose torch would take seconds to
# load
LIGHT = """
import importlib.util, sys
sys.modules["evenhand.datasets"] = importlib.util.module_from_spec(importlib.util.find_spec("evenhand.datasets"))
"""


@dataclass
class Request:
    """What was asked for, and what was answered."""

    path: str
    range: str | None
    if_range: str | None
    status: int = 0
    sent: int = 0


@dataclass
class Site:
    """What the server has and how it behaves; all of it can be changed between requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)  # '"..."' by path
    modified: dict[str, str] = field(default_factory=dict)  # Last-Modified by path
    # answers to give to the next requests instead of the file
    statuses: list[int] = field(default_factory=list)
    # the next responses end after so many bytes of their body
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    lengths: bool = True  # say how long the file is
    encoding: str | None = None  # a Content-Encoding to claim
    first_byte: int | None = None  # where to begin a part, whatever was asked for
    block: int = 1 << 16
    delay: float = 0.0  # seconds before each block
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@contextmanager
def serving() -> Iterator[Site]:
    """A server in a thread of this process, at ``site.url``."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            request = Request(self.path, self.headers.get("Range"), self.headers.get("If-Range"))
            site.requests.append(request)
            if self.path not in site.files or site.statuses:
                request.status = site.statuses.pop(0) if site.statuses else 404
                self.send_response(request.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = site.files[self.path]
            marks = {site.etags.get(self.path), site.modified.get(self.path)}
            start = 0
            if (
                request.range
                and site.ranges
                and (request.if_range is None or request.if_range in marks)
            ):
                start = int(request.range.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    request.status = 416
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                start = start if site.first_byte is None else site.first_byte
                request.status = 206
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                request.status = 200
                self.send_response(200)
            if self.path in site.etags:
                self.send_header("ETag", site.etags[self.path])
            if self.path in site.modified:
                self.send_header("Last-Modified", site.modified[self.path])
            if site.encoding:
                self.send_header("Content-Encoding", site.encoding)
            if site.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            else:
                self.close_connection = True
            self.end_headers()
            body = content[start:]
            if site.cuts:
                body = body[: site.cuts.pop(0)]
            try:
                for begin in range(0, len(body), site.block):
                    time.sleep(site.delay)
                    self.wfile.write(body[begin : begin + site.block])
                    request.sent += len(body[begin : begin + site.block])
                if start + len(body) < len(content):  # cut: no polite end
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
            except OSError:
                self.close_connection = True  # the other side has gone

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
