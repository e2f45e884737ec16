"""Why the winner wins: its facts read again from the artifacts that the ledger names.

What is in a dump or a trace, the evidence readers say; that their figures add up is seen here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_xlatune.evidence.comparison import compare
from pytest_xlatune.evidence.difference import difference
from pytest_xlatune.evidence_files import Window, read_program, read_window
from tests.document.figures import BASELINE, Books
from tests.document.lines import NUMBER, rounds_to

# gemm: 12.694 -> 14.150 ms per device and step (+1.457 ms)
MOVED = re.compile(
    rf"([\w ]+): ({NUMBER}) -> ({NUMBER}) ms per device and step \(({NUMBER}) ms\)", re.ASCII
)


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
                and re.fullmatch(rf"{re.escape(name)}-e\.[0-9]+-[0-9a-f]+", line["trial_id"])
            ]
            if jobs and recorded:
                found.append((recorded[-1], jobs[-1]))
        return found if len(found) == 2 else []

    @cached_property
    def _compared(self) -> Any:
        folder = self.books.folder
        steps = self.books.of(BASELINE, "evidence")[-1].result["trial"]["protocol"]
        wanted = Window(steps=steps["profiler_steps"] or None)
        drills = [
            read_window([folder / each for each in side["captures"]], wanted)[0]
            for side, _ in self.sides
        ]
        return compare(*drills)

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
        """Complain of a row of the table: kind, what moved, artifacts, jobs."""
        kind, text, artifacts, jobs = row
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
        if jobs != ", ".join(job for _, job in self.sides):
            yield f"jobs {jobs}, the evidence is of {[job for _, job in self.sides]}"
        top = self.books.folder.parent.parent
        own = self.books.folder.relative_to(top)
        for shown, (side, _) in zip(re.findall("`([^`]*)`", artifacts), self.sides, strict=True):
            known = {str(own / side["dump"])}
            for each in side["captures"]:
                known |= {str(parent) for parent in (own / each).parents}
            if shown not in known or not Path(top, shown).exists():
                yield f"{shown} was not recorded"

    def prose(self, text: str) -> tuple[str, list[str]]:
        """Take away the sentence that weighs the traces against the gain; say what is wrong."""
        pattern = (
            rf"a step's span changes by ({NUMBER}) %, and a gain of ({NUMBER}) % in TGS asks for "
            rf"({NUMBER}) %"
        )
        problems = []
        for match in re.finditer(pattern, text):
            if not self.sides:
                return text, ["traces of both sides are in no line of the ledger"]
            span = self._compared.span
            gain = self.books.rows[self.books.winner].delta or 0.0
            wanted = (span.change_s / span.before_s, gain, 1 / (1 + gain) - 1)
            for shown, value in zip(match.groups(), wanted, strict=True):
                if not rounds_to(100 * value, shown):
                    problems.append(f"{shown} % is shown, it is {100 * value}")
        return re.sub(pattern, "", text), problems


def _moved(part: Any) -> str:
    before, after = 1e3 * part.before_s, 1e3 * part.after_s
    change = 1e3 * part.change_s
    return f"{part.name}: {before:.3f} -> {after:.3f} ms per device and step ({change:+.3f} ms)"
