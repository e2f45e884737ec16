"""`xlatune drill`: show where the time of a step went, or what differs between variants."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.show import Output
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow
from pytest_xlatune.tasks.drill import drill_document, drill_json, drill_variants


def run_drill(arguments: argparse.Namespace) -> Output:
    """Return where the time went in the captures of each variant."""
    window = CaptureWindow(gpus=arguments.gpus, steps=arguments.steps, force=arguments.force)
    drills, collectives, problems = drill_variants(
        [arguments.paths, *arguments.against],
        window,
        step_times_s=arguments.step_time,
        dumps=arguments.program,
        collectives=arguments.collectives,
    )
    document = drill_document(drills, collectives, top=arguments.top)
    rows = [communication.to_json() for communication in collectives]
    optional = {"collectives": rows} if rows else {}
    return Output(
        documents=(document,),
        json=lambda: drill_json(*drills) | optional,
        problems=problems,
    )
