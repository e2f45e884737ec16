"""A rotation: one job in which the programs of several profiles take turns, a few steps each.

The spec says which programs run, in which order, and for how many steps in each turn.
`workers/rotate.py` reads it in the trainer's interpreter, compiles each program and writes a
journal, which `read_rotation` reads: lines of JSON, one file for each process of the trainer.
Step times are only in the trainer's own step lines, not in the spec or a journal.

This module also decides which settings can rotate: flags that the compiler takes as options of a
compilation can; flags that a library reads once, when it starts, cannot. Pure.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.channels import CHANNELS, channel_of, flags_in
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import (
    APPENDING,
    BASELINE_ID,
    PGLE,
    SLUG,
    Flags,
    Profile,
    effective_values,
)
from pytest_xlatune.model.record import Real, Record, read_json
from pytest_xlatune.model.text import is_relative

SCHEMA = 1  # version of the spec and of the journal
RANK = "{rank}"  # placeholder for `jax.process_index()` in the name of a journal
JOURNAL = f"rotation.{RANK}.jsonl"
# the id of a program:  baseline-deployed    baseline-deployed~2    overlap-2~3
_ID = re.compile(rf"{SLUG.pattern}(?:~[1-9][0-9]{{0,2}})?")
# the name of an option:  xla_gpu_all_gather_combine_threshold_bytes
_OPTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MOST_LINES = 1 << 20  # of a journal


class ReadAt(StrEnum):
    """When a setting is read, and so whether profiles that differ in it can share a process."""

    COMPILE = "compile"  # as an option of each compilation
    START = "start"  # once, when the process, its client or a communicator starts
    # an environment variable or a key of the trainer, read before anything runs
    VARIABLE = "variable"


class RotatedProgram(Record, frozen=True, kw_only=True):
    """A program of a rotation.

    Attributes:
        id: the profile's id; for a copy of the baseline e.g. `baseline-deployed~2`.
        options: options of its compilation in addition to XLA_FLAGS: name of a flag without dashes
            -> its value as in XLA_FLAGS. {} for the baseline and its copies.
    """

    id: str
    options: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ConfigError(f"rotation: {self.id!r} is no id of a program")
        for name in self.options:
            if not _OPTION.fullmatch(name):
                raise ConfigError(f"rotation: {self.id}: {name!r} is no name of a flag")

    @property
    def profile(self) -> str:
        """The id of the profile, without the number of a copy."""
        return self.id.partition("~")[0]

    @property
    def is_baseline(self) -> bool:
        """Whether it is the deployed cell or a copy of it."""
        return self.profile == BASELINE_ID


class RotationSpec(Record, frozen=True, kw_only=True):
    """The instructions for the worker.

    Attributes:
        programs: the programs, the baseline first; each is compiled once, and so is each copy.
        order: index into `programs` for each turn; the worker begins again when the order ends.
        turn_steps: number of steps of a turn.
        step_function: name of the step's HLO module without `jit_`, e.g. `train_step`; "": the
            worker takes the function that is called once in each step.
        first_step: number of calls before the first turn; the trainer's own program runs them.
        journal: file name of the journal in the folder of the spec, with `{rank}` in it.
        schema: version of the format.
        memory_limit_bytes: programs that need more memory of a device are left out; 0 means the
            limit that the device reports.
    """

    programs: tuple[RotatedProgram, ...]
    order: tuple[int, ...]
    turn_steps: int
    step_function: str = ""
    first_step: int = 3
    journal: str = JOURNAL
    schema: int = SCHEMA
    memory_limit_bytes: int = 0

    def __post_init__(self) -> None:
        ids = [program.id for program in self.programs]
        if not ids or not self.programs[0].is_baseline or self.programs[0].options:
            raise ConfigError(f"rotation: the first program is not {BASELINE_ID}")
        repeated = [program_id for program_id, count in Counter(ids).items() if count > 1]
        if repeated:
            raise ConfigError(f"rotation: program {min(repeated)!r} is listed twice")
        if not self.order or not all(0 <= place < len(ids) for place in self.order):
            raise ConfigError("rotation: the order is empty or names a program that is not listed")
        if self.turn_steps < 1 or self.first_step < 1:
            raise ConfigError("rotation: turn_steps and first_step must be at least 1")
        if RANK not in self.journal or "/" in self.journal:
            raise ConfigError(f"rotation: {self.journal!r} is no file name with {RANK} in it")
        if self.schema != SCHEMA:
            raise ConfigError(f"rotation: schema {self.schema}, but this version knows {SCHEMA}")

    def without(self, ids: Collection[str]) -> RotationSpec:
        """Return a spec without these programs, whose turns the baseline gets.

        The order keeps its length, so each step stays in the same turn.

        Raises:
            ConfigError: the baseline itself is among them.
        """
        kept = [at for at, program in enumerate(self.programs) if program.id not in ids]
        if 0 not in kept:
            raise ConfigError("rotation: without the baseline there is nothing to compare with")
        moved = {old: new for new, old in enumerate(kept)}
        return replace(
            self,
            programs=tuple(self.programs[at] for at in kept),
            order=tuple(moved.get(place, 0) for place in self.order),
        )

    def with_first(self, program: str) -> RotationSpec:
        """Return a spec in which this program has the first turn of all profiles.

        It changes places with the profile that had that turn. So the baseline runs before its first
        turn, and its turns are followed by other programs than before.
        """
        at = next((at for at, listed in enumerate(self.programs) if listed.id == program), None)
        first = next((place for place in self.order if not self.programs[place].is_baseline), None)
        if at is None or first is None:
            return self
        swapped = {at: first, first: at}
        return replace(self, order=tuple(swapped.get(place, place) for place in self.order))


_CLIQUE = (
    "XLA gpu_executable.cc, gpu_cliques.cc: a communicator is made by the first program that runs"
)
_AUTOTUNER = "XLA autotuner_util.cc: later programs use the kernels that were tuned for the first"
# Flags that all programs of a process share -> the source of that fact. All other flags of
# XLA_FLAGS are read from the options of each compilation (xla/pjrt/pjrt_executable.cc,
# ApplyOption), and the compiler refuses flags for which it has no option.
AT_START: Mapping[str, str] = MappingProxyType(
    {
        "xla_force_host_platform_device_count": "XLA's CPU client reads it when it starts",
        "xla_gpu_nccl_collective_max_nchannels": _CLIQUE,
        "xla_gpu_nccl_p2p_max_nchannels": _CLIQUE,
        "xla_gpu_enable_nccl_comm_splitting": _CLIQUE,
        "xla_gpu_nccl_blocking_communicators": _CLIQUE,
        "xla_gpu_nccl_async_execution": _CLIQUE,
        "xla_gpu_nccl_init_max_rank_per_root_ratio": _CLIQUE,
        "xla_gpu_nccl_terminate_on_error": _CLIQUE,
        "xla_gpu_nccl_termination_timeout_seconds": _CLIQUE,
        "xla_gpu_autotune_level": _AUTOTUNER,
        "xla_gpu_exhaustive_tiling_search": _AUTOTUNER,
        "xla_gpu_cudnn_gemm_fusion_level": _AUTOTUNER,
        "xla_gpu_cudnn_gemm_max_plans": _AUTOTUNER,
        "xla_gpu_load_autotune_results_from": _AUTOTUNER,
        "xla_gpu_per_fusion_autotune_cache_dir": _AUTOTUNER,
        "xla_gpu_experimental_autotuner_cache_dir": _AUTOTUNER,
        "xla_gpu_experimental_autotune_cache_mode": _AUTOTUNER,
        "xla_gpu_experimental_autotune_backends": _AUTOTUNER,
        PGLE: "XLA's log does not say for which program it read the file",
    }
)
# value of a flag -> the value that an option needs (xla.proto of jaxlib 0.10.2 and 0.12.0.1)
_MODES = {mode: f"COLLECTIVES_{mode.upper()}_MEMORY" for mode in ("private", "symmetric", "peer")}
_PIPELINES = {
    mode: f"COLLECTIVE_PIPELINING_MODE_{mode.upper()}" for mode in ("default", "off", "on")
}
_CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "xla_gpu_collective_permute_mode": _MODES,
        "xla_gpu_all_gather_mode": _MODES,
        "xla_gpu_ragged_all_to_all_mode": _MODES,
        "xla_gpu_pipeline_all_gather": _PIPELINES,
        "xla_gpu_pipeline_all_reduce": _PIPELINES,
        "xla_gpu_pipeline_reduce_scatter": _PIPELINES,
    }
)
# options that cannot be set from a text, because they are messages or maps in XLA's DebugOptions
STRUCTURED = frozenset(
    {
        "xla_backend_extra_options",
        "xla_enable_nccl_symmetric_buffers_for_collectives",
        "xla_gpu_analytical_latency_estimator_options",
        "xla_gpu_experimental_cost_model_gemm_tiling_options",
        "xla_fuel",
    }
)


def read_at(name: str) -> ReadAt:
    """Return when a setting is read: a flag of XLA or another library, a variable or a key."""
    if channel := CHANNELS.get(channel_of(name)):
        return ReadAt.COMPILE if channel.is_option(name) else ReadAt.VARIABLE
    if not name.startswith("xla_"):
        return ReadAt.VARIABLE
    return ReadAt.START if name in AT_START or name in STRUCTURED else ReadAt.COMPILE


@functools.lru_cache(maxsize=1 << 13)
def options_of(profile: Profile, deployed: Flags) -> Mapping[str, str] | Message:
    """Return the compiler options of a profile in addition to the deployed flags.

    An option replaces the value in XLA_FLAGS or in the variable of another library, so the values
    of a flag that XLA adds up are joined with the deployed ones.

    Returns:
        Name without dashes -> value; or the reason why the profile must run as a job of its own.
    """
    if profile.overrides:
        return say("the trainer reads {names} before it compiles", names=tuple(profile.overrides))
    options: dict[str, str] = {}
    read_at_start: list[str] = []
    for variable, text in profile.env.items():
        channel = CHANNELS.get(variable)
        if channel is None:
            read_at_start.append(variable)
            continue
        flags = flags_in(variable, text)
        options |= flags
        read_at_start += [flag for flag in flags if not channel.is_option(flag)]
    if read_at_start:
        return say("a library reads {names} when it starts", names=tuple(read_at_start))
    deployed_values = effective_values(deployed)
    # a flag that the client reads at its start has no effect if it repeats the deployed value
    flags = {
        name: value
        for name, value in effective_values(profile.flags).items()
        if read_at(name) is not ReadAt.START or deployed_values.get(name) != value
    }
    for names, why in (
        (
            [name for name in flags if name in STRUCTURED],
            "{names} has several fields, and no option sets those",
        ),
        (
            [name for name in flags if read_at(name) is not ReadAt.COMPILE],
            "programs of one process share what {names} sets",
        ),
        (
            [name for name in flags if is_relative(flags[name])],
            "{names} edits a list, and an option of a compilation replaces it",
        ),
    ):
        if names:
            return say(why, names=tuple(names))
    for name, value in flags.items():
        if name in APPENDING and deployed_values.get(name):
            options[name] = f"{deployed_values[name]},{value}"
        else:
            options[name] = _CHOICES.get(name, {}).get(value.lower(), value)
    return options


class CompiledProgram(Record, frozen=True, kw_only=True):
    """A program that was compiled.

    Attributes:
        program: the id of the program.
        compile_s: seconds that the compilation took.
        memory_bytes: memory of a device that the program needs for arguments, results, temporary
            space and code; None if the platform does not report it.
        same_as: id of the first program with the same optimised text; "" if there is none. Programs
            of equal text may differ: `xla_backend_optimization_level` acts on the machine code, and
            other options act when the program runs. Only a copy is equal for certain.
    """

    program: str
    compile_s: Real
    memory_bytes: int | None = None
    same_as: str = ""


class Turn(Record, frozen=True, kw_only=True):
    """Consecutive calls of one program.

    Attributes:
        program: the id of the program.
        first_call: number of the first call, counted from 0 over all calls of the step.
        calls: number of its calls; for the last turn of a process that died, the planned number.
    """

    program: str
    first_call: int
    calls: int


class RotationRead(Record, frozen=True, kw_only=True):
    """The content of the journal of one process.

    Attributes:
        found: name of the step's program; "" if it was not found.
        compiled: the compiled programs, in the order of compilation.
        refused: id -> error text of the compiler, or of the program's first call.
        left_out: id -> memory in bytes of a program that needs too much of the device.
        turns: the turns in order.
        suspects: ids of the programs to blame if the process ended badly: either the program that
            was being compiled, or those of the last turn and the turn before; never the baseline.
        is_compiling: whether the process ended while it compiled the first suspect.
        is_over: whether the interpreter reached its end, possibly by an exception.
        calls: total number of calls of the step; None if the process died.
        jax: version of the trainer's JAX; "" if it was not imported.
        trouble: why no programs took turns, in the worker's words; "" if they did.
        odd_calls: numbers of the calls whose arguments were not those that the programs were
            compiled for, so that the trainer's own program ran them.
        raised_call: number of the call that raised an exception and ended the turns; None if none
            did.
        device: platform and kind of the first device; "" if the journal does not have them.
    """

    found: str = ""
    compiled: tuple[CompiledProgram, ...] = ()
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    suspects: tuple[str, ...] = ()
    is_over: bool = False
    calls: int | None = None
    jax: str = ""
    trouble: str = ""
    odd_calls: tuple[int, ...] = ()
    device: str = ""
    is_compiling: bool = False
    raised_call: int | None = None


# event -> attribute of `RotationRead`, the event's field with its value, type of the value
_SINGLE_FACTS: Mapping[str, tuple[str, str, type]] = MappingProxyType(
    {
        "jax": ("jax", "version", str),
        "found": ("found", "name", str),
        "trouble": ("trouble", "words", str),
        "raised": ("raised_call", "call", int),
        "end": ("calls", "calls", int),
    }
)

_OF_PROGRAMS = ("compile", "compiled", "refused", "left_out", "turn")  # events that name a program


class _Reading(msgspec.Struct, kw_only=True):
    """The events of one process, while a journal is read.

    `read` has the values of `RotationRead` that one event sets.
    """

    read: dict[str, Any] = msgspec.field(default_factory=dict)
    compiled: list[CompiledProgram] = msgspec.field(default_factory=list)
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    turn_starts: list[tuple[str, int]] = msgspec.field(default_factory=list)
    odd_calls: list[int] = msgspec.field(default_factory=list)
    compiling: str = ""  # the program that is being compiled; "" for none
    turn_steps: int = 0  # 0 for a process without a `start` event

    def add(self, event: str, entry: Mapping[str, Any]) -> None:
        program = str(entry["program"]) if event in _OF_PROGRAMS else ""
        if event in _SINGLE_FACTS:
            attribute, field, kind = _SINGLE_FACTS[event]
            self.read[attribute] = kind(entry[field])
        match event:
            case "start":
                self.turn_steps = int(entry["turn_steps"])
            case "found":
                self.read["device"] = str(entry.get("device", ""))
            case "compile":
                self.compiling = program
            case "compiled":
                self.compiling = ""
                known = {name: entry[name] for name in ("memory_bytes", "same_as") if name in entry}
                compile_s = float(entry["compile_s"])
                self.compiled.append(
                    CompiledProgram.from_json({"program": program, "compile_s": compile_s, **known})
                )
            case "refused":
                self.compiling = ""
                self.refused[program] = str(entry["words"])
            case "left_out":
                self.left_out[program] = int(entry["memory_bytes"])
            case "turn":
                self.turn_starts.append((program, int(entry["first_call"])))
            case "odd_call":
                self.odd_calls.append(int(entry["call"]))
            case "end":
                self.read["is_over"] = True

    def turns(self) -> tuple[Turn, ...]:
        """Return the turns; a turn ends at the next turn, or at the call that ended all turns."""
        calls, raised_call = self.read.get("calls"), self.read.get("raised_call", math.inf)
        ends = [first for _, first in self.turn_starts[1:]]
        if self.turn_starts:
            planned = self.turn_starts[-1][1] + self.turn_steps
            ends.append(planned if calls is None else min(planned, calls))
        ends = [min(end, raised_call) for end in ends]
        return tuple(
            Turn(program=program, first_call=first, calls=int(end) - first)
            for (program, first), end in zip(self.turn_starts, ends, strict=True)
            if end > first
        )

    def suspects(self) -> tuple[str, ...]:
        last_first = [program for program, _ in reversed(self.turn_starts[-2:])]
        programs = [self.compiling] if self.compiling else last_first
        profiles = [name for name in programs if name.partition("~")[0] != BASELINE_ID]
        return tuple(dict.fromkeys(profiles))


_FORKED = "a process that the trainer forked also ran steps"


def read_rotation(text: str) -> RotationRead:
    """Read a journal; skip a torn last line and unknown events.

    The events, one JSON object in each line with the `pid` of its process: `start` (turn_steps),
    `jax` (version), `found` (name), `compile` before and `compiled` (compile_s, memory_bytes,
    same_as) or `refused` (words) after each compilation, `left_out` (memory_bytes), `turn`
    (program, first_call), `odd_call` (call), `raised` (call, words), `trouble` (words), `end`
    (calls). Malformed lines are skipped.

    Several processes may have written, e.g. helpers of a trainer or an earlier attempt. Then only
    the events of the last process that found the step count; if none did, those of the last process
    that imported JAX. A process with turns but without `start` is a fork of the trainer; then step
    lines may come from either process.
    """
    readings: dict[int, _Reading] = {}
    for line in text.splitlines()[:_MOST_LINES]:
        try:
            entry = read_json(line)
            event, process = str(entry["event"]), int(entry.get("pid", 0))
            readings.setdefault(process, _Reading()).add(event, entry)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError, LedgerError):
            continue
    processes = list(readings.values())
    reading = max(
        reversed(processes),
        key=lambda process: ("found" in process.read, "jax" in process.read),
        default=None,
    )
    if reading is None:
        return RotationRead()
    if any(process.turn_starts and not process.turn_steps for process in processes):
        reading.read.setdefault("trouble", _FORKED)
    return RotationRead(
        compiled=tuple(reading.compiled),
        refused=reading.refused,
        left_out=reading.left_out,
        turns=reading.turns(),
        suspects=reading.suspects(),
        odd_calls=tuple(reading.odd_calls),
        is_compiling=bool(reading.compiling),
        **reading.read,
    )
