"""The figures of a tuning document, computed again from the lines of its ledger.

Written from docs/statistics.md, apart from the code that makes the document: nothing of `studies`,
`report` or `tasks` is used, and of `stats` only what turns the steps of a job into its score.
`check.py` compares a document with it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy import stats

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.result import Score
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.window import Window, common_window
from tests.document.attempts import remarks_of, results_of
from tests.document.estimates import ALPHA, Estimate, Fit, combined, dunnett, t_quantile
from tests.document.planning import Planned, planned

BASELINE, ALIAS = "baseline-deployed", "baseline-aa"
BOUNDED = 0.02  # "structurally bounded" is a claim of M below this
STOP_ESTIMATE, STOP_LEAST = 0.05, 0.04
ENOUGH_DF = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A trial as its last line in the ledger has it."""

    study: str
    profile: Mapping[str, Any]
    stage: str
    wave: str
    looks: int
    block: int
    position: int
    epoch: int
    result: Mapping[str, Any]
    score: Score | None

    @property
    def name(self) -> str:
        return str(self.profile["id"])

    @property
    def ids(self) -> list[str]:
        return list(self.result["job_ids"])

    @property
    def value(self) -> float:
        return self.score.value if self.score else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of a profile in a table."""

    kind: str
    n: int = 0
    tgs: float | None = None
    step_s: float | None = None
    delta: float | None = None
    ci95: tuple[float, float] | None = None
    jobs: tuple[str, ...] = ()
    mde80: float | None = None
    can_run: bool = True
    reason: str = ""


class Books:
    """One cell's ledger, and every figure that follows from it."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        opened = [line for line in lines if line["event"] == "campaign-opened"]
        asked = [each for each in opened if each["study"] == "tuning"]
        self.lines = lines
        self.opened: Mapping[str, Any] = asked[-1]
        self.versions: Mapping[str, str] = opened[-1]["versions"]
        self.cell: Mapping[str, Any] = self.opened["cells"][0]
        self.declared: Mapping[str, Any] = self.opened["declared"]
        self.written_s = float(lines[-1]["at"])
        files = [line["files"] for line in lines if line["event"] == "files-read"]
        self.files: Sequence[Mapping[str, Any]] = files[-1] if files else ()
        texts = [each["text"] for each in self.files if not each["path"].endswith(".sh")]
        # a top-level key:  num_pipeline_microbatches: 8
        keys = [line.split("#")[0].split(":", 1) for text in texts for line in text.split("\n")]
        self.configured = {key[0]: key[1].strip(" \"'") for key in keys if len(key) > 1}
        self.planned = {
            _place(line["trial"]): line["trial"]
            for line in lines
            if line["event"] == "trial-planned"
            and (line["trial"]["study"] == "tuning" or line["trial"]["stage"] == "evidence")
        }
        self.profile_of = {  # by a trial's id
            Trial.from_json(line["trial"]).id: line["trial"]["profile"]["id"]
            for line in lines
            if line["event"] == "trial-planned"
        }
        ended = {_place(each["trial"]): each for each in results_of(lines).values()}
        self.remarks = remarks_of(lines)
        self.as_recorded = [_job(ended[place]) for place in self.planned if place in ended]

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The parts of a step by the last evidence run, as fractions of it."""
        told = [
            line["shares"]["of_step"]
            for line in self.lines
            if line["event"] == "evidence-recorded" and line.get("shares")
        ]
        return dict(told[-1]) if told else {}

    # -- the jobs --------------------------------------------------------------------------------

    @cached_property
    def window(self) -> Window:
        """The one window of all trials: decided by the screen where it has jobs enough."""
        own = [each for each in self.as_recorded if each.study == "tuning"]
        screened = [e.score for e in own if e.stage == "screen" and e.score]
        others = [e.score for e in own if e.stage == "confirm" and e.score]
        enough = screened if len(screened) >= 12 else [*screened, *others]
        return common_window(enough, Protocol.from_json(dict(self.cell["protocol"])))

    @cached_property
    def jobs(self) -> Sequence[Job]:
        """The trials of the tuning study and the evidence runs, scored in the window of all."""
        return [self._in_window(each) for each in self.as_recorded]

    def _in_window(self, job: Job) -> Job:
        if not self.window.is_moved or job.score is None:
            return job
        found = rescore(job.score, protocol=self.window.protocol)
        return replace(job, score=found if isinstance(found, Score) else None)

    def of(self, name: str, *stages: str) -> list[Job]:
        """The trials of a profile, in plan order."""
        wanted = stages or ("screen", "confirm")
        own = [e for e in self.jobs if e.name == name and e.stage in wanted]
        return [e for e in own if e.study == "tuning" or e.stage == "evidence"]

    @cached_property
    def profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """What was compared with the baseline, declared or derived."""
        own = [trial for trial in self.planned.values() if trial["study"] == "tuning"]
        found = {trial["profile"]["id"]: trial["profile"] for trial in own}
        return {name: each for name, each in found.items() if name not in (BASELINE, ALIAS)}

    # -- the screen ------------------------------------------------------------------------------

    @cached_property
    def _screen(self) -> tuple[Mapping[str, Estimate], float, int]:
        """By profile its distance from the line of the baselines beside it; squares; their df."""
        queues: dict[str, list[Job]] = defaultdict(list)
        for each in self.jobs:
            if each.study == "tuning" and each.stage == "screen" and each.score:
                queues[each.wave].append(each)
        found: dict[str, list[Estimate]] = defaultdict(list)
        squares, df = 0.0, 0
        for queue in queues.values():
            queue.sort(key=lambda each: each.result["outcome"]["start_s"])
            slot = {id(each): float(at) for at, each in enumerate(queue)}
            for epoch in {each.epoch for each in queue}:
                own = [each for each in queue if each.epoch == epoch]
                base = [each for each in own if each.name == BASELINE]
                if not base:
                    continue
                x = np.array([slot[id(each)] for each in base])
                y = np.array([each.value for each in base])
                slope, level = np.polyfit(x, y, 1) if len(base) > 1 else (0.0, float(y[0]))
                squares += float(np.sum((y - level - slope * x) ** 2))
                df += max(len(base) - 2, 0)
                spread = float(np.sum((x - x.mean()) ** 2))
                for each in own:
                    if each.name != BASELINE:
                        at = slot[id(each)]
                        tilt = (at - float(x.mean())) ** 2 / spread if spread else 0.0
                        value = each.value - (float(level) + float(slope) * at)
                        variance = 1 + 1 / len(base) + tilt
                        found[each.name].append(Estimate(value=value, variance=variance))
        return {name: combined(each) for name, each in found.items()}, squares, df

    @property
    def screened(self) -> Mapping[str, Estimate]:
        return self._screen[0]

    # -- the blocks ------------------------------------------------------------------------------

    @cached_property
    def fit(self) -> Fit | None:
        """Least squares of block and arm effects; None where nothing was confirmed."""
        dropped = {e.name for e in self.jobs if e.result["status"] == "dropped"}
        confirming = [e for e in self.jobs if e.study == "tuning" and e.stage == "confirm"]
        own = [e for e in confirming if e.score and e.name not in dropped]
        arms = sorted({e.name for e in own} - {BASELINE})
        if not arms:
            return None
        if any(e.looks != 1 for e in own):
            raise ValueError("a confirmation in two stages is not computed again here")
        blocks = sorted({(e.block, e.epoch) for e in own})
        design = np.zeros((len(own), len(arms) + len(blocks)))
        for at, each in enumerate(own):
            design[at, len(arms) + blocks.index((each.block, each.epoch))] = 1
            if each.name != BASELINE:
                design[at, arms.index(each.name)] = 1
        values = np.array([e.value for e in own]) - fmean(e.value for e in own)
        effects, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        df = len(own) - int(rank)
        sigma = math.sqrt(float(np.sum((values - design @ effects) ** 2)) / df)
        variances = np.diag(np.linalg.pinv(design.T @ design))
        found = {
            name: Estimate(value=float(effects[at]), variance=float(variances[at]))
            for at, name in enumerate(arms)
        }
        family = max(len([name for name in arms if name != ALIAS]), 1)
        cells = Counter(((e.block, e.epoch), e.name) for e in own)
        controls = {cells[block, BASELINE] for block in blocks}
        is_complete = len(controls) == 1 and all(
            cells[block, name] == 1 for block in blocks for name in arms
        )
        if is_complete:
            critical = dunnett(family, df, weight=controls.pop())
        else:
            critical = t_quantile(1 - ALPHA / family, df)
        return Fit(
            arms=found,
            sigma=sigma,
            df=df,
            critical=critical,
            method=f"{'Dunnett' if is_complete else 'Bonferroni, cells missing'}, K={family}, "
            f"{len(blocks)} blocks, {sum(e.name == BASELINE for e in own)} baselines, "
            f"alpha {ALPHA:g}",
        )

    # -- what is said of each profile ------------------------------------------------------------

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        return {BASELINE: self._baseline(), **{name: self._row(name) for name in self.profiles}}

    @property
    def verdicts(self) -> Mapping[str, Row]:
        return {name: row for name, row in self.rows.items() if name != BASELINE}

    @cached_property
    def winner(self) -> str:
        faster = [name for name, row in self.verdicts.items() if row.kind == "FASTER"]
        return max(faster, key=lambda name: self.rows[name].delta or 0.0) if faster else ""

    def _baseline(self) -> Row:
        own = [each for each in self.of(BASELINE) if each.score]
        # by their places: every second block runs backwards
        own.sort(key=lambda e: (e.stage != "screen", e.wave, e.block, e.position))
        return _measured(own, kind="baseline")

    def _row(self, name: str) -> Row:
        every, confirmed = self.of(name), self.of(name, "confirm")
        ids = tuple(job for each in every for job in each.ids)
        for each in every:
            if each.result["status"] == "dropped":
                reason = each.result["reason"]
                return Row(kind="INVALID", can_run=False, reason=reason, jobs=ids)
        scored = [e for e in every if e.score]
        if any(self._other_loss(e.score) for e in scored):
            return _measured(scored, kind="INVALID")
        fit = self.fit
        if confirmed and fit is not None and name in fit.arms:
            row = _measured([e for e in confirmed if e.score], kind=self._kind(name))
            low, high = fit.interval(name)
            return replace(
                row,
                delta=math.expm1(fit.arms[name].value),
                ci95=(math.expm1(low), math.expm1(high)),
                mde80=fit.mde80(name),
            )
        if not scored:
            is_over = any(e.result["status"] != "running" for e in every)
            return Row(kind="INVALID" if is_over else "not measured yet", jobs=ids)
        row = _measured(scored, kind="SCREENED")
        return replace(row, delta=math.expm1(self.screened[name].value))

    def _other_loss(self, score: Score | None) -> bool:
        losses = [e.score.loss for e in self.of(BASELINE) if e.score and e.score.loss is not None]
        if score is None or score.loss is None or not losses:
            return False
        usual = median(losses)
        return not abs(score.loss - usual) <= self.declared["loss_tolerance"] * abs(usual)

    def _kind(self, name: str) -> str:
        fit, margin = self.fit, float(self.declared["equivalence"])
        if fit is None or len([e for e in self.of(name, "confirm") if e.score]) < 2:
            return "INCONCLUSIVE"
        if fit.lower(name) > 0:
            return "INCONCLUSIVE" if self._hides_stragglers(name) else "FASTER"
        if fit.upper(name) < 0:
            return "SLOWER"
        low, high = fit.interval(name, 0.90)
        is_same = math.log1p(-margin) < low and high < math.log1p(margin)
        return "EQUIVALENT" if is_same else "INCONCLUSIVE"

    def _hides_stragglers(self, name: str) -> bool:
        """Whether slow steps that the score leaves out are more, and cost more than the gain."""
        fit = self.fit
        counts, costs = [], []
        for who in (name, BASELINE):
            scores = [e.score for e in self.of(who, "confirm") if e.score]
            slow = sum(s.stragglers for s in scores)
            counts.append([slow, sum(s.n_steps + len(s.dropped) for s in scores) - slow])
            costs.append([s.value - math.log(s.window_tgs or math.nan) for s in scores])
        p = float(stats.fisher_exact(np.array(counts), alternative="greater").pvalue)
        extra = fmean(costs[0]) - fmean(costs[1])
        return fit is not None and p < 0.05 and not fit.lower(name) > extra

    # -- what the sweep could see ----------------------------------------------------------------

    @cached_property
    def sigma(self) -> float | None:
        _, squares, df = self._screen
        if self.fit is not None and self.fit.df >= ENOUGH_DF:
            return self.fit.sigma
        return math.sqrt(squares / df) if df else None

    @cached_property
    def bound(self) -> float | None:
        """M: the largest of what each profile may be worth, at 95 %; None before the blocks."""
        standings, squares, df = self._screen
        fit = self.fit
        if fit is None:
            return None
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
        reach = t_quantile(0.975, df) * math.sqrt(squares / df)
        highest = []
        for name, alone in standings.items():
            ways = [alone]
            if name in fit.arms:
                ways.append(combined([alone, fit.arms[name]]))
            highest.append(min(each.value + reach * math.sqrt(each.variance) for each in ways))
        return math.expm1(max(highest))

    @cached_property
    def outlook(self) -> Planned | None:
        """What is planned; None once it is measured, and where the sweep only ranks."""
        _, squares, df = self._screen
        seen = math.sqrt(squares / df) if df else None
        return None if self.fit else planned(self.declared, seen)

    @cached_property
    def mde80(self) -> float | None:
        if self.fit is None:
            return self.outlook.mde80 if self.outlook else None
        return max(map(self.fit.mde80, self.fit.arms))

    @property
    def stopping(self) -> Sequence[str]:
        """The profiles that reach the rule for stopping: +5 %, and +4 % excluded from below."""
        fit = self.fit
        return [
            name
            for name in (fit.arms if fit else ())
            if fit is not None
            and name != ALIAS
            and math.expm1(fit.arms[name].value) >= STOP_ESTIMATE
            and math.expm1(fit.lower(name)) >= STOP_LEAST
        ]

    @property
    def alpha_spent(self) -> float:
        return ALPHA if any(t["stage"] == "confirm" for t in self.planned.values()) else 0.0


def _place(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("study", "stage", "block", "position")
    return (*(trial[key] for key in keys), trial["profile"]["id"])


def _job(result: Mapping[str, Any]) -> Job:
    trial = result["trial"]
    score = Score.from_json(dict(result["score"])) if result["score"] else None
    is_usable = score is not None and result["status"] == "measured" and math.isfinite(score.value)
    return Job(
        study=trial["study"],
        profile=trial["profile"],
        stage=_stage(trial),
        wave=trial["stage"],
        looks=(trial["design"] or {}).get("looks", 0),
        block=trial["block"],
        position=trial["position"],
        epoch=result["epoch"],
        result=result,
        score=score if is_usable else None,
    )


def _stage(trial: Mapping[str, Any]) -> str:
    """Evidence has no score, a block confirms, the rest is measured once."""
    if trial["protocol"]["metric"] == "none":
        return "evidence"
    return "confirm" if trial["block"] else "screen"


def _measured(jobs: Iterable[Job], *, kind: str) -> Row:
    own = list(jobs)
    scores = [each.score for each in own if each.score]
    if not scores:
        return Row(kind=kind)
    return Row(
        kind=kind,
        n=len(scores),
        tgs=math.exp(fmean(math.log(each.tgs or 0.0) for each in scores)),
        step_s=math.exp(fmean(math.log(each.step_s or 0.0) for each in scores)),
        jobs=tuple(job for each in own for job in each.ids),
    )
