"""CVS files written anew: with the recipe of a sweep, with measured least values.

A least value is the mean of the jobs less three standard deviations of one of them. It says itself
how many jobs are behind it, when they ran, and how often a healthy job misses it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.guests.cvs.reading import (
    PREFIX,
    TFLOPS,
    TOKENS,
    CvsFile,
    Threshold,
    leaves_of,
    objects_of,
    read_cvs,
)
from pytest_xlatune.guests.cvs.recipe import model_of, recipe_of, untaken, with_values
from pytest_xlatune.guests.cvs.thresholds import Demand
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.record import Json, dataclass
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.covered import Covered
from pytest_xlatune.report.recipes import recipe_remarks
from pytest_xlatune.stats.noise import lower_bound
from pytest_xlatune.studies.calibration import scored
from pytest_xlatune.studies.trials import usable

_REMARK = "_xlatune_recipe"  # each generation drops keys that begin with "_"


def patched_cvs(source: DeployedFile, covered: Covered) -> dict[str, str]:
    """Return file name -> text of a CVS file with the recipe of its cell in it.

    Nothing where there is no recipe. What has no place in the file stands in its remark.
    """
    if covered.recipe is None:
        return {}
    return {f"{Path(source.path).stem}-recipe.json": _patched(source, covered)}


def _patched(source: DeployedFile, covered: Covered) -> str:
    profile = covered.recipe
    if profile is None:
        return source.text
    nodes = 2 if covered.cell.config_tag.endswith("-distributed") else 1
    before = source.text.removeprefix("\ufeff")
    file = read_cvs(before, where=source.path, nodes=nodes)
    cell = next((each for each in file.cells if each.name == source.cvs_cell), file.cells[0])
    made = recipe_of(file, cell, profile)
    text = with_values(before, made.changes, where=source.path)
    after = read_cvs(text, where=source.path, nodes=nodes)
    left_out = (*made.left_out, *untaken(file, after, cell=cell, profile=profile, recipe=made))
    said = [f"{profile.id}: measured on {covered.cell.label}"]
    said += recipe_remarks(covered.conclusion)
    said += [f"not in this file: {each}" for each in left_out]
    if HIDDEN in source.text:
        said.append("a value of this file is secret and hidden here: copy it from the file itself")
    return with_values(text, {(_REMARK,): said}, where=source.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastValue:
    """A least value that healthy jobs were measured for.

    Attributes:
        metric: of CVS.
        value: it, rounded down to four digits.
        mean, sd: of the jobs.
        jobs: how many tell it.
        miss: probability that one more healthy job lies below it.
    """

    metric: str
    value: float
    mean: float
    sd: float
    jobs: int
    miss: float

    @property
    def words(self) -> str:
        """The least value, and how it was measured."""
        return (
            f"{self.metric}: at least {self.value:g}: mean {self.mean:.6g} less 3 x {self.sd:.3g} "
            f"of {counted(self.jobs, 'job')}; a healthy job misses it in {self.miss:.2%} of the "
            "runs"
        )


_DIGITS = 4


def rounded_down(value: float) -> float:
    """Return a number cut to four digits, never above it."""
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    scale = 10.0**digits
    return math.floor(value * scale + 1e-9) / scale


def least_values(campaign: Campaign) -> tuple[LeastValue, ...]:
    """Return the least values of the two metrics that CVS gates, of a calibration that is over."""
    results = scored(campaign.view().history)
    (own,) = campaign.study.cells
    found = []
    for metric in (TFLOPS, TOKENS):
        told = [
            Demand(metric=metric).figure(score, own) for each in results if (score := usable(each))
        ]
        values = [each for each in told if each is not None]
        if len(values) < 2:  # noqa: PLR2004 - a deviation needs two
            continue
        bound, miss = lower_bound(values)
        found.append(
            LeastValue(
                metric=metric,
                value=rounded_down(bound),
                mean=fmean(values),
                sd=stdev(values),
                jobs=len(values),
                miss=miss,
            )
        )
    return tuple(found)


def with_least_values(
    text: str,
    file: CvsFile,
    found: Mapping[str, Sequence[LeastValue]],
    *,
    where: str,
    written: str,
) -> str:
    """Return a file of thresholds with measured least values: changed where it has them, else new.

    Args:
        text: of the configuration in generation 1, else of the thresholds beside it; "" is
            a new file.
        file: the configuration.
        found: cell -> least values.
        where: how messages call the file of `text`.
        written: the date, ISO 8601.
    """
    changes: dict[tuple[str | int, ...], Json] = {}
    is_inline = file.generation == "1"
    known = objects_of(text, where=where)[0] if text else {}
    for cell in file.cells:
        own_values = found.get(cell.name, ())
        if not own_values:
            continue
        at: tuple[str | int, ...] = (cell.name,)
        if is_inline:
            at = (*model_of(file, cell), "result_dict")
        else:  # they may stand deeper
            above = [
                path[: path.index(cell.name)] for path, _ in leaves_of(known) if cell.name in path
            ]
            at = (*(above[0] if above else ()), cell.name)
        entries = {path[len(at)] for path, _ in leaves_of(known) if path[: len(at)] == at != path}
        for each in own_values:
            name = each.metric if is_inline or each.metric in entries else PREFIX + each.metric
            demand = Threshold(kind="min", value=each.value).to_json()
            changes[*at, name] = f"{each.value:g}" if is_inline else demand
        if not is_inline:
            # CVS refuses a cell that lacks one of the metrics that it gates
            for name in ("final_loss", "loss_decreased"):
                if name not in entries and PREFIX + name not in entries:
                    changes[*at, PREFIX + name] = {"kind": "info", "value": None}
        said = "; ".join(each.words for each in own_values)
        changes[*at, "_comment"] = f"least values of xlatune cvs calibrate, {written}: {said}"
    if text:
        return with_values(text, changes, where=where)
    made: dict[str, Json] = {}
    for path, value in changes.items():
        below = made
        for key in path[:-1]:
            below = below.setdefault(str(key), {})
        below[str(path[-1])] = value
    return json.dumps(made, indent=2) + "\n"
