"""The report, served while runs go on. Nothing is written; figures are drawn anew when a run learns another task."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from .live import going_on
from .report import build_page
from .stored import StoredRun, find_runs


class ReportServer(ThreadingHTTPServer):
    """Serves ``/`` and ``/live.json``, and nothing else."""

    daemon_threads = True

    def __init__(self, root: Path, places: list[str], host: str, port: int) -> None:
        self.root, self.places = root, places
        self.loopback = host == "localhost" or _is_loopback(host)
        self.drawing = threading.Lock()
        self.state, self.page = "", b""
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"

    def runs(self) -> list[StoredRun]:
        return self.runs_and_left_out()[0]

    def runs_and_left_out(self) -> tuple[list[StoredRun], list[str]]:
        """The runs that can be read, and a sentence about each that cannot."""
        left_out: list[str] = []
        try:
            return find_runs(self.root, self.places, say=left_out.append), left_out
        except ValueError:  # there is no run yet
            return [], left_out

    def current_page(self) -> bytes:
        """The report of all that has been learned so far."""
        runs = self.runs()
        with self.drawing:
            state = _state(runs)
            if state != self.state:
                self.page = build_page(runs, live=state).encode()
                self.state = state
            return self.page

    def live(self) -> bytes:
        runs, left_out = self.runs_and_left_out()
        told = {"page": _state(runs), "runs": going_on(runs), "left_out": left_out}
        return json.dumps(told, allow_nan=False).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        answers = {
            "/": ("text/html; charset=utf-8", self.server.current_page),
            "/live.json": ("application/json", self.server.live),
        }
        found = answers.get(urlsplit(self.path).path)
        if not self._is_for_us():
            self.send_error(403, "This name is not the one that is served")
        elif found is None:
            self.send_error(404, "There is only the page itself")
        else:
            self._answer(*found)

    def _answer(self, kind: str, make: Callable[[], bytes]) -> None:
        try:
            body = make()
        except (ValueError, OSError) as error:  # a run that cannot be read, or that is being deleted
            self.send_error(500, explain=str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _is_for_us(self) -> bool:
        """Whether the request names this machine, so that no page of another site can ask under a name of its own."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:  # such as [::1 without its end
            return False
        return not self.server.loopback or name == "localhost" or _is_loopback(name)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the page asks every few seconds."""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _state(runs: list[StoredRun]) -> str:
    """A digest that changes when a run comes, learns another task, or ends."""
    parts = sorted(f"{run.folder.path}:{len(run.learned)}:{run.result is not None}" for run in runs)
    return sha256("\n".join(parts).encode()).hexdigest()[:12]


@contextmanager
def report_server(root: Path, places: list[str], host: str = "127.0.0.1", port: int = 0) -> Iterator[ReportServer]:
    """A server that has its port; ``serve_forever`` starts it."""
    if not 0 <= port < 2**16:
        raise ValueError(f"a port is a number from 0 to {2**16 - 1}, got {port}")
    try:
        server = ReportServer(root, places, host, port)
    except OSError as error:
        raise ValueError(f"cannot serve at {host}:{port} ({error.strerror}): choose another --port or --host") from None
    try:
        yield server
    finally:
        server.server_close()
