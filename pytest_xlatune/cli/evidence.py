"""`xlatune evidence`: record a dump and a capture of profiles, in trials without a score."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.running import trials_of
from pytest_xlatune.cli.show import Output, show
from pytest_xlatune.evidence import read_each
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.report.document import Document
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.programs import program_document
from pytest_xlatune.tasks.recorded import Recorded
from pytest_xlatune.tasks.runs import profiles_to_record, record, study_of_profile


def run_evidence(arguments: argparse.Namespace) -> Output:
    """Record profiles one after another, show their files, and compare the first and the last."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
    folder = options.workdir / resolved.folder
    without_repeats = list(dict.fromkeys(arguments.profiles))
    profile_ids = profiles_to_record(resolved, folder, without_repeats)
    # build all studies first, so that a misspelt id is refused before anything runs
    studies = [study_of_profile(resolved, profile_id) for profile_id in profile_ids]
    resolved.check()
    records: list[Recorded] = []
    with trials_of(resolved, options) as (runs, tick):
        for study in studies:
            records.append(record(runs.open(resolved, study), tick))
            show(_recorded_lines(records[-1]))
    problems = [problem for recorded in records for problem in recorded.problems]
    dumps = [recorded.dump for recorded in records if recorded.dump]
    documents: tuple[Document, ...] = ()
    if len(dumps) == len(records) > 1:
        show([""])
        programs, unread = read_each(read_program, [dumps[0], dumps[-1]])
        documents = (program_document(*programs),)
        problems += unread
    return Output(documents=documents, problems=tuple(problems))


def _recorded_lines(recorded: Recorded) -> Iterator[str]:
    yield f"{recorded.profile}: trial {recorded.trial_id}"
    yield from (f"  {fact}" for fact in recorded.facts)
    for path in filter(None, [recorded.dump, *recorded.captures, recorded.pgle]):
        yield f"  {os.path.relpath(path)}"
