"""Write what a log says about Megascale as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.guests.megascale.digest import Digest, MegascaleReport, TpuState
from pytest_xlatune.model.text import counted

_MOST_HOSTS = 6  # the most hosts in a row


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
