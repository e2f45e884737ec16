"""How a report is shown: its HTML page, also in Chromium, and its sentences in each language."""

# ruff: noqa: RUF001 - Chinese prose has full-width punctuation

from __future__ import annotations

import ast
import base64
import contextlib
import dataclasses
import gettext
import hashlib
import importlib.util
import json
import os
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from pytest_xlatune import report
from pytest_xlatune.campaign import Campaign
from pytest_xlatune.cli import main
from pytest_xlatune.model.message import (
    Message,
    MessageCode,
    at_most,
    coded,
    say,
    sentence,
    verbatim,
)
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Effect,
    Finding,
    State,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.document import Document, markdown
from pytest_xlatune.report.language import Language, Translator
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import MeasuredCell, read_cells, write_cells
from pytest_xlatune.report.page import Live, forest, html
from pytest_xlatune.report.study_documents import calibration, cell_document, evidence, gate
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.files import NO_PAGES, write_all
from pytest_xlatune.tasks.reports import publish
from tests.helpers import cells, scripted
from tests.helpers.finished import (
    BEGUN_SUBJECT,
    CELL,
    CONCLUSION,
    COVERED,
    EXPLAINED,
    FINISHED,
    HISTORY,
    STOPPED,
    other_parallelism,
)
from tests.helpers.pages import read
from tests.helpers.scripted import FAILED, UNKNOWN_FLAG, FakeExecutor, campaign, failing, run
from tests.helpers.source import MODULES, nodes_of
from tests.helpers.tables import rows

PLANTED = "</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"


def hostile() -> MeasuredCell:
    """A sweep whose every foreign text holds a script."""
    finding = Finding(cls=PLANTED, action=Action.DROP, text=PLANTED, detail=PLANTED)
    words, jobs = verbatim(PLANTED), (PLANTED,)

    def planted(values: Sequence[Any], **changes: Any) -> tuple[Any, ...]:
        return tuple(replace(value, **changes) for value in values)

    verdicts = planted(CONCLUSION.verdicts, reasons=(words,), method=words, job_ids=jobs)
    return replace(
        FINISHED,
        conclusion=replace(CONCLUSION, verdicts=verdicts, notes=(words,)),
        cells=planted([CELL], image=PLANTED, launcher=PLANTED, config_tag=PLANTED),
        history=planted(HISTORY, reason=words, findings=(finding,), job_ids=jobs),
        remarks={PLANTED: PLANTED},
        stopped=PLANTED,
        profiles=planted(FINISHED.profiles, note=PLANTED, env={"NOTE": PLANTED}),
    )


def check_own_tags_only(text: str) -> None:
    """The page's own script is the only one, nothing is loaded, no attribute runs anything."""
    page = read(text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == [tag for tag, _ in page.tags].count("script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(said["content"] for _, said in page.tags if said.get("http-equiv"))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "link", "object", "form"}
    for tag, said in page.tags:
        assert not [name for name in said if name.startswith("on") or name in ("src", "style")], tag
        assert ":" not in said.get("href", ""), "a link leads to the files beside the page"


@pytest.mark.parametrize("document", [leaderboard, gate, calibration, evidence])
def test_every_kind_of_document_has_a_page_of_its_own_tags_only(
    document: Callable[[MeasuredCell], Document],
) -> None:
    for subject in (FINISHED, BEGUN_SUBJECT, hostile()):
        text = html(document(subject), subject, files=("leaderboard.json",))
        check_own_tags_only(text)
    assert "<script>alert(1)" in unescape(text), "foreign texts that hold scripts are shown"


def test_the_forest_says_what_was_not_seen_in_effect() -> None:
    won = Verdict(arm="won", kind=VerdictKind.FASTER, delta=0.03, ci95=(0.02, 0.04), n=4)
    unseen = replace(won, arm="unseen", effect=Effect.NOT_SEEN, unproved=("--xla_a",))
    plot = forest(Conclusion(verdicts=(won, unseen)))
    assert plot is not None
    looks = {row.name: row.looks for rows in plot.parts.values() for row in rows}
    assert looks == {"won": "faster", "unseen": "faster hollow"}


def test_no_value_of_a_secret_is_in_a_page_however_it_is_spelled(tmp_path: Path) -> None:
    secret = "plant-one-'\"$a<&>"
    cell = replace(scripted.CELL, deployed={"HF_TOKEN": secret})
    script = failing("same", f"{UNKNOWN_FLAG} 401 {secret}\n", FAILED)
    made = campaign(tmp_path, FakeExecutor(script), cell=cell)
    run(made)
    written = publish(made.folder, tmp_path / "reports")
    (page,) = (path for path in written if path.suffix == ".html")
    assert "401" in page.read_text(encoding="utf-8")
    assert "plant-one" not in unescape(page.read_text(encoding="utf-8"))
    # the ledger hid it before; a page of a session that knows it does not rely on that
    known = read_cell_report(made.folder)
    study = replace(cast("TuningStudy", known.study), cell=cell)
    keep_secret([secret])
    finding = Finding(cls="auth", action=Action.NONE, text=secret, detail=secret)
    told = tuple(
        replace(result, reason=verbatim(f"401 {secret}"), findings=(finding,))
        for result in known.history
    )
    known = dataclasses.replace(known, study=study, history=told)
    path = tmp_path / "a.html"
    for text in (html(known.document, known.facts), markdown(known.document)):
        write_all({path: text})
        assert "plant-one" in unescape(text)
        assert "plant-one" not in unescape(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    made = campaign(tmp_path_factory.mktemp("ended"), FakeExecutor())
    run(made)
    return made


def test_what_ails_the_page_costs_no_report(
    ended: Campaign,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [path.name for path in publish(ended.folder, tmp_path / "with")]
    others = [name for name in names if not name.endswith(".html")]

    def broken(*_: object, **__: object) -> str:
        raise ImportError("half installed")

    with monkeypatch.context() as patch:
        patch.setattr("pytest_xlatune.tasks.reports.html", broken)
        with pytest.raises(ImportError):
            publish(ended.folder, tmp_path / "broken")
    assert {path.name for path in (tmp_path / "broken").rglob("*")} >= {*others}
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "jinja2" else found(name)
    )
    assert [path.name for path in publish(ended.folder, tmp_path / "without")] == others
    assert main(["report", str(ended.folder), "--reports", str(tmp_path / "again")]) == 0
    assert capsys.readouterr().out.count(NO_PAGES) == 1


def test_a_job_leads_to_its_log_and_a_row_to_its_command(ended: Campaign) -> None:
    known = read_cell_report(ended.folder)
    jobs = {job for result in known.history for job in result.job_ids}
    assert known.facts.logs.keys() == jobs
    for log in known.facts.logs.values():
        folder = (ended.folder.parents[1] / log).parent
        folder.mkdir(parents=True, exist_ok=True)
        files = {"xlatune_environment.py": "import sys"}  # the payload adds it
        spec = LaunchSpec(argv=("python", "train.py"), env={"XLA_FLAGS": "--xla_a=1"}, files=files)
        (folder / "spec.json").write_text(json.dumps(spec.to_json()), encoding="utf-8")
    known = read_cell_report(ended.folder)
    text = unescape(html(known.document, known.facts))
    assert [log for log in known.facts.logs.values() if log not in text] == []
    assert set(known.facts.commands.values()) == {"XLA_FLAGS=--xla_a=1 \\\npython train.py"}
    assert "python train.py" in text
    # a command is of this machine: the data of a tuning document have none
    assert '"commands": {}' in write_cells((known.facts_to_deploy,))


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
@pytest.mark.browser
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


@pytest.mark.browser
@names("example batch", "nodes network commits live")
def test_every_text_can_be_read(shown: Browser, pages: dict[str, Path], name: str) -> None:
    for scheme in ("light", "dark"):
        shown.open(pages[name], width=1280, scheme=scheme)
        paper = shown.ask("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        seen, faint = shown.ask(f"contrast({LEAST_CONTRAST})")
        assert seen > 50
        assert faint == [], scheme


@pytest.mark.browser
def test_the_recipe_is_copied_by_its_button(shown: Browser, pages: dict[str, Path]) -> None:
    shown.open(pages["example"], width=1280)
    shown.ask("document.querySelector('button.copy').click(), 0")
    assert shown.ask("copied()") == "Copied"
    copied = shown.ask("document.querySelector('button.copy').parentElement.innerText")
    assert "--xla_backend_optimization_level=3" in copied  # the winner of the committed run
    assert shown.complaints() == []


CHINESE = Translator(Language.CHINESE)
UNKNOWN = "then {reason} of {n} (p = {p:.3f})"


MESSAGES = {
    "a message in a message": (
        say(UNKNOWN, reason=say("a gain of {gain:percent}", gain=0.012), n=2, p=0.00123),
        "then a gain of +1.2 % of 2 (p = 0.001)",
        None,
    ),
    "the first of many": (
        say("the log: {lines: | }", lines=at_most(3, ["a", "b", "c", "d", "e"])),
        "the log: a | b | c | and 2 more",
        "the log: a | b | c | 以及另外 2 个",
    ),
    "with a code": (coded(MessageCode.SURVIVORS, "{a} and {b}", a="a", b=None), "a and ", None),
    "a log line that looks like a text": (
        say("{said}: {lines} of {n}", said="{n} %s {0} {n.x}", lines=["{n}", "100 %d"], n=3),
        "{n} %s {0} {n.x}: {n}, 100 %d of 3",
        None,
    ),
    "a value that is a word": (say("{change:percent}", change=say("unknown")), "unknown", "未知"),
}


@pytest.mark.parametrize(("message", "english", "chinese"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_one_sentence_in_each_language(
    message: Message, english: str, chinese: str | None
) -> None:
    assert sentence(message) == english
    assert sentence(message, CHINESE.text_of) == (chinese or english)
    read = Message.from_json(json.loads(json.dumps(message.to_json())))
    assert (read, hash(read)) == (message, hash(message))
    with pytest.raises(TypeError, match="with `sentence`, not in an f-string"):
        f"{message}"


def test_a_damaged_text_of_a_ledger_is_shown_as_it_stands() -> None:
    for text, shown in (
        ("{a", "{a"),
        ("{a.__class__}", "{a.__class__}"),
        ("{a:999999999}", "7"),  # a width of a gigabyte
        ("{c:percent}", "x"),  # a name where a number is expected
        ("{} {0} %s", "{} {0} %s"),
    ):
        assert sentence(say(text, a=7, b=9, c="x")) == shown


FOLDER = Path(report.__file__).parent
CATALOG = FOLDER / "po" / "zh.po"


def msgids() -> Iterator[str]:
    """Every text that `report/` can say."""
    # the call -> which of its arguments are texts
    places = {"say": (0, 1), "say.text": (0, 1), "N_": (0, 1), "say.count": (1, 3)}
    calls = (node for path in FOLDER.glob("*.py") for node in nodes_of(path))
    for call in (node for node in calls if isinstance(node, ast.Call)):
        texts = call.args[slice(*places.get(ast.unparse(call.func), (0, 0)))]
        yield from (str(text.value) for text in texts if isinstance(text, ast.Constant))


def test_the_catalog_has_the_texts_of_the_code_translated_and_compiled(tmp_path: Path) -> None:
    text = CATALOG.read_text(encoding="utf-8")
    msgids_of_catalog = re.findall(r'^msgid(?:_plural)? "(.+)"$', text, re.MULTILINE)
    known = {msgid.replace('\\"', '"') for msgid in msgids_of_catalog}
    assert known >= {*msgids()}
    in_code = {
        text
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in (node.value, node.value.lstrip(">~"))  # heads of columns have signs
    }
    assert in_code >= known, "messages of other layers, which the document shows"
    out = tmp_path / "zh.mo"
    command = ["msgfmt", "--check", "--check-format", "--output-file", str(out), str(CATALOG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    entries = []
    for path in (CATALOG.with_suffix(".mo"), out):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        # plural forms by their own msgid, without the header
        entries.append(
            {key if isinstance(key, str) else key[0]: text for key, text in catalog.items() if key}
        )
    assert entries[0] == entries[1], "run: make translations"
    for msgid, translation in entries[1].items():
        assert translation, msgid
        # a field is written in another way, or less often, where the language has no plural
        parts = [{*re.findall(r"\{\w+|`[^`]*`", each)} for each in (msgid, translation)]
        assert parts[0] == parts[1], msgid


# what stays in Latin letters: names of programs, files, figures and verdicts, and what tables name
# as the statistics, the code and the scheduler do
NAMES = {
    *("XLA", "HLO", "TGS", "MV", "delta", "Tokens", "device", "token", "synthetic", "UTC", "pdbs"),
    *("PP", "FSDP", "sparse", "MDE", "alpha", "baseline", "deployed", "sigma", "vs", "confirm"),
    *("evidence", "exit", "screen", "signal"),
    *VerdictKind,
    *(word for state in State for word in state.split("-")),
}


SUBJECTS = {
    "explained": [replace(COVERED, explanation=EXPLAINED)],
    "two cells": [other_parallelism(), COVERED],
    "stopped": [STOPPED],
}


@rows("cells", SUBJECTS)
def test_the_chinese_prose_has_no_english_but_names_and_records(cells: list[MeasuredCell]) -> None:
    text = markdown(tuning(cells, Language.CHINESE))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for line in text.splitlines():
        if line.startswith("#"):  # headings are the same in all languages
            continue
        # what the ledger recorded is quoted, and said to be
        own = re.sub(r"`[^`]*`|docs/[\w/]+\.md|：[^：]*（原文.*|原因：.*|所用软件：.*", "", line)
        assert {*re.findall(r"[A-Za-z]{2,}", own)} <= NAMES, line
