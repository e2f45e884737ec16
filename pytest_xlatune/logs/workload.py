"""Failure signatures of the program itself: flags, memory, compiler, numerics, configuration.

Data only; order matters, the first row that matches a line names it. Classes and actions follow
the field's own triage tables; where two of those contradict, the comment says which was taken.
"""

from __future__ import annotations

import re

from pytest_xlatune.logs.row import Row, Tier
from pytest_xlatune.results import Action


def _flag_and_value(match: re.Match[str]) -> str:
    return f"{match['flag'].rstrip('.')}={match['value'].strip()}"


def _size(match: re.Match[str]) -> str:
    number, unit = match["number"], match["unit"]
    return f"{number} {unit}" if number else ""


_SIZE = r"(?:(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[KMGTP]i?B|[KMGT]\b|bytes))?"

WORKLOAD = (
    Row(
        cls="unknown-flag",
        phase="start",
        words=("unknown flag", "no such compile option"),
        pattern=re.compile(
            r"Unknown flags? in XLA_FLAGS: *(?P<detail>.*?)\s*(?:Perhaps you meant|$)"
            r"|Unknown flag: *(?P<one>--\S+)"
            r"|No such compile option: '?(?P<option>\w+)"
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="F0112 07:08:09.000001 77 parse_flags_from_env.cc:234] "
        "Unknown flags in XLA_FLAGS: --xla_nope=1 --xla_neither",
        detail=lambda match: match["detail"] or match["one"] or match["option"],
    ),
    Row(
        cls="bad-flag-value",
        phase="start",
        words=("interpret value",),
        pattern=re.compile(r"Couldn't interpret value (?P<value>.*?) for flag (?P<flag>[\w.-]+)"),
        action=Action.DROP,
        is_fatal=True,
        sample="E0112 07:08:09.000001 77 command_line_flags.cc:93] "
        "Couldn't interpret value 2G for flag xla_gpu_all_gather_combine_threshold_bytes.",
        detail=_flag_and_value,
    ),
    Row(
        cls="bad-flag-value",
        phase="start",
        words=("illegal value for",),
        pattern=re.compile(r"Illegal value for (?:--)?(?P<flag>\w+)[ :=]*'?(?P<value>[^'\s]*)"),
        action=Action.DROP,
        is_fatal=True,
        sample="Illegal value for --xla_gpu_enable_command_buffer 'FUSIN'",
        detail=_flag_and_value,
    ),
    Row(
        cls="bad-flag-value",
        phase="start",
        words=("flag parsing failed",),
        pattern=re.compile(r"Flag parsing failed"),
        action=Action.DROP,
        tier=Tier.CONSEQUENCE,
        is_fatal=True,
        sample="F0112 07:08:09.1 77 parse_flags_from_env.cc:220] Check failed: "
        "tsl::Flags::Parse(argv, flags) Flag parsing failed.",
    ),
    Row(
        cls="flags-file-missing",
        phase="start",
        words=("to read flags for",),
        pattern=re.compile(r'Could not open file "(?P<detail>[^"]*)" to read flags for'),
        action=Action.DROP,
        is_fatal=True,
        sample='Could not open file "xla_gpu_autotune_level=0" to read flags for environment '
        'variable "XLA_FLAGS".',
    ),
    # before every other HSA row: the GPU is sound, the memory pool left RCCL no room
    Row(
        cls="oom-rccl-headroom",
        phase="init",
        words=("hsa_status_error_out_of_resources", "failed to cuda", "failed to hip"),
        pattern=re.compile(
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES"
            r"(?:.*?Available Free mem *: *(?P<detail>[\d.]+ \w+))?"
            r"|Failed to (?:CUDA|HIP|Cuda|Hip) (?:host )?[cm]?alloc(?: (?P<asked>\d+ bytes))?"
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="rocdevice.cpp:3580: Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: "
        "no queue. Code: 0x1008 Available Free mem : 31 MB",
        detail=lambda match: match["detail"] or match["asked"] or "",
    ),
    Row(
        cls="oom-rccl-headroom",
        phase="init",
        words=("out of memory",),
        pattern=re.compile(r"NCCL WARN .*(?:[Aa]lloc|failure).*out of memory"),
        action=Action.DROP,
        sample="n1:812:901 [3] NCCL WARN Cuda failure 2 'out of memory'",
    ),
    Row(
        cls="oom-host",
        phase="any",
        words=("oom-kill", "oom_kill", "out of memory: kill"),
        pattern=re.compile(r"oom[-_]kill|Out of memory: Kill(?:ed)? process"),
        action=Action.RETRY,
        is_fatal=True,
        sample="slurmstepd: error: Detected 1 oom_kill event in StepId=41.0. Some of the step "
        "tasks have been OOM Killed.",
    ),
    Row(
        cls="oom-gpu",
        phase="compile",
        words=("out of memory", "resource_exhausted", "resourceexhausted"),
        pattern=re.compile(
            r"(?:[Oo]ut of memory|OOM)(?: while)?(?: trying to allocate| allocating)[ :]*" + _SIZE
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
        "trying to allocate 88.25GiB.:",
        detail=_size,
    ),
    Row(
        cls="oom-gpu",
        phase="compile",
        words=("exceeds the base limit",),
        pattern=re.compile(
            r"input/output arguments \((?P<args>\d+)\) exceeds the base limit \((?P<limit>\d+)\)"
        ),
        action=Action.DROP,
        sample="The byte size of input/output arguments (91000000000) exceeds the base limit "
        "(68000000000). This indicates an error in the calculation!",
        detail=lambda match: f"arguments {match['args']} bytes, limit {match['limit']} bytes",
    ),
    # not every RESOURCE_EXHAUSTED is memory of the GPU: autotuning prints it for shared memory
    Row(
        cls="oom-gpu",
        phase="any",
        words=("out_of_memory", "outofmemory", "out of memory", "resource_exhausted"),
        pattern=re.compile(
            r"RESOURCE_EXHAUSTED:?\s*$|RESOURCE_EXHAUSTED.*out of memory"
            r"|\w*(?:CUDA|HIP)\w*_OUT_?OF_?MEMORY|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory"
            r"|ran out of memory",
            re.IGNORECASE,
        ),
        action=Action.DROP,
        sample="INTERNAL: CUDA error: CUDA_ERROR_OUT_OF_MEMORY",
    ),
    Row(
        cls="oom-host",
        phase="compile",
        words=("bad_alloc", "memoryerror"),
        pattern=re.compile(r"std::bad_alloc|^MemoryError\b"),
        action=Action.RETRY,
        is_fatal=True,
        sample="terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    Row(
        cls="gpu-memory-fault",
        phase="train",
        words=("memory access fault", "hiperror", "illegal_address"),
        pattern=re.compile(
            r"Memory access fault by GPU(?: node-(?P<detail>\d+))?|hipError_t\(9\)"
            r"|hipErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS"
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="Memory access fault by GPU node-5 (Agent handle: 0x5581) on address (nil). "
        "Reason: Unknown.",
    ),
    Row(
        cls="hip-error",
        phase="train",
        words=("hiperror", "hip_error", "cuda_error"),
        pattern=re.compile(
            r"(?P<detail>hipError(?!NoDevice)\w*(?:\(\d+\))?|HIP_ERROR_(?!NoDevice)\w+|CUDA_ERROR_\w+)"
        ),
        action=Action.RETRY,
        sample="RuntimeError: INTERNAL: hipErrorLaunchFailure",
    ),
    Row(
        cls="xla-compile-fail",
        phase="compile",
        words=("failed to compile", "compilation failed", "llvm error", "ptxas"),
        pattern=re.compile(
            r"INTERNAL: Failed to compile|XLA compilation failed|LLVM ERROR|ptxas (?:fatal|exited)"
        ),
        action=Action.DROP,
        sample="jax.errors.JaxRuntimeError: INTERNAL: Failed to compile jit_train_step",
    ),
    Row(
        cls="xla-check-fail",
        phase="compile",
        words=("check failed",),
        pattern=re.compile(r"Check failed: (?P<detail>.{0,120})"),
        action=Action.DROP,
        is_fatal=True,
        sample="F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)",
    ),
    Row(
        cls="xla-internal-crash",
        phase="compile",
        words=("raw_hash_map", "floating point exception"),
        pattern=re.compile(
            r"(?P<detail>raw_hash_map<>::at|Fatal Python error: Floating point exception"
            r"|^Floating point exception)"
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="IndexError: absl::container_internal::raw_hash_map<>::at",
    ),
    Row(
        cls="segfault",
        phase="any",
        words=("segmentation fault", "sigsegv"),
        pattern=re.compile(r"Segmentation fault|SIGSEGV"),
        action=Action.RETRY,
        is_fatal=True,
        sample="Fatal Python error: Segmentation fault",
    ),
    Row(
        cls="numerical-failure",
        phase="train",
        words=("nan loss", "due to nan"),
        pattern=re.compile(r"Aborting training due to (?P<detail>NaN|Inf\w*) loss"),
        action=Action.DROP,
        is_fatal=True,
        sample="E0112 07:09:00.3 77 train.py:410] Aborting training due to NaN loss.",
    ),
    Row(
        cls="config-error",
        phase="start",
        words=("passed at the command line", "product of the", "maxtext config error"),
        pattern=re.compile(
            r"Key (?P<detail>\S+) was passed at the command line but"
            r"|does not match the product of the \w+ parallelism|MAXTEXT CONFIG ERROR"
        ),
        action=Action.DROP,
        is_fatal=True,
        sample="ValueError: Key stepz was passed at the command line but isn't in config.",
    ),
)
