"""A headless Chromium, driven over its debugging pipe: no port, and no library.

`--remote-debugging-pipe` reads commands on file descriptor 3 and writes answers on 4, each a JSON
text that ends with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 240  # a loaded machine is slow to start a browser
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe", "--disable-extensions"),
    *("--disable-background-networking", "--force-device-scale-factor=1"),
)


class RefusedError(Exception):
    """The browser answered a command with an error."""


class Browser:
    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are kept."""
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._write, json.dumps(said).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RefusedError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser did not answer within {LIMIT_S} s"
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser ended"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, page: Path, *, width: int, scheme: str = "light", media: str = "") -> None:
        """Show a file at a width, in a colour scheme, on the screen or as `print`."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def ask(self, script: str) -> Any:
        """Return the value of an expression in the page, a promise's too, as a click would run it.

        A page that loads itself anew meanwhile refuses it; the page that follows is asked again.
        """
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                answer = self.call(
                    "Runtime.evaluate",
                    expression=script, returnByValue=True, awaitPromise=True, userGesture=True,
                )  # fmt: skip
                break
            except RefusedError as error:
                if "navigated" not in str(error) or time.monotonic() > deadline:
                    raise
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return what the page said on the console, threw, or asked of another place."""
        found = []
        for each in self.events:
            method, params = each.get("method", ""), each.get("params", {})
            if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(f"{method}: {json.dumps(params)[:400]}")
            url = params.get("request", {}).get("url", "")
            if method == "Network.requestWillBeSent" and not url.startswith("file:"):
                found.append(f"asked for {url}")
        return found

    def picture(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        made = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(made["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a Chromium with a profile folder of its own; it ends with the block."""
    assert PROGRAM is not None
    read, theirs_out = os.pipe()
    theirs_in, write = os.pipe()
    argv = (PROGRAM, *OPTIONS, f"--user-data-dir={folder}", "about:blank")
    # the shell puts the pipes on the descriptors that Chromium reads and writes
    script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *argv], pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(read, write)
    finally:
        os.close(write)  # Chromium ends with its pipe
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()
        process.wait()
        os.close(read)
