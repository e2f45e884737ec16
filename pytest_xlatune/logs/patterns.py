"""Step lines of other trainers: a pattern with named groups, a user's own or one by name.

    step      the step's id; the only group that a pattern must have
    seconds   of the step; or `ms`, milliseconds
    tgs       Tokens/s/device        tflops   TFLOP/s/device        mfu   percent        loss

Pure. MaxText's own forms are the grammar's and need no pattern. Where the presets' forms are from:

    torchtitan    pytorch/torchtitan, torchtitan/components/metrics.py, MetricsProcessor.log
    megatron-lm   NVIDIA/Megatron-LM, megatron/training/training.py, training_log
    nemo          NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py; NeMo 1.x
                  prints a progress bar of the same names
    axlearn       apple/axlearn, axlearn/common/trainer.py, run and _step_log: each hundredth
                  step, the mean of the hundred up to it
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from pytest_xlatune.logs.formats import LEAST_LETTERS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.result import StepRecord

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf)"
GROUPS = ("step", "seconds", "ms", "tgs", "tflops", "mfu", "loss")

# What each trainer prints, as its own logs show it.
PRESETS = {
    # [titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.83
    #   memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
    "torchtitan": (
        r"\bstep: *(?P<step>\d+) +loss: *(?P<loss>N)"
        r"(?:.*?\btps: *(?P<tgs>N))?(?:.*?\btflops: *(?P<tflops>N))?(?:.*?\bmfu: *(?P<mfu>N)%)?"
    ),
    #  [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed
    #   time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | ... | lm loss:
    #   1.043863E+01 |
    "megatron-lm": (
        r"\biteration +(?P<step>\d+)/ *\w+ \|.*?elapsed time per iteration \(ms\): *(?P<ms>N)"
        r"(?:.*?throughput per GPU \(TFLOP/s/GPU\): *(?P<tflops>N))?(?:.*?lm loss: *(?P<loss>N))?"
    ),
    # Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 |
    #   reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928
    # 1.x, a progress bar:  Epoch 0: : 100%|#| 100/100 [10:48<00:00, reduced_train_loss=0.0172,
    #   global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]
    "nemo": (
        r"\b(?:global_step=|iteration )(?P<step>\d+)(?:\.0*, |/\d+ \|)"
        r"(?:.*?reduced_train_loss: *(?P<loss>N))?.*?train_step_timing in s[:=] *(?P<seconds>N)"
        r"(?:.*?tokens_per_sec_per_gpu: *(?P<tgs>N))?"
    ),
    # SpmdTrainer process   0 step      200] Average step time: 1.25 seconds
    "axlearn": r"\bprocess +\d+ step +(?P<step>\d+)\] Average step time: (?P<seconds>N) seconds",
}
_WORDS = {
    "torchtitan": "step:",
    "megatron-lm": "elapsed time per iteration",
    "nemo": "train_step_timing in s",
    "axlearn": "average step time",
}
_PER = {"ms": ("step_s", 1000), "seconds": ("step_s", 1)}
_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPattern:
    """How another trainer prints a step: its pattern, and a word that each such line holds."""

    name: str
    pattern: re.Pattern[str]
    word: str

    def steps(self, text: str, label: str) -> list[StepRecord]:
        """Return the step that a line reports; [] where it reports none."""
        match = self.pattern.search(text[:4096])
        if match is None or len(match["step"]) > _MOST_DIGITS:
            return []
        values: dict[str, Any] = {}
        for group, said in match.groupdict().items():
            if group != "step" and said is not None and (number := _number(said)) is not None:
                name, per = _PER.get(group, (group, 1))
                values[name] = number / per
        return [StepRecord(step=int(match["step"]), label=label, **values)]


@functools.lru_cache(maxsize=16)
def step_pattern(said: str) -> StepPattern:
    """Return the pattern of a name, or the one that is written out.

    Raises:
        ConfigError: neither a name nor a pattern with a group `step`, another group, or no word by
            which its lines can be found.
    """
    if said.lower() in PRESETS:
        name = said.lower()
        text = re.sub(r">N\)", lambda _: f">{_NUMBER})", PRESETS[name])
        return StepPattern(name=name, pattern=re.compile(text), word=_WORDS[name])
    if "(" not in said:
        raise ConfigError.unknown("step pattern", said, valid=PRESETS, where="the step pattern")
    try:
        pattern = re.compile(said)
    except re.error as error:
        raise ConfigError(f"step pattern {said!r}: {error}; expected a Python pattern") from None
    groups = pattern.groupindex.keys()
    if "step" not in groups or groups - {*GROUPS}:
        raise ConfigError(
            f"step pattern {said!r}: found the groups {', '.join(groups) or 'none'}; expected "
            f"(?P<step>\\d+) and of the others any of {', '.join(GROUPS[1:])}"
        )
    word = _word_of(said)
    if not word:
        raise ConfigError(
            f"step pattern {said!r}: no word in it that each step line holds, with three letters "
            "of f to z or _; write out more of the line, e.g. `iteration`"
        )
    return StepPattern(name="own", pattern=pattern, word=word)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _word_of(pattern: str) -> str:
    """Return the longest text that stands outside all groups, sets and repeats; "" if too short."""
    depth, plain = 0, []
    bare = re.sub(r"\(\?(?:P<\w+>|<?[:=!])", "(", pattern)
    for each in re.sub(r"\\.|\[[^\]]*\]|[^()][?*{]", "\0", bare):
        depth += (each == "(") - (each == ")")
        plain.append(each if depth == 0 and each != ")" else "\0")
    if "|" in plain:
        return ""
    words = re.findall(r"[A-Za-z_][A-Za-z_ ]*", "".join(plain))
    fit = [each for each in words if len(re.findall("[f-zF-Z_]", each)) >= LEAST_LETTERS]
    return max(fit, key=len, default="").lower()
