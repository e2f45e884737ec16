"""Write what a log says about Megascale as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.guests.megascale.digest import Digest, MegascaleReport, TpuState
from pytest_xlatune.model.text import counted

_MOST_ROWS = 12  # the most rows of a table of states
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
    for sighting in report.sightings:
        times = f" ({sighting.count} times)" if sighting.count > 1 else ""
        yield f"{path}:{sighting.line}: {sighting.known.means}{times}"
        yield f"  {sighting.text[:160]}"
    if report.sightings:
        yield ""


def digest_lines(path: str, digest: Digest) -> Iterator[str]:
    """Yield the lines for a digest: cause, culprits, advice, table."""
    cause = digest.cause
    name = cause.words[0] if cause else "no cause is named"
    if digest.is_cancelled:
        yield f"{path}:{digest.line}: the job was ended on purpose; the digest names no cause"
        return
    yield f"{path}:{digest.line}: {name} (class {digest.cls}; layout of libtpu {digest.layout})"
    if cause:
        yield f"  {cause.means}"
    if digest.culprits:
        yield "  named by libtpu: " + ", ".join(map(str, digest.culprits))
    for sender, receiver in digest.links:
        yield f"  broken link: {sender} -> {receiver}"
    if digest.first_error:
        kind, time = digest.first_error
        yield f"  first error: {kind}" + (f" at {time}" if time else "")
    for worker, text in digest.messages:
        first, *more = text.splitlines() or [""]
        yield f"  {worker}: {first}"
        yield from (f"      {line}" for line in more)
    yield from (f"  note: {note}" for note in digest.notes)
    if digest.is_truncated:
        yield "  the text is cut: a part of the digest is missing"
    if cause:
        yield "  to do:"
        yield from (f"    {number}. {step}" for number, step in enumerate(cause.action, 1))
    yield from _table(digest)


def _table(digest: Digest) -> Iterator[str]:
    """Yield the lines for the programs of each launch, and for the states of the cores."""
    for ident, programs in digest.launches:
        for program in programs:
            launch = "no launch" if ident is None else f"launch {ident}"
            sample = f", for example on {program.sample}" if program.sample else ""
            module = program.module or "no module"
            fingerprint = program.fingerprint or "no fingerprint"
            yield f"  {launch}: {module} {fingerprint}{sample}"
    for states, title in ((digest.states, ""), (digest.sparse, "sparse cores: ")):
        yield from (f"    {title}{_state_text(state)}" for state in states[:_MOST_ROWS])
        if len(states) > _MOST_ROWS:
            yield f"    and {len(states) - _MOST_ROWS} more; --json has all"


def _state_text(state: TpuState) -> str:
    """Return how many cores are at which instruction, and their first hosts."""
    place = f"pc {state.pc}" if state.tag is None else f"{state.tag}:{state.pc}"
    launch = "" if state.launch_id is None else f"launch {state.launch_id}, "
    computation = f" in {state.computation}" if state.computation else ""
    hosts = ", ".join(state.hosts[:_MOST_HOSTS]) + (
        ", ..." if len(state.hosts) > _MOST_HOSTS else ""
    )
    cores = counted(state.cores, "core")
    instruction = f"{place} {state.hlo or ''}{computation}".rstrip()
    return f"{cores} at {launch}{instruction}: {hosts}"
