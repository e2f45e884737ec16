"""The classes of lines: what a line shows, and which lines are examined for it.

A line passes through the classes in order until one claims it. A class only gets lines with one of
its words. Another trainer's steps are a row of `patterns`, or a `LogFormat` of another
distribution. Lines that no class claims are searched for failures by the table of signatures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._course import Course
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS
from pytest_xlatune.logs.formats import Blocks, LogFormat
from pytest_xlatune.logs.grammar import Origin
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.model import channels
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord
from pytest_xlatune.model.text import begun

STEP_WORD = "completed "
_VARIABLES = ("nccl_", "rccl_", "xla_", "jax_", "hsa_", "hip_", "ucx_", "nvte_", "libtpu_")
_MOST_DEVICES, _MOST_DEVICE_CHARS, _MOST_LINE_CHARS = 8, 400, 200
_SIGTERM_EXIT = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log."""

    text: str  # without its prefixes
    low: str  # the same in lower case
    origin: Origin  # who printed it
    number: int  # its number in the log, from 1
    segment: str  # as it was printed; the evidence of a finding
    is_torn: bool  # whether it lost its end


class LineClass(NamedTuple):
    """A class of lines: those with one of its words, in lower case.

    `read` processes a line and returns whether no other class reads it.
    """

    words: tuple[str, ...]
    read: Callable[[LogLine, Course], bool]

    def holds(self, low: str) -> bool:
        """Return whether a line in lower case may belong to the class."""
        return any(word in low for word in self.words)


def steps_of_format(form: LogFormat) -> LineClass:
    """Return the class of step lines in a format of another distribution."""

    def read(line: LogLine, course: Course) -> bool:
        is_whole = not line.is_torn or line.text.endswith("]")  # a bar that is drawn to its end
        return is_whole and _take(form.steps(line.text, line.origin.label), line, course)

    return LineClass(form.words, read)


def steps_of_pattern(pattern: StepPattern) -> LineClass:
    """Return the class of step lines that the user's pattern reads.

    If a log has two formats, the user's is the one that counts.
    """

    def read(line: LogLine, course: Course) -> bool:
        if line.is_torn and not line.text.endswith("]"):
            return False
        goal = pattern.last_step(line.text)
        course.goal = goal if goal is not None else course.goal
        steps = pattern.steps(line.text, line.origin.label)
        if steps and not course.has_own:
            course.counts_own()
        return _take(steps, line, course)

    return LineClass(pattern.words, read)


def _maxtext(line: LogLine, course: Course) -> bool:
    """A step of MaxText, unless the user's pattern has matched."""
    if course.has_own:
        return False
    text, label = line.text, line.origin.label
    complete = grammar.without_torn_field(text) if line.is_torn else text
    steps = grammar.parse_steps(complete, label)
    if len(steps) == 1 and course.is_cut(steps[0]):
        steps = grammar.parse_steps(grammar.without_torn_field(text), label)
    front = text.partition(STEP_WORD)[0].strip()
    course.has_front |= bool(steps and front) and "[Rampup" not in front
    return _take(steps, line, course)


STEPS_OF_MAXTEXT = LineClass((STEP_WORD,), _maxtext)


def blocks_of(blocks: Blocks) -> LineClass:
    """Return the class of lines that belong to blocks of another distribution's format."""

    def read(line: LogLine, course: Course) -> bool:
        start = course.start
        start.is_hung |= line.text.lstrip().startswith(blocks.format.heads)
        blocks.note(line.number, line.segment, start=start.index, steps=start.count)
        return False

    return LineClass(blocks.format.words, read)


def _take(steps: Sequence[StepRecord], line: LogLine, course: Course) -> bool:
    """Add the steps of a line; return False if it has none. A loss that is NaN is a finding."""
    for record in steps:
        if record.loss is not None and not math.isfinite(record.loss):
            finding = Finding(
                cls=FailureClass.NUMERICAL_FAILURE,
                action=Action.DROP,
                line=line.number,
                text=begun(line.segment.strip(), EVIDENCE_CHARS),
                detail=f"loss {record.loss}",
            )
            course.find(finding)
        course.step(record, line.origin)
    return bool(steps)


# a word of the line, its pattern, and the exit code; None if the code is in the line
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
    (
        "exited with exit code",
        r"\bsrun: error: \S+ tasks? \S+ Exited with exit code (\d{1,3})",
        None,
    ),
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
_END_PATTERNS = tuple((re.compile(pattern), code) for _, pattern, code in _ENDS)


def _end(line: LogLine, course: Course) -> bool:
    """The end of the job, as launcher or scheduler print it; 143 for a cancel."""
    for pattern, code in () if line.is_torn else _END_PATTERNS:
        if (match := pattern.search(line.text)) is not None:
            exit_code = int(match[1]) if code is None else code
            course.start.exit_code = course.start.exit_code or exit_code
            break
    return False


# versions of libraries: gpu-2:49542:49542 [0] NCCL INFO NCCL version 2.29.2+cuda12.8       NCCL
# version 2.18.1+cuda12.1 node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567             ROCm
# version : 7.2.0.0-43-fc0010cf6a
_LIBRARY = re.compile(
    r"(?:^|\bNCCL INFO )(?P<name>NCCL|RCCL|ROCm) version *:? *(?P<version>\d+\.\d[\w.+:/-]*)"
)


def _library(line: LogLine, course: Course) -> bool:
    """NCCL, RCCL or ROCm with the version that a library prints when it is loaded.

    NVIDIA/nccl, src/init.cc (`showVersion`); ROCm/rccl prints a block of such lines.
    """
    match = None if line.is_torn else _LIBRARY.search(line.text)
    if match is not None:
        course.start.libraries.put(match["name"], match["version"], line.origin)
    return False


# Devices: [CudaDevice(id=0), CudaDevice(id=1)]      jax.devices(): [CpuDevice(id=0)]
_DEVICES = re.compile(
    r"^(?P<front>[^\[\]\n]{0,80}?)\[?(?:StreamExecutor)?(?P<kind>Cpu|Cuda|Rocm|Gpu|Tpu)Device\(id="
)
# System Information: Jax Backend: PJRT C API      System Information: Jax Backend: cpu
#   jax.default_backend(): gpu
_BACKEND = re.compile(
    r"(?P<front>\bJax Backend|\bdefault_backend(?:\(\))?)[:=] *'?"
    r"(?P<kind>cpu|gpu|cuda|rocm|tpu|PJRT C API|TFRT TPU)\b"
)
_DEVICE_KINDS = {"pjrt c api": "an accelerator", "tfrt tpu": "an accelerator"}
_DEVICE_LISTS = tuple(f"{kind}device(id=" for kind in ("cpu", "cuda", "rocm", "gpu", "tpu"))


def _device(line: LogLine, course: Course) -> bool:
    """JAX's devices: the beginning of the line that names them, and the platform of the first.

    Either a list as Python prints it (jax/_src/xla_bridge.py, `devices`), or the backend in
    MaxText's lines (max_utils.py, `print_system_information`).
    """
    text = line.text[:_MOST_DEVICE_CHARS]
    match = _BACKEND.search(text) or _DEVICES.match(text)
    if line.is_torn or match is None or line.origin.rank not in ("", "0"):
        return False
    platform = _DEVICE_KINDS.get(match["kind"].lower(), match["kind"].lower())
    front = re.sub(r"\d+", "0", match["front"]).strip(" :=") or "a list of devices"
    devices = course.start.devices
    if front in devices or len(devices) < _MOST_DEVICES:
        # a line whose platform changes shows nothing
        devices[front] = platform if devices.get(front, platform) == platform else ""
    return False


# Messages of XLA about a profile for its scheduler (profile_guided_latency_estimator.cc and
# gpu_hlo_schedule.cc of 0.10.2), for programs that lack operations, or if the file is missing:
#   Found 100 instructions from the profile.
#   Tried but failed to parse PGLE proto from text file '/shared/step.pbtxt'. Error message: ...
#   PGLE profile file does not exist: /shared/step.pbtxt
_PGLE = re.compile(
    r"Found (?P<found>\d{1,9}) instructions from the profile"
    r"|(?:parse PGLE proto from (?:text|binary) file '|PGLE profile file does not exist: )"
    r"(?P<unread>[^']{1,4096})"
)


def _pgle(line: LogLine, course: Course) -> bool:
    """How many operations of a scheduler's profile XLA found, or a file that it could not read."""
    match, start = _PGLE.search(line.text), course.start
    if match is not None and match["found"]:
        start.pgle_found = max(int(match["found"]), start.pgle_found or 0)
    elif match is not None:
        start.pgle_unread = match["unread"].strip() or start.pgle_unread
    return False


# PASSTHROUGH_ARGS="steps=15 dataset_type=synthetic per_device_batch_size=4"
# a shell that traces its commands prints:  + python3 -m MaxText.train base.yml steps=15
_ASKED = re.compile(
    r"\bPASSTHROUGH_ARGS=(?P<passed>.*)"
    r"|^\++ (?:\S{1,200} )*?\S{0,200}python[\d.]* (?:-\S{1,99} )*"
    r"\S{0,200}[Mm]ax[Tt]ext\S{0,200}train\S{0,99}(?P<traced> .*)"
)
# steps=15      --steps=15
_ARGUMENT = re.compile(r"-{0,2}(?P<key>[A-Za-z]\w*)=(?P<value>\S+)")


def _asked(line: LogLine, course: Course) -> bool:
    """The arguments for MaxText in the head of a maxtext-slurm log."""
    match = None if line.is_torn else _ASKED.search(line.text)
    words = (match["passed"] or match["traced"] or "") if match is not None else ""
    for word in words.strip().strip("\"'").split():
        if (argument := _ARGUMENT.fullmatch(word)) is not None:
            course.asked[argument["key"]] = argument["value"].strip("\"'")
    return False


# Config param per_device_batch_size: 7.0
_CONFIG = re.compile(r"Config param (?P<key>\w+): ?(?P<value>.*)")


def _config(line: LogLine, course: Course) -> bool:
    """A `Config param` line of MaxText."""
    match = _CONFIG.search(line.text)
    if match is None:
        return False
    course.begin_if_trained(line.origin)
    course.begin_if_configured_again(match["key"], line.origin)
    course.start.config.put(match["key"], match["value"].rstrip(), line.origin)
    return True


# gpu1:101:101 [0] NCCL INFO NCCL_ALGO set by environment to Ring
# gpu1:101:101 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 8.
# gpu1:101:101 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0,mlx5_1
_NCCL = re.compile(
    r"\bNCCL INFO (?P<name>(?:NCCL|RCCL)_\w+) set (?:by environment )?to (?P<value>.*)"
)
# gpu1:101:101 [0] NCCL INFO Invalid value many for NCCL_MAX_NCHANNELS, using default -2.
_NCCL_DEFAULT = re.compile(
    r"\bNCCL INFO Invalid value .* for (?P<name>(?:NCCL|RCCL)_\w+), (?P<value>using default .*)"
)


def _read(line: LogLine, course: Course) -> bool:
    """A setting with its value, printed by the library that reads it.

    NCCL and RCCL print it with NCCL_DEBUG=INFO (NVIDIA/nccl, src/misc/param.cc), with a full stop
    after a number. `channels` describes the flags of other libraries.
    """
    setting = next(channels.says(line.text), None)
    if setting is None:
        match = _NCCL.search(line.text) or _NCCL_DEFAULT.search(line.text)
        if match is None:
            return False
        value = match["value"].strip()
        setting = match["name"], value[:-1] if re.fullmatch(r"-?\d+\.", value) else value
    if not line.is_torn:  # a value that is cut is another value
        course.start.nccl.put(*setting, line.origin)
    return True


def _environment(line: LogLine, course: Course) -> bool:
    """A line of `printenv`."""
    setting = grammar.parse_environment(line.text)
    if setting is None:
        return False
    course.begin_if_trained(line.origin)
    if line.is_torn and setting[0] == "XLA_FLAGS":
        course.has_cut_flags = True
    else:
        course.start.env.put(*setting, line.origin)
    return True


# Total memory size: 71.3 GB, Output size: 31.0 GB, Temp size: 40.3 GB, Argument size: 31.0 GB
_COMPILED = re.compile(r"total memory size: (\d{1,9}(?:\.\d{1,9})?) gb", re.IGNORECASE)


def _compiled(line: LogLine, course: Course) -> bool:
    """The memory of the compiled step on a device."""
    match = _COMPILED.search(line.text)
    if match is not None:
        course.start.memory_gb = float(match[1])
    return match is not None


def _memstats(line: LogLine, course: Course) -> bool:
    """`Memstats: After params initialized`: compilation follows."""
    course.begin_if_trained(line.origin)
    course.compiles()
    return True


# Exception ignored in: <function Writer.__del__ at 0x7f>     Exception ignored in atexit callback:
# before Python 3.13:  Error in atexit._run_exitfuncs:
_IGNORED = re.compile(r"Exception ignored (?:in|on|when|while)\b|Error in atexit\.")
# AttributeError: 'Writer' object has no attribute 'file'
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)(?::|$)")
_TRACEBACK = "Traceback (most recent call last):"
_MOST_TRACEBACK_LINES = 60


def _ignored(line: LogLine, course: Course) -> bool:
    """An exception that Python ignores, e.g. of a destructor, with its traceback: no failure."""
    if _IGNORED.match(line.text):
        course.ignored_at[line.origin] = line.number
        return True
    first = course.ignored_at.get(line.origin, -_MOST_TRACEBACK_LINES)
    if line.number - first >= _MOST_TRACEBACK_LINES:
        return False
    is_last = _RAISED.match(line.text) is not None
    if is_last:
        del course.ignored_at[line.origin]
    return is_last or line.text.startswith(_TRACEBACK)


# in this order, after the classes that read steps
FACTS: tuple[LineClass, ...] = (
    LineClass(("exception", "error", "interrupt", "traceback"), _ignored),
    LineClass(tuple(word for word, _, _ in _ENDS), _end),
    LineClass(("ccl version", "rocm version"), _library),
    LineClass((*_DEVICE_LISTS, "jax backend: ", "default_backend"), _device),
    LineClass(("instructions from the profile", "parse pgle proto", "pgle profile file"), _pgle),
    LineClass(("passthrough_args=", "maxtext"), _asked),
    LineClass(("config param ",), _config),
    LineClass(("nccl_", "rccl_", "argv["), _read),
    LineClass(_VARIABLES, _environment),
    LineClass(("total memory size: ",), _compiled),
    LineClass(("memstats: after params",), _memstats),
)

# The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:7
# The first task at the barrier: /job:jax_worker/replica:0/task:13. Some timed out task names:
# Task /job:jax_worker/replica:0/task:0 heartbeat timeout.
_UNHEARD = re.compile(
    r"(?:timed out task names:|unhealthy \(stopped sending heartbeats\):)"
    r"(?P<list>(?:\s*/job:\w+/replica:\d+/task:\d{1,9},?)*)\s*$"
    r"|Task (?P<one>/job:\w+/replica:\d+/task:\d{1,9}) heartbeat timeout"
)
_TASK = re.compile(r"/job:\w+/replica:\d+/task:(\d{1,9})")


def _unheard(line: LogLine, course: Course) -> bool:
    """Ranks from which a coordination service did not hear; a list may span several lines."""
    match, logs = _UNHEARD.search(line.text), course.ranks
    if logs is None or (match is None and line.number != course.tasks_at):
        return False
    tasks = line.text if match is None else match["one"] or match["list"] or ""
    logs.unheard |= {*map(int, _TASK.findall(tasks))}
    logs.unheard_line = logs.unheard_line or begun(line.text.strip(), _MOST_LINE_CHARS)
    course.tasks_at = 0 if match is not None and match["one"] else line.number + 1
    return False


# for a reader that finds the rank that is behind
UNHEARD = LineClass(("/replica:", "task names:", "sending heartbeats):"), _unheard)
