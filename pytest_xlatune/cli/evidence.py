"""`xlatune evidence`: record a dump and a capture of profiles, in trials without a score."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.running import trials_of
from pytest_xlatune.cli.show import Output, show
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.artifacts import Recorded
from pytest_xlatune.tasks.runs import profiles_to_record, record, study_of_profile


def run_evidence(arguments: argparse.Namespace) -> Output:
    """Record profiles one after another, and show their files."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
    folder = options.workdir / resolved.folder
    without_repeats = list(dict.fromkeys(arguments.profiles))
    profile_ids = profiles_to_record(resolved, folder, without_repeats)
    # build all studies first, so that a misspelt id is refused before anything runs
    studies = [study_of_profile(resolved, profile_id) for profile_id in profile_ids]
    resolved.check()
    problems: list[str] = []
    with trials_of(resolved, options) as (runs, tick):
        for study in studies:
            recorded = record(runs.open(resolved, study), tick)
            show(_recorded_lines(recorded))
            problems += recorded.problems
    return Output(problems=problems)


def _recorded_lines(recorded: Recorded) -> Iterator[str]:
    yield f"{recorded.profile}: trial {recorded.trial_id}"
    yield from (f"  {fact}" for fact in recorded.facts)
    for path in filter(None, [recorded.dump, *recorded.captures, recorded.pgle]):
        yield f"  {os.path.relpath(path)}"
