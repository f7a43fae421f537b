"""A real HTTP server on this machine whose mirrors misbehave as told."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class MirrorServer(ThreadingHTTPServer):
    """``requests`` holds the paths that were asked for, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
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

    def serve(self, path: str, answer: Answer) -> str:
        """Answer requests for a path so from now on; the address."""
        self.answers[path] = answer
        return f"{self.base}{path}"

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some of these tests are about clients that go away."""


class Handler(BaseHTTPRequestHandler):
    server: MirrorServer

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.answers.get(self.path, status(404))(self)

    def start(self, code: int, **headers: object) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def repeat(self, piece: bytes, pause: float = 0.0, times: int | None = None) -> None:
        """Send a piece again and again, until the client goes away or the server closes."""
        while times is None or (times := times - 1) >= 0:
            self.wfile.write(piece)
            self.wfile.flush()
            if self.server.closing.wait(pause):
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


def status(code: int) -> Answer:
    return lambda handler: handler.start(code, Content_Length=0)


def good(body: bytes) -> Answer:
    return announcing(len(body), body)


def announcing(length: object, body: bytes, **headers: object) -> Answer:
    """Sends the body under any Content-Length."""

    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=length, **headers)
        handler.wfile.write(body)

    return answer


def stalling(body: bytes, after: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.start(200, Content_Length=len(body))
        handler.wfile.write(body[:after])
        handler.wfile.flush()
        handler.server.closing.wait()

    return answer


def mute(handler: Handler) -> None:
    handler.server.closing.wait()


def dripping_body(piece: bytes, pause: float) -> Answer:
    """Sends a piece now and then, without end."""

    def answer(handler: Handler) -> None:
        handler.start(200)
        handler.repeat(piece, pause)

    return answer


def dripping_headers(pause: float) -> Answer:
    """Sends a byte of a header now and then, without end."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
        handler.repeat(b"x", pause)

    return answer


def redirecting(location: bytes, endless_body: bool = False) -> Answer:
    def answer(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.0 302 Found\r\nLocation: " + location + b"\r\n\r\n")
        if endless_body:
            handler.repeat(bytes(1 << 16))

    return answer


def chunked(body: bytes, whole: bool = True) -> Answer:
    """Sends the body in two chunks, without its length; with ``whole`` false it hangs up before the last one."""

    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.start(200, Transfer_Encoding="chunked", Connection="close")
        pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
        for piece in pieces if whole else pieces[:1]:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def raw(response: bytes) -> Answer:
    """Sends these bytes, whatever they are."""
    return lambda handler: handler.wfile.write(response) and None
