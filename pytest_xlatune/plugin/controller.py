"""The controlling process: live lines, the summary, the reports, the end of the session.

It is registered in the process with the terminal: the only one, or xdist's controller. It follows
the ledgers that the session's processes name in a file, and never measures anything itself.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.model.errors import Exit, XlatuneError, worst
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import percent, printable
from pytest_xlatune.plugin.hooks import (
    CONTROLLER,
    EXIT,
    IS_USAGE,
    REFUSED,
    root_of,
    sweep_of,
)
from pytest_xlatune.report.document import terminal
from pytest_xlatune.report.lines import in_columns, summary_message
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.tasks.cell_report import CellReport, current_cell_report
from pytest_xlatune.tasks.files import NO_PAGES, has_pages
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.notify import Notifier
from pytest_xlatune.tasks.reports import publish

_LOOK_S = 1.0  # seconds between two looks at the ledgers
_NAMES_CHARS = 200  # the names of deselected tests are cut to this length
_REPEAT_CHARS = 100  # a message that an earlier test has shown in full is cut to this length


@dataclass(slots=True)
class SessionStatus:
    """The exit status of a session, from the tests and reports that end it.

    Attributes:
        statuses: every status that applies.
    """

    statuses: set[Exit] = field(default_factory=set)
    _is_sweep: bool = False  # whether a test of a sweep failed
    _has_verdict: bool = False  # whether a test got a verdict
    _is_measured: bool = False  # whether a verdict was not INVALID and its settings in effect

    def note(self, report: pytest.TestReport) -> None:
        """Take a test's report into account; an ordinary test's failure is status 1."""
        verdict = dict(report.user_properties).get("xlatune.verdict")
        self._has_verdict |= verdict is not None
        # The verdict is read as text, because loading its class takes time.
        is_unproved = "xlatune.unproved" in dict(report.user_properties)
        self._is_measured |= verdict not in (None, "INVALID") and not is_unproved
        if report.failed:
            self._is_sweep |= EXIT in vars(report)
            self.statuses.add(Exit(vars(report).get(EXIT, Exit.NEGATIVE)))

    @property
    def is_own(self) -> bool:
        """Whether the status is one that pytest itself does not have."""
        return worst(self.statuses) in (Exit.CANNOT_TELL, Exit.NOT_MEASURED)

    def status(self, pytest_status: int) -> int:
        """Return the session's exit status; pytest's own is kept unless a sweep has another."""
        if pytest_status == pytest.ExitCode.INTERNAL_ERROR:
            self.statuses.add(Exit.INTERNAL)
        # e.g. all tests xfailed, because a wrapper around the trainer ignores XLA_FLAGS
        if pytest_status == pytest.ExitCode.OK and self._has_verdict and not self._is_measured:
            self.statuses.add(Exit.NOT_MEASURED)
        is_ours = self._is_sweep or bool(self.statuses - {Exit.NEGATIVE})
        is_of_other_plugin = pytest_status not in tuple(Exit)
        return worst(self.statuses) if is_ours and not is_of_other_plugin else pytest_status


def _verdict_text(properties: Mapping[str, object]) -> str:
    """Return profile, verdict and change of a test, e.g. `overlap-2 FASTER +3.4 %`."""
    words = str(properties["xlatune.words"])
    # the JSON value is exact, so the change is rounded only once
    delta = json.loads(str(properties["xlatune"]))["delta"]
    change = "" if delta is None else percent(float(delta))
    parts = (properties.get("xlatune.profile"), words, "" if change in words else change)
    return " ".join(str(part) for part in parts if part)


def _say(reporter: pytest.TerminalReporter, line: str, **markup: bool) -> None:
    reporter.write_line(printable(hide_kept(line)), **markup)


class Controller:
    """Shows the progress and results of one session, and writes its reports."""

    def __init__(
        self,
        config: pytest.Config,
        options: RunSettings,
        session_id: str,
        notifier: Notifier,
    ) -> None:
        self.session_id = session_id
        self._notifier = notifier
        self._left_out: list[str] = []  # names of sweeps' tests that the command line deselects
        self._has_results = False  # whether a trial has ended during this session
        self._config = config
        self._options = options
        self._feeds: dict[Path, LiveLines] = {}  # folder of a campaign -> its live lines
        self._folders: list[Path] = []  # the folders of campaigns that this session uses
        self._errors: dict[Path, str] = {}  # folder of a campaign -> the last error of its ledger
        self._over = threading.Event()  # set at the end of the session
        self._thread: threading.Thread | None = None  # prints live lines if xdist runs the tests
        self._end = SessionStatus()
        self._is_ending_jobs = False
        self._leaves_jobs = False  # whether a second Ctrl-C asked to leave jobs running
        self._first_with: dict[str, str] = {}  # message of a failure -> the first test with it

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker which session it belongs to."""
        node.workerinput[CONTROLLER] = self.session_id
        if self._thread is None:
            # xdist's loop does not call us, but this process captures no output, so a thread prints
            self._thread = threading.Thread(target=self._follow, name="xlatune", daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Print what has finished since the last call; waiting tests of this process call it."""
        lines = list(self._new_lines())
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture and lines else nullcontext():
            self._print(lines)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that a failure of collection is an error of the user."""
        if vars(report).get(IS_USAGE):
            self._end.statuses.add(Exit.USAGE)

    # tryfirst, because pytest's own handler takes a while, in which a second Ctrl-C may come
    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note Ctrl-C; `-x` and errors of collection do not count as interrupts."""
        # pytest and xdist stop with subclasses of KeyboardInterrupt
        is_stop = excinfo.errisinstance(KeyboardInterrupt) and excinfo.type is not KeyboardInterrupt
        if not is_stop:
            self._end.statuses.add(Exit.INTERRUPTED)
            if self._session_folders() and not self._options.keep_jobs:
                text = (
                    "xlatune: interrupted. Jobs that no other session waits for are ended now, "
                    "which may take a minute. Ctrl-C again leaves them running, and the next run "
                    "waits for them"
                )
                self._print([text])
            if threading.current_thread() is threading.main_thread():
                old_handler = signal.signal(signal.SIGINT, self._interrupted_again)
                restore = functools.partial(signal.signal, signal.SIGINT, old_handler)
                self._config.add_cleanup(cast("Callable[[], None]", restore))

    def _interrupted_again(self, *_: object) -> None:
        """Leave jobs running from now on; the reports are still written."""
        self._leaves_jobs = True
        if self._is_ending_jobs:
            raise KeyboardInterrupt

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show an error that prevents several tests once in full, and then in one line."""
        self._end.note(report)
        if report.failed and REFUSED in dict(report.user_properties):
            reason = str(report.longrepr).strip()
            first = self._first_with.setdefault(reason, report.nodeid)
            if first != report.nodeid:
                line = textwrap.shorten(
                    reason.splitlines()[0].removesuffix(":"), _REPEAT_CHARS, placeholder=" ..."
                )
                report.longrepr = f"{line} (in full at {first})"

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:
        """Show the verdict of a passed test; inconclusive ones are counted separately."""
        if not isinstance(report, pytest.TestReport) or report.when != "call":
            return None
        properties = dict(report.user_properties)
        words = properties.get("xlatune.words")
        if not report.passed or words is None:
            return None
        shown = _verdict_text(properties)
        if properties.get("xlatune.verdict") == "INCONCLUSIVE":
            return "inconclusive", "i", (shown, {"yellow": True})
        return "passed", ".", (f"PASSED {shown}", {"green": True})

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note deselected tests of sweeps, to name them if none is left (without -n)."""
        self._left_out += [item.name for item in items if sweep_of(getattr(item, "module", None))]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End jobs for which no test waits any more, and send the last message."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        session.exitstatus = self._end.status(session.exitstatus)
        if session.config.option.collectonly:
            return
        for folder in self._session_folders():
            try:
                if not self._leaves_jobs:
                    self._finish(folder)
            except XlatuneError as error:
                self._print([f"xlatune: {error}"])
            except KeyboardInterrupt:
                self._leaves_jobs = True
        if self._leaves_jobs:
            self._print(["xlatune: running jobs are left running; run again to wait for them"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the leaderboard of each sweep, and where its reports are."""
        folders = self._session_folders()
        if not folders:
            session = terminalreporter._session  # noqa: SLF001 - pytest gives no other way
            if self._left_out and session is not None and not session.items:
                names = textwrap.shorten(
                    ", ".join(self._left_out), _NAMES_CHARS, placeholder=" ..."
                )
                _say(terminalreporter, f"xlatune: no test of a sweep is selected; known: {names}")
            return
        for folder in folders:
            try:
                self._show_sweep(terminalreporter, folder)
            except XlatuneError as error:
                _say(terminalreporter, f"xlatune: {error}", red=True)
                session = terminalreporter._session  # noqa: SLF001 - as above
                if session is not None:
                    self._end.statuses.add(error.exit)
                    session.exitstatus = self._end.status(session.exitstatus)
        # the header also shows it, but `-q` has none, and after hours it has scrolled away
        if not has_pages():
            _say(terminalreporter, f"xlatune: {NO_PAGES}")
        if self._end.is_own:
            status = worst(self._end.statuses)
            _say(terminalreporter, f"exit status {int(status)}: {status.meaning}", bold=True)

    def _show_sweep(self, terminalreporter: pytest.TerminalReporter, folder: Path) -> None:
        """Show the results and write the reports.

        Raises:
            LedgerError: the ledger cannot be read, or a report cannot be written.
        """
        known = self._known(folder)
        terminalreporter.section(f"xlatune: {printable(known.sweep)}")
        if known.has_figure:
            width = terminalreporter._tw.fullwidth  # noqa: SLF001 - pytest gives no other way
            for line in terminal(known.document, width=width):
                _say(terminalreporter, line)
            for line in known.stopped.splitlines():
                if not line.startswith("Reason: "):  # the document has the reason
                    _say(terminalreporter, line, red=True)
        else:
            why = known.stop_reason or "the session ended before"
            _say(terminalreporter, f"{known.label}: no trial has a figure: {why}", red=True)
        # reports are written last, so that the terminal shows the results even if the disk is full
        written = publish(
            folder,
            self._options.reports,
            zh=self._options.zh,
            exports=self._options.export,
            cell_report=known,
        )
        for path in written:
            _say(terminalreporter, f"written: {self._shown(path)}")
        if not known.conclusion.complete:
            line = f"everything is kept in {self._shown(folder)}: the same command goes on"
            _say(terminalreporter, line)

    def _finish(self, folder: Path) -> None:
        """End the jobs of a campaign that no test waits for, and report its conclusion."""
        feed = self._feeds.get(folder)
        if not self._options.keep_jobs and not (feed is not None and feed.is_over):
            self._is_ending_jobs = True
            try:
                ended = cancel_unwaited(folder)
            finally:
                self._is_ending_jobs = False
            if ended:
                jobs = ", ".join(submission.job_id for submission in ended)
                self._print(
                    [f"xlatune: ended {jobs}, because no test waits for them; run again to go on"]
                )
        self.tick()
        known = self._known(folder)
        self._config.hook.pytest_xlatune_concluded(sweep=known.sweep, conclusion=known.conclusion)
        if known.stopped:
            self._notify(known.stopped)
        elif self._has_results:
            self._notify(summary_message(label=known.label, conclusion=known.conclusion))

    def _known(self, folder: Path) -> CellReport:
        """Return the present report of a ledger, which is read again only if it has grown."""
        feed = self._feeds.get(folder)
        return current_cell_report(folder, feed.cell_report() if feed is not None else None)

    def _notify(self, message: str) -> None:
        """Send a notification; print a warning if it cannot be sent."""
        if warning := self._notifier.send(message):
            self._print([f"xlatune: {warning}"])

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._print(list(self._new_lines()))

    def _new_lines(self) -> Iterator[str]:
        for folder in self._session_folders():
            if folder not in self._feeds:
                self._feeds[folder] = LiveLines(
                    folder, self._options.reports, session_id=self.session_id
                )
            feed = self._feeds[folder]
            try:
                for progress in feed.news():
                    if line := progress.line:
                        is_named = len(self._feeds) == 1 or line.startswith(feed.label)
                        yield in_columns(line if is_named else f"{feed.label} {line}")
                    for message in progress.messages:
                        self._notify(message)
                    if progress.result is not None:
                        self._has_results = True
                        self._config.hook.pytest_xlatune_trial_ended(
                            sweep=feed.sweep, result=progress.result
                        )
                # at the end of the session, all reports are written anyway
                if not self._over.is_set() and (problem := feed.write_page()):
                    yield f"xlatune: {problem}"
            except XlatuneError as error:
                # each error is shown once, not whenever the ledger is read
                if self._errors.get(folder) != str(error):
                    self._errors[folder] = str(error)
                    waits = "; waiting for it" if isinstance(error.__cause__, OSError) else ""
                    yield f"xlatune: {error}{waits}"

    def _session_folders(self) -> list[Path]:
        """Return the folders of campaigns that processes of this session have named so far."""
        workdir = self._options.workdir
        try:
            text = secure_files.read_bytes(workdir / "sessions" / f"{self.session_id}.txt")
        except OSError:  # no process has named a folder, or the work directory cannot be reached
            return self._folders
        # the last line may be incomplete, because its writer is not done
        lines = os.fsdecode(text).splitlines(keepends=True)
        names = [line.removesuffix("\n") for line in lines if line.endswith("\n")]
        self._folders = [
            folder
            for folder in map(Path, dict.fromkeys(names))
            if folder.is_relative_to(workdir) and ".." not in folder.parts
        ]
        return self._folders

    def _print(self, lines: Iterator[str] | list[str]) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        for line in lines:
            if reporter is None:
                continue
            if reporter._tw.width_of_current_line:  # noqa: SLF001 - the line has dots of xdist
                reporter.write_line("")
            reporter.currentfspath = None  # so pytest names the test's file again
            _say(reporter, line)
            reporter.flush()  # also into a file, which people follow with `tail -f`

    def _shown(self, path: Path) -> str:
        root = root_of(self._config)
        return str(path.relative_to(root) if path.is_relative_to(root) else path)
