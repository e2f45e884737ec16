"""The lines that show on a terminal what a log says about Megascale."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.guests.megascale.digest import Digest, MegascaleReport, TpuState
from pytest_xlatune.model.text import counted

_ROWS = 12  # rows of a table of states
_HOSTS = 6  # hosts in a row


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
            yield "  it names no culprit; the digest is in the log of the coordinator: task 0 of"
            yield "  slice 0, with Pathways the job resource_manager; it may come 30 s later"
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
        yield f"{path}:{digest.line}: the job was ended on purpose; the digest tells no cause"
        return
    yield f"{path}:{digest.line}: {name} (class {digest.cls}; layout of libtpu {digest.layout})"
    if cause:
        yield f"  {cause.means}"
    if digest.culprits:
        yield "  named by libtpu: " + ", ".join(map(str, digest.culprits))
    for source, to in digest.links:
        yield f"  broken link: {source} -> {to}"
    if digest.first_error:
        kind, time = digest.first_error
        yield f"  first error: {kind}" + (f" at {time}" if time else "")
    for worker, text in digest.messages:
        first, *more = text.splitlines() or [""]
        yield f"  {worker}: {first}"
        yield from (f"      {line}" for line in more)
    yield from (f"  note: {note}" for note in digest.notes)
    if digest.is_truncated:
        yield "  the text is cut: it lacks a part of the digest"
    if cause:
        yield "  to do:"
        yield from (f"    {number}. {step}" for number, step in enumerate(cause.action, 1))
    yield from _table(digest)


def _table(digest: Digest) -> Iterator[str]:
    for ident, programs in digest.launches:
        for program in programs:
            at = "no launch" if ident is None else f"launch {ident}"
            sample = f", for example on {program.sample}" if program.sample else ""
            module, fingerprint = (
                program.module or "no module",
                program.fingerprint or "no fingerprint",
            )
            yield f"  {at}: {module} {fingerprint}{sample}"
    for states, title in ((digest.states, ""), (digest.sparse, "sparse cores: ")):
        yield from (f"    {title}{_state(state)}" for state in states[:_ROWS])
        if len(states) > _ROWS:
            yield f"    and {len(states) - _ROWS} more; --json has all"


def _state(state: TpuState) -> str:
    place = f"pc {state.pc}" if state.tag is None else f"{state.tag}:{state.pc}"
    launch = "" if state.launch_id is None else f"launch {state.launch_id}, "
    computation = f" in {state.computation}" if state.computation else ""
    hosts = ", ".join(state.hosts[:_HOSTS]) + (", ..." if len(state.hosts) > _HOSTS else "")
    cores = counted(state.cores, "core")
    where = f"{place} {state.hlo or ''}{computation}".rstrip()
    return f"{cores} at {launch}{where}: {hosts}"
