"""Pages in a real Chromium: all can be read; XLATUNE_PICTURES=FOLDER keeps a picture of each."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import read_cells
from pytest_xlatune.report.page import Live, html
from tests.helpers import of_studies
from tests.helpers.finished import BEGUN_SUBJECT, FINISHED
from tests.report.test_page import hostile

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

    def open(self, page: Path, *, width: int, scheme: str = "light") -> None:
        """Show a file at a width, in a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
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


pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "reports" / "example" / "quickstart-tuning.json"
WIDTHS = {"phone": 360, "tablet": 800, "laptop": 1280}
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text

LOOKS = (Path(__file__).parents[1] / "data" / "page_looks.js").read_text(encoding="utf-8")


def ask(shown: Browser, look: str) -> Any:
    return shown.ask(f"{LOOKS}\n{look}")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium, driven over its debugging pipe: JSON texts that end with a zero byte."""
    if PROGRAM is None:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but there is no chromium")
        pytest.skip("no chromium: `python tests/slurm/lab.py install` installs it with the rest")
    read, theirs_out = os.pipe()
    theirs_in, write = os.pipe()
    argv = (
        PROGRAM,
        *OPTIONS,
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
        "about:blank",
    )
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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    (measured, *_) = read_cells(EXAMPLE.read_text(encoding="utf-8"), where=str(EXAMPLE))
    planted = hostile()
    made = {
        "example": html(leaderboard(measured), measured),
        "finished": html(leaderboard(FINISHED), FINISHED, files=("leaderboard.json",)),
        "begun": html(leaderboard(BEGUN_SUBJECT), BEGUN_SUBJECT),
        "hostile": html(leaderboard(planted), planted),
    }
    studies = {
        "batch": of_studies.batch(),
        "nodes": of_studies.nodes(),
        "matrix": of_studies.network(),
        "commits": of_studies.commit(),
    }
    made |= {name: html(cell_document(subject), subject) for name, subject in studies.items()}
    now = Live(at_s=2e9, progress="3/12 screened", running=("x" * 90,))
    made["live"] = html(leaderboard(BEGUN_SUBJECT), BEGUN_SUBJECT, live=now)
    paths = {name: folder / f"{name}.html" for name in made}
    for name, page in made.items():
        paths[name].write_text(page, encoding="utf-8")
    return paths


NAMES = ("example", "finished", "begun", "hostile")
DRAWN = ("batch", "nodes", "matrix", "commits")
LED = ("live",)
FORESTS = ("example", "finished")


def some(names: Sequence[str], *, chosen: Sequence[str]) -> list[Any]:
    """Leave all but the chosen cases to a part of `make test-all`."""
    left = pytest.mark.part("programs")
    return [pytest.param(each, marks=[left] * (each not in chosen)) for each in names]


# those of `make test`: a forest, several cells, a matrix
@pytest.mark.parametrize(
    "name", some([*NAMES, *DRAWN, *LED], chosen=("example", "nodes", "matrix", "live"))
)
def test_nothing_is_cut_off_or_lies_over_another_and_nothing_complains(
    shown: Browser, pages: dict[str, Path], name: str
) -> None:
    for place, width in WIDTHS.items():
        shown.open(pages[name], width=width)
        if kept := os.environ.get("XLATUNE_PICTURES"):
            shown.picture(Path(kept) / f"{name}-{place}.png")
        beyond = ask(shown, "beyond()")
        assert shown.ask("document.documentElement.scrollWidth") == width, (place, beyond)
        assert beyond == [], place
        assert ask(shown, "cut()") == [], place
        assert shown.complaints() == [], place
        assert shown.ask("document.querySelectorAll('img, iframe').length") == 0, place
        if name in FORESTS:  # the texts of an axis stand below its lines
            assert 0 <= ask(shown, "ticks()") < 1.5, place
        if name in DRAWN and place == "phone":  # no row fills the window
            assert ask(shown, "tall()") == []


@pytest.mark.parametrize("name", some(["example", *DRAWN, "live"], chosen=("example", "batch")))
def test_every_text_can_be_read(shown: Browser, pages: dict[str, Path], name: str) -> None:
    for scheme in ("light", "dark"):
        shown.open(pages[name], width=1280, scheme=scheme)
        paper = shown.ask("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        if kept := os.environ.get("XLATUNE_PICTURES"):
            shown.picture(Path(kept) / f"{name}-{scheme}.png")
        seen, faint = ask(shown, f"contrast({LEAST_CONTRAST})")
        assert seen > 50
        assert faint == [], scheme


def test_the_recipe_is_copied_by_its_button(shown: Browser, pages: dict[str, Path]) -> None:
    shown.open(pages["example"], width=1280)
    shown.ask("document.querySelector('button.copy').click(), 0")
    assert ask(shown, "copied()") == "Copied"
    copied = shown.ask("document.querySelector('button.copy').parentElement.innerText")
    assert "--xla_backend_optimization_level=3" in copied  # the winner of the committed run
    assert shown.complaints() == []
