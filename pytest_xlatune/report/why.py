"""Why the winner wins: from recorded evidence, or the plain statement that it is not known.

A gain is called explained only where traces of both sides show a step that is shorter by about as
much as the throughput rose. A changed program alone is a lead, not a cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from pytest_xlatune.profiles import BASELINE_ID
from pytest_xlatune.report.covered import Covered, Explanation
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Column,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.figures import ABSENT, percent
from pytest_xlatune.report.phrases import Say
from pytest_xlatune.results import Verdict

# share of the expected change of a step that its trace must show: profiling itself costs time
ENOUGH = 0.5
WHAT_TO_RUN = "xlatune evidence SWEEP_FILE"

_COLUMNS = (
    Column(title="Evidence"),
    Column(title="From baseline-deployed to the winner", wrap=True),
    Column(title="Artifacts"),
)
_ARTIFACTS = (Column(title="Artifact"), Column(title="Path", wrap=True), Column(title="Job"))


def why(covered: Covered, say: Say) -> Iterator[Block]:
    """Yield what is known of why the winner wins."""
    best, found = covered.best, covered.explanation
    if best is None:
        yield Text(text=say("why-no-winner"))
        return
    recipe = covered.recipe
    yield Text(text=reason(covered, say))
    if found.facts:
        yield from _evidence(found)
    if recipe is not None and recipe.note:
        yield Text(text=say("why-tried", note=plain(recipe.note).rstrip(".")))
    if found.problems:
        yield Bullets(items=tuple(map(plain, found.problems)))


def _evidence(found: Explanation) -> Iterator[Block]:
    """Yield the facts, each with the numbers of its artifacts, and the artifacts once."""
    job_of = {
        path: job for each in found.facts for path, job in zip_longest(each.artifacts, each.jobs)
    }
    number = {path: f"A{k}" for k, path in enumerate(filter(None, job_of), start=1)}
    facts = tuple(
        (
            each.kind,
            plain(each.text),
            ", ".join(number[path] for path in each.artifacts) or ABSENT,
        )
        for each in found.facts
    )
    title = f"Evidence: {literal(BASELINE_ID)} to {literal(found.profile)}"
    yield Table(title=title, columns=_COLUMNS, rows=facts)
    if number:
        rows = tuple(
            (label, literal(path), job_of[path] or ABSENT) for path, label in number.items()
        )
        yield Table(title="Artifacts, below the work directory", columns=_ARTIFACTS, rows=rows)


def reason(covered: Covered, say: Say) -> str:
    """Return the sentence that says whether the gain is explained."""
    best, found = covered.best, covered.explanation
    if best is None:
        return say("why-no-winner")
    command = literal(WHAT_TO_RUN)
    if not found.facts:
        return say("why-nothing", command=command)
    if found.profile != best.profile:
        return say(
            "why-other",
            profile=literal(found.profile),
            best=literal(best.profile),
            command=command,
        )
    if found.moved is None:
        key = "why-identical" if found.is_identical else "why-program-only"
        return say(key, command=command)
    return say(
        "why-explained" if is_shown(found, best) else "why-not-shown",
        moved=percent(found.moved),
        delta=percent(best.delta),
        expected=percent(expected(best)),
    )


def expected(best: Verdict) -> float:
    """Return the relative change of a step's time that a change of TGS is the same as."""
    return 1 / (1 + (best.delta or 0.0)) - 1


def is_shown(found: Explanation, best: Verdict) -> bool:
    """Whether the traces show the gain: a step that is shorter by at least half of it."""
    return found.moved is not None and found.moved <= ENOUGH * expected(best) < 0
