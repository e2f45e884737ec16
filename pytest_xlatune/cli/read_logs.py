"""`xlatune steps` and `xlatune triage`: show what the logs of any jobs say."""

from __future__ import annotations

import argparse
from functools import partial

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.logs.patterns import StepPattern, step_pattern
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.record import Json
from pytest_xlatune.report.document import Document, plain
from pytest_xlatune.tasks.read_logs import (
    SCHEMA,
    Health,
    JobLog,
    logs_of,
    read_one,
    standstill_of,
    steps_document,
    triage_document,
)


def pattern_of(arguments: argparse.Namespace) -> StepPattern | None:
    """Return the step pattern of the command line, the environment or xlatune.toml."""
    pattern = options_of(arguments).for_sweeps.values.get("step_pattern")
    return step_pattern(pattern) if pattern else None


def run_steps(arguments: argparse.Namespace) -> Output:
    """Return the steps and the score of each log."""
    logs, problems = _read_all(arguments)
    return Output(
        documents=[steps_document(log) for log in logs],
        json=lambda: {"schema": SCHEMA, "logs": [log.to_json() for log in logs]},
        problems=problems,
        status=3 if any(log.health is Health.UNFINISHED for log in logs) else 0,
    )


def run_triage(arguments: argparse.Namespace) -> Output:
    """Return what went wrong in each log."""
    logs, problems = _read_all(arguments)
    healths = {log.health for log in logs}
    documents, entries = list[Document](), list[Json]()
    for log in logs:
        documents.append(triage_document(log))
        entries.append(log.to_json() | {"behind": None})
        if (standstill := standstill_of(log, pattern_of(arguments))) is not None:
            why = sentence(standstill.why)
            documents.append(
                Document(title="Which rank is behind", header=(plain(why),), sections=())
            )
            ranks, node = [*standstill.behind], standstill.node or None
            entries[-1]["behind"] = {"ranks": ranks, "node": node, "sentence": why}
    return Output(
        documents=documents,
        json=lambda: {"schema": SCHEMA, "logs": entries},
        problems=problems,
        status=1 if Health.FAILED in healths else 3 if Health.UNFINISHED in healths else 0,
    )


def _read_all(arguments: argparse.Namespace) -> tuple[list[JobLog], tuple[str, ...]]:
    """Return the logs that can be read, and a message for each log that cannot."""
    read_log = partial(read_one, pattern=pattern_of(arguments), tokens=arguments.tokens)
    logs, problems = list[JobLog](), list[str]()
    for path in arguments.logs:
        for log in logs_of(path):
            try:
                logs.append(read_log(log))
            except ConfigError as error:
                problems.append(str(error))
    return logs, tuple(problems)
