"""Pages in a real Chromium, driven over its debugging pipe: all can be read, nothing complains."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import read_cells
from pytest_xlatune.report.page import Live, html
from tests.helpers import cells
from tests.helpers.finished import BEGUN_SUBJECT, FINISHED
from tests.report.test_page import hostile

pytestmark = pytest.mark.browser

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 240  # a loaded machine is slow to start a browser
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe", "--disable-extensions"),
    *("--disable-background-networking", "--force-device-scale-factor=1"),
)
EXAMPLE = Path(__file__).parents[2] / "reports" / "example" / "quickstart-tuning.json"
WIDTHS = {"phone": 360, "tablet": 800, "laptop": 1280}
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text
LOOKS = (Path(__file__).parents[1] / "data" / "page_looks.js").read_text(encoding="utf-8")
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Browser:
    """JSON texts that end with a zero byte: a command, events, the answer."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._rest, self._number, self._session = b"", 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], LIMIT_S)[0], "the browser does not answer"
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser ended"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, page: Path, *, width: int, scheme: str = "light") -> None:
        """Show a file at a width, in a colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def ask(self, script: str) -> Any:
        """Return the value of an expression, a promise's too, as a click would run it."""
        how = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=f"{LOOKS}\n{script}", **how)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the page said on the console, threw, or asked of another place."""

        def is_one(event: dict[str, Any]) -> bool:
            url = event.get("params", {}).get("request", {}).get("url", "file:")
            return event.get("method") in COMPLAINTS or not url.startswith("file:")

        return [*filter(is_one, self.events)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but there is no chromium")
        pytest.skip("no chromium: `python tests/slurm/lab.py install` installs it with the rest")
    read, theirs_out = os.pipe()
    theirs_in, write = os.pipe()
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    # the shell puts the pipes on the descriptors that Chromium reads and writes
    script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
    argv = ("bash", "-c", script, "bash", PROGRAM, *OPTIONS, profile, "about:blank")
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, pass_fds=(theirs_in, theirs_out), stdin=null, stdout=null, stderr=null
    )
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
    (measured, *_) = read_cells(EXAMPLE.read_text(encoding="utf-8"), where=str(EXAMPLE))
    planted = hostile()
    now = Live(at_s=2e9, progress="3/12 screened", running=("x" * 90,))
    live = html(leaderboard(BEGUN_SUBJECT), BEGUN_SUBJECT, live=now)
    made = {
        "example": html(leaderboard(measured), measured),
        "finished": html(leaderboard(FINISHED), FINISHED, files=("leaderboard.json",)),
        "begun": html(leaderboard(BEGUN_SUBJECT), BEGUN_SUBJECT),
        "hostile": html(leaderboard(planted), planted),
        "live": live.replace('http-equiv="refresh"', ""),  # it stays while it is looked at
    }
    for name in DRAWN:
        subject = cells.subject(name)
        made[name] = html(cell_document(subject), subject)
    folder = tmp_path_factory.mktemp("pages")
    for name, page in made.items():
        (folder / name).with_suffix(".html").write_text(page, encoding="utf-8")
    return {name: (folder / name).with_suffix(".html") for name in made}


DRAWN = ("batch", "nodes", "network", "commits")
FORESTS = ("example", "finished")


def names(now: str, later: str) -> pytest.MarkDecorator:
    """Leave some pages to a part of `make test-all`."""
    left = [pytest.param(name, marks=pytest.mark.part("programs")) for name in later.split()]
    return pytest.mark.parametrize("name", [*now.split(), *left])


# those of `make test`: a forest, several cells, a matrix
@names("example nodes network live", "finished begun hostile batch commits")
def test_nothing_is_cut_off_or_lies_over_another_and_nothing_complains(
    shown: Browser, pages: dict[str, Path], name: str
) -> None:
    for place, width in WIDTHS.items():
        shown.open(pages[name], width=width)
        assert shown.ask("beyond()") == [], place
        assert shown.ask("document.documentElement.scrollWidth") == width, place
        assert shown.ask("cut()") == [], place
        assert shown.complaints() == [], place
        assert shown.ask("document.querySelectorAll('img, iframe').length") == 0, place
        if name in FORESTS:  # the texts of an axis stand below its lines
            assert 0 <= shown.ask("ticks()") < 1.5, place
        if name in DRAWN and place == "phone":  # no row fills the window
            assert shown.ask("tall()") == []


@names("example batch", "nodes network commits live")
def test_every_text_can_be_read(shown: Browser, pages: dict[str, Path], name: str) -> None:
    for scheme in ("light", "dark"):
        shown.open(pages[name], width=1280, scheme=scheme)
        paper = shown.ask("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        seen, faint = shown.ask(f"contrast({LEAST_CONTRAST})")
        assert seen > 50
        assert faint == [], scheme


def test_the_recipe_is_copied_by_its_button(shown: Browser, pages: dict[str, Path]) -> None:
    shown.open(pages["example"], width=1280)
    shown.ask("document.querySelector('button.copy').click(), 0")
    assert shown.ask("copied()") == "Copied"
    copied = shown.ask("document.querySelector('button.copy').parentElement.innerText")
    assert "--xla_backend_optimization_level=3" in copied  # the winner of the committed run
    assert shown.complaints() == []
