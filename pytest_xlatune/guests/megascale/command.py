"""`xlatune megascale`: show why a multi-slice TPU job hangs, by the digests in its logs.

It reads logs, gzipped logs and folders of logs, and needs no ledger.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_xlatune.cli import add_json, complain, show, show_json
from pytest_xlatune.guests.megascale.digest import (
    SCHEMA,
    Digest,
    MegascaleReport,
    TpuState,
)
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.guests.megascale.environment import check, settings_of_this_host
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.text import counted
from pytest_xlatune.tasks.files import STDIN, chunks_of

_MOST_HOSTS = 6  # the most hosts in a row


def add_megascale(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "logs", nargs="*", type=Path, metavar="LOG", help="logs, or folders of them; gzip too"
    )
    parser.add_argument(
        "--check-env", action="store_true", help="check the settings of this host instead"
    )
    add_json(parser)
    parser.set_defaults(run=run_megascale)


def run_megascale(arguments: argparse.Namespace) -> int:
    """Show what logs say about Megascale, or check the settings of this host."""
    if arguments.check_env:
        return _check_environment()
    if not arguments.logs:
        raise ConfigError("no log: name the logs of a job, a folder of them, or --check-env")
    reports: dict[Path, MegascaleReport] = {}
    exit_code = 0
    paths = list(files_of(arguments.logs))
    if not paths:
        raise ConfigError(f"{', '.join(map(str, arguments.logs))}: the folder has no file")
    for path in paths:
        try:
            reports[path] = read_megascale(path)
        except ConfigError as error:
            exit_code = complain([str(error)])
    digests = [digest for report in reports.values() for digest in report.digests]
    if arguments.json:
        # one document for all logs of a job: all digests, and the first trigger
        triggers = (report.trigger for report in reports.values() if report.trigger)
        trigger = msgspec.to_builtins(next(triggers, None))
        entries = msgspec.to_builtins(digests)
        show_json({"schema": SCHEMA, "digests": entries, "trigger": trigger})
        return exit_code
    lines: list[str] = []
    for path, report in reports.items():
        lines += report_lines(str(path), report)
    show(lines)
    chips = accused_chips(digests)
    # one digest does not prove a bad chip: XLA or a Pallas kernel may be the cause
    if chips and len(digests) > 1:
        show(["hosts that digests accuse of a bad chip (more than three digests prove it):"])
        show([f"  {host}: {counted(count, 'digest')}" for host, count in chips])
    if not lines:
        show([f"no Megascale digest in {counted(len(reports), 'file')}"])
    return exit_code


def _check_environment() -> int:
    """Show whether the settings of this host are as advised; return 1 if one of them is not."""
    items = list(check(settings_of_this_host()))
    for item in items:
        judgement = {True: "good", False: "CHANGE", None: "-"}[item.is_good]
        show([f"{judgement:7}{item.name} = {item.value or 'not seen'}"])
        if item.is_good is not True:
            show([f"{'':7}advised: {item.advice}", f"{'':7}source: {item.source}"])
    return 1 if any(item.is_good is False for item in items) else 0


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that paths name; for a folder all files below it, ordered by name.

    Raises:
        ConfigError: there is no such path.
    """
    for path in paths:
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file())
        elif path == STDIN or path.exists():
            yield path
        else:
            raise ConfigError(f"{path}: no such file; name the log of a job, or a folder of logs")


def read_megascale(path: Path) -> MegascaleReport:
    """Read one log in constant memory; gzip is detected, and `-` means standard input.

    Raises:
        ConfigError: the log cannot be read.
    """
    reader = MegascaleReader()
    for chunk in chunks_of(path, []):
        reader.feed(chunk)
    reader.close()
    return reader.report()


def accused_chips(digests: Iterable[Digest]) -> list[tuple[str, int]]:
    """Return the hosts that digests accuse of a bad chip, with the number of digests; most first.

    Copies of one digest in several logs count once.
    """
    counts: Counter[str] = Counter()
    events: list[Digest] = []
    for digest in digests:
        event = replace(digest, line=0)
        if digest.cls is FailureClass.TPU_CHIP and event not in events:
            events.append(event)
            counts.update({str(worker) for worker in digest.culprits})
    return counts.most_common()


def report_lines(path: str, report: MegascaleReport) -> Iterator[str]:
    """Yield the lines for what a log says about Megascale; none if it says nothing."""
    for digest in report.digests:
        yield from digest_lines(path, digest)
        yield ""
    trigger = report.trigger
    if trigger is not None:
        launch = "" if trigger.launch_id is None else f" at launch {trigger.launch_id}"
        yield f"{path}:{trigger.line}: a worker gave up waiting{launch}"
        if not report.digests:
            yield "  the line names no culprit; the digest is in the log of the coordinator (task 0"
            yield "  of slice 0, with Pathways the job resource_manager), perhaps 30 s later"
        yield ""


def digest_lines(path: str, digest: Digest) -> Iterator[str]:
    """Yield the lines for a digest: cause, culprits, advice, table."""
    cause = digest.known
    if digest.is_cancelled:
        yield f"{path}:{digest.line}: the job was ended on purpose; the digest names no cause"
        return
    name = cause.words[0]
    yield f"{path}:{digest.line}: {name} (class {digest.cls}; layout of libtpu {digest.layout})"
    yield f"  {cause.means}"
    if digest.culprits:
        yield "  named by libtpu: " + ", ".join(map(str, digest.culprits))
    yield from (f"  broken link: {link.src} -> {link.dst}" for link in digest.links)
    if digest.first_error:
        yield f"  first error: {digest.first_error.type} at {digest.first_error.time or 'no time'}"
    for message in digest.messages:
        first, *more = message.text.splitlines() or [""]
        yield f"  {message.worker}: {first}"
        yield from (f"      {line}" for line in more)
    yield from (f"  note: {note}" for note in digest.notes)
    yield "  to do:"
    yield from (f"    {number}. {step}" for number, step in enumerate(cause.action, 1))
    yield from _table(digest)


def _table(digest: Digest) -> Iterator[str]:
    """Yield the lines for the programs of each launch, and for the states of the cores."""
    for launch in digest.launches:
        ident = "no launch" if launch.launch_id is None else f"launch {launch.launch_id}"
        for program in launch.programs:
            module = program.module or "no module"
            fingerprint = program.fingerprint or "no fingerprint"
            sample = f", for example on {program.sample}" if program.sample else ""
            yield f"  {ident}: {module} {fingerprint}{sample}"
        yield from (f"    {_state_text(state)}" for state in launch.states)
    yield from (f"    sparse cores: {_state_text(state)}" for state in digest.sparse)


def _state_text(state: TpuState) -> str:
    """Return how many cores are at which instruction, and their first hosts."""
    computation = f" in {state.computation}" if state.computation else ""
    hosts = ", ".join(state.hosts[:_MOST_HOSTS])
    more = ", ..." if len(state.hosts) > _MOST_HOSTS else ""
    instruction = f"{state.tag}:{state.pc} {state.hlo or ''}{computation}".rstrip()
    return f"{counted(state.cores, 'core')} at {instruction}: {hosts}{more}"
