"""Step lines of other trainers: a pattern with named groups, a user's own or a preset.

    step      the step's id; the only required group
    seconds   seconds of the step; or `ms` for milliseconds, or `rate` for steps a second
    tgs       Tokens/s/device        tflops   TFLOP/s/device        mfu   percent        loss
    total     the id of the last step of the program

Pure. MaxText's own lines need no pattern; `grammar` reads them. Sources of the presets:

    torchtitan    pytorch/torchtitan, torchtitan/components/metrics.py, MetricsProcessor.log
    megatron-lm   NVIDIA/Megatron-LM, megatron/training/training.py, training_log; Primus too
    nemo          NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py; NeMo 1.x prints
    a progress bar with the same names
    axlearn       apple/axlearn, axlearn/common/trainer.py, run and _step_log: every hundredth step,
    with the mean over the last hundred
    levanter      tqdm_loggable, as in logs of marin's jobs
    tqdm          any other tqdm bar, e.g. that of HF's Trainer
    json          one JSON object in each line, with usual names of step, time, rate and loss
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

import msgspec

from pytest_xlatune.logs.formats import LEAST_LETTERS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.metric import StepRecord

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf)"
GROUPS = ("step", "seconds", "ms", "rate", "tgs", "tflops", "mfu", "loss", "total")
# times and rate after `12/100 ` in a bar
#   12/100 [00:24<02:58,  2.01s/it       12/100 [00:24<02:58, 1.5it/s
#   12/100 0:00:24 • 0:02:58 1.5it/s     12it [00:24,  2.01s/it
_BAR = (
    r"(?P<step>\d+)(?:/(?P<total>\d+) (?:\[[\d:]+<[^,\]]*, *|[\d:]+ • [\d:-]+ +)|it \[[\d:]+, *)"
    r"(?:(?P<seconds>N)s/ ?\w+|(?P<rate>N) *(?:it|iter(?:ation)?s?|steps?|batch(?:es)?|updates?)/s"
    r"|\?)"
)
_BAR_TERMS = (
    *("it/s", "s/it", "step/s", "steps/s", "s/step", "s/ step", "batch/s", "batches/s", "s/batch"),
    *("s/ batch", "iter/s", "iters/s", "iteration/s", "iterations/s", "update/s", "updates/s"),
    *("s/update", "s/iter", "s/ it"),
)
# losses in a bar:  , loss=2.31      train_loss=2.3      train_loss: 2.3
_BAR_LOSS = r"\b(?:train_)?loss(?:_step)?[=:] *(?P<loss>N)"


class StepPattern(msgspec.Struct, frozen=True):
    """The step lines of a trainer other than MaxText; `N` is a number in its patterns."""

    words: tuple[str, ...]  # in lower case; each line has one of them
    pattern: str  # pattern of a step line
    fields: tuple[str, ...] = ()  # patterns of figures anywhere in it
    total: str = ""  # pattern of another line with the id of the last step; "" if none

    def steps(self, text: str, label: str) -> list[StepRecord]:
        """Return the step in a line; [] if it has none."""
        groups = self._groups(text)
        if (step := _step_of(groups, "step", "kilo")) is None:
            return []
        figures = {name: _number(groups.get(name, "")) for name in GROUPS}
        if (ms := figures["ms"]) is not None:
            figures["seconds"] = ms / 1000
        if figures["seconds"] is None and (rate := figures["rate"]):
            figures["seconds"] = 1 / rate
        if _number(groups.get("nans", "")):  # Megatron omits the loss of such iterations
            figures["loss"] = math.nan
        record = StepRecord(
            step=step,
            step_s=figures["seconds"],
            tgs=figures["tgs"],
            tflops=figures["tflops"],
            mfu=figures["mfu"],
            loss=figures["loss"],
            label=label,
        )
        return [record]

    def last_step(self, text: str) -> int | None:
        """Return the id of the program's last step if a line shows it; else None."""
        if self.total and (match := _compiled(self.total).search(text[:_MOST_CHARS])) is not None:
            return _whole_number(match["total"])
        return _step_of(self._groups(text), "total", "kilos")

    def _groups(self, text: str) -> dict[str, str]:
        """Return group -> text of a line; {} if it is no step line."""
        text = text[:_MOST_CHARS]
        if (line := _compiled(self.pattern).search(text)) is None:
            return {}
        groups: dict[str, str] = {}
        for match in (line, *(_compiled(field).search(text) for field in self.fields)):
            named = match.groupdict() if match is not None else {}
            groups = {name: value for name, value in named.items() if value is not None} | groups
        return groups


PRESETS = {
    # [titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.83
    #   memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%       of 2024:  wps: 7,282
    # Training starts at step 1, with local batch size 8, ..., total steps 40 (warmup 8)
    "torchtitan": StepPattern(
        ("step:", "total steps"),
        r"\bstep: *(?P<step>\d+) +loss: *(?P<loss>N)",
        (r"\b[tw]ps: *(?P<tgs>N)", r"\btflops: *(?P<tflops>N)", r"\bmfu: *(?P<mfu>N)%"),
        r"\btotal steps (?P<total>\d+)",
    ),
    #  [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed
    #   time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | ... | lm loss:
    #   1.043863E+01 | ... | number of nan iterations:   0 |        DeepSpeed:  | elapsed time per
    #   iteration (s): 8.65 | lm loss: 2.5E+00 | tokens per gpu per second (tgs): 990.5 | TFLOPs: 8
    # [exiting program at iteration 12] datetime: ...      an end that was asked for
    "megatron-lm": StepPattern(
        ("elapsed time per iteration", "exiting program at iteration"),
        (
            r"\biteration +(?P<step>\d+)/ *(?:(?P<total>\d+)|\w+) \|"
            r".*?elapsed time per iteration \((?:ms\): *(?P<ms>N)|s\): *(?P<seconds>N))"
        ),
        (
            r"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|TFLOPs): *(?P<tflops>N)",
            r"lm loss:? *(?P<loss>N)",
            # Primus since 26.5:  tokens/s/GPU inst/harmonic mean: 9641.0/9241.0
            r"(?:\((?i:tokens/s/gpu|tgs)\)|tokens/s/GPU inst/harmonic mean): *(?P<tgs>N)",
            r"number of nan iterations: +(?P<nans>\d+)",
        ),
        r"\[exiting program at iteration (?P<total>\d+)\]",
    ),
    # Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 |
    #   reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928
    # 1.x, a progress bar:  Epoch 0: : 100%|#| 100/100 [10:48<00:00, reduced_train_loss=0.0172,
    #   global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]
    "nemo": StepPattern(
        ("global_step",),
        (
            r"\b(?:global_step=|iteration )(?P<step>\d+)(?:\.0*, |/(?P<total>\d+) \|)"
            r"(?:.*?train_step_timing in s[:=] *(?P<seconds>N))?"
        ),
        (
            *(r"reduced_train_loss[:=] *(?P<loss>N)", r"tokens_per_sec_per_gpu[:=] *(?P<tgs>N)"),
            r"<[^,\]]*, *(?:(?P<rate>N)it/s|(?P<seconds>N)s/it)",
        ),
    ),
    # SpmdTrainer process   0 step      200] Average step time: 1.25 seconds
    # (max_step=1200)      max_step: 1200
    "axlearn": StepPattern(
        ("average step time", "max_step"),
        r"\bprocess +\d+ step +(?P<step>\d+)\] Average step time: (?P<seconds>N) seconds",
        total=r"\bmax_step[=:] ?(?P<total>\d+)",
    ),
    # Progress on:train 19.0it/70.0it rate:76.8s/it remaining:1:05:15 elapsed:31:40 postfix:loss=7.2
    #   of thousands:  7.08kit/10.0kit
    "levanter": StepPattern(
        ("progress on:",),
        (
            r"Progress on: ?train\w* (?P<step>[\d.]+)(?P<kilo>k?)it/"
            r"(?P<total>[\d.]+)(?P<kilos>k?)it rate:(?:(?P<rate>N)it/s|(?P<seconds>N)s/it|\?)"
        ),
        (r"\bloss=(?P<loss>N)",),
    ),
    # train:  12%|#2        | 12/100 [00:24<02:58,  2.01s/it, loss=2.3]
    "tqdm": StepPattern(_BAR_TERMS, rf"(?<![\d/]){_BAR}", (_BAR_LOSS,)),
    # {"step": 12, "loss": 2.3, "step_time": 0.51, "tokens_per_second_per_device": 7282}
    # {'iteration': 12, 'metrics': {'train/loss': 2.3, 'step_time_ms': 510.0}}
    "json": StepPattern(
        ("step", "iter"),
        r"^[^\w{]*\{(?=.*(?:loss|time|duration|_per_|/s|tgs|tps))"
        r""".*?["'/](?:global_|train_)?(?:step|iter(?:ation)?)["']: *(?P<step>\d+)\b.*\}""",
        tuple(
            rf"""["'/](?:{names})["']: *["']?(?P<{group}>N)"""
            for group, names in {
                "seconds": r"(?:step|iter(?:ation)?)_(?:time|duration)(?:_s|_sec|_seconds)?|"
                r"(?:time|seconds?|secs?)_per_(?:step|iteration)|end_to_end\(s\)|seconds",
                "ms": r"(?:step|iter(?:ation)?)_time_ms|ms_per_step",
                "rate": r"(?:train_)?(?:steps|iterations|it)_per_s(?:ec|econd)?|it/s",
                "tgs": r"tokens_per_sec(?:ond)?_per_(?:device|gpu|chip)|tgs|tps|"
                r"per_device_tokens_per_sec|tokens/s/(?:device|gpu)|throughput\(tps\)",
                "tflops": r"(?:per_device_)?tflops?(?:_per_sec)?(?:_per_(?:device|gpu|chip))?",
                "loss": r"(?:train(?:ing)?_|lm_|global_avg_|reduced_train_)?loss",
            }.items()
        ),
    ),
}
_MOST_DIGITS = 15
_MOST_CHARS = 4096


def _step_of(groups: Mapping[str, str], group: str, thousands: str) -> int | None:
    """Return the id of a step, which a bar may count in thousands."""
    return _whole_number(groups.get(group, ""), 1000 if groups.get(thousands) else 1)


def _whole_number(text: str, unit: int = 1) -> int | None:
    number = _number(text) if len(text) <= _MOST_DIGITS else None
    return None if number is None or not math.isfinite(number) else round(number * unit)


@functools.lru_cache(maxsize=16)
def step_pattern(text: str) -> StepPattern:
    """Return the preset of a name, or the user's own pattern.

    Raises:
        ConfigError: it is neither a name nor a pattern with a group `step`, has an unknown group,
            or no word by which its lines can be found.
    """
    if text.lower() in PRESETS:
        return PRESETS[text.lower()]
    if "(" not in text:
        raise ConfigError.unknown("step pattern", text, valid=PRESETS, where="the step pattern")
    try:
        groups = _compiled(text).groupindex.keys()
    except re.error as error:
        raise ConfigError(f"step pattern {text!r}: {error}; expected a Python pattern") from None
    if "step" not in groups or groups - {*GROUPS}:
        raise ConfigError(
            f"step pattern {text!r}: found the groups {', '.join(groups) or 'none'}; expected "
            f"(?P<step>\\d+), and besides it only {', '.join(GROUPS[1:])}"
        )
    word = _word_of(text)
    if not word:
        raise ConfigError(
            f"step pattern {text!r} has no fixed word by which step lines are found quickly; write "
            "out a word that each of them has, e.g. `iteration`: at least three of its letters "
            "must lie between f and z"
        )
    return StepPattern(words=(word,), pattern=text)


@functools.lru_cache(maxsize=128)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(">N)", f">{_NUMBER})"))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _word_of(pattern: str) -> str:
    """Return the longest literal text outside groups, sets and repeats; "" if it is too short."""
    depth, plain = 0, []
    bare = re.sub(r"\(\?(?:P<\w+>|<?[:=!])", "(", pattern)
    for char in re.sub(r"\\.|\[[^\]]*\]|[^()][?*{]", "\0", bare):
        depth += (char == "(") - (char == ")")
        plain.append(char if depth == 0 and char != ")" else "\0")
    if "|" in plain:
        return ""
    words = re.findall(r"[A-Za-z_][A-Za-z_ ]*", "".join(plain))
    fit = [word for word in words if len(re.findall("[f-zF-Z_]", word)) >= LEAST_LETTERS]
    return max(fit, key=len, default="").lower()
