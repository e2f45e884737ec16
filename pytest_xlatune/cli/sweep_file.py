"""Commands on a sweep file: `xlatune plan`, `compile-check`, `shrink`, `calibrate`, `evidence`.

plan             what the sweep would run, in which order, and what it could see
compile-check    compiles the profiles and measures none
shrink           reduces a profile that fails to the settings that matter
calibrate        runs the baseline against itself, and shows the noise
evidence         records a dump and a capture of some profiles, as trials of their own
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pytest_xlatune.cli import (
    OF_A_RUN,
    OF_A_SESSION,
    add_json,
    add_options,
    complain,
    jobs_of,
    options_of,
    resolved_sweep,
    show,
    show_document,
    show_json,
)
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.profile import BASELINE_ID, Profile

if TYPE_CHECKING:
    from pytest_xlatune.evidence.hlo.difference import CompileFinding
    from pytest_xlatune.sweep.declaration import CompileCheck
    from pytest_xlatune.sweep.resolved import ResolvedSweep
    from pytest_xlatune.tasks.artifacts import Recorded
    from pytest_xlatune.tasks.shrink import Shrunk

SCHEMA = 1


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    add_options(parser, leave_out=OF_A_RUN - {"ask-above"})
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.sweep.earlier import read_calibration
    from pytest_xlatune.tasks.plan import plan_of

    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    resolved.check()
    known = read_calibration(options.workdir / resolved.folder, resolved.cell)
    is_held = resolved.sweep.site.runs_by.holds_nodes
    sigma = known.sigma_for(is_held=is_held) if known else None
    show_document(plan_of(resolved, resolved.study(sigma=sigma), workdir=options.workdir))
    return 0


def _add_compiler(parser: argparse.ArgumentParser) -> None:
    targets = "of the device: h100, h200, b200, cpu, or a gpu_target_config.pbtxt"
    for name, metavar, what in (
        ("program", "MODULE:FUNCTION", "compiled instead of the sweep's trainer; or train_compile"),
        ("target", "NAME", f"{targets}; of train_compile cpu, or a name of MaxText's: v5e-256"),
        ("topology", "PxHxD", "partitions x hosts x devices of the program (1x1x1)"),
        ("python", "PATH", "the interpreter whose JAX compiles it"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=what)
    parser.add_argument("--memory-limit", type=float, metavar="GIB", help="of a device")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for logs and dumps")


def add_compile_check(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    _add_compiler(parser)
    parser.add_argument(
        "--without-each",
        metavar="PROFILE",
        help="compile this profile, or several joined by +, whole and without each of its flags, "
        "and say which of them acted",
    )
    add_json(parser)
    add_options(parser, leave_out=OF_A_RUN)
    parser.set_defaults(run=_compile_check)


def _compile_check(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.evidence.hlo.difference import finding_line, summary_lines

    resolved = resolved_sweep(arguments.sweep, options_of(arguments))
    how = _how(resolved, arguments)
    if arguments.without_each:
        return _without_each(resolved, how, arguments)
    found = []
    width = max(len(each.id) for each in resolved.sweep.profiles)
    for each in _compiled(resolved, how, keep=arguments.keep):
        found.append(each)
        if not arguments.json:
            show([finding_line(each, width)])
    if arguments.json:
        show_json({"schema": SCHEMA, "profiles": [each.to_json() for each in found]})
    else:
        show(["", *summary_lines(found)])
    return 0


def _how(resolved: ResolvedSweep, arguments: argparse.Namespace) -> CompileCheck:
    """Return how profiles are compiled: as the sweep says, and the command line above it."""
    from pytest_xlatune.sweep.declaration import CPU, CompileCheck

    said = {
        "program": arguments.program,
        "target": arguments.target,
        "topology": arguments.topology,
        "python": arguments.python,
        "memory_limit_gib": arguments.memory_limit,
    }
    how = resolved.sweep.compile_check or CompileCheck()
    if arguments.program and not arguments.target and not how.target:
        said["target"] = CPU
    return dataclasses.replace(
        how, **{name: value for name, value in said.items() if value is not None}
    )


def add_shrink(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("profile", metavar="SWEEP_FILE:PROFILE")
    parser.add_argument(
        "--trials",
        type=_positive,
        metavar="N",
        help="run the trainer, N times at most, where compiling shows nothing; on Slurm if the "
        "sweep does",
    )
    parser.add_argument(
        "--tries", type=_positive, default=64, metavar="N", help="compilations at most (64)"
    )
    _add_compiler(parser)
    add_json(parser)
    add_options(parser, leave_out=OF_A_RUN)
    parser.set_defaults(run=_shrink)


def _positive(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count; give 1 or more")
    return count


def _shrink(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.model.errors import ConfigError
    from pytest_xlatune.tasks.shrink import shrink_profile

    file, _, name = arguments.profile.rpartition(":")
    if not file:
        raise ConfigError(
            f"{arguments.profile}: expected SWEEP_FILE:PROFILE, e.g. sweeps/test_mine.py:overlap-2"
        )
    resolved = resolved_sweep(Path(file), options_of(arguments))
    how = _how(resolved, arguments)
    with TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        site = resolved.sweep.site
        if arguments.trials and not site.runs_by.is_here and arguments.keep is None:
            raise ConfigError(
                f"trials by {site.runs_by.scheduler or site.executor} run in a folder that the "
                "nodes see: name its --keep"
            )
        found = shrink_profile(
            resolved, name, how, folder=folder, tries=arguments.tries, trials=arguments.trials
        )
    if arguments.json:
        show_json({"schema": SCHEMA, "shrunk": found.to_json()})
    else:
        show(_shrunk(found))
    return 0


def _shrunk(found: Shrunk) -> Iterator[str]:
    yield f"{found.profile}: {found.symptom.cls}: {found.symptom.said}"
    yield (
        f"  {len(found.settings)} of {found.of} settings still fail so, found by {found.by} in "
        f"{found.tries} tries"
        + ("" if found.is_minimal else "; not all could be tried: a smaller set may do")
    )
    yield from (f"  {each}" for each in found.settings)


def _without_each(resolved: ResolvedSweep, how: CompileCheck, arguments: argparse.Namespace) -> int:
    """Show which flags of a profile changed the program.

    Raises:
        ConfigError: no such profile, or it does not compile.
    """
    from pytest_xlatune.model.channels import on_top
    from pytest_xlatune.model.errors import ConfigError
    from pytest_xlatune.model.profile import merge_flags
    from pytest_xlatune.prepare.compile_check import compiled_by
    from pytest_xlatune.prepare.compilers import compiler_for, proofs_of

    declared = {each.id: each for each in resolved.sweep.profiles}
    said: str = arguments.without_each
    names = [said] if said in declared else said.split("+")
    for name in names:
        if name not in declared:
            where = f"sweep {resolved.sweep.name!r}"
            raise ConfigError.unknown("profile", name, valid=declared, where=where)
    parts = [declared[name] for name in names]
    whole = dataclasses.replace(
        parts[0],
        id="whole",
        flags=merge_flags(flag for each in parts for flag in each.flags),
        env=functools.reduce(on_top, (each.env for each in parts)),
        overrides={key: value for each in parts for key, value in each.overrides.items()},
    )
    compiler = compiler_for(resolved, how)
    compiled_by(compiler)
    with TemporaryDirectory() as scratch:
        proofs = proofs_of(whole, compiler.way, folder=arguments.keep or Path(scratch))
    if arguments.json:
        show_json({"schema": SCHEMA, "flags": [each.to_json() for each in proofs]})
    else:
        show([each.sentence for each in proofs])
    return 0


def _compiled(
    resolved: ResolvedSweep, how: CompileCheck, *, keep: Path | None
) -> Iterator[CompileFinding]:
    """Compile a sweep's profiles; yield each as it is judged.

    Raises:
        ConfigError: the options do not fit, or the cell as deployed does not compile.
    """
    from pytest_xlatune.prepare.compile_check import compiled_by
    from pytest_xlatune.prepare.compilers import compiler_for, screen

    compiler = compiler_for(resolved, how)
    compiled_by(compiler)  # says what cannot be compiled with, before anything is
    with TemporaryDirectory() as scratch:
        yield from screen(
            resolved.sweep.profiles,
            compiler.way,
            folder=keep or Path(scratch),
            memory_limit_bytes=compiler.memory_limit_bytes,
            is_away=compiler.target is not None,
        )


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    parser.add_argument("--jobs", type=int, default=12, metavar="N", help="how many (12)")
    parser.add_argument(
        "--allocations",
        type=_positive,
        metavar="N",
        help="measure what trials of one allocation share, in N allocations of --starts trials; "
        "with --slots N what slots differ by and cost each other, in --starts rounds of all slots",
    )
    parser.add_argument(
        "--starts",
        type=_positive,
        metavar="N",
        help="trials of an allocation, or rounds of all slots (3)",
    )
    _add_yes(parser)
    add_options(parser, leave_out=OF_A_SESSION)
    parser.set_defaults(run=_calibrate)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes",
        dest="xlatune_yes",
        action="store_true",
        help="run although it costs more node-hours than --ask-above",
    )


def _calibrate(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.model.errors import ConfigError
    from pytest_xlatune.prepare.compilers import check_sweep
    from pytest_xlatune.studies.calibration import STARTS
    from pytest_xlatune.sweep.earlier import CALIBRATION
    from pytest_xlatune.tasks import new_session_id
    from pytest_xlatune.tasks.live import Feed
    from pytest_xlatune.tasks.runs import Runs, calibrate, document_of, ways_document

    options = options_of(arguments)
    resolved = asked = resolved_sweep(arguments.sweep, options)
    on_slots = arguments.xlatune_slots not in (None, "1")
    allocations, starts = arguments.allocations or 0, arguments.starts or STARTS
    if arguments.starts and not (allocations or on_slots):
        raise ConfigError("--starts says how many trials --allocations or --slots have: name one")
    study = resolved.calibration(
        arguments.jobs, allocations=allocations, starts=starts, on_slots=on_slots
    )
    if allocations:
        resolved = resolved.held(starts)
    check_sweep(resolved)
    folder = options.workdir / resolved.folder
    session = new_session_id()
    feed = Feed(folder, session_id=session)

    def tick() -> None:
        show(landed.line for landed in feed.landed() if landed.line)

    with jobs_of(folder), Runs(options, session=session) as runs:
        campaign = runs.open(resolved, study)
        found = calibrate(campaign, tick)
    show_document(document_of(campaign, found))
    if allocations or on_slots:
        show_document(ways_document(asked, found, folder=folder))
    show([f"written: {os.path.relpath(folder / CALIBRATION)}"])
    return 0


def add_evidence(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    parser.add_argument(
        "profiles",
        nargs="*",
        metavar="PROFILE",
        help="ids; the baseline and, if there is one, the winner without any",
    )
    _add_yes(parser)
    add_options(parser, leave_out=OF_A_SESSION)
    parser.set_defaults(run=_evidence)


def _evidence(arguments: argparse.Namespace) -> int:
    """Record profiles one after the other; show what each left, then what the last changed."""
    from pytest_xlatune.cli.hlo import show_dumps
    from pytest_xlatune.prepare.compilers import check_sweep
    from pytest_xlatune.tasks import new_session_id
    from pytest_xlatune.tasks.live import Feed
    from pytest_xlatune.tasks.runs import Runs, record, study_of_profile

    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    folder = options.workdir / resolved.folder
    named = _named(resolved, folder, list(dict.fromkeys(arguments.profiles)))
    # a misspelt id is told before anything runs
    studies = [study_of_profile(resolved, each) for each in named]
    check_sweep(resolved)
    found: list[Recorded] = []
    exit_code, session = 0, new_session_id()
    feed = Feed(folder, session_id=session)

    def tick() -> None:
        show(landed.line for landed in feed.landed() if landed.line)

    with jobs_of(folder), Runs(options, session=session) as runs:
        for study in studies:
            found.append(record(runs.open(resolved, study), tick))
            show(_left(found[-1]))
            exit_code = complain(found[-1].problems) or exit_code
    dumps = [each.dump for each in found if each.dump]
    if len(dumps) == len(found) > 1:
        show([""])
        exit_code = show_dumps([dumps[0], dumps[-1]]) or exit_code
    return exit_code


def _named(resolved: ResolvedSweep, folder: Path, ids: Sequence[str]) -> list[Profile | str]:
    """Return the profiles to record: without ids the baseline and, if there is one, the winner.

    What waves derived from the ledger's results is found by its id too.
    """
    from pytest_xlatune.studies import profiles_in
    from pytest_xlatune.tasks.publish import read_known

    try:
        known = read_known(folder)
    except LedgerError:  # nothing was measured yet
        return [*(ids or [BASELINE_ID])]
    best = known.conclusion.winner
    derived: dict[str, Profile] = {}
    if resolved.sweep.gate is None:
        found = profiles_in(resolved.tuning(), known.history)
        derived = {each.id: each for each in found if each not in resolved.sweep.profiles}
    ids = ids or [BASELINE_ID, *([best.arm] if best else [])]
    return [derived.get(each, each) for each in ids]


def _left(found: Recorded) -> Iterator[str]:
    yield f"{found.profile}: trial {found.trial_id}"
    yield from (f"  {each}" for each in found.facts)
    for path in filter(None, [found.dump, *found.captures]):
        yield f"  {os.path.relpath(path)}"
