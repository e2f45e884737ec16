"""What MaxText prints: a line of its log -> rank, step, setting; its metrics file -> steps.

Every form of the step line since 2023 and every prefix that launchers put in front of it. Pure
functions of text; this module knows nothing of the order of lines, of files or of failures.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import StepRecord

# \x1b[36m(Actor pid=9)\x1b[0m
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # srun -l, padded to the widest task:   ` 8: `
        r" *(?P<rank>\d+): ",
        # Open MPI --tag-output:  [1,0]<stderr>:
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?",
        # Ray:  (MaxTextTrainerActor pid=812, ip=10.0.0.7)
        r"\((?P<actor>[^()\n]*\bpid=\d+[^()\n]*)\) ?",
        # Primus:  [20260929 19:48:42][rank-0/16][INFO]
        r"(?:\[[^\]\n]*\])*?\[rank-(?P<rank>\d+)/\d+\](?:\[[^\]\n]*\])* *",
        # absl:  I0112 07:08:09.123456 140001 metric_logger.py:226]
        r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\s\]]+:\d+\] ",
        # older XLA:  2026-01-12 07:08:09.123456: F external/xla/xla/parse_flags_from_env.cc:225]
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] [^\s\]]+:\d+\] ",
        # container runtimes:  2026-01-12T07:08:09.123456Z
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)? ",
    )
)
_PREFIX_BEGINS = frozenset(" 0123456789[(IWEF")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who printed a line: the rank of its label, the Ray actor of its prefix; "" where unsaid."""

    rank: str = ""
    actor: str = ""

    @property
    def label(self) -> str:
        """How a step record names it."""
        return " ".join(part for part in (self.rank, self.actor) if part)

    @property
    def preference(self) -> tuple[int, int]:
        """Lower is preferred: rank 0, no rank, the lowest rank; on one rank the head's own actor.

        Ray leaves `ip=` out for actors on the node that prints.
        """
        rank = -1 if self.rank == "" else int(self.rank)
        return (-2 if rank == 0 else rank), int("ip=" in self.actor)


def plain_segments(line: bytes) -> list[str]:
    r"""Return the texts of a line without colours and NUL bytes, one per carriage return."""
    text = line.decode("utf-8", "replace").replace("\0", "")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return [part for part in text.split("\r") if part.strip()]


def split_origin(text: str) -> tuple[Origin, str]:
    """Take every known prefix off a line; the innermost rank wins."""
    rank = actor = ""
    at, matched = 0, True
    while matched and text[at : at + 1] in _PREFIX_BEGINS:
        matched = False
        for prefix in _PREFIXES:
            match = prefix.match(text, at)
            if match is not None:
                named = match.groupdict()
                rank = str(int(named["rank"])) if "rank" in named else rank
                actor = named.get("actor", actor)
                at, matched = match.end(), True
    return Origin(rank, actor), text[at:]


# completed step: 14, seconds: 0.187, ...
# completed profiler activation/deactivation step: 5, total_weights: 1024, loss: 7.401
# completed 7, per-step scalar metrics {'learning/loss': 9.25, ...}
_STEP = re.compile(
    r"(?<![A-Za-z])completed "
    r"(?:(?P<profiler>profiler activation/deactivation )?step: (?P<step>\d+)"
    r"|(?P<oldest>\d+)(?=, per-step scalar metrics ))"
    r",(?P<rest>.*?)(?=completed (?:step|profiler|\d)|$)"
)
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf(?:inity)?)"
# , Tokens/s/device: 5312.77, total_weights: 1024, loss: 7.328, moe_lb_loss: 0.011
_FIELD = re.compile(
    rf"(?:^|,) ?(seconds|TFLOP/s/device|TFLOP/s|MFU|Tokens/s/device|loss): ({_NUMBER})(?=[,%\s]|$)"
)
# 'perf/step_time_seconds': Array(0.52, dtype=float32)
_SCALAR = re.compile(
    r"'(learning/loss|perf/step_time_seconds|perf/per_device_tflops(?:_per_sec)?"
    rf"|perf/per_device_tokens_per_sec)': (?:\w+\()?({_NUMBER})(?=[,)}}\s]|$)"
)
_ATTRIBUTE = {
    "seconds": "step_s",
    **dict.fromkeys(("TFLOP/s/device", "TFLOP/s"), "tflops"),
    "MFU": "mfu",
    "Tokens/s/device": "tgs",
    **dict.fromkeys(("loss", "learning/loss"), "loss"),
    "perf/step_time_seconds": "step_s",
    **dict.fromkeys(("perf/per_device_tflops", "perf/per_device_tflops_per_sec"), "tflops"),
    "perf/per_device_tokens_per_sec": "tgs",
}
# a number that `%.3f` printed to its end:  loss: 7.328
_PRINTED_IN_FULL = re.compile(r": (?:-?\d+\.\d{3}|nan|-?inf)$")


def parse_steps(text: str, label: str) -> list[StepRecord]:
    """Return the steps that a line reports: one, or several where writers glued lines together.

    `Completed eval step` is none. The loss is the field named `loss`, never `lm_loss` or another.
    """
    text = text.rstrip()
    return [
        StepRecord(
            step=int(match["step"] or match["oldest"]),
            label=label,
            start=0,
            kind=_kind(match, text),
            **_fields(match["rest"], is_glued=match.end() < len(text)),
        )
        for match in _STEP.finditer(text)
    ]


def without_torn_field(text: str) -> str:
    """Cut a step line that lost its end back to its last complete field."""
    if _PRINTED_IN_FULL.search(text):
        return text
    return text[: text.rfind(",") + 1]


def told(record: StepRecord) -> int:
    """Return how many figures a step's line told."""
    figures = (record.step_s, record.tgs, record.tflops, record.mfu, record.loss)
    return sum(each is not None for each in figures)


def _kind(match: re.Match[str], text: str) -> str:
    if match["profiler"]:
        return "profiler"
    return "rampup" if "[Rampup Batch Size Phase]" in text[: match.start()] else "step"


def _fields(rest: str, *, is_glued: bool) -> dict[str, float]:
    rest = without_torn_field(rest) if is_glued else rest
    values: dict[str, float] = {}
    pattern = _SCALAR if "per-step scalar metrics" in rest else _FIELD
    for name, number in pattern.findall(rest):
        values.setdefault(_ATTRIBUTE[name], float(number))
    return values


# NCCL_IB_HCA=mlx5_0,mlx5_1        declare -x XLA_FLAGS="--xla_gpu_autotune_level=0"
_ENVIRONMENT = re.compile(
    r"(?P<shell>export |declare -x )?"
    r"(?P<name>(?:NCCL|RCCL|XLA|JAX|HSA|HIP|UCX|NVTE|LIBTPU)_\w+)=(?P<value>.*)"
)
# Config param per_device_batch_size: 7.0
_CONFIG = re.compile(r"Config param (?P<key>\w+): ?(?P<value>.*?)\s*$")


def parse_environment(text: str) -> tuple[str, str] | None:
    """Return name and value where a line without its prefix is one line of `printenv`."""
    match = _ENVIRONMENT.match(text)
    if match is None:
        return None
    value = match["value"].rstrip()
    if match["shell"] and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return match["name"], value


def parse_config(text: str) -> tuple[str, str] | None:
    """Return key and value of a `Config param` line."""
    match = _CONFIG.search(text)
    return (match["key"], match["value"]) if match else None


def parse_metrics(text: str) -> tuple[StepRecord, ...]:
    """Return the unrounded steps of the last start in the text of a metrics file, in order.

    One JSON object per step and line; NaN and Infinity are literals there. Every version since
    2023-03 writes it when `metrics_file=` is set. A line that is no JSON object with a step (torn
    by a kill) is passed over. A step id that does not go up begins a new start: a resumed job
    appends to the same file.
    """
    steps: list[StepRecord] = []
    start = 0
    for line in text.splitlines():
        values = _object(line)
        step = _number(values.get("step"))
        if step is None or not math.isfinite(step):
            continue
        if steps and step <= steps[-1].step:
            start += 1
            steps.clear()
        steps.append(
            StepRecord(
                step=int(step),
                step_s=_number(values.get("perf/step_time_seconds")),
                tgs=_number(values.get("perf/per_device_tokens_per_sec")),
                tflops=_number(values.get("perf/per_device_tflops_per_sec")),
                loss=_number(values.get("learning/loss")),
                start=start,
            )
        )
    return tuple(steps)


def _object(line: str) -> dict[str, Json]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not True else None
