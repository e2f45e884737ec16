"""What MaxText prints: log line -> rank, step; metrics file -> steps.

It covers every form of the step line since 2023, and all prefixes that launchers add. Pure
functions of text; this module knows nothing of the order of lines, of files or of failures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import NamedTuple

from pytest_xlatune.model.metric import StepRecord
from pytest_xlatune.model.record import Json, read_json

# a terminal's colours:  \x1b[36m(Actor pid=9)\x1b[0m
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# MaxText printed to stdout without a prefix until 2025-12, and since then by absl to stderr. A
# prefix names a rank, an actor of Ray or neither.
_PREFIXES = (
    # srun -l, padded to the widest task:   ` 8: `
    r" *(?P<rank>\d{1,9}): ",
    # Open MPI --tag-output:  [1,0]<stderr>:
    r"\[\d+,(?P<rank>\d{1,9})\]<std(?:out|err)>: ?",
    # Ray:  (MaxTextTrainerActor pid=812, ip=10.0.0.7)
    r"\((?P<actor>[^()\n]*\bpid=\d+[^()\n]*)\) ?",
    # Primus:  [20260929 19:48:42][rank-0/16][INFO]
    r"(?:\[[^\]\n]*\])*?\[rank-(?P<rank>\d{1,9})/\d+\](?:\[[^\]\n]*\])* *",
    # absl:  I0112 07:08:09.123456 140001 metric_logger.py:226]
    # libtpu before its log is set up:  E0000 00:00:1795339599.810613 16729 a.cc:1100]
    r"[IWEF]\d{4} \d\d:\d\d:\d{2,15}\.\d+ +\d+ [^\s\]]+:\d+\] ",
    # older XLA:  2026-01-12 07:08:09.123456: F external/xla/xla/parse_flags_from_env.cc:225]
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] [^\s\]]+:\d+\] ",
    # Python's logging:  2026-01-12 07:08:09,123 - root - INFO -     [2026-01-12 07:08:09][INFO]
    (
        r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?:Z|[+-]\d\d:?\d\d)?(?: -)?"
        r"(?: [\w.]+(?: -|:))?? *\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?(?: -|:)? "
        r"(?:(?!\S*(?:Error|Exception|Interrupt):|(?:step|iter|iteration|epoch|loss): )"
        r"[a-z_][\w.]*(?::\d+)?(?: -|:) )?"
    ),
    # the same without a time:  INFO:root:
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:",
    # container runtimes, CRI's stream and tag:  2026-01-12T07:08:09.123456Z stderr F
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?",
    # kubectl logs --prefix:  [pod/train-0-abcde/trainer]
    r"\[pod/[^\]\s]+\] ",
    # docker compose:  trainer-1  |
    r"[A-Za-z][\w.-]* +\| ",
    # journald, syslog:  Jan 12 07:08:09 gpu017 run.sh[812]:     Jan 12 07:08:09 gpu017 kernel:
    # but `Jan 12 07:08:09 completed step: 7` is a step after a time
    (
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [^\s:]+ (?:[^\s:\[\]]+\[\d+\]|kernel|systemd"
        r"|slurm\w+|dockerd|containerd|kubelet|python[\d.]*|\S+\.(?:sh|py)): "
    ),
    # a time alone:  Jan 12 07:08:09     [2026-01-12 07:08:09]     2026-01-12 07:08:09.123
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ",
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? ",
    r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]? ",
    # pdsh, clush:  gpu017: slurmstepd: error:     [gpu017:3] srun: error:
    # It counts only before a launcher's words; before other lines `PrefixLearner` learns it.
    (
        r"(?:[A-Za-z][A-Za-z-]*\d[\w.-]*: |\[[A-Za-z][\w.-]*:\d{1,9}\] )"
        r"(?=(?:slurmstepd|srun|sbatch|salloc|pyxis|docker|enroot)\S*: |\[ERROR\] )"
    ),
    # labels of torchrun and other launchers:  [rank3]:     [default0]:
    r"\[(?:rank|default|trainer) ?(?P<rank>\d{1,9})\]:? ?",
)
_PREFIX = re.compile(
    "|".join(prefix.replace("<rank>", f"<rank{at}>") for at, prefix in enumerate(_PREFIXES))
)
_MOST_PREFIXES = 8
_NOWHERE = slice(0, 0)


class Origin(NamedTuple):
    """Who printed a line: the rank in its label, the Ray actor in its prefix; "" if unknown."""

    rank: str = ""
    actor: str = ""

    @property
    def label(self) -> str:
        """The label of the origin in a step record."""
        return " ".join(part for part in (self.rank, self.actor) if part)

    @property
    def preference(self) -> tuple[int, int]:
        """Sort key, lower is better: rank 0, no rank, the lowest rank; then the head's own actor.

        Ray omits `ip=` for actors on the node that prints.
        """
        # only one rank counts: two once printed 1,193 and 181 tokens a second for one step
        rank = -1 if self.rank == "" else int(self.rank)
        return (-2 if rank == 0 else rank), int("ip=" in self.actor)


def plain_segments(line: bytes) -> list[str]:
    """Return the texts of a line without colours and NUL bytes, split at carriage returns."""
    text = line.decode("utf-8", "replace").replace("\0", "")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return [part for part in text.split("\r") if part.strip()]


# docker's json-file, Cloud Logging and structured loggers put a line into a JSON object. Without
# unwrapping, step lines lost their last field, and a run with a NaN loss looked good.
_ENVELOPE = ("log", "textPayload", "message", "msg", "jsonPayload", "text", "line")
# a member on its own line:  "textPayload": "completed step: 7",
_MEMBER = re.compile(rf'"(?:{"|".join(_ENVELOPE)})": *"')


def unwrap(text: str) -> str | None:
    """Return the line inside a JSON envelope; None if there is none.

    It may be an element of an array, or a member on its own line, as `gcloud logging read
    --format=json` writes it.

    >>> unwrap('{"textPayload": "completed step: 7", "severity": "INFO"}')
    'completed step: 7'
    >>> unwrap('    "textPayload": "completed step: 7",')
    'completed step: 7'
    """
    body = text.strip(" \t\r,[]")
    if _MEMBER.match(body):
        body = f"{{{body}}}"
    if not (body.startswith("{") and body.endswith("}")):
        return None
    value: Json = _object(body)
    for _ in range(2):  # a payload may itself be an envelope
        if isinstance(value, dict):
            value = next((value[key] for key in _ENVELOPE if key in value), None)
    return value.rstrip("\r\n") if isinstance(value, str) else None


# CRI splits a line of 16 KiB or more; P says that the next one continues:
#   2026-01-12T07:08:09.123456789Z stdout P completed st
PART = re.compile(rb"\d{4}-\d\d-\d\dT\S{1,40} std(?:out|err) P ")


def split_origin(text: str) -> tuple[Origin, str]:
    """Remove every known prefix from a line; the innermost rank counts."""
    at, rank, actor = _prefixes(text)
    return Origin(str(int(text[rank])) if text[rank] else "", text[actor]), text[at:]


def _prefixes(text: str) -> tuple[int, slice, slice]:
    """Return the end of the known prefixes of a line, and the positions of rank and actor."""
    at, rank, actor = 0, _NOWHERE, _NOWHERE
    for _ in range(_MOST_PREFIXES):
        if (match := _PREFIX.match(text, at)) is None:
            break
        if match.lastgroup == "actor":
            actor = slice(*match.span("actor"))
        elif match.lastgroup is not None:
            rank = slice(*match.span(match.lastgroup))
        at = match.end()
    return at, rank, actor


# the number of digits is limited: a step of 5,000 digits in a log ended every run of that sweep
# completed step: 14, seconds: 0.187, ...
# completed profiler activation/deactivation step: 5, total_weights: 1024, loss: 7.401
# completed 7, per-step scalar metrics {'learning/loss': 9.25, ...}
_STEP = re.compile(
    r"(?<![A-Za-z])completed "
    r"(?:(?P<profiler>profiler activation/deactivation )?step: (?P<step>\d{1,15})"
    r"|(?P<oldest>\d{1,15})(?=, per-step scalar metrics ))"
    r",(?P<rest>.*?)(?=completed (?:step|profiler|\d)|$)"
)
# nan and inf count too, otherwise the steps of a NaN run vanish and its last finite loss stays
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf(?:inity)?)"
_ATTRIBUTE = {
    "seconds": "step_s",
    "TFLOP/s/device": "tflops",
    "TFLOP/s": "tflops",
    "MFU": "mfu",
    "Tokens/s/device": "tgs",
    "loss": "loss",
    "learning/loss": "loss",
    "perf/step_time_seconds": "step_s",
    "perf/per_device_tflops": "tflops",
    "perf/per_device_tflops_per_sec": "tflops",
    "perf/per_device_tokens_per_sec": "tgs",
}
# , Tokens/s/device: 5312.77, total_weights: 1024, loss: 7.328, moe_lb_loss: 0.011
#   'perf/step_time_seconds': Array(0.52, dtype=float32)
# fields are found by full name, because `.*loss:` would take moe_lb_loss for the loss; what may
# follow a number includes the end of an envelope:  loss: nan",    loss: 7.328\n'
_FIELD = re.compile(
    rf"(?:, ?|')({'|'.join(_ATTRIBUTE)})'?: (?:\w+\()?({_NUMBER})(?=[,%\s\"'\\\])}}]|$)"
)
_PLAIN_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{0,15})?")
_MOST_STEP = 10**15  # no step has more digits
# a number that `%.3f` has printed completely:  loss: 7.328
_PRINTED_IN_FULL = re.compile(r": (?:-?\d+\.\d{3}|nan|-?inf)$")


def parse_steps(text: str, label: str, *, is_torn: bool = False) -> list[StepRecord]:
    """Return the steps in a line: one, or several if writers glued lines together.

    `Completed eval step` is no step. The loss is the field `loss`, not e.g. `lm_loss`. Of a line
    that lost its end, only complete fields count.
    """
    text = (_without_torn_field(text) if is_torn else text).rstrip()
    return [
        StepRecord(
            step=int(match["step"] or match["oldest"]),
            label=label,
            start=0,
            kind=_kind(match, text),
            **{name: float(text[place]) for name, place in _fields(match, text).items()},
        )
        for match in _STEP.finditer(text)
    ]


# positions of the numbers in a step line: "step", "rank" if it names one, attributes of its record
Layout = dict[str, slice]


def step_layout(line: bytes) -> Layout | None:
    """Return the layout of a line that consists of one step with finite figures, else None.

    It is valid for all lines that differ only in digits. A line with any other text is read in
    full.
    """
    text = line.decode("ascii", "ignore").removesuffix("\r")
    is_plain = len(text) + line.endswith(b"\r") == len(line) and text.isprintable()
    if not is_plain or "=" in text or PART.match(line):
        return None
    at, rank, actor = _prefixes(text)
    match = _STEP.match(text, at)
    if match is None or match["step"] is None or match["profiler"] or match.end() < len(text):
        return None
    layout = _fields(match, text)
    # a line without a figure may be no step
    if actor != _NOWHERE or not layout or OTHER_LINE.search(text, at):
        return None
    # with other digits these are finite numbers too
    if not all(_PLAIN_NUMBER.fullmatch(text[place]) for place in layout.values()):
        return None
    ranks = {} if rank == _NOWHERE else {"rank": rank}
    return {**layout, **ranks, "step": slice(*match.span("step"))}


def _fields(match: re.Match[str], text: str) -> dict[str, slice]:
    """Return the positions of the figures in a step line, by attribute of its record."""
    rest = match["rest"]
    is_glued = match.end() < len(text)
    end = match.start("rest") + len(_without_torn_field(rest) if is_glued else rest)
    places: dict[str, slice] = {}
    for figure in _FIELD.finditer(text, match.start("rest") - 1, end):  # from the comma on
        places.setdefault(_ATTRIBUTE[figure[1]], slice(*figure.span(2)))
    return places


# where another program's line begins after one without an end, such as a progress bar:
#   ... loss: 7.3slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT     srun: error: n1: task 0: Killed
#   F0112 07:08:09.000001 77 a.cc:1] Check failed      *** SIGABRT received by PID 7
OTHER_LINE = re.compile(
    r"slurmstepd(?:-[\w.-]{1,80})?: (?:error: )?|srun: error: |(?<![A-Za-z_.])srun: "
    r"|Traceback \(most recent call last\):|\*\*\* SIG[A-Z]+ received"
    r"|(?:jax|jaxlib|torch)\.[\w.]{0,80}Error: "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,9} [^\s\]]{1,200}:\d{1,9}\] "
)


def _without_torn_field(text: str) -> str:
    """Return a step line that lost its end, cut back to its last complete field."""
    if _PRINTED_IN_FULL.search(text):
        return text
    return text[: text.rfind(",") + 1]


# the figures of a step record, in its order
FIGURES = ("step_s", "tgs", "tflops", "mfu", "loss")


def figures_in(record: StepRecord) -> int:
    """Return how many figures a step's line had."""
    return sum(getattr(record, name) is not None for name in FIGURES)


def _kind(match: re.Match[str], text: str) -> str:
    if match["profiler"]:
        return "profiler"
    return "rampup" if "[Rampup Batch Size Phase]" in text[: match.start()] else "step"


# lines of `printenv`:  NCCL_IB_HCA=mlx5_0,mlx5_1
ENVIRONMENT = re.compile(
    r"(?P<name>(?:NCCL|RCCL|XLA|JAX|HSA|HIP|UCX|NVTE|LIBTPU)_\w+)=(?P<value>.*)"
)


# MaxText's lines begin with:  Config param steps: 15     completed step: 7,
_HEAD = re.compile(
    r"(?<![A-Za-z])(?:Config param \w+: |completed step: \d{1,15},|Memstats: After params )"
)
_MOST_FRONT = 240
_NUMBERS = re.compile(r"[0-9]+")
_LEAST_LINES = 3
_MOST_SHAPES, _MOST_HIDDEN = 8, 256


def _front_of(text: str) -> str:
    """Return the unknown text before a line of MaxText; "" if there is none.

    Known prefixes may follow it:  job7> I0112 07:08:09.123456 1401 a.py:1] completed step: 7,
    """
    match = _HEAD.search(text, 0, _MOST_FRONT)
    front = text[: match.start()] if match is not None else ""
    # an envelope, and MaxText's own words, are no unknown text
    if not front.strip() or "{" in front or '": "' in front or "[Rampup" in front:
        return ""
    ends = (at for at in range(1, len(front)) if not front[at - 1].isalnum())
    return next((front[:at] for at in ends if _prefixes(text[at:])[0] == len(front) - at), front)


class PrefixLearner:
    """Learns the text before each line, as in `3@gpu020> completed step: 7`.

    A text that precedes three lines of MaxText is a prefix; its digits may differ. None of its
    numbers is taken for a rank.
    """

    def __init__(self) -> None:
        self.hidden: list[str] = []  # earlier lines in which the prefix may hide a setting
        self._prefix: re.Pattern[str] | None = None
        self._shapes: Counter[str] = Counter()

    def learns(self, text: str) -> bool:
        """Examine a line without known prefixes; return whether the prefix is now known."""
        if self._prefix is not None:
            return False
        shape = _NUMBERS.sub("0", _front_of(text))
        if not shape:
            setting = ENVIRONMENT.search(text) if "=" in text else None
            if setting is not None and setting.start() and len(self.hidden) < _MOST_HIDDEN:
                self.hidden.append(text)
            return False
        if shape in self._shapes or len(self._shapes) < _MOST_SHAPES:
            self._shapes[shape] += 1
        if self._shapes[shape] < _LEAST_LINES:
            return False
        self._prefix = re.compile("[0-9]+".join(map(re.escape, shape.split("0"))))
        return True

    def split(self, text: str) -> tuple[Origin, str]:
        """Remove the learnt prefix from a line, and known ones after it."""
        match = self._prefix.match(text) if self._prefix is not None else None
        return (Origin(), text) if match is None else split_origin(text[match.end() :])


def parse_metrics(text: str) -> tuple[StepRecord, ...]:
    """Return the exact steps of the last start in the text of a metrics file, in order.

    Each line is the JSON object of a step; NaN and Infinity are literals. Every version since
    2023-03 writes the file if `metrics_file=` is set. A line that is no JSON object with a step
    (torn by a kill) is skipped. A step id that does not increase begins a new start, since a
    resumed job appends to the same file.
    """
    steps: list[StepRecord] = []
    start = 0
    for line in text.splitlines():
        values = _object(line)
        step = _number(values.get("step"))
        if step is None or not abs(step) < _MOST_STEP:
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
        value = read_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf
