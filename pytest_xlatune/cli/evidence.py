"""The commands that read programs and traces, and those that make them: parsers, no printing.

    hlo, drill     what a dump or a capture says; of two, what changed
    screen         compile a sweep's profiles without measuring them
    evidence       record a dump and a capture of some profiles, as trials of their own

Each parser sets `show`: arguments and options to what is to be printed, bit by bit.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.commands import Commands
from pytest_xlatune.settings.options import Options

if TYPE_CHECKING:
    from pytest_xlatune.cli.inspecting import Shown
    from pytest_xlatune.sweep.sweep import ResolvedSweep


AGAINST = "--against"
_TRIAL = "SWEEP:PROFILE or a trial's id for one that `evidence` recorded"


def add_evidence(commands: Commands) -> Iterator[tuple[argparse.ArgumentParser, bool]]:
    """Add the commands; yield each parser and whether it takes the options of a sweep."""
    hlo = commands.add_parser("hlo", what="what the compiler made of a program, or of two")
    hlo.add_argument("dump", metavar="DUMP", help=f"a folder of --xla_dump_to; {_TRIAL}")
    hlo.add_argument("other", nargs="?", metavar="DUMP2", help="shows what changed")
    hlo.add_argument("--json", action="store_true", help="one JSON document")
    hlo.set_defaults(show=_hlo)
    yield hlo, False

    drill = commands.add_parser("drill", what="where the time of a step went, from its traces")
    drill.add_argument("paths", nargs="+", metavar="PATH", help=f"folders or captures; {_TRIAL}")
    drill.add_argument(
        AGAINST, nargs="+", metavar="PATH", help="a second variant; `--` says the same"
    )
    for name in ("nodes", "gpus-per-node", "steps"):
        drill.add_argument(f"--{name}", type=_count, metavar="N", help="refused where it differs")
    drill.add_argument(
        "--step-time",
        action="append",
        type=float,
        default=[],
        metavar="SECONDS",
        help="of a run without profiler; once per variant",
    )
    drill.add_argument("--families", type=Path, metavar="FILE", help="JSON: name, kind, pattern")
    drill.add_argument("--json", action="store_true", help="one JSON document")
    drill.set_defaults(show=_drill)
    yield drill, False

    screen = commands.add_parser("screen", what="compile a sweep's profiles; nothing is measured")
    screen.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    for name, metavar, what in (
        ("program", "MODULE:FUNCTION", "to compile instead of the sweep's own trainer"),
        ("target", "NAME", "of the device: h100, h200, b200, cpu, or a gpu_target_config.pbtxt"),
        ("topology", "PxHxD", "partitions x hosts x devices for it (1x1x1)"),
        ("python", "PATH", "the interpreter whose JAX compiles it"),
    ):
        screen.add_argument(f"--{name}", metavar=metavar, help=what)
    screen.add_argument("--memory-limit", type=float, metavar="GIB", help="of a device")
    screen.add_argument("--keep", type=Path, metavar="FOLDER", help="for logs and dumps")
    screen.add_argument("--json", action="store_true", help="one JSON document")
    screen.set_defaults(show=_screen)
    yield screen, True

    record = commands.add_parser(
        "evidence", what="run profiles once more with profiler and dump; they are not scored"
    )
    record.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    record.add_argument(
        "profiles",
        nargs="*",
        metavar="PROFILE",
        help="ids; the baseline and, if there is one, the winner without any",
    )
    record.set_defaults(show=_evidence)
    yield record, True


def _hlo(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.inspecting import show_hlo  # noqa: PLC0415
    from pytest_xlatune.runs.recorded import dump_of  # noqa: PLC0415

    named = [arguments.dump, *filter(None, [arguments.other])]
    yield show_hlo([dump_of(each, options.workdir) for each in named], as_json=arguments.json)


def _drill(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.inspecting import show_drill  # noqa: PLC0415
    from pytest_xlatune.runs.recorded import captures_of  # noqa: PLC0415

    variants, known_s = [], []
    for named in [arguments.paths, *filter(None, [arguments.against])]:
        found = [captures_of(each, options.workdir) for each in named]
        variants.append([path for paths, _ in found for path in paths])
        # of trials of the same profile that ran without profiler
        known_s += [step_s for _, step_s in found if step_s is not None]
    step_times_s = arguments.step_time
    if not step_times_s and len(known_s) == len(variants):
        step_times_s = known_s
    yield show_drill(
        variants,
        nodes=arguments.nodes,
        gpus_per_node=arguments.gpus_per_node,
        steps=arguments.steps,
        step_times_s=step_times_s,
        families=arguments.families,
        as_json=arguments.json,
    )


def _screen(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.inspecting import Shown, show_screening  # noqa: PLC0415
    from pytest_xlatune.screening import CPU, Screening  # noqa: PLC0415

    resolved = _resolved(arguments.sweep, options)
    said = {
        "program": arguments.program,
        "target": arguments.target,
        "topology": arguments.topology,
        "python": arguments.python,
        "memory_limit_gib": arguments.memory_limit,
    }
    screening = resolved.sweep.screening or Screening()
    if arguments.program and not arguments.target and not screening.target:
        said["target"] = CPU
    said = {name: value for name, value in said.items() if value is not None}
    screening = dataclasses.replace(screening, **said)
    for line in show_screening(resolved, screening, keep=arguments.keep, as_json=arguments.json):
        yield Shown(text=line)


def _evidence(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.inspecting import show_evidence  # noqa: PLC0415

    resolved = _resolved(arguments.sweep, options)
    yield from show_evidence(resolved, arguments.profiles, workdir=options.workdir)


def _resolved(path: Path, options: Options) -> ResolvedSweep:
    from pytest_xlatune.sweep.file import load_sweep  # noqa: PLC0415
    from pytest_xlatune.sweep.sweep import inputs_of  # noqa: PLC0415

    return load_sweep(path).resolve(inputs_of(options, Path.cwd()))


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count; give 1 or more")
    return count
