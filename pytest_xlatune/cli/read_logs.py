"""`xlatune steps` and `xlatune triage`: show what the logs of any jobs say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from pytest_xlatune.cli.parsers import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.logs.patterns import StepPattern, step_pattern
from pytest_xlatune.logs.standstill import Standstill
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.record import Json
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.log_tables import rank_behind, steps_of_log, triage_of_log
from pytest_xlatune.tasks.read_logs import (
    SCHEMA,
    Health,
    Read,
    advised,
    behind_of,
    exit_of,
    logs_of,
    read_one,
    slower_of,
    standstill_json,
)


def pattern_of(arguments: argparse.Namespace) -> StepPattern | None:
    """Return the step pattern of the command line, the environment or xlatune.toml."""
    pattern = options_of(arguments).said.values.get("step_pattern")
    return step_pattern(pattern) if pattern else None


def run_steps(arguments: argparse.Namespace) -> Output:
    """Return the steps and the score of each log."""
    read, problems = _read_all(arguments)
    documents = tuple(
        steps_of_log(
            str(log.path),
            steps=log.report.steps,
            score=log.score,
            notes=(*log.notes, *map(sentence, slower_of(log))),
            shows_all=arguments.all,
        )
        for log in read
    )
    status = 3 if any(log.health is Health.UNFINISHED for log in read) else 0
    return Output(
        documents=documents, json=partial(_values, read), problems=problems, status=status
    )


def run_triage(arguments: argparse.Namespace) -> Output:
    """Return what went wrong in each log."""
    read, problems = _read_all(arguments)
    standstills = [behind_of(log) for log in read]
    documents: list[Document] = []
    for log, standstill in zip(read, standstills, strict=True):
        documents.append(
            triage_of_log(
                str(log.path),
                status=log.status,
                findings=log.findings,
                reached=log.reached,
                advice=advised(log),
            )
        )
        if standstill is not None:
            documents.append(rank_behind(standstill))
    return Output(
        documents=tuple(documents),
        json=partial(_values, read, standstills),
        problems=problems,
        status=exit_of(read),
    )


def _values(read: list[Read], standstills: Sequence[Standstill | None] | None = None) -> Json:
    """Return the value for `--json`; only `triage` has standstills, one per log."""
    logs = [log.to_json() for log in read]
    if standstills is not None:
        for log, standstill in zip(logs, standstills, strict=True):
            log["behind"] = standstill_json(standstill)
    return {"schema": SCHEMA, "logs": logs}


def _read_all(arguments: argparse.Namespace) -> tuple[list[Read], tuple[str, ...]]:
    """Return the logs that can be read, and a message for each log that cannot."""
    read_log = partial(read_one, pattern=pattern_of(arguments), tokens=arguments.tokens)
    read, problems = [], []
    for path in arguments.logs:
        try:
            logs = logs_of(path)
        except ConfigError as error:
            problems.append(str(error))
            continue
        for log in logs:
            try:
                read.append(read_log(log))
            except ConfigError as error:
                problems.append(str(error))
    return read, tuple(problems)
