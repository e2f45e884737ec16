"""What `xlatune hlo`, `drill` and `screen` show: text or JSON, and what could not be read.

Chooses between one and two, and between text and JSON; the files are read by `evidence_files`, the
sentences are made by the evidence room. It prints nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.errors import ConfigError, LedgerError, ParseError, XlatuneError
from pytest_xlatune.evidence.families import FAMILIES, Family, parse_families
from pytest_xlatune.evidence.render import (
    SCHEMA,
    drill_json,
    drill_lines,
    hlo_json,
    hlo_lines,
)
from pytest_xlatune.evidence.screened import screened_line, summary_lines
from pytest_xlatune.evidence_files import Window, read_program, read_window
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.publishing.publish import read_known
from pytest_xlatune.records import Json
from pytest_xlatune.results import VerdictKind
from pytest_xlatune.runs.recorded import Recorded
from pytest_xlatune.runs.recording import open_recording, record, study_of_profile
from pytest_xlatune.screening import Screening
from pytest_xlatune.screening.compiling import screen
from pytest_xlatune.screening.versions import compiled_by
from pytest_xlatune.sweep.sweep import ResolvedSweep

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a command shows, one sentence for each file that is not in it, and its exit code."""

    text: str
    problems: tuple[str, ...] = ()
    exit_code: int = 0


def show_hlo(dumps: Sequence[Path], *, as_json: bool) -> Shown:
    """Show the facts of one dump, or the difference of two.

    Where one of two cannot be read, the facts of the other are shown.

    Raises:
        ParseError: none can be read.
    """
    programs, problems = _readable([partial(read_program, path) for path in dumps])
    text = _json(hlo_json(*programs)) if as_json else "\n".join(hlo_lines(*programs))
    return Shown(text=text, problems=problems)


def show_drill(
    variants: Sequence[Sequence[Path]],
    *,
    nodes: int | None,
    gpus_per_node: int | None,
    steps: int | None,
    step_times_s: Sequence[float],
    families: Path | None,
    as_json: bool,
) -> Shown:
    """Show where the time of a step went, or what made the difference between two variants.

    Where one of two cannot be read, the other is shown.

    Args:
        variants: the paths of one, or of two.
        nodes: of the job; the captures must agree with it, and with the next two, where known.
        gpus_per_node: devices on each.
        steps: in the profiled window.
        step_times_s: of companion runs without profiler, one per variant, or none.
        families: a JSON file of kernel families; None takes our own.
        as_json: a document instead of text.

    Raises:
        ConfigError: options that do not fit each other, variants that cannot be compared.
        ParseError: no variant has a readable capture of one window.
    """
    if nodes and not gpus_per_node:
        raise ConfigError("--nodes says how many GPUs to expect only with --gpus-per-node; add it")
    if len(step_times_s) not in {0, len(variants)}:
        raise ConfigError(
            f"--step-time was given {len(step_times_s)} times for {len(variants)} variants; give "
            "it once for each, in their order, or not at all"
        )
    window = Window(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        steps=steps,
        families=_families(families) if families else FAMILIES,
    )
    read, problems = _readable(
        [
            partial(read_window, paths, window, step_s=step_s)
            for paths, step_s in zip_longest(variants, step_times_s)
        ]
    )
    drills = [drilled for drilled, _ in read]
    text = _json(drill_json(*drills)) if as_json else "\n".join(drill_lines(*drills))
    return Shown(text=text, problems=(*problems, *(each for _, left in read for each in left)))


def _readable(readers: Sequence[Callable[[], T]]) -> tuple[list[T], tuple[str, ...]]:
    """Read what can be read, and say of the rest why not; where that is all, raise it."""
    read, problems = [], []
    for reader in readers:
        try:
            read.append(reader())
        except XlatuneError as error:
            problems.append(str(error))
    if not read:
        raise ParseError("; ".join(problems))
    return read, tuple(problems)


def show_screening(
    resolved: ResolvedSweep,
    screening: Screening,
    *,
    keep: Path | None,
    as_json: bool,
) -> Iterator[str]:
    """Compile a sweep's profiles; yield a line for each as it is compiled, then what they settle.

    Args:
        resolved: the sweep.
        screening: how they are compiled.
        keep: a folder for logs and dumps, which are deleted otherwise.
        as_json: one document, at the end.

    Raises:
        ConfigError: what is asked for does not fit, or the cell as deployed does not compile.
    """
    compiler = resolved.compiler(screening)
    compiled_by(compiler)  # says what cannot be compiled with, before anything is
    profiles = resolved.sweep.profiles
    width = max(len(each.id) for each in profiles)
    found = []
    with TemporaryDirectory() as scratch:
        for each in screen(
            profiles,
            compiler.way,
            folder=keep or Path(scratch),
            memory_limit_bytes=compiler.memory_limit_bytes,
        ):
            found.append(each)
            if not as_json:
                yield screened_line(each, width)
    if as_json:
        yield _json({"schema": SCHEMA, "screened": [each.to_json() for each in found]})
        return
    yield ""
    yield from summary_lines(found)


def show_evidence(
    resolved: ResolvedSweep, profiles: Sequence[str], *, workdir: Path
) -> Iterator[Shown]:
    """Record profiles one after the other; yield what each left, then what the last changed.

    Args:
        resolved: the sweep.
        profiles: ids; () is the baseline and, where the ledger knows one, the winner.
        workdir: below which the cell has its folder.

    Raises:
        ConfigError, LedgerError: it cannot begin.
        CampaignStopped, NotRecorded: a run left nothing.
    """
    folder = workdir / resolved.folder
    derived = {each.id: each for each in _derived(resolved, folder)}
    ids = list(dict.fromkeys(profiles)) or [BASELINE_ID, *_winner(folder)]
    named: list[Profile | str] = [derived.get(each, each) for each in ids]
    for each in named:
        study_of_profile(resolved, each)  # says what is misspelt before anything runs
    resolved.check()
    found: list[Recorded] = []
    try:
        for each in named:
            campaign = open_recording(resolved, each, workdir=workdir)
            found.append(record(campaign, lambda: None))
            yield Shown(text="\n".join(_left(found[-1])), problems=found[-1].problems)
    finally:
        cancel_unwaited(folder)
    dumps = [each.dump for each in found if each.dump]
    if len(dumps) == len(found) > 1:
        yield Shown(text="")
        yield show_hlo([dumps[0], dumps[-1]], as_json=False)


def _derived(resolved: ResolvedSweep, folder: Path) -> tuple[Profile, ...]:
    """Return the profiles that waves derived from what the ledger holds."""
    try:
        history = read_known(folder).history
    except LedgerError:
        return ()
    known = resolved.tuning().profiles_of(history) if resolved.sweep.gate is None else ()
    return tuple(each for each in known if each not in resolved.sweep.profiles)


def _winner(folder: Path) -> list[str]:
    try:
        conclusion = read_known(folder).conclusion
    except LedgerError:
        return []
    won = [each.profile for each in conclusion.verdicts if each.kind is VerdictKind.FASTER]
    return won[:1]


def _left(found: Recorded) -> Iterator[str]:
    yield f"{found.profile}: trial {found.trial_id}"
    yield from (f"  {each}" for each in found.facts)
    for path in filter(None, [found.dump, *found.captures]):
        yield f"  {os.path.relpath(path)}"


def _families(path: Path) -> tuple[Family, ...]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no JSON file of kernel families: {error}") from None
    return parse_families(data, where=str(path))


def _json(document: Json) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
