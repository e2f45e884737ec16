"""The classes of lines: what a line shows, and which lines are examined for it.

A line that is no step passes through the classes in order until one claims it. A class only gets
lines with one of its words that its pattern matches. Lines that no class claims are searched for
failures by the table of signatures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._course import Course, Phase
from pytest_xlatune.logs.grammar import Origin
from pytest_xlatune.model import channels

_MOST_DEVICES, _MOST_TRACEBACK_LINES = 8, 60
_SIGTERM_EXIT = 143


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log."""

    text: str  # without its prefixes
    low: str  # the same in lower case
    origin: Origin  # who printed it
    number: int  # its number in the log, from 1
    segment: str  # as it was printed; the evidence of a finding
    is_torn: bool  # whether it lost its end

    def has(self, words: Iterable[str]) -> bool:
        """Return whether it has one of some words, which are in lower case."""
        return any(word in self.low for word in words)


class LineClass(NamedTuple):
    """A class of lines: those with one of its words, in lower case, that its pattern matches.

    The pattern is compiled when one of the words first occurs. `read` processes a line and returns
    whether it claims the line, so that no other class reads it.
    """

    words: tuple[str, ...]
    pattern: str | re.Pattern[str]
    read: Callable[[re.Match[str], LogLine, Course], bool]


def _put(
    match: re.Match[str], line: LogLine, course: Course, *, kind: str, claims: bool = True
) -> bool:
    course.start.put(kind, match["name"], match["value"].strip(), line.origin)
    return claims


def _config(match: re.Match[str], line: LogLine, course: Course) -> bool:
    course.begin_if_trained(line.origin)
    course.begin_if_configured_again(match["name"], line.origin)
    return _put(match, line, course, kind="config")


def _environment(match: re.Match[str], line: LogLine, course: Course) -> bool:
    if match.start():  # a text that only mentions a setting
        return False
    course.begin_if_trained(line.origin)
    return _put(match, line, course, kind="env")


def _flag(_: re.Match[str], line: LogLine, course: Course) -> bool:
    """A flag with its value, printed by the library that reads it, as `channels` describes it."""
    setting = next(channels.flags_read(line.text), None)
    if setting is not None:
        course.start.put("nccl", *setting, line.origin)
    return setting is not None


def _memory(match: re.Match[str], _: LogLine, course: Course) -> bool:
    course.start.memory_gb = float(match[1])
    return True


def _memstats(_: re.Match[str], line: LogLine, course: Course) -> bool:
    """`Memstats: After params initialized`: compilation follows."""
    course.begin_if_trained(line.origin)
    if course.start.phase is Phase.BEFORE_MEMSTATS:
        course.start.phase, course.fatal = Phase.COMPILING, None
    return True


def _end(match: re.Match[str], _: LogLine, course: Course, *, code: int | None) -> bool:
    """The end of the job, as launcher or scheduler print it; `code` is None if the line has it."""
    exit_code = int(match[1]) if code is None else code
    course.start.exit_code = course.start.exit_code or exit_code
    return False


_DEVICE_KINDS = {"pjrt c api": "an accelerator", "tfrt tpu": "an accelerator"}


def _device(match: re.Match[str], line: LogLine, course: Course) -> bool:
    """JAX's devices: the beginning of the line that names them, and the platform of the first."""
    if line.origin.rank in ("", "0"):
        platform = _DEVICE_KINDS.get(match["kind"].lower(), match["kind"].lower())
        front = re.sub(r"\d+", "0", match["front"]).strip(" :=") or "a list of devices"
        devices = course.start.devices
        if front in devices or len(devices) < _MOST_DEVICES:
            # a line whose platform changes shows nothing
            devices[front] = platform if devices.get(front, platform) == platform else ""
    return False


def _pgle(match: re.Match[str], _: LogLine, course: Course) -> bool:
    """How many operations of a PGLE profile XLA found, or a file that it could not read."""
    start = course.start
    if match["found"]:
        start.pgle_found = max(int(match["found"]), start.pgle_found or 0)
    else:
        start.pgle_unread = match["unread"].strip() or start.pgle_unread
    return False


# steps=15      --steps=15
_ARGUMENT = re.compile(r"-{0,2}(?P<key>[A-Za-z]\w*)=(?P<value>\S+)")


def _asked(match: re.Match[str], _: LogLine, course: Course) -> bool:
    for word in match[1].strip().strip("\"'").split():
        if (argument := _ARGUMENT.fullmatch(word)) is not None:
            course.asked[argument["key"]] = argument["value"].strip("\"'")
    return False


def _ignored(match: re.Match[str], line: LogLine, course: Course) -> bool:
    """An exception that Python ignores, e.g. of a destructor, with its traceback: no failure."""
    if match["ignored"]:
        course.ignored_at[line.origin] = line.number
        return True
    first = course.ignored_at.get(line.origin, -_MOST_TRACEBACK_LINES)
    is_of_traceback = line.number - first < _MOST_TRACEBACK_LINES
    if is_of_traceback and match["raised"]:
        del course.ignored_at[line.origin]
    return is_of_traceback


_VARIABLES = ("nccl_", "rccl_", "xla_", "jax_", "hsa_", "hip_", "ucx_", "nvte_", "libtpu_")
_DEVICE_LISTS = tuple(f"{kind}device(id=" for kind in ("cpu", "cuda", "rocm", "gpu", "tpu"))

# a word of an end, its pattern, and its exit code; None if the code is in the line
_ENDS: tuple[tuple[str, str, int | None], ...] = (
    # maxtext-slurm's summary:   Status:  FAILED (exit 143) - stage failed     SUCCESS (exit 0)
    ("success (exit", r"^\s*Status: *SUCCESS \(exit (\d{1,3})\)", None),
    ("failed (exit", r"^\s*Status: *FAILED \(exit (\d{1,3})\)", None),
    ("cancelled (scancel", r"^\s*Status: *CANCELLED \(scancel", _SIGTERM_EXIT),
    # == Training FAILED (exit=143, 84s) ==
    ("== training failed", r"== Training FAILED \(exit=(\d{1,3}),", None),
    # == Training END (84s) ==
    ("== training end", r"== Training END \(", 0),
    # srun: error: n2: task 1: Exited with exit code 1
    ("with exit code", r"\bsrun: error: \S+ tasks? \S+ Exited with exit code (\d{1,3})", None),
    # Megatron-LM:  [after training is done] datetime: 2026-01-12 07:08:09
    ("[after training is done]", r"\[after training is done\]", 0),
    # an end that was asked for:  [exiting program after 230.1 minutes] datetime: 2026-01-12 ...
    ("exiting program after", r"exiting program after [\d.]{1,20} minutes", 0),
    # torchtitan, HF:  Training completed
    ("training completed", r"(?:^|- INFO - )Training completed\b", 0),
    # `Trainer.fit` stopped: `max_steps=40` reached.
    ("`trainer.fit` stopped", r"`Trainer\.fit` stopped: `max_\w+=\S+` reached", 0),
    # HF:  {'train_runtime': 93.1, 'train_samples_per_second': 85.9, ...}
    ("'train_runtime':", r"^\W*'train_runtime': ", 0),
    # submitit INFO (2026-01-12 07:08:09,123) - Job completed successfully
    ("job completed successfully", r"^submitit .*Job completed successfully", 0),
)


# they are tried in this order
FACTS: tuple[LineClass, ...] = (
    # Exception ignored in: <function Writer.__del__ at 0x7f>     Exception ignored in atexit
    # callback: ...     before Python 3.13:  Error in atexit._run_exitfuncs:     then a traceback,
    # and at its end:  AttributeError: 'Writer' object has no attribute 'file'
    LineClass(
        ("exception", "error", "interrupt", "traceback"),
        r"^(?:(?P<ignored>Exception ignored (?:in|on|when|while)\b|Error in atexit\.)"
        r"|Traceback \(most recent call last\):"
        r"|(?P<raised>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)(?::|$)))",
        _ignored,
    ),
    *(LineClass((word,), pattern, partial(_end, code=code)) for word, pattern, code in _ENDS),
    # the version that a library prints when it is loaded (NVIDIA/nccl, src/init.cc, showVersion)
    #   gpu-2:49542:49542 [0] NCCL INFO NCCL version 2.29.2+cuda12.8
    #   node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567     ROCm version : 7.2.0.0-43-fc0010c
    LineClass(
        ("ccl version", "rocm version"),
        r"(?:^|\bNCCL INFO )(?P<name>NCCL|RCCL|ROCm) version *:? *(?P<value>\d+\.\d[\w.+:/-]*)",
        partial(_put, kind="libraries", claims=False),
    ),
    # JAX's devices, as Python prints them (jax/_src/xla_bridge.py, devices)
    #   Devices: [CudaDevice(id=0), CudaDevice(id=1)]      jax.devices(): [CpuDevice(id=0)]
    LineClass(
        _DEVICE_LISTS,
        r"^(?P<front>[^\[\]\n]{0,80}?)\[?(?:StreamExecutor)?"
        r"(?P<kind>Cpu|Cuda|Rocm|Gpu|Tpu)Device\(id=",
        _device,
    ),
    # JAX's backend, of MaxText (max_utils.py, print_system_information)
    #   System Information: Jax Backend: PJRT C API      System Information: Jax Backend: cpu
    #   jax.default_backend(): gpu
    LineClass(
        ("jax backend: ", "default_backend"),
        r"(?P<front>\bJax Backend|\bdefault_backend(?:\(\))?)[:=] *'?"
        r"(?P<kind>cpu|gpu|cuda|rocm|tpu|PJRT C API|TFRT TPU)\b",
        _device,
    ),
    # XLA's messages if a program lacks operations of a PGLE profile, or if its file is missing
    # (profile_guided_latency_estimator.cc and gpu_hlo_schedule.cc of 0.10.2)
    #   Found 100 instructions from the profile.
    #   Tried but failed to parse PGLE proto from text file '/shared/step.pbtxt'. Error message: ...
    #   PGLE profile file does not exist: /shared/step.pbtxt
    LineClass(
        ("instructions from the profile", "parse pgle proto", "pgle profile file"),
        r"Found (?P<found>\d{1,9}) instructions from the profile"
        r"|(?:parse PGLE proto from (?:text|binary) file '|PGLE profile file does not exist: )"
        r"(?P<unread>[^']{1,4096})",
        _pgle,
    ),
    # PASSTHROUGH_ARGS="steps=15 dataset_type=synthetic per_device_batch_size=4"
    LineClass(("passthrough_args=",), r"\bPASSTHROUGH_ARGS=(.*)", _asked),
    # Config param per_device_batch_size: 7.0
    LineClass(("config param ",), r"Config param (?P<name>\w+): ?(?P<value>.*)", _config),
    LineClass(("argv[",), r"\bargv\[", _flag),
    # printed with NCCL_DEBUG=INFO (NVIDIA/nccl, src/misc/param.cc), with a full stop after a number
    #   gpu1:101:101 [0] NCCL INFO NCCL_ALGO set by environment to Ring
    #   gpu1:101:101 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 8.
    #   gpu1:101:101 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0,mlx5_1
    LineClass(
        ("nccl_", "rccl_"),
        r"\bNCCL INFO (?P<name>(?:NCCL|RCCL)_\w+) set (?:by environment )?to "
        r"(?P<value>-?\d+(?=\.\s*$)|.*)",
        partial(_put, kind="nccl"),
    ),
    # gpu1:101:101 [0] NCCL INFO Invalid value many for NCCL_MAX_NCHANNELS, using default -2.
    LineClass(
        ("nccl_", "rccl_"),
        r"\bNCCL INFO Invalid value .* for (?P<name>(?:NCCL|RCCL)_\w+), "
        r"(?P<value>using default .*)",
        partial(_put, kind="nccl"),
    ),
    LineClass(_VARIABLES, grammar.ENVIRONMENT, _environment),
    # Total memory size: 71.3 GB, Output size: 31.0 GB, Temp size: 40.3 GB, Argument size: 31.0 GB
    LineClass(
        ("total memory size: ",),
        r"(?i:total memory size: (\d{1,9}(?:\.\d{1,9})?) gb)",
        _memory,
    ),
    LineClass(("memstats: after params",), r"(?i:memstats: after params)", _memstats),
)
