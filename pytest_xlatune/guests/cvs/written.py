"""Write CVS files anew, with the recipe of a sweep or with measured least values.

Keys, their order and remarks are kept; the white space is new, but the indent is that of the file.
A least value is the mean of the jobs less three standard deviations of a job. The remark beside it
says how many jobs were measured, when they ran, and how often a healthy job misses the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.guests.cvs.reading import (
    MODES,
    VARIABLES,
    is_passed_to_maxtext,
    is_set_by_launcher,
    read_cvs,
)
from pytest_xlatune.guests.cvs.source import objects_of, setting_text, typed
from pytest_xlatune.guests.cvs.thresholds import Demand
from pytest_xlatune.guests.cvs.values import PREFIX, TFLOPS, TOKENS, CvsCell, CvsFile
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.profile import APPENDING, Profile
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.recipes import recipe_remarks
from pytest_xlatune.stats.noise import lower_bound
from pytest_xlatune.studies.calibration import jobs_of
from pytest_xlatune.studies.trials import usable

_REMARK = "_xlatune_recipe"  # both generations ignore keys that begin with "_"
_KEPT_DIGITS = 4  # the digits of a least value
Data = dict[str, Any]


def patched_cvs(source: DeployedFile, covered: MeasuredCell) -> dict[str, str]:
    """Return file name -> text of a CVS file with the recipe of its cell; {} if there is no recipe.

    A remark in the file lists what cannot be written into it.
    """
    profile = covered.recipe
    if profile is None:
        return {}
    nodes = 2 if covered.cell.config_tag.endswith("-distributed") else 1
    text = source.text.removeprefix("\ufeff")
    data, left_out = with_profile(
        text, profile, cell=source.cvs_cell, where=source.path, nodes=nodes
    )
    remarks = [f"{profile.id}: measured on {covered.cell.label}"]
    remarks += recipe_remarks(covered.conclusion)
    remarks += [f"not in this file: {reason}" for reason in left_out]
    if HIDDEN in text:
        remarks.append(
            "a value of this file is secret and hidden here: copy it from the file itself"
        )
    written = _json_text({**data, _REMARK: remarks}, text)
    return {f"{Path(source.path).stem}-recipe.json": written}


def with_profile(
    text: str, profile: Profile, *, cell: str, where: str, nodes: int
) -> tuple[Data, list[str]]:
    """Return the objects of a file with a profile for a cell, and what could not be put into them.

    XLA flags and variables apply to the whole file. A MaxText key is put into the sweep of the cell
    if the file runs several sweeps, or if that sweep sets the key.

    Args:
        text: the text of the file.
        profile: the profile of the recipe.
        cell: the name of the cell in the file; a name that the file lacks means the first cell.
        where: the name of the file in messages.
        nodes: the number of nodes of the cell.
    """
    file = read_cvs(text, where=where, nodes=nodes)
    cvs_cell = next(
        (candidate for candidate in file.cells if candidate.name == cell), file.cells[0]
    )
    data: Data = objects_of(text, where=where)[0]
    left_out = _put_flags(data, file, cvs_cell, profile)
    env_path = ("container", "env")
    if file.generation == "1":
        env_path = ("config", "container_config", "env_dict")  # type: ignore[assignment]
    for name, value in profile.env.items():
        if is_secret(name):
            left_out.append(f"{name}: its value is secret; set it yourself")
        elif is_set_by_launcher(name):
            left_out.append(f"{name}: only the launcher of a job sets it")
        else:
            new_value = on_top(file.env, {name: value})[name]
            config = data.get("config", {})
            keys = [key for key, names in VARIABLES.items() if name in names and key in config]
            for key in keys:
                config[key] = new_value
            if not keys or name in _object_at(data, *env_path):
                _object_at(data, *env_path)[name] = new_value
            if name in file.added and file.generation == "1":
                left_out.append(
                    f"{name}: it is in the file, but CVS replaces it with {file.added[name]}"
                )
    for name, value in profile.overrides.items():
        table = _object_for_key(data, file, cvs_cell, name)
        if table is None:
            left_out.append(f"{name}: CVS of generation 1 does not pass this key to MaxText")
        elif is_secret(name):
            left_out.append(f"{name}: its value is secret; set it yourself")
        else:
            is_text = isinstance(table.get(name), str)
            table[name] = setting_text(typed(value)) if is_text else typed(value)
    left_out += _unread_settings(data, file, cvs_cell, profile, reported=left_out, nodes=nodes)
    return data, left_out


def _object_at(data: Data, *path: str) -> Data:
    """Return the object at a path, which is made if it is missing."""
    for key in path:
        data = data.setdefault(key, {})
    return data


def _model_object(data: Data, file: CvsFile, cell: CvsCell) -> Data:
    """Return the object of a cell's model and GPU, in a file of generation 1."""
    mode = next(key for key, mode_name in MODES.items() if mode_name == file.mode)
    return _object_at(data, "model_params", mode, cell.model, cell.gpu)


def _put_flags(data: Data, file: CvsFile, cell: CvsCell, profile: Profile) -> list[str]:
    """Put the XLA flags of a profile into the objects of a file; return what is left out."""
    if not profile.flags:
        return []
    if "XLA_FLAGS" in file.env:
        return ["its XLA flags: add them to the XLA_FLAGS in the file's environment"]
    is_generation_1 = file.generation == "1"
    parent = _model_object(data, file, cell) if is_generation_1 else data["train_params"]
    flags = _object_at(parent, "xla_flags")
    left_out = []
    for flag in profile.flags:
        if flag.name in APPENDING and flag.name in flags:
            left_out.append(
                f"--{flag.name}={flag.value}: an object can hold a flag only once; add it yourself"
            )
        else:
            # XLA reads a flag without a value as true
            flags[flag.name] = "true" if flag.value is None else flag.value
    if is_generation_1:
        left_out.append(
            "its XLA flags: CVS of generation 1 passes only ten fixed flags to XLA; run the file "
            "with pytest-xlatune"
        )
    return left_out


def _object_for_key(data: Data, file: CvsFile, cell: CvsCell, name: str) -> Data | None:
    """Return the object for a MaxText key of a cell; None if the file has no place for it."""
    if file.generation == "1":
        if name == "enable_checkpointing":
            return _object_at(data, "config")
        return _model_object(data, file, cell) if is_passed_to_maxtext(name) else None
    sweep: Data | None = data.get("sweeps", {}).get(cell.name)
    if sweep is not None and (name in sweep or len(file.cells) > 1):
        return sweep
    return _object_at(data, "train_params", "maxtext_config")


def _unread_settings(
    data: Data,
    before: CvsFile,
    cell: CvsCell,
    profile: Profile,
    *,
    reported: Sequence[str],
    nodes: int,
) -> list[str]:
    """Return what of a profile is missing when the new file is read again, if not yet reported."""
    after = read_cvs(json.dumps(data), where=before.where, nodes=nodes)
    cell_after = next(candidate for candidate in after.cells if candidate.name == cell.name)
    settings = {**cell_after.xla_flags, **after.env, **cell_after.maxtext}
    expected = {flag.name: "true" if flag.value is None else flag.value for flag in profile.flags}
    expected |= {name: on_top(before.env, profile.env)[name] for name in profile.env}
    expected |= profile.overrides
    if "XLA_FLAGS" in before.env:
        expected = {name: value for name, value in expected.items() if not name.startswith("xla_")}
    missing = []
    for name, value in expected.items():
        is_read = setting_text(typed(settings.get(name))) == setting_text(typed(value))
        if not is_read and not any(name in line for line in reported):
            missing.append(f"{name}: the file has it, but reading the file does not give it")
    return missing


def _json_text(data: Data, old: str) -> str:
    """Return the objects as JSON, with the indent of the old text."""
    indent = re.search(r"\n([ \t]+)", old)
    return json.dumps(data, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastValue:
    """A measured least value of a metric.

    Attributes:
        metric: the name of the metric in CVS.
        value: the least value, rounded down to four digits.
        words: the value, and how it was measured.
    """

    metric: str
    value: float
    words: str


def least_values(campaign: Campaign) -> tuple[LeastValue, ...]:
    """Return the least values of the two metrics that CVS judges, from a finished calibration."""
    results = jobs_of(campaign.study, campaign.view().history)
    (cell,) = campaign.study.cells
    scores = [score for result in results if (score := usable(result))]
    least = []
    for metric in (TFLOPS, TOKENS):
        figures = [Demand(metric=metric).figure(score, cell) for score in scores]
        values = [figure for figure in figures if figure is not None]
        if len(values) < 2:  # noqa: PLR2004 - a deviation needs two
            continue
        bound, miss_share = lower_bound(values)
        value = rounded_down(bound)
        words = (
            f"{metric}: at least {value:g}: mean {fmean(values):.6g} less 3 x {stdev(values):.3g} "
            f"of {counted(len(values), 'job')}; {miss_share:.2%} of healthy jobs miss it"
        )
        least.append(LeastValue(metric=metric, value=value, words=words))
    return tuple(least)


def rounded_down(value: float) -> float:
    """Return a number rounded down to `_KEPT_DIGITS` digits."""
    decimals = _KEPT_DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    scale = 10.0**decimals
    return math.floor(value * scale + 1e-9) / scale


def with_least_values(
    text: str, file: CvsFile, least_by_cell: Mapping[str, Sequence[LeastValue]], *, written: str
) -> str:
    """Return the text of a file of thresholds with measured least values.

    Args:
        text: in generation 1 the text of the configuration, in 4 that of its threshold file.
        file: the configuration as it was read.
        least_by_cell: name of a cell -> its least values.
        written: the date of today, ISO 8601.
    """
    data: Data = objects_of(text, where=file.where)[0]
    for cell in file.cells:
        least = least_by_cell.get(cell.name)
        if not least:
            continue
        if file.generation == "1":  # the thresholds are in the configuration itself
            table = _object_at(_model_object(data, file, cell), "result_dict")
            for value in least:
                table[value.metric] = f"{value.value:g}"
        else:
            table = _object_at(data, cell.name)
            for value in least:
                name = value.metric if value.metric in table else PREFIX + value.metric
                table[name] = {"kind": "min", "value": value.value}
            # CVS refuses a cell that lacks a threshold for a metric that it judges
            for name in ("final_loss", "loss_decreased"):
                if name not in table:
                    table.setdefault(PREFIX + name, {"kind": "info", "value": None})
        words = "; ".join(value.words for value in least)
        table["_comment"] = f"least values of xlatune cvs calibrate, {written}: {words}"
    return _json_text(data, text)
