"""The controlling process: live lines, the summary, the reports, the end of the session.

Registered in the process that has the terminal: the only one, or xdist's controller. It follows the
ledgers that the session's processes name in a file and never measures anything itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.tasks.notify import Notifier

if TYPE_CHECKING:
    from pytest_xlatune.tasks.live import Feed

CONTROLLER = "xlatune-controller"  # our name among the plugins, and our key on xdist's wire
IS_USAGE = "xlatune_is_usage"  # set on the report of a collector that the user got wrong
REFUSED = "xlatune.refused"  # property of a test that a fixture refused: the kind of error
_LOOK_S = 1.0


def root_of(config: pytest.Config) -> Path:
    """Return the folder of `--rootdir` or of pytest's ini file, else where pytest was started.

    Without either pytest's own root directory follows from the arguments, the value of
    `--xlatune-workdir` among them once it exists: the next run would not find what this one
    measured.
    """
    is_said = config.inipath is not None or config.getoption("rootdir", None)
    return config.rootpath if is_said else config.invocation_params.dir


class Controller:
    """What one session shows and leaves behind."""

    def __init__(
        self, config: pytest.Config, options: RunSettings, session_id: str, notifier: Notifier
    ) -> None:
        self.session_id = session_id
        self._notifier = notifier
        self._has_news = False
        self._config = config
        self._options = options
        self._feeds: dict[Path, Feed] = {}
        self._troubles: dict[Path, str] = {}  # what was last wrong with a folder's ledger
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_usage = False
        self._told: dict[str, str] = {}  # message of a failure -> the first test that has it

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker which session it belongs to."""
        node.workerinput[CONTROLLER] = self.session_id
        if self._thread is None:
            # xdist's loop has no place for us; its controller runs no tests and captures nothing
            self._thread = threading.Thread(target=self._follow, name="xlatune", daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Print what has landed since; called while a test of this process waits."""
        lines = list(self._new_lines())
        if not lines:
            return
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            self._print(lines)
            return
        with capture.global_and_fixture_disabled():
            self._print(lines)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that what failed to be collected is for the user to mend."""
        self._is_usage = self._is_usage or bool(vars(report).get(IS_USAGE))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say in full once what keeps every test of a sweep from running, then in one line."""
        if report.failed and REFUSED in dict(report.user_properties):
            told = str(report.longrepr).strip()
            first = self._told.setdefault(told, report.nodeid)
            if first != report.nodeid:
                line = told.splitlines()[0].removesuffix(":")
                report.longrepr = f"{line} (said in full for {first})"

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:
        """Show what a passed test's verdict was; an inconclusive one is counted by itself."""
        if not isinstance(report, pytest.TestReport) or report.when != "call":
            return None
        said = dict(report.user_properties)
        words = said.get("xlatune.words")
        if not report.passed or words is None:
            return None
        if said.get("xlatune.verdict") == "INCONCLUSIVE":
            return "inconclusive", "i", (str(words), {"yellow": True})
        return "passed", ".", (f"PASSED {words}", {"green": True})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End jobs that no test waits for any more, and send the last message."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_usage:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if session.config.option.collectonly:
            return
        for folder in self._named_folders():
            try:
                self._finish(folder)
            except XlatuneError as error:
                self._print([f"xlatune: {error}"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show each sweep's leaderboard and where its reports are."""
        folders = self._named_folders()
        if not folders:
            return  # and nothing was imported
        from pytest_xlatune.report.render import terminal
        from pytest_xlatune.tasks.publish import document_of, publish, read_known

        for folder in folders:
            try:
                known = read_known(folder)
                terminalreporter.section(f"xlatune: {known.sweep}")
                width = terminalreporter._tw.fullwidth  # noqa: SLF001 - pytest gives no other way
                for line in terminal(document_of(known), width=width):
                    terminalreporter.write_line(line)
                for line in known.stopped.splitlines():
                    terminalreporter.write_line(line, red=True)
                # last: the disk may be full, and what was found is read off the terminal then
                for path in publish(folder, self._options.reports, zh=self._options.zh):
                    terminalreporter.write_line(f"written: {self._shown(path)}")
            except XlatuneError as error:
                terminalreporter.write_line(f"xlatune: {error}", red=True)
                session = terminalreporter._session  # noqa: SLF001 - as above
                if session is not None and session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        for line in self._options.said.unread([folder.parent.name for folder in folders]):
            terminalreporter.write_line(f"xlatune: {line}")

    def _finish(self, folder: Path) -> None:
        from pytest_xlatune.campaign.jobs import cancel_unwaited
        from pytest_xlatune.report.lines import summary_message
        from pytest_xlatune.tasks.publish import read_known

        if not self._options.keep_jobs:
            ended = cancel_unwaited(folder)
            if ended:
                jobs = ", ".join(each.job_id for each in ended)
                self._print(
                    [f"xlatune: ended {jobs}, for no test waits for them; run again to go on"]
                )
        self.tick()
        known = read_known(folder)
        self._config.hook.pytest_xlatune_concluded(sweep=known.sweep, conclusion=known.conclusion)
        if known.stopped or self._has_news:
            self._tell(
                known.stopped
                or summary_message(
                    cell=known.cell, conclusion=known.conclusion, history=known.history
                )
            )

    def _tell(self, message: str) -> None:
        """Send a message to the targets; one that cannot be sent is shown here."""
        title, _, body = message.partition("\n")
        warning = self._notifier.send(title=title, body=body or title)
        if warning:
            self._print([f"xlatune: {warning}"])

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._print(self._new_lines())

    def _new_lines(self) -> Iterator[str]:
        for folder in self._named_folders():
            from pytest_xlatune.tasks.live import Feed

            if folder not in self._feeds:
                self._feeds[folder] = Feed(folder, session_id=self.session_id)
            try:
                for landed in self._feeds[folder].landed():
                    if landed.line:
                        yield landed.line
                    for message in landed.messages:
                        self._tell(message)
                    if landed.result is not None:
                        if not self._has_news:
                            self._tell(f"[xla-tuning] first trial is in: {landed.line}")
                        self._has_news = True
                        self._config.hook.pytest_xlatune_trial_ended(
                            sweep=landed.sweep, result=landed.result
                        )
            except XlatuneError as error:
                # once, not at every look
                if self._troubles.get(folder) != str(error):
                    self._troubles[folder] = str(error)
                    yield f"xlatune: {error}"

    def _named_folders(self) -> list[Path]:
        """Return the folders that the processes of this session use."""
        path = self._options.workdir / "sessions" / f"{self.session_id}.txt"
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError:  # no process has named one, or none could
            return []
        # the last one may be half a name: its writer is at it
        names = [line.removesuffix("\n") for line in lines if line.endswith("\n")]
        return [Path(name) for name in dict.fromkeys(names)]

    def _print(self, lines: Iterator[str] | list[str]) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        for line in lines:
            if reporter is None:
                continue
            if reporter._tw.width_of_current_line:  # noqa: SLF001 - xdist's dots are no file's line
                reporter.write_line("")
            reporter.currentfspath = None
            reporter.write_line(line)

    def _shown(self, path: Path) -> str:
        root = root_of(self._config)
        return str(path.relative_to(root) if path.is_relative_to(root) else path)
