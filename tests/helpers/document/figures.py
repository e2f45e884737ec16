"""The figures of a tuning document, computed again from the lines of its ledger.

Written from docs/explanation/statistics.md, apart from the code that makes the document: nothing of
`studies`, `report` or `tasks` is used, and of `stats` only what turns the steps of a job into its
score.
`check.py` compares a document with it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import scipy  # its parts are loaded where they are used

from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.result import Score
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.window import Window, common_window
from tests.helpers.document.attempts import ran_in_of, remarks_of, results_of, shares_of
from tests.helpers.document.estimates import (
    ALPHA,
    ENOUGH_DF,
    Estimate,
    Fit,
    combined,
    common_slope,
    dunnett,
    is_apart,
    ran_twice,
    slope_of_all,
    t_quantile,
)
from tests.helpers.document.planning import Planned, from_start80, planned
from tests.helpers.document.recipes import Recipes, settings_of
from tests.helpers.document.slots import SECOND, against_lines, last_laid, misplaced, queued, slower
from tests.helpers.words import in_words

BASELINE, ALIAS = "baseline-deployed", "baseline-aa"
LEVEL = 0.01  # a change inside it is none
BOUNDED = 0.02  # "structurally bounded" is a claim of M below this
STOP_ESTIMATE, STOP_LEAST = 0.05, 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A trial as its last line in the ledger has it."""

    study: str
    profile: Mapping[str, Any]
    stage: str
    wave: str
    slot: str  # the cell's identity there
    block: int
    ran_in: Any = None  # the block beside which it really ran
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
    lost: tuple[int, ...] = ()  # confirming runs without a score, of how many
    likely: tuple[float, float, float] | None = None  # of one that is FASTER


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
        cells = self.opened["cells"]
        self.cell: Mapping[str, Any] = cells[0]
        # the cell's identity on each of several node slots -> its nodes
        on = {Cell.from_json(each).digest: list(each["nodelist"]) for each in cells}
        self.slots: Mapping[str, list[str]] = on if len(cells) > 1 else {}
        self.declared: Mapping[str, Any] = self.opened["declared"]
        self.written_s = float(lines[-1]["at"])
        files = [line["files"] for line in lines if line["event"] == "files-read"]
        self.files: Sequence[Mapping[str, Any]] = files[-1] if files else ()
        texts = [each["text"] for each in self.files if not each["path"].endswith(".sh")]
        # a top-level key:  num_pipeline_microbatches: 8
        keys = [line.split("#")[0].split(":", 1) for text in texts for line in text.split("\n")]
        self.configured = {key[0]: key[1].strip(" \"'") for key in keys if len(key) > 1}
        self.planned = {
            self._place(line["trial"]): line["trial"]
            for line in lines
            if line["event"] == "trial-planned"
            and (line["trial"]["study"] == "tuning" or line["trial"]["stage"] == "evidence")
        }
        self.profile_of = {  # by a trial's id
            Trial.from_json(line["trial"]).id: line["trial"]["profile"]["id"]
            for line in lines
            if line["event"] == "trial-planned"
        }
        ended = {self._place(each["trial"]): each for each in results_of(lines).values()}
        self.remarks = remarks_of(lines)
        # what a dead slot left open stands on another slot, in its place
        kept = last_laid(self.planned.items()) if self.slots else {*self.planned}
        standing = [place for place in self.planned if place in kept]
        if self.slots:
            standing.sort(key=lambda place: int(self.planned[place]["block"]))
        self.standing = {place: self.planned[place] for place in standing}
        self.as_recorded = [_job(ended[place]) for place in self.standing if place in ended]
        self._ran = [place for place in self.planned if place in ended]
        self._fallen = [_job(ended[place]) for place in self._ran if place not in kept]

    def _place(self, trial: Mapping[str, Any]) -> tuple[Any, ...]:
        keys = ("study", "stage", "block", "position")
        on = trial["cell_digest"] if self.slots else ""
        return (*(trial[key] for key in keys), trial["profile"]["id"], on)

    @cached_property
    def shares(self) -> list[float]:
        """See `shares_of`."""
        return shares_of(self.lines)

    # -- the jobs --------------------------------------------------------------------------------

    @cached_property
    def window(self) -> Window:
        """The one window of all trials: decided by the screen where it has jobs enough."""
        own = [each for each in self.as_recorded if each.study == "tuning"]
        screened = [e.score for e in own if e.stage == "screen" and e.score]
        others = [e.score for e in own if e.stage in ("confirm", "spare") and e.score]
        enough = screened if len(screened) >= 12 else [*screened, *others]
        return common_window(enough, Protocol.from_json(dict(self.cell["protocol"])))

    @cached_property
    def jobs(self) -> Sequence[Job]:
        """The trials of the tuning study and the evidence runs, scored in the window of all."""
        found = [self._in_window(each) for each in self.as_recorded]
        ran_in: dict[int, Any] = {}
        for slot in {each.slot if self.slots else "" for each in found}:
            own = [each for each in found if each.slot == slot or not self.slots]
            ran_in |= zip(map(id, own), ran_in_of(own), strict=True)
        return [replace(each, ran_in=ran_in[id(each)]) for each in found]

    @cached_property
    def every_job(self) -> Sequence[Job]:
        """The same with those that a dead slot took along."""
        return [*self.jobs, *map(self._in_window, self._fallen)]

    def _in_window(self, job: Job) -> Job:
        if not self.window.is_moved or job.score is None:
            return job
        found = rescore(job.score, protocol=self.window.protocol)
        return replace(job, score=found if isinstance(found, Score) else None)

    def of(self, name: str, *stages: str) -> list[Job]:
        """The trials of a profile, in plan order."""
        wanted = stages or ("screen", "confirm", "spare")
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
        queue = [
            each
            for each in self.jobs
            if each.study == "tuning" and each.stage == "screen" and each.score
        ]
        queue.sort(key=lambda each: each.result["outcome"]["start_s"])
        found: dict[str, list[Estimate]] = defaultdict(list)
        if self.slots:  # one baseline on a slot tells no noise
            for name, one in against_lines(queued(queue)):
                found[name].append(one)
            return {name: combined(each) for name, each in found.items()}, 0.0, 0
        second = [each for each in queue if each.wave == SECOND]
        queue = [each for each in queue if each.wave != SECOND]
        slot = {id(each): float(at) for at, each in enumerate(queue)}
        squares, df = 0.0, 0
        for epoch in {each.epoch for each in queue}:
            parts = _parts([each for each in queue if each.epoch == epoch], slot)
            points = [_baselines(part, slot) for part in parts]
            if not points:
                continue
            slope, levels, residuals, left = common_slope(points)
            squares, df = squares + residuals, df + left
            spread = sum(float(np.sum((x - x.mean()) ** 2)) for x, _ in points)
            beside = [
                (np.array([slot[id(e)] for e in own]), np.array([e.value for e in own]))
                for part in parts
                for wave in {e.wave for e in part}
                if (own := [e for e in part if e.wave == wave and e.name != BASELINE])
            ]
            told = [x for x, _ in points]
            if sum(len(x) for x, _ in beside) >= 10:
                slope, spread = slope_of_all(points, beside, slope)
                told += [x for x, _ in beside]
            first, last = (float(end(np.concatenate(told))) for end in (np.min, np.max))
            for part, (x, _), level in zip(parts, points, levels, strict=True):
                for each in part:
                    if each.name != BASELINE:
                        way = slot[id(each)] - float(x.mean())
                        # a line is level past the jobs that tell it
                        on = min(max(slot[id(each)], first), last) - float(x.mean())
                        value = each.value - (level + slope * on)
                        variance = 1 + 1 / len(x) + (way**2 / spread if spread else 0.0)
                        found[each.name].append(Estimate(value=value, variance=variance))
        once = {name: combined(each) for name, each in found.items()}
        return once | ran_twice([(e.epoch, e.name, e.value) for e in second], once), squares, df

    @property
    def screened(self) -> Mapping[str, Estimate]:
        return self._screen[0]

    @cached_property
    def slower_slots(self) -> Mapping[int, float]:
        """By number the slots that are slower than the others, by what change."""
        dropped = {e.name for e in self.jobs if e.result["status"] == "dropped"}
        own = [e for e in self.jobs if e.study == "tuning" and e.score and e.name not in dropped]
        arms = {BASELINE, *(e.name for e in own if e.block)}
        found = slower([(e.slot, e.name, e.value) for e in own if e.name in arms])
        return {at: found[each] for at, each in enumerate(self.slots, 1) if each in found}

    @cached_property
    def left_slots(self) -> frozenset[str]:
        """The slots with a trial that could not be measured there."""
        every = [*self.as_recorded, *self._fallen]
        return frozenset(e.slot for e in every if e.result["status"] == "unmeasured")

    @property
    def misplaced(self) -> list[str]:
        """What of the plan lies where the rules of node slots do not put it."""
        if not self.slots:
            return []
        return misplaced(self.planned, self.standing, ran=self._ran, dead=self.left_slots)

    # -- the blocks ------------------------------------------------------------------------------

    @cached_property
    def fit(self) -> Fit | None:
        """Least squares of block and arm effects; None where nothing was confirmed."""
        return self._fit("confirm")

    @cached_property
    def whole_fit(self) -> Fit | None:
        """The same with the spare blocks, which bound and rank."""
        return self._fit("confirm", "spare")

    def _fit(self, *stages: str) -> Fit | None:
        dropped = {e.name for e in self.jobs if e.result["status"] == "dropped"}
        confirming = [e for e in self.jobs if e.study == "tuning" and e.stage in stages]
        own = [e for e in confirming if e.score and e.name not in dropped]
        arms = sorted({e.name for e in own} - {BASELINE})
        if not arms:
            return None
        blocks = sorted({(e.ran_in, e.epoch) for e in own}, key=str)
        design = np.zeros((len(own), len(arms) + len(blocks)))
        for at, each in enumerate(own):
            design[at, len(arms) + blocks.index((each.ran_in, each.epoch))] = 1
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
        cells = Counter(((e.ran_in, e.epoch), e.name) for e in own)
        controls = {cells[block, BASELINE] for block in blocks}
        last = max(e.block for e in confirming)
        kept = {e.name for e in confirming if e.block == last} - {BASELINE} - dropped
        whole = {
            name
            for name in kept
            if len(controls) == 1 and all(cells[block, name] == 1 for block in blocks)
        }
        critical = {
            (name, size): dunnett(size, df, weight=max(controls))
            if name in whole
            else t_quantile(1 - ALPHA / size, df)
            for name in kept
            for size in range(1, family + 1)
        }
        alone = {
            name: excess
            for name in arms
            if (excess := _own_noise([e for e in own if e.name == name], own, blocks)) is not None
        }
        critical |= {
            (name, size): dunnett(size, min(df, 10), weight=max(controls))
            if name in whole
            else t_quantile(1 - ALPHA / size, min(df, 10))
            for name in kept & alone.keys()
            for size in range(1, family + 1)
        }
        freedom = {name: min(df, 10) if name in alone else df for name in kept}
        ends = {
            name: [
                dunnett(family, freedom[name], weight=max(controls), alpha=share)
                if name in whole
                else t_quantile(1 - share / family, freedom[name])
                for share in (0.0125, 0.025)
            ]
            for name in kept
        }
        methods = {
            name: f"{'Dunnett' if name in whole else 'Bonferroni, cells missing'}, K={family}, "
            f"{len(blocks)} blocks, {sum(e.name == BASELINE for e in own)} baselines, "
            f"alpha {ALPHA:g}{', its own noise' if name in alone else ''}"
            for name in kept
        }
        return Fit(
            arms=found,
            kept=frozenset(kept & found.keys()),
            family=family,
            sigma=sigma,
            df=df,
            criticals=critical,
            methods=methods,
            selected={name: (low, likely) for name, (low, likely) in ends.items()},
            alone={
                name: max(sigma * math.sqrt(found[name].variance), error)
                for name, error in alone.items()
                if name in found
            },
        )

    # -- what is said of each profile ------------------------------------------------------------

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        found = {name: self._row(name) for name in self.profiles}
        base = self._baseline()
        with_lost = {name: replace(row, lost=self._lost(name)) for name, row in found.items()}
        return {
            BASELINE: base,
            **{name: _at_level(row, base) for name, row in with_lost.items()},
        }

    def _lost(self, name: str) -> tuple[int, ...]:
        over = [e for e in self.of(name, "confirm") if e.result["status"] != "running"]
        missing = sum(e.score is None for e in over)
        return (missing, len(over)) if missing else ()

    @property
    def verdicts(self) -> Mapping[str, Row]:
        return {name: row for name, row in self.rows.items() if name != BASELINE}

    @cached_property
    def winner(self) -> str:
        return self.recipe.arm if self.recipe else ""

    @cached_property
    def recipe(self) -> Recipes | None:
        """What is recommended; None before the blocks."""
        scores: dict[str, dict[Any, float]] = defaultdict(dict)
        for each in self.jobs:
            if each.study == "tuning" and each.stage == "confirm" and each.score:
                scores[each.name][each.ran_in, each.epoch] = each.value
        rows = self.verdicts
        if self.fit is None:
            return None
        return Recipes(
            sets={name: settings_of(each) for name, each in self.profiles.items()},
            kinds={name: row.kind for name, row in rows.items()},
            deltas={
                name: row.delta or 0.0
                for name, row in rows.items()
                if row.kind == "FASTER" and not self.profiles[name].get("is_control")
            },
            scores=scores,
            fit=self.fit,
        )

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
                reason = in_words(each.result["reason"])
                return Row(kind="INVALID", can_run=False, reason=reason, jobs=ids)
        scored = [e for e in every if e.score]
        if any(self._other_loss(e.score) for e in scored):
            return _measured(scored, kind="INVALID")
        fit = self.fit
        if confirmed and fit is not None and name in fit.kept:
            kind = self._kind(name)
            likely = fit.likely(name) if kind == "FASTER" else None
            # all that was run of it tells its figures, spare blocks too; they decide nothing
            own = self.of(name, "confirm", "spare")
            has_spare = any(e.stage == "spare" and e.score for e in own)
            of_all = self.whole_fit if has_spare and self.whole_fit else fit
            low, high = fit.told(name) if kind == "FASTER" else of_all.interval(name)
            return replace(
                _measured([e for e in own if e.score], kind=kind),
                delta=math.expm1(of_all.arms[name].value),
                ci95=(math.expm1(low), math.expm1(high)),
                mde80=fit.mde80(name),
                likely=likely
                and (math.expm1(likely[0]), math.expm1(likely[1]), math.expm1(likely[2])),
            )
        if not scored:
            is_over = any(e.result["status"] != "running" for e in every)
            return Row(kind="INVALID" if is_over else "not measured yet", jobs=ids)
        row = _measured(scored, kind="SCREENED")
        ways = [self.screened[name]] if name in self.screened else []
        fit = self.whole_fit
        ways += [fit.arms[name]] if fit is not None and name in fit.arms else []
        return replace(row, delta=math.expm1(combined(ways).value))

    def _other_loss(self, score: Score | None) -> bool:
        losses = [e.score.loss for e in self.of(BASELINE) if e.score and e.score.loss is not None]
        if score is None or score.loss is None or not losses:
            return False
        usual = median(losses)
        return not abs(score.loss - usual) <= self.declared["loss_tolerance"] * abs(usual)

    def _kind(self, name: str) -> str:
        fit, margin = self.fit, LEVEL
        if fit is None or len([e for e in self.of(name, "confirm") if e.score]) < 2:
            return "INCONCLUSIVE"
        if name in fit.winners(ALIAS):
            is_doubtful = self._hides_stragglers(name) or self._is_of_survivors(name)
            return "INCONCLUSIVE" if is_doubtful else "FASTER"
        if fit.upper(name) < 0:
            return "SLOWER"
        low, high = fit.interval(name, 0.90)
        is_same = math.log1p(-margin) < low and high < math.log1p(margin)
        return "EQUIVALENT" if is_same else "INCONCLUSIVE"

    def _is_of_survivors(self, name: str) -> bool:
        """Whether it lost runs, and more than the baselines, or has less than three left."""
        lost, over = self._lost(name) or (0, 0)
        base = self._lost(BASELINE) or (0, len(self.of(BASELINE, "confirm")))
        table = np.array([[lost, over - lost], [base[0], base[1] - base[0]]])
        p = float(scipy.stats.fisher_exact(table, alternative="greater").pvalue) if lost else 1.0
        return lost > 0 and (p < 0.20 or over - lost < 3)

    def _hides_stragglers(self, name: str) -> bool:
        """Whether slow steps that the score leaves out are more, and cost more than the gain."""
        fit = self.fit
        counts, costs = [], []
        for who in (name, BASELINE):
            scores = [e.score for e in self.of(who, "screen", "confirm") if e.score]
            slow = sum(s.stragglers for s in scores)
            counts.append([slow, sum(s.n_steps + len(s.dropped) for s in scores) - slow])
            costs.append([s.value - math.log(s.window_tgs or math.nan) for s in scores])
        p = float(scipy.stats.fisher_exact(np.array(counts), alternative="greater").pvalue)
        extra = fmean(costs[0]) - fmean(costs[1])
        return fit is not None and p < 0.02 and not fit.lower(name) > extra

    # -- what the sweep could see ----------------------------------------------------------------

    @cached_property
    def sigma(self) -> float | None:
        _, squares, df = self._screen
        if self.fit is not None and self.fit.df >= ENOUGH_DF:
            return self.fit.sigma
        return math.sqrt(squares / df) if df else None

    @cached_property
    def bound(self) -> float | None:
        """M: the largest of what each profile may be worth, at 95 %; None where nothing is told."""
        standings, squares, df = self._screen
        fit = self.whole_fit
        if fit is None or self.winner:
            return None
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
        reach = t_quantile(0.975, df) * math.sqrt(squares / df)
        highest = []
        for name in self.profiles:
            row = self.rows[name]
            if row.kind == "INVALID" and (not row.can_run or row.n):
                continue
            ways = [standings[name]] if name in standings else []
            if name in fit.arms:
                ways.append(combined([*ways, fit.arms[name]]))
            if not ways:  # it could run, and has no score
                return None
            most = min(each.value + reach * math.sqrt(each.variance) for each in ways)
            # what the page shows of it is not excluded
            shown = math.log1p(row.ci95[1] if row.ci95 else row.delta or 0.0)
            highest.append(shown if row.ci95 else max(most, shown))
        return math.expm1(max(highest))

    @cached_property
    def outlook(self) -> Planned | None:
        """What is planned; None once it is measured, and where the sweep only ranks."""
        _, squares, df = self._screen
        seen = math.sqrt(squares / df) if df else None
        return None if self.fit else planned(self.declared, seen, slots=len(self.slots) or 1)

    @cached_property
    def mde80(self) -> float | None:
        if self.fit is None:
            return self.outlook.mde80 if self.outlook else None
        return max(map(self.fit.mde80, self.fit.kept))

    @cached_property
    def from_start80(self) -> float | None:
        """What the whole sweep finds with 80 % power, selection included."""
        if self.fit is None:
            return self.outlook.from_start if self.outlook else None
        first = [t for t in self.standing.values() if t["stage"] == "confirm"]
        blocks: dict[int, list[str]] = defaultdict(list)
        for each in first:
            blocks[each["block"]].append(each["arm"])
        widths = [len({*own} - {BASELINE}) for _, own in sorted(blocks.items())]
        found = from_start80(
            max(len(self.screened), widths[0]),
            widths,
            blocks[1].count(BASELINE),
            self.fit.sigma,
            again=sum(t["stage"] == SECOND for t in self.standing.values()),
        )
        return max(found, self.mde80 or 0.0)

    @property
    def stopping(self) -> Sequence[str]:
        """The profiles that reach the rule for stopping: +5 %, and +4 % excluded from below."""
        fit = self.fit
        return [
            name
            for name in (fit.kept if fit else ())
            if fit is not None
            and name != ALIAS
            and math.expm1(fit.arms[name].value) >= STOP_ESTIMATE
            and math.expm1(fit.lower(name)) >= STOP_LEAST
        ]

    @property
    def alpha_spent(self) -> float:
        return ALPHA if any(t["stage"] == "confirm" for t in self.planned.values()) else 0.0


def _own_noise(
    own: Sequence[Job], every: Sequence[Job], blocks: Sequence[tuple[int, int]]
) -> float | None:
    """The standard error of an arm by its own block differences, where it is far noisier."""
    where = [(each.ran_in, each.epoch) for each in every]
    beside = {
        block: [e.value for e, at in zip(every, where, strict=True)
                if at == block and e.name == BASELINE]
        for block in blocks
    }  # fmt: skip
    pairs = [(each.value, beside[each.ran_in, each.epoch]) for each in own]
    pairs = [pair for pair in pairs if pair[1]]
    rest = [(e, at) for e, at in zip(every, where, strict=True) if e.name != own[0].name]
    arms = sorted({each.name for each, _ in rest} - {BASELINE})
    design = np.zeros((len(rest), len(arms) + len(blocks)))
    for at, (each, block) in enumerate(rest):
        design[at, len(arms) + blocks.index(block)] = 1
        if each.name != BASELINE:
            design[at, arms.index(each.name)] = 1
    values = np.array([each.value for each, _ in rest])
    effects, _, rank, _ = np.linalg.lstsq(design, values - values.mean(), rcond=None)
    df = len(rest) - int(rank)
    if len(pairs) < 3 or df < 4:
        return None
    left = float(np.sum((values - values.mean() - design @ effects) ** 2)) / df
    varies = float(np.var([value - fmean(near) for value, near in pairs], ddof=1))
    of_one = fmean(1 + 1 / len(near) for _, near in pairs)
    return math.sqrt(varies / len(pairs)) if varies / of_one > 3.0 * left > 0 else None


def _baselines(jobs: Iterable[Job], slot: Mapping[int, float]) -> tuple[Any, Any]:
    own = [each for each in jobs if each.name == BASELINE]
    return np.array([slot[id(each)] for each in own]), np.array([each.value for each in own])


def _parts(queue: Sequence[Job], slot: Mapping[int, float]) -> list[list[Job]]:
    """The trials of an epoch on one line each: a wave long after the others may stand apart."""
    starts = [float(each.result["outcome"]["start_s"]) for each in queue]
    gaps = [after - before for before, after in pairwise(starts)]
    parts: list[list[Job]] = [[]]
    sessions: list[list[Job]] = [[]]
    for at, each in enumerate(queue):
        is_late = at > 0 and len(queue) >= 4 and gaps[at - 1] > 4 * median(gaps)
        if is_late and each.wave != queue[at - 1].wave:
            sessions.append([])
        sessions[-1].append(each)
    for session in sessions:
        if parts[-1] and is_apart(_baselines(parts[-1], slot), _baselines(session, slot)):
            parts.append([])
        parts[-1] += session
    return [part for part in parts if len(_baselines(part, slot)[0])]


def _job(result: Mapping[str, Any]) -> Job:
    trial = result["trial"]
    score = Score.from_json(dict(result["score"])) if result["score"] else None
    is_usable = score is not None and result["status"] == "measured" and math.isfinite(score.value)
    return Job(
        study=trial["study"],
        profile=trial["profile"],
        stage=_stage(trial),
        wave=trial["stage"],
        slot=trial["cell_digest"],
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
    if (trial["design"] or {}).get("look") == 3:
        return "spare"
    return "confirm" if trial["block"] else "screen"


def _at_level(row: Row, base: Row) -> Row:
    """The figures of a row at the level of the baseline's: what is beside a change agrees."""
    if row.delta is None or row.tgs is None or not base.tgs:
        return row
    tgs = base.tgs * (1 + row.delta)
    return replace(row, tgs=tgs, step_s=(row.step_s or 0.0) * row.tgs / tgs)


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
