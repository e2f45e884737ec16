"""The pipeline's bubble, predicted before a sweep and beside what was measured after it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.cells import Cell, DeployedFile
from pytest_xlatune.pipeline import SHAPING, NoPipeline, Pipeline, config_of, pipeline_of, stages_of
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.report.document import Column, Section, Table, Text, literal, plain
from pytest_xlatune.report.figures import ABSENT, points, size
from pytest_xlatune.report.lines import words
from pytest_xlatune.report.phrases import ENGLISH, Say
from pytest_xlatune.results import Conclusion

TITLE = "Pipeline bubble"
_COLUMNS = (
    Column(title="Profile", wrap=True),
    Column(title="S", align="right"),
    Column(title="M", align="right"),
    Column(title="V", align="right"),
    Column(title="bubble", align="right"),
    Column(title="predicted delta %", align="right"),
)
_MEASURED = (Column(title="measured delta %", align="right"), Column(title="verdict", wrap=True))


def bubbles(
    cell: Cell,
    profiles: Sequence[Profile],
    *,
    files: Sequence[DeployedFile] = (),
    conclusion: Conclusion | None = None,
    say: Say = ENGLISH,
) -> Section | None:
    """Return the section; None where no profile changes the shape of a pipeline.

    Args:
        cell: whose pipeline.
        profiles: those that change its shape are shown.
        files: the trainer's configuration is one of them, where it is known.
        conclusion: what was measured; None before.
        say: in which language the prose is.
    """
    shaping = [each for each in profiles if each.overrides.keys() & set(SHAPING)]
    config = config_of(files)
    base = pipeline_of(cell, BASELINE, config)
    found = [(each, pipeline_of(cell, each, config)) for each in shaping]
    if not found or stages_of(cell) == 1:
        return None
    columns = _COLUMNS if conclusion is None else (*_COLUMNS, *_MEASURED)
    rows = [_row(each, its, base, conclusion) for each, its in ((BASELINE, base), *found)]
    whys = dict.fromkeys(
        say("no-bubble", profile=plain(each.id), reason=plain(its.reason))
        for each, its in ((BASELINE, base), *found)
        if isinstance(its, NoPipeline)
    )
    texts = (Text(text=each) for each in (say("bubble"), *whys))
    return Section(title=TITLE, blocks=(Table(columns=columns, rows=tuple(rows)), *texts))


def _row(
    profile: Profile,
    its: Pipeline | NoPipeline,
    base: Pipeline | NoPipeline,
    conclusion: Conclusion | None,
) -> tuple[str, ...]:
    shape = [ABSENT] * 5
    if isinstance(its, Pipeline):
        is_told = isinstance(base, Pipeline) and profile is not BASELINE
        predicted = its.over(base) if is_told and isinstance(base, Pipeline) else None
        shape = [
            str(its.stages),
            str(its.microbatches),
            str(its.repeats),
            size(its.bubble),
            points(predicted),
        ]
    if conclusion is None:
        return literal(profile.id), *shape
    verdict = conclusion.verdict(profile.id)
    is_measured = verdict is not None and profile is not BASELINE
    measured = points(verdict.delta) if verdict and is_measured else ABSENT
    said = words(verdict) if verdict and is_measured else ABSENT
    return literal(profile.id), *shape, measured, said
