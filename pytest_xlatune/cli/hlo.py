"""`xlatune hlo`: show what the compiler made of a program, or what differs between two."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.show import Output
from pytest_xlatune.evidence import read_each
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.tasks.programs import program_document, programs_json


def run_hlo(arguments: argparse.Namespace) -> Output:
    """Return the facts of one program, or what differs between two."""
    dumps = [arguments.dump, arguments.other] if arguments.other else [arguments.dump]
    programs, problems = read_each(read_program, dumps)
    return Output(
        documents=(program_document(*programs),),
        json=lambda: programs_json(*programs),
        problems=problems,
    )
