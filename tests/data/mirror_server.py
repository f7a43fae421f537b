"""A real HTTP server on this machine whose mirrors misbehave as told."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class MirrorServer(ThreadingHTTPServer):
    """``answers`` maps a path to what is done for it, or to a list: one for each request, the last for all others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer | list[Answer]] = {}
        self.requests: list[Seen] = []
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "MirrorServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def serve(self, path: str, *answers: Answer) -> str:
        self.answers[path] = list(answers)
        return f"{self.base}{path}"

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def ranges(self, path: str) -> list[str | None]:
        """The Range headers of all requests for a path."""
        return [seen.headers.get("Range") for seen in self.requests if seen.path == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some of these tests are about."""


@dataclass
class Seen:
    path: str
    headers: dict[str, str] = field(default_factory=dict)


class Handler(BaseHTTPRequestHandler):
    server: MirrorServer

    def do_GET(self) -> None:
        answers = self.server.answers.get(self.path, [status(404)])
        before = len(self.server.ranges(self.path))
        self.server.requests.append(Seen(self.path, dict(self.headers)))
        assert isinstance(answers, list)
        answers[min(before, len(answers) - 1)](self)

    def start(self, code: int, **headers: object) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def status(code: int) -> Answer:
    return lambda handler: handler.start(code, Content_Length=0)


def good(body: bytes, tag: str | None = '"1"', date: str | None = None, cut: int | None = None) -> Answer:
    """A server as it should be, ranges included; with ``cut`` it hangs up after so many bytes of a response."""

    def answer(handler: Handler) -> None:
        versions = {name: value for name, value in (("ETag", tag), ("Last_Modified", date)) if value is not None}
        asked, condition = handler.headers["Range"], handler.headers["If-Range"]
        if asked is None or condition not in (None, tag, date):
            handler.start(200, Content_Length=len(body), **versions)
            handler.wfile.write(body[:cut])
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            handler.start(416, Content_Range=f"bytes */{len(body)}", Content_Length=0)
            return
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.start(206, Content_Length=len(body) - start, Content_Range=span, **versions)
        handler.wfile.write(body[start:][:cut])

    return answer


def without_ranges(body: bytes, cut: int | None = None) -> Answer:
    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=len(body))
        handler.wfile.write(body[:cut])

    return answer


def wrong_range(body: bytes, **headers: object) -> Answer:
    """Answers 206, but with the beginning of the file; or, with other headers, with whatever they say."""

    def answer(handler: Handler) -> None:
        defaults = {"Content_Range": f"bytes 0-{len(body) - 1}/{len(body)}", "Content_Length": len(body)}
        handler.start(206, **{**defaults, **headers})
        handler.wfile.write(body)

    return answer


def announcing(length: int, body: bytes) -> Answer:
    """Lies about the length."""

    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=length)
        handler.wfile.write(body)

    return answer


def stalling(body: bytes, after: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=len(body), ETag='"1"')
        handler.wfile.write(body[:after])
        handler.wfile.flush()
        handler.server.closing.wait()

    return answer


def mute(handler: Handler) -> None:
    handler.server.closing.wait()


def dripping(body: bytes, bytes_each: int, pause: float) -> Answer:
    """A little at a time."""

    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=len(body), ETag='"1"')
        for k in range(0, len(body), bytes_each):
            handler.wfile.write(body[k : k + bytes_each])
            handler.wfile.flush()
            if handler.server.closing.wait(pause):
                return

    return answer


def chunked(body: bytes, whole: bool = True) -> Answer:
    """Without a length; with ``whole`` false it hangs up before the last chunk."""

    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.start(200, Transfer_Encoding="chunked", Connection="close")
        pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
        for piece in pieces if whole else pieces[:1]:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            handler.wfile.write(b"0\r\n\r\n")

    return answer
