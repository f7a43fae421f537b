"""A headless chromium for tests, spoken to through a pipe: nothing but the browser itself is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = next(
    (
        file
        for folder in (Path(__file__).parents[2] / "node_modules", Path("/usr/local/lib/node_modules"))
        if (file := folder / "axe-core" / "axe.min.js").exists()
    ),
    None,
)  # a checker of accessibility: make test-browser
PATIENCE = 120.0  # seconds, for machines that are busy with other things


class Browser:
    """One page of a browser: go somewhere, ask for values, point at things."""

    def __init__(self, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = (
            f'exec "$0" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run '
            f'--user-data-dir="$1" --remote-debugging-pipe about:blank 3<&{theirs_in} 4>&{theirs_out}'
        )
        self.process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), str(profile)], pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.reading, self.writing = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self.number, self.rest = 0, b""
        self.session: str | None = None
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self.reading.close()
        self.writing.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writing.write(json.dumps(message).encode() + b"\0")
        self.writing.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._listen(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            more = os.read(self.reading.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def _listen(self, event: dict[str, Any]) -> None:
        """Errors and warnings of the page, and anything that it wants from a network."""
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(details["args"]))
        elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        until = time.monotonic() + PATIENCE
        while not self.value(script):
            assert time.monotonic() < until, f"in vain waited for {script}"
            time.sleep(0.05)

    def point_at(self, element: str, x: float, y: float) -> None:
        """Move the mouse to a place within an element, given as shares of its width and height."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(element)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        left, top, width, height = box
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + x * width, y=top + y * height)

    def faults(self) -> list[str]:
        """What axe finds wrong for those who cannot see or point: rule, what it asks, and an element that breaks it."""
        assert AXE is not None
        self.value(AXE.read_text() + ";0")
        shown = "[v.id, v.help, v.nodes[0].html.slice(0, 200)].join(': ')"
        return list(self.value(f"axe.run({{preload: false}}).then(result => result.violations.map(v => {shown}))"))

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path) -> None:
        size = self.value("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 16000), "scale": 1}
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(answer["data"]))
