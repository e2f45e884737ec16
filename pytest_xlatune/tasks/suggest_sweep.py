"""Suggest a sweep from the log of a job: one that exists, or that of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.logs.triage import ended_by, primary
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import NoScore
from pytest_xlatune.model.text import duration, to_integer
from pytest_xlatune.prepare.compile_check import run_in
from pytest_xlatune.studies.calibration import JOBS
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import UserOptions
from pytest_xlatune.tasks.files import UnreadableLogError
from pytest_xlatune.tasks.read_logs import TOKENS, JobLog, logs_of, positive, read_one
from pytest_xlatune.tasks.write_sweep import sweep_file

_LIMIT_S = 600  # the most seconds of the trial that `try_sweep` runs


def suggest_sweep(path: Path) -> dict[str, str]:
    """Return answers for `xlatune init` from a log, and other settings for the sweep file.

    Raises:
        UnreadableLogError: the log cannot be read, or its trainer is not known.
    """
    log = read_one(logs_of(path)[0], is_any=True)
    report = log.report
    config = {**report.asked, **report.config}
    sizes = {name: positive(config.get(name, "")) for name in TOKENS}
    answers = {
        "kind": "maxtext-slurm" if report.asked else "maxtext" if report.config else "trainer",
        "model": config.get("model_name", ""),
        "parallelism": _parallelism(config),
        "step_pattern": log.fits,
        **{name: f"{size:g}" for name, size in sizes.items() if size is not None},
        "xla_flags": report.xla_flags or "",
    }
    return {name: answer for name, answer in answers.items() if answer}


class TrialOutput(NamedTuple):
    """What one trial of a sweep that does not exist yet printed."""

    problem: str  # why a trial of a sweep would have no score; "" if it would have one
    head: str = ""  # how long it took, and how it ended; "" without a log
    log: JobLog | None = None  # None if it is no log of a training job
    settings: Mapping[str, str] = MappingProxyType({})  # for the sweep file, about its steps


def try_sweep(answers: Mapping[str, str], *, name: str) -> TrialOutput:
    """Run the baseline once, as the first trial of the sweep that these answers are for.

    Raises:
        ConfigError: its program does not run here, or a trial could not be started with it.
    """
    if answers["kind"] != "trainer" or answers["nodelist"]:
        raise ConfigError(
            "--try runs the --command of --kind trainer on this machine; leave it out with other "
            "kinds"
        )
    with TemporaryDirectory() as scratch:
        file, folder = Path(scratch) / "test_trial.py", Path(scratch) / "trial"
        file.write_text(sweep_file({**answers, "study": ""}, name=name), encoding="utf-8")
        resolved = load_sweep(file).resolve(UserOptions())
        trial = resolved.calibration(JOBS).trials[0]
        spec = resolved.sweep.launcher.launch(trial, resolved.cell)
        outcome = run_in(folder, replace(spec, deadline_s=_LIMIT_S))
        if not outcome.is_started:
            return TrialOutput(problem=f"the trial did not start: {outcome.reason}")
        took_s = (outcome.end_s or 0.0) - (outcome.start_s or 0.0)
        head = f"one trial took {duration(took_s)}, its end: {ended_by(outcome)}"
        try:
            tokens = resolved.cell.tokens_per_device_step
            log = read_one(folder / log_name(), tokens=tokens, is_any=True)
        except UnreadableLogError as error:
            return TrialOutput(problem=f"{head}, and its output {error.reason}")
    settings = {"trial_s": f"{took_s:.1f}"} | ({"step_pattern": log.fits} if log.fits else {})
    problem, cause = "", primary(log.findings)
    if isinstance(log.score, NoScore):
        why = f"; {cause.cls}: {cause.text}" if cause is not None else ""
        problem = f"{head}, and has no score: {sentence(log.score.reason)}{why}"
    return TrialOutput(problem=problem, head=head, log=log, settings=settings)


def _parallelism(config: Mapping[str, str]) -> str:
    """Return the axes above 1; "" if there are none, or if MaxText chooses one (-1)."""
    sizes: dict[str, int] = {}
    for axis in sorted(Axis, key=lambda axis: axis is not Axis.PP):
        parts = [to_integer(config.get(f"{net}_{axis}_parallelism", "1")) for net in ("dcn", "ici")]
        if any(part is None or part < 1 for part in parts):
            return ""
        sizes[axis.name] = math.prod(part or 1 for part in parts)
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
