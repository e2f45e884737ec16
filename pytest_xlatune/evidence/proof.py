"""What proves that a flag acted: the fact of the program that it must change, as data.

A flag that was set and changed nothing was measured for nothing; a flag that acts at run time only
cannot be judged here at all. Which of the three holds is looked up, not guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pytest_xlatune.evidence.difference import Change, change
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.records import Record


class Acted(StrEnum):
    """What the program says about a flag."""

    ACTED = "acted"
    DID_NOT_ACT = "did not act"
    UNSEEN = "cannot be seen in HLO"


class Fact(StrEnum):
    """A fact of a program that a flag may change."""

    SIZES = "number and sizes of its collectives"
    PIPELINED = "pipelined collectives, or a peeled round of the loop"
    UNROLLED = "double-buffered loops"
    IN_FLIGHT = "collectives in flight"
    ASYNC = "synchronous or asynchronous collectives"
    DECOMPOSED = "collective-permutes as send and recv"
    WINDOWED = "windowed einsum loops"
    SPLIT = "number of its collectives"
    MEMORY = "memory"
    PROGRAM = "the program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation(Record):
    """The fact that a flag changes when it acts; of some kinds of collectives, or of all."""

    flag: str
    fact: Fact | None  # None: the program is the same by design
    kinds: tuple[str, ...] = ()
    why: str = ""  # it cannot be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Record):
    """Whether a flag acted, and the sentence that says so."""

    flag: str
    acted: Acted
    sentence: str


def _table() -> dict[str, Expectation]:
    every: tuple[str, ...] = ()
    gather, reduce, scatter = ("all-gather",), ("all-reduce",), ("reduce-scatter",)
    permute = ("collective-permute",)
    rows: list[tuple[str, Fact | None, tuple[str, ...]]] = [
        ("xla_gpu_all_gather_combine_threshold_bytes", Fact.SIZES, gather),
        ("xla_gpu_all_reduce_combine_threshold_bytes", Fact.SIZES, reduce),
        ("xla_gpu_reduce_scatter_combine_threshold_bytes", Fact.SIZES, scatter),
        ("xla_gpu_collective_permute_combine_threshold_bytes", Fact.SIZES, permute),
        ("xla_gpu_enable_all_gather_combine_by_dim", Fact.SIZES, gather),
        ("xla_gpu_enable_reduce_scatter_combine_by_dim", Fact.SIZES, scatter),
        ("xla_gpu_experimental_enable_heuristic_collective_combining", Fact.SIZES, every),
        *((f"xla_gpu_{form}_{kind}", Fact.PIPELINED, every)
          for form in ("pipeline", "enable_pipelined")
          for kind in ("all_gather", "all_reduce", "reduce_scatter")),
        ("xla_gpu_enable_while_loop_double_buffering", Fact.UNROLLED, every),
        ("xla_gpu_enable_while_loop_unrolling", Fact.UNROLLED, every),
        ("xla_gpu_experimental_parallel_collective_overlap_limit", Fact.IN_FLIGHT, every),
        ("xla_gpu_experimental_parallel_scale_up_collective_overlap_limit", Fact.IN_FLIGHT, every),
        ("xla_gpu_enable_latency_hiding_scheduler", Fact.ASYNC, every),
        ("xla_gpu_disable_async_collectives", Fact.ASYNC, every),
        ("xla_gpu_enable_async_collectives", Fact.ASYNC, every),
        ("xla_gpu_enable_async_all_gather", Fact.ASYNC, gather),
        ("xla_gpu_enable_async_collective_permute", Fact.ASYNC, permute),
        ("xla_gpu_enable_pipelined_p2p", Fact.DECOMPOSED, permute),
        ("xla_gpu_collective_permute_decomposer_threshold", Fact.DECOMPOSED, permute),
        ("xla_gpu_experimental_pipeline_parallelism_opt_level", Fact.DECOMPOSED, permute),
        ("xla_gpu_threshold_for_windowed_einsum_mib", Fact.WINDOWED, every),
        ("xla_gpu_operand_bytes_threshold_for_windowed_einsum", Fact.WINDOWED, every),
        *((flag, Fact.PROGRAM, every) for flag in (
            "xla_gpu_multi_streamed_windowed_einsum",
            "xla_gpu_memory_limit_slop_factor",
            "xla_gpu_enable_analytical_latency_estimator",
            "xla_gpu_enable_analytical_sol_latency_estimator",
            "xla_gpu_collective_inflation_factor",
            "xla_gpu_analytical_latency_estimator_options",
            "xla_gpu_experimental_collective_perf_table_path",
            "xla_gpu_experimental_collective_start_as_early_as_possible",
            "xla_gpu_pgle_profile_file_or_directory_path",
            "xla_gpu_enable_triton_gemm",
            "xla_gpu_enable_cublaslt",
            "xla_disable_hlo_passes",
            "xla_enable_hlo_passes_only",
        )),
        ("xla_gpu_experimental_enable_alltoall_windowed_einsum", Fact.SPLIT, ("all-to-all",)),
        ("xla_gpu_enable_nccl_user_buffers", Fact.MEMORY, every),
        ("xla_gpu_all_gather_mode", Fact.MEMORY, every),
        ("xla_gpu_collective_permute_mode", Fact.MEMORY, every),
        ("xla_gpu_ragged_all_to_all_mode", Fact.MEMORY, every),
    ]  # fmt: skip
    unseen = {
        "it acts at run time; look at the trace or at NCCL_DEBUG=INFO": (
            "xla_gpu_enable_highest_priority_async_stream",
            "xla_gpu_enable_command_buffer",
            "xla_gpu_graph_level",
            "xla_gpu_enable_nccl_comm_splitting",
            "xla_gpu_nccl_collective_max_nchannels",
            "xla_gpu_nccl_p2p_max_nchannels",
            "xla_gpu_use_memcpy_local_p2p",
            "xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel",
        ),
        "it acts on the machine code below HLO; only time shows it": (
            "xla_backend_optimization_level",
            "xla_llvm_disable_expensive_passes",
            "xla_cpu_max_isa",
            "xla_cpu_prefer_vector_width",
            "xla_cpu_enable_fast_math",
            "xla_gpu_autotune_level",
        ),
    }
    return {flag: Expectation(flag=flag, fact=fact, kinds=kinds) for flag, fact, kinds in rows} | {
        flag: Expectation(flag=flag, fact=None, why=why)
        for why, flags in unseen.items()
        for flag in flags
    }


EXPECTATIONS: dict[str, Expectation] = _table()


def _sizes(program: Program, kinds: tuple[str, ...]) -> object:
    return Counter(
        (each.kind, each.size_bytes)
        for each in program.collectives
        if not kinds or each.kind in kinds
    )


# what of a program stands for a fact: if it differs between two programs, the fact changed
_SEEN: dict[Fact, Callable[[Program, tuple[str, ...]], object]] = {
    Fact.SIZES: _sizes,
    Fact.SPLIT: _sizes,
    Fact.PIPELINED: lambda program, _: (
        sum(each.is_pipelined for each in program.collectives),
        [loop.trips for loop in program.loops],
    ),
    Fact.UNROLLED: lambda program, _: [loop.unrolled for loop in program.loops],
    Fact.IN_FLIGHT: lambda program, _: program.in_flight,
    Fact.ASYNC: lambda program, _: Counter(
        (each.kind, each.is_async) for each in program.collectives
    ),
    Fact.DECOMPOSED: lambda program, _: (
        len(program.of("collective-permute")),
        len(program.of("send", "recv")),
    ),
    Fact.WINDOWED: lambda program, _: sum(loop.is_windowed_einsum for loop in program.loops),
    Fact.MEMORY: lambda program, _: (program.memory_bytes, program.digest),
    Fact.PROGRAM: lambda program, _: program.digest,
}


def is_seen(flag: str) -> bool:
    """Return whether a flag is known to act on the program alone, so that equal ones run alike."""
    expected = EXPECTATIONS.get(flag)
    return expected is not None and expected.fact is not None


def prove(flag: str, before: Program, after: Program) -> Proof:
    """Say whether a flag acted, from the programs compiled without and with it.

    Args:
        flag: its name, with or without dashes. Environment variables act at run time.
        before: the program as deployed.
        after: the program with this flag, and nothing else, set otherwise.
    """
    name = flag.lstrip("-").partition("=")[0]
    if not name.startswith("xla_"):
        return _unseen(name, "an environment variable of the run time")
    found = change(before, after)
    expected = EXPECTATIONS.get(name)
    if expected is None:
        if found is Change.IDENTICAL:
            return _unseen(name, "the program is identical, and no table says where it acts")
        expected = Expectation(flag=name, fact=Fact.PROGRAM)
    if expected.fact is None:
        return _unseen(name, expected.why)
    seen = _SEEN[expected.fact]
    of = f" ({', '.join(expected.kinds)})" if expected.kinds else ""
    if seen(before, expected.kinds) != seen(after, expected.kinds):
        return Proof(
            flag=name, acted=Acted.ACTED, sentence=f"{name} acted: it changed {expected.fact}{of}"
        )
    if found is Change.IDENTICAL:
        said = "the program is identical"
    else:
        said = f"{found}, but {expected.fact}{of} are as before"
    return Proof(flag=name, acted=Acted.DID_NOT_ACT, sentence=f"{name} did not act: {said}")


def _unseen(name: str, why: str) -> Proof:
    return Proof(flag=name, acted=Acted.UNSEEN, sentence=f"{name} cannot be seen in HLO: {why}")
