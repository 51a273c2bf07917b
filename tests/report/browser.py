"""A real Chromium without a window, driven over a pipe by its own protocol: nothing but the browser is needed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Chromium reads the pipe 3 and writes the pipe 4.
_START = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(reads, 3), os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A tab, with everything that its console and its network said."""

    def __init__(self, reads: Any, writes: Any) -> None:
        self._reads, self._writes, self._count, self._session = reads, writes, 0, ""
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._writes.write(json.dumps(message).encode() + b"\0")
        self._writes.flush()
        while (got := self._next()).get("id") != self._count:
            pass
        assert "error" not in got, got
        result: dict[str, Any] = got["result"]
        return result

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=file.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        got = self.send("Runtime.evaluate", expression=script, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def write(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._reads.read(1)) != b"\0":
            assert byte, "Chromium ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        given = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.console.append(json.dumps(given))
            case "Log.entryAdded":
                self.console.append(given["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
        return message


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Start Chromium with a profile of its own, and end it."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-pipe", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), CHROMIUM, *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with open(ours_in, "rb") as reads, open(ours_out, "wb") as writes:  # noqa: PTH123 - descriptors
            yield Page(reads, writes)
    finally:
        process.terminate()
        process.wait(30)
