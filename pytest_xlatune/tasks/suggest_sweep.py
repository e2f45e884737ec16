"""Suggest a sweep from the log of a job: one that exists, or that of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.logs.patterns import PRESETS, step_pattern
from pytest_xlatune.logs.triage import ended_by, primary
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.model.text import begun, counted, duration, rate, whole
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import run_in
from pytest_xlatune.tasks.files import chunks_of
from pytest_xlatune.tasks.read_logs import Read, UnreadableLogError, read_one
from pytest_xlatune.tasks.write_sweep import read_command

# steps and seconds of a trial before a sweep exists; the file then has the same steps
STEPS, LIMIT_S = 15, 600
_LINE_CHARS = 120
_TOKENS = ("per_device_batch_size", "max_target_length")
_NO_TOKENS = (
    "its steps tell no Tokens/s/device, so a trial would have no score: give the cell "
    "per_device_batch_size and max_target_length, whose product is the tokens of a device in a step"
)

# axis of a cell -> its name in MaxText
_AXES = {
    "PP": "pipeline",
    "DP": "data",
    "FSDP": "fsdp",
    "TP": "tensor",
    "CP": "context",
    "SP": "sequence",
    "EP": "expert",
}


def suggest_sweep(path: Path) -> dict[str, str]:
    """Return answers for `xlatune init` from a log, and other settings for the sweep file.

    Raises:
        UnreadableLogError: the log cannot be read, or its trainer is not known.
    """
    read, fit = _read(path)
    report = read.report
    if not (report.steps or report.config or report.asked or report.findings):
        raise UnreadableLogError(
            path,
            "has no step line that is known (`completed step: 7, seconds: ...`) and no "
            "configuration: leave --log out, and set step_pattern in the file",
        )
    config = {**report.asked, **report.config}
    answers = {
        "kind": "maxtext-slurm" if report.asked else "maxtext" if report.config else "trainer",
        "model": config.get("model_name", ""),
        "parallelism": _parallelism(config),
        "step_pattern": fit,
        "per_device_batch_size": _figure(config.get("per_device_batch_size", "")),
        "max_target_length": _figure(config.get("max_target_length", "")),
        "xla_flags": report.xla_flags or "",
    }
    return {name: answer for name, answer in answers.items() if answer}


def _read(path: Path) -> tuple[Read, str]:
    """Return a log, and the name of the format that reads its steps; "" for MaxText's.

    Raises:
        UnreadableLogError: as for `suggest_sweep`.
    """
    try:
        read = read_one(path)
        fit = read.report.fits
    except UnreadableLogError as error:
        if not (fit := error.fits):
            raise
    return (read_one(path, pattern=step_pattern(fit)) if fit else read), fit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutput:
    """What one trial of a command printed, as far as it was read."""

    # settings for the sweep file about its steps
    settings: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()  # lines to show to a person
    problem: str = ""  # why a trial of a sweep would have no score; "" if it would have one


def try_command(answers: Mapping[str, str]) -> TrialOutput:
    """Run the trainer once with these answers of `xlatune init`, as a trial of the baseline.

    Raises:
        ConfigError: its program does not run here, or a trial could not be started with it.
    """
    if answers["kind"] != "trainer" or answers["nodelist"]:
        raise ConfigError(
            "--try runs the --command of --kind trainer on this machine; leave it out with other "
            "kinds"
        )
    command = read_command(answers["command"])
    launcher = CommandLauncher(argv=command.words, cwd=command.cwd)
    cell = Cell(
        model_tag=answers["model"],
        parallelism=Parallelism.parse(answers["parallelism"]),
        deployed=dict(command.deployed),
        protocol=Protocol(steps=STEPS),
    )
    trial = Trial(
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=cell.protocol,
        study="init",
        stage="try",
    )
    spec = replace(launcher.launch(trial, cell), deadline_s=LIMIT_S)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "trial"
        outcome = run_in(folder, spec)
        has_tokens = all(answers.get(name) for name in _TOKENS)
        return _of_trial(folder / log_name(), outcome, has_tokens=has_tokens)


def _of_trial(log: Path, outcome: Outcome, *, has_tokens: bool) -> TrialOutput:
    if not outcome.is_started:
        return TrialOutput(problem=f"the trial did not start: {outcome.reason}")
    took_s = (outcome.end_s or 0.0) - (outcome.start_s or 0.0)
    by = ended_by(outcome, ()) or f"{outcome.state} ({outcome.reason})"
    head = f"one trial took {duration(took_s)}, ended by {by}"
    try:
        read, fit = _read(log)
    except UnreadableLogError:
        return TrialOutput(problem=f"{head}, and {_unread(log, has_failed=outcome.exit_code != 0)}")
    steps = read.report.steps
    cause = primary(read.findings)
    failed = f"; {cause.cls}: {cause.text or sentence(cause.why)}" if cause is not None else ""
    if not steps:
        return TrialOutput(problem=f"{head}, and printed no step{failed}")
    # the first step compiles
    timed = [step.step_s for step in steps[1:] if step.step_s is not None]
    losses = [step.loss for step in steps if step.loss is not None]
    tgs = [step.tgs for step in steps[1:] if step.tgs is not None]
    lines = (
        f"{head}{failed}",
        f"  steps read       {len(steps)} of {STEPS}",
        f"  seconds a step   {f'{median(timed):.4g} (median)' if timed else 'not read'}",
        f"  Tokens/s/device  {rate(median(tgs)) if tgs else 'not read'}",
        f"  loss             {f'{losses[-1]:.6g} at the last step' if losses else 'not read'}",
        f"  format           {fit or 'completed step: N, seconds: ...'}",
    )
    problem = "" if tgs or has_tokens else _NO_TOKENS
    settings = {"trial_s": f"{took_s:.1f}"} | ({"step_pattern": fit} if fit else {})
    return TrialOutput(settings=settings, lines=lines, problem=problem)


def _unread(log: Path, *, has_failed: bool) -> str:
    """Return that no step was read, with the last line that the trainer printed."""
    lines = [line for line in b"".join(chunks_of(log, [])).splitlines() if line.strip()]
    if not lines:
        return "printed nothing"
    last = begun(hide_quoted(lines[-1].decode("utf-8", "replace").strip()), _LINE_CHARS)
    said = f"none of its {counted(len(lines), 'line')} is read as a step; the last one is {last!r}"
    if has_failed:  # its last line says why; step_pattern= would not help
        return said
    return (
        f"{said}. Set step_pattern in the file: one of {', '.join(PRESETS)}, or a regular "
        "expression with (?P<step>\\d+) and (?P<seconds>[\\d.]+)"
    )


def _figure(text: str) -> str:
    """Return a number as a sweep file writes it; "" if the text is no number."""
    try:
        number = float(text)
    except ValueError:
        return ""
    return f"{number:g}" if 0 < number < math.inf else ""


def _parallelism(config: Mapping[str, str]) -> str:
    """Return the axes above 1; "" if there are none, or if MaxText chooses one (-1)."""
    sizes: dict[str, int] = {}
    for axis, name in _AXES.items():
        parts = [whole(config.get(f"{net}_{name}_parallelism", "1")) for net in ("dcn", "ici")]
        if any(part is None or part < 1 for part in parts):
            return ""
        sizes[axis] = math.prod(part or 1 for part in parts)
    return ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
