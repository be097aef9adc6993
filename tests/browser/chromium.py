"""Chromium without a window, driven over a pipe in the DevTools protocol; the standard library is all it needs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any


def found() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Chromium:
    """One page. `errors` collects what its console and its scripts complain of."""

    def __init__(self, profile: Path, wait: float = 60.0) -> None:
        program = found()
        assert program is not None, "no Chromium here"
        self.wait, self.errors, self._count = wait, [], 0
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def adopt() -> None:
            # 3 and 4 are where Chromium looks; copied up first, in case a pipe sits there already
            high = [os.dup2(fd, 100 + k) for k, fd in enumerate((theirs_in, theirs_out))]
            for k, fd in enumerate(high):
                os.dup2(fd, 3 + k)

        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=adopt, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._session = None
            self._write("Browser.close", {})
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command; what happens meanwhile is kept."""
        number = self._write(method, params)
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._noticed(message)

    def open(self, path: Path) -> None:
        self._events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + self.wait
        while not any(e["method"] == "Page.loadEventFired" for e in self._events):
            assert time.monotonic() < deadline, f"{path} does not load"
            self._noticed(self._read())

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"].get("exception", answer)
        return answer["result"].get("value")

    def settle(self) -> None:
        """Until what a click or a slider asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def _place(self, selector: str) -> dict[str, float]:
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        self.settle()
        return self.run(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            "return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
        )

    def click(self, selector: str) -> None:
        box = self._place(selector)
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
        self.settle()

    def hover(self, selector: str, across: float, down: float) -> None:
        """The pointer at these shares of an element's width and height."""
        box = self._place(selector)
        at = {"x": box["x"] + across * box["width"], "y": box["y"] + down * box["height"]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
        self.settle()

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.settle()

    def slide(self, selector: str, value: float) -> None:
        """Move a range input as a hand would: its value, then the event."""
        self._set(selector, str(value), "input")

    def pick(self, selector: str, value: str) -> None:
        """An option of a select."""
        self._set(selector, value, "change")

    def _set(self, selector: str, value: str, event: str) -> None:
        self.run(
            f"(() => {{ const s = document.querySelector({selector!r}); s.value = {value!r};"
            f"s.dispatchEvent(new Event({event!r}, {{bubbles: true}})); }})()"
        )
        self.settle()

    def look(self, *, width: int = 1100, height: int = 900, dark: bool = False, media: str = "") -> None:
        """The size of the window, and whether the reader likes it dark or on paper."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")["data"]
        path.write_bytes(base64.b64decode(taken))
        return path

    def pdf(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"]))
        return path

    def _write(self, method: str, params: dict[str, Any]) -> int:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._count

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], self.wait)
            assert ready, "Chromium does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium is gone"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _noticed(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            return
        self._events.append(message)
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
