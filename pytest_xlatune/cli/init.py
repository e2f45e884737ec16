"""`xlatune init`: write a sweep file from options, and from answers to questions about the rest."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from pytest_xlatune.cli.show import Output, show
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.document import Document, brief, lines
from pytest_xlatune.tasks.log_documents import steps_document
from pytest_xlatune.tasks.suggest_sweep import suggest_sweep, try_sweep
from pytest_xlatune.tasks.write_sweep import (
    KINDS,
    QUESTIONS,
    STUDIES,
    answers,
    notes_on_flags,
    notes_on_program,
    option_of,
    required_run_option,
    sweep_file,
)


def add_init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", type=Path, metavar="SWEEP_FILE", help="the file to write, named test_NAME.py"
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="a log of your trainer: init reads answers from it and asks only the rest",
    )
    parser.add_argument(
        "--try",
        dest="is_tried",
        action="store_true",
        help="run the command once on this machine, as one trial of 15 steps and 10 minutes at "
        "most, and show what its output says",
    )
    parser.add_argument(
        "--study",
        choices=tuple(STUDIES),
        help="write a study of nodes, network, batch sizes or commits in place of a sweep of flags",
    )
    for name, question in QUESTIONS.items():
        example = f", e.g. {question.example}" if question.example else ""
        default = f" ({question.default})" if question.default else ""
        kinds = f": {', '.join(KINDS)}" if name == "kind" else ""
        text = f"{question.text}{kinds}{example}{default}".replace("%", "%%")
        choices = tuple(KINDS) if name == "kind" else None
        metavar = "FILE" if name == "env_file" else name.upper()
        parser.add_argument(option_of(name), metavar=metavar, help=text, choices=choices)
    parser.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> Output:
    path: Path = arguments.file
    if path.exists():
        raise ConfigError(f"{path} exists; name a new file, nothing is overwritten")
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise ConfigError(
            f"{path}: pytest reads only files that are named test_*.py; name it test_{path.stem}.py"
        )
    ask = input if sys.stdin.isatty() else None
    suggested = suggest_sweep(arguments.log) if arguments.log is not None else {}
    options = {name: text for name, text in vars(arguments).items() if text is not None}
    answered = suggested | answers(suggested | options, ask)
    if arguments.study:
        answered["study"] = arguments.study
    sweep_name = path.stem.removeprefix("test_")
    trial_documents: tuple[Document, ...] = ()
    problems: tuple[str, ...] = ()
    if arguments.is_tried:
        show(["one trial of the command runs now, 10 minutes at most ..."])
        trial = try_sweep(answered, name=sweep_name)
        answered = {**trial.settings, **answered}
        if trial.log is not None:
            trial_documents = (steps_document(trial.log, title=trial.head),)
        if trial.problem:
            remedy = "correct it, or remove it and run init again"
            problems = (f"{trial.problem}. {path} is written all the same: {remedy}",)
    planned = run = shlex.quote(str(path))
    if option := required_run_option(answered):
        planned, run = f"{planned} --{option}", f"{run} --xlatune-{option}"
    return Output(
        files={path: sweep_file(answered, name=sweep_name)},
        problems=problems,
        documents=(
            *trial_documents,
            brief(
                "What to do next",
                lines(
                    f"xlatune plan {planned}    the trials, their cost, and what they can show",
                    f"pytest {run}          runs it",
                    *notes_on_program(answered),
                    *notes_on_flags(answered),
                ),
            ),
        ),
    )
