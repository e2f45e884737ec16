"""Why the winner wins: its facts read again from the artifacts that the ledger names.

What is in a dump or a trace, the evidence readers say; that their figures add up is seen here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_xlatune.evidence.hlo.difference import difference
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.comparison import compare_windows
from tests.helpers.document.figures import BASELINE, Books
from tests.helpers.document.lines import NUMBER

# gemm: 12.694 -> 14.150 ms per device and step (+1.457 ms)
MOVED = re.compile(
    rf"([\w ]+): ({NUMBER}) -> ({NUMBER}) ms per device and step \(({NUMBER}) ms\)", re.ASCII
)


@functools.lru_cache(maxsize=4)
def evidence_of(books: Books) -> EvidenceCheck:
    """The check of a ledger's evidence: its artifacts are read once."""
    return EvidenceCheck(books)


class EvidenceCheck:
    """What is said of the evidence of one cell."""

    def __init__(self, books: Books) -> None:
        self.books = books

    @cached_property
    def sides(self) -> list[tuple[dict[str, Any], str]]:
        """The last evidence of the baseline and of the winner, with its job; [] where one lacks."""
        found = []
        for name in (BASELINE, self.books.winner):
            jobs = [job for each in self.books.of(name, "evidence") for job in each.ids[-1:]]
            recorded = [
                line
                for line in self.books.lines
                if line["event"] == "evidence-recorded"
                and self.books.profile_of[line["trial_id"]] == name
            ]
            if jobs and recorded:
                found.append((recorded[-1], jobs[-1]))
        return found if len(found) == 2 else []

    @cached_property
    def _compared(self) -> Any:
        folder = self.books.folder
        steps = self.books.of(BASELINE, "evidence")[-1].result["trial"]["protocol"]
        wanted = CaptureWindow(steps=steps["profiler_steps"] or None)
        drills = [
            read_window([folder / each for each in side["captures"]], wanted)[0]
            for side, _ in self.sides
        ]
        return compare_windows(*drills)

    @cached_property
    def facts(self) -> dict[str, list[str]]:
        """Sentences and moved parts, by the kind of evidence."""
        programs = [read_program(self.books.folder / side["dump"]) for side, _ in self.sides]
        found = self._compared
        totals = [each for each in found.totals if each.name in ("overlap", "concurrency")]
        return {
            "HLO": list(difference(*programs).sentences),
            "step": [found.sentence, *map(_moved, (found.span, *found.parts))],
            "kernel family": list(map(_moved, found.families)),
            "overlap": list(map(_moved, totals)),
        }

    def complaints(self, row: Sequence[str]) -> Iterator[str]:
        """Complain of a row of the table: kind, what moved, artifacts by name."""
        kind, text, names = row
        if not self.sides:
            yield f"{kind}: no evidence of both sides is in the ledger"
            return
        if text not in self.facts[kind]:
            yield f"{kind}: {text!r} is not what the artifacts say"
        match = MOVED.fullmatch(text)
        if match is not None:
            before, after, change = (float(each) for each in match.groups()[1:])
            if not math.isclose(after - before, change, abs_tol=0.00151):
                yield f"{text!r} does not add up"
        # the dumps first, then the traces, each of the baseline and of the winner
        at = 0 if kind == "HLO" else len(self.named) - 2
        expected = ", ".join(list(self.named)[at : at + 2])
        if names != expected:
            yield f"{kind}: artifacts {names}, expected {expected}"

    @cached_property
    def named(self) -> dict[str, tuple[set[str], str]]:
        """Artifact -> the paths that it may have, and its job."""
        top = self.books.folder.parent.parent
        own = self.books.folder.relative_to(top)
        dumps = [({str(own / side["dump"])}, job) for side, job in self.sides]
        traces = [
            ({str(own / Path(each).parent) for each in side["captures"]}, job)
            for side, job in self.sides
        ]
        kept = [*(dumps if self.facts["HLO"] else []), *traces]
        return {f"A{at}": each for at, each in enumerate(kept, start=1)}

    def artifacts(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """Complain of the table that says where each artifact lies."""
        if [row[0] for row in rows] != list(self.named):
            yield f"artifacts {[row[0] for row in rows]}, expected {list(self.named)}"
            return
        top = self.books.folder.parent.parent
        for name, path, job in rows:
            paths, its = self.named[name]
            if path.strip("`") not in paths or not Path(top, path.strip("`")).exists():
                yield f"{name}: {path} was not recorded"
            if job != its:
                yield f"{name}: job {job}, the evidence is of {its}"

    @property
    def fractions(self) -> list[float]:
        """The change of a step in the traces, the winner's gain, and what the gain needs."""
        if not (self.sides and all(side["captures"] for side, _ in self.sides)):
            return []
        span = self._compared.span
        gain = self.books.rows[self.books.winner].delta or 0.0
        return [span.change_s / span.before_s, gain, 1 / (1 + gain) - 1]


def _moved(part: Any) -> str:
    before, after = 1e3 * part.before_s, 1e3 * part.after_s
    change = 1e3 * part.change_s
    return f"{part.name}: {before:.3f} -> {after:.3f} ms per device and step ({change:+.3f} ms)"
