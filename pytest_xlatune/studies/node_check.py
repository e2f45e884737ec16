"""Find slow nodes: run a job on every node at once, then the slow ones again beside controls.

An arm is a node: the cell on that node alone. The first run of a node only chooses the suspects;
fresh runs side by side decide. A node that cannot run the load is an answer too, and the study goes
on. docs/how-to/studies.md describes the study.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median, stdev
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, at_most, say, verbatim
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.result import (
    CellsRecord,
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import ITS_FIRST_RUN, ITS_FIRST_RUN_AGAIN, RUN_AGAIN
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_group
from pytest_xlatune.stats.compare import NoComparison, compare
from pytest_xlatune.stats.paired_runs import spread_of
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, History, Traits
from pytest_xlatune.studies.cell_arms import (
    LEVEL,
    CellArms,
    CellProgress,
    DeclaredCells,
    decided,
    dropped,
    is_excused,
    not_accused,
    summary_sentence,
    undecided,
    within_spread,
    worst_first,
)
from pytest_xlatune.studies.trials import first_loss, losses_of, median_loss, usable
from pytest_xlatune.studies.verdicts import (
    NOT_FINITE,
    as_screened,
    at_level,
    relative_to,
    verdict_with_figures,
    with_change,
    with_figures,
)

_ALL_NODES_FAIL = "more nodes failed than were measured: look at the load and what the nodes share"

KIND = "nodes"
# file in the work directory with the nodes that are recommended
HEALTHY_FILE = "healthy.nodes"
MEDIAN = "the median node"

LOSS_AT = math.log1p(-0.02)  # the smallest loss that matters, as a log ratio
LARGE_LOSS_AT = math.log1p(-0.05)  # if such a loss is possible, the node is not cleared
# A node runs again if its first run is below the median by both limits: standard deviations, and a
# log ratio. Single runs accuse no node: with a limit of -2 %, a node would be accused in 63 % of
# simulated checks of 32 healthy nodes, if 3 % of the jobs are bad.
SUSPECT_SIGMAS, SUSPECT_AT = 2.0, 0.01
MIN_SUSPECTS, SHARE = 3, 4  # at most a fourth of the nodes, or three if that is more, run again
CONTROLS = 4  # nodes near the median that run beside the suspects
MIN_NODES = 3  # with fewer scored nodes there is no median to compare with
MIN_ROUNDS = 2  # fewest rounds of fresh runs
ALPHA = 0.05  # risk of a false accusation, over all suspects
# A node scatters if the standard deviation of its log scores is above both limits: a multiple of
# that of all others, and a figure.
SCATTER = 3.0
SCATTER_AT = 0.005
# fewest fresh runs of the node, and degrees of freedom of the others, to compare their spread
_LEAST_RUNS, _LEAST_OTHERS_DF = 3, 4
SCREEN, ROUND = "screen", "round"


class NodesRecord(CellsRecord, frozen=True, kw_only=True):
    """The result of a node study besides its verdicts; `files` holds the recommended nodes."""

    kind: ClassVar[str] = KIND


class Nodes(DeclaredCells, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Nodes())`. It runs on the pinned nodes.

    Attributes:
        rounds: number of fresh runs of each suspect, beside the controls.
        reference_tgs: Tokens/s/device of a healthy node, from an earlier check of the same cell;
            None compares nodes only with the median of this check.
        floor_tgs: the report names the nodes below this many Tokens/s/device; None names none.
    """

    kind: ClassVar[str] = KIND
    positive: ClassVar[tuple[str, ...]] = ("reference_tgs", "floor_tgs")
    # A node that is 3 % slow, among bad jobs, is found in 55 % of checks with 4 rounds and in 73 %
    # with 8 (python benchmarks/node_rates.py).
    rounds: int = 4
    reference_tgs: Real | None = None
    floor_tgs: Real | None = None

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS:
            raise ConfigError(f"nodes: {self.rounds} rounds, expected at least {MIN_ROUNDS} rounds")
        super().__post_init__()

    def study(self, asked: Asked) -> NodeStudy:
        """Return the study of the pinned nodes, each alone."""
        return NodeStudy(
            cells=tuple(replace(asked.cell, nodelist=(node,)) for node in asked.cell.nodelist),
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )


class _NodeProgress(CellProgress["NodeStudy"]):
    """The progress of a check, and what it shows. Nodes are given by the ids of their arms.

    Attributes:
        is_screened: whether every node has had its first run.
        suspects: the nodes that run again; () if there are none.
        controls: the nodes that run beside the suspects.
        rounds: how many rounds have begun.
        screen: the first trial of each node.
        first: the results of these, as far as they exist.
        values: node -> log score of its first run.
        level: median of these values; NaN if there are none.
        sigma: robust spread of these values; NaN if there are none.
        is_common: whether so many nodes failed that the cause is shared, and no node is at fault.
        low: the nodes below the limit, the slowest first.
        nearest: the other nodes, those closest to the median first.
        shift: log ratio of the median to the reference; None without a reference.
    """

    is_screened = False
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    rounds = 0

    def __init__(self, study: NodeStudy, history: History) -> None:
        super().__init__(study, history)
        self.screen = [study.trial_of(arm, SCREEN) for arm in study.all_arms]
        self.first = self.results_of(self.screen)
        scores = {result.trial.arm: usable(result) for result in self.first}
        self.values = {name: score.value for name, score in scores.items() if score}
        self.level = median(self.values.values()) if self.values else math.nan
        self.sigma = spread_of([*self.values.values()]) if self.values else math.nan
        failed = sum(result.status.is_final and usable(result) is None for result in self.first)
        self.is_common = failed > len(self.values) or len(self.values) < MIN_NODES
        with_fault = {
            result.trial.arm
            for result in self.first
            if _log_lines([result], FailureClass.NODE_FAULT)
        }
        limit = self.level - max(SUSPECT_SIGMAS * self.sigma, SUSPECT_AT)
        values = {name: value for name, value in self.values.items() if name not in with_fault}
        by_speed = sorted(values, key=lambda name: (values[name], name))
        self.low = [name for name in by_speed if values[name] < limit]
        good = (name for name in values if name not in self.low)
        self.nearest = sorted(good, key=lambda name: (abs(values[name] - self.level), name))
        reference = study.asked.reference_tgs
        self.shift = self.level - math.log(reference) if reference and self.values else None

    def run_stages(self) -> None:
        study = self.study
        self.stage_results(self.screen)
        self.is_screened = True
        if self.is_common or not self.low:
            return
        self.suspects = tuple(self.low[: study.most_suspects])
        self.controls = tuple(self.nearest[:CONTROLS])
        names = [*self.suspects, *self.controls]
        # a node that failed in a round enters no later one
        while self.rounds < study.asked.rounds and {*names} & {*self.suspects}:
            self.rounds += 1
            arms = [arm for arm in study.all_arms if arm.id in names]
            trials = study.block(ROUND, self.rounds, arms)
            results = self.stage_results(
                trials, later=(study.asked.rounds - self.rounds) * len(trials)
            )
            names = [
                result.trial.arm
                for result in results
                if usable(result) and not _log_lines([result], FailureClass.NODE_FAULT)
            ]

    @cached_property
    def fresh(self) -> tuple[BlockScore, ...]:
        """The scores of the rounds; a node that was repaired counts only after its repair."""
        scores = []
        for runs in self.by_arm.values():
            last_epoch = max((run.epoch for run in runs), default=0)
            for result in runs:
                score = usable(result)
                if result.trial.block and score and result.epoch == last_epoch:
                    trial = result.trial
                    scores.append(BlockScore(block=trial.block, arm=trial.arm, value=score.value))
        return tuple(scores)

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares over the rounds against the controls; None if none has a score."""
        return fit_group(self.fresh, controls=self.controls)

    def conclusion(self) -> Conclusion:
        study, reference = self.study, self._median_line()
        verdicts = worst_first(relative_to(self._verdict(name), reference) for name in self.by_arm)
        names = [cell.nodelist[0] for cell in study.cells]
        good = {verdict.arm for verdict in verdicts if verdict.kind in LEVEL and self.is_over}
        healthy = tuple(name for name in names if name.lower() in good)
        answer = summary_sentence(verdicts) if self.is_screened else say("no verdict yet")
        summary = (
            say("{nodes:+node}: {answer}", nodes=len(names), answer=answer),
            say("recommended: {nodes:,}", nodes=healthy or ("none",)),
        )
        listed = f"# {len(healthy)} of {counted(len(names), 'node')}\n{','.join(healthy)}\n"
        sigma = self.sigma if self.values else None
        if self.fit is not None and math.isfinite(self.fit.sigma):
            sigma = self.fit.sigma
        record = NodesRecord(
            sigma=sigma,
            summary=summary,
            objection=summary if self.is_screened and not healthy else (),
            files={HEALTHY_FILE: listed} if healthy else {},
        )
        alpha, notes = ALPHA if self.rounds else 0.0, self._notes(verdicts)
        return self.concluded(verdicts, record, alpha=alpha, notes=notes, reference=reference)

    def _median_line(self) -> Verdict | None:
        """Return the line of the median node; None before any node has a score."""
        if not self.values:
            return None
        scored = [result for result in self.first if usable(result)]
        line = with_figures(Verdict(arm=MEDIAN, kind=VerdictKind.EQUIVALENT, delta=0.0), scored)
        line = at_level(line, self.level)
        return replace(line, job_ids=(), step_s=None, method=say("the median of the first runs"))

    def _verdict(self, name: str) -> Verdict:
        """Return the verdict on a node: by its runs, then by its own log."""
        runs = self.by_arm[name]
        base = replace(verdict_with_figures(name, runs), against=say(MEDIAN))
        verdict = self._verdict_by_runs(base, runs)
        if faults := _log_lines(runs, FailureClass.NODE_FAULT):
            verdict = dropped(verdict, say("its own log: {lines: | }", lines=at_most(3, faults)))
        if lines := _log_lines(runs, FailureClass.NODE_SAID):
            from_log = say("its own log says: {lines: | }", lines=at_most(3, lines))
            verdict = replace(verdict, reasons=(*verdict.reasons, from_log))
        return verdict

    def _verdict_by_runs(self, base: Verdict, runs: Sequence[TrialResult]) -> Verdict:
        over, name = [result for result in runs if result.status.is_final], base.arm
        if not over:
            return base
        if name in self.values:
            base = with_change(base, self.values[name] - self.level)
        if lost := [result for result in over if usable(result) is None]:
            return self._verdict_with_lost_runs(base, lost, runs=len(runs))
        if another_loss := self._another_loss(over):
            return dropped(base, another_loss)
        if not self.is_screened:
            return as_screened(base, say(ITS_FIRST_RUN))
        if self.is_common:
            return undecided(base, say(_ALL_NODES_FAIL))
        if name in self.suspects:
            base = self._verdict_on_suspect(base, n=len(over))
        elif name in self.low:
            text = "low in its first run; {low} of {nodes:+node} are, and {most} run again at most"
            counts = {"low": len(self.low), "nodes": len(self.values)}
            return undecided(base, say(text, most=self.study.most_suspects, **counts))
        else:
            change = self.values[name] - self.level
            base = within_spread(base, change, sigma=self.sigma, n=len(self.values))
            base = replace(base, method=say("first runs of all nodes, noise from their spread"))
            base = not_accused(base, say("not low in its first run"))
        is_level = base.kind in LEVEL and self.is_over
        if is_level and self.shift is not None and self.shift <= LOSS_AT:
            text = "all are slow, or the load changed: {shift:percent} from {reference:g} TGS"
            return undecided(base, say(text, **self._reference))
        return base

    @property
    def _reference(self) -> Mapping[str, float | None]:
        return {"shift": relative(self.shift or 0.0), "reference": self.study.asked.reference_tgs}

    def _verdict_with_lost_runs(
        self, base: Verdict, lost: Sequence[TrialResult], *, runs: int
    ) -> Verdict:
        """Return the verdict on a node of whose runs some have no score."""
        why = lost[0].reason or NOT_FINITE
        if self.is_common and not lost[0].trial.block:
            return undecided(base, say("{reasons:; }", reasons=(why, say(_ALL_NODES_FAIL))))
        blamed = next((result for result in lost if not is_excused(result)), None)
        if blamed is None:
            return undecided(base, say(RUN_AGAIN, why=why))
        text = "{failed} of {runs:+run} failed: {why}"
        return dropped(base, say(text, failed=len(lost), runs=runs, why=blamed.reason or why))

    def _another_loss(self, scored: Sequence[TrialResult]) -> Message | None:
        """Return how the loss of a node differs from the median loss; None if it does not."""
        results = [result for runs in self.by_arm.values() for result in runs]
        usual, tolerance = median_loss(results), self.study.loss_tolerance
        if usual is None or len(self.values) < MIN_NODES:
            return None
        for loss in losses_of(scored):
            if different_loss(loss, usual, tolerance=tolerance, first=first_loss(results)):
                text = "it computes something else: its loss is {loss:.6g}, the median {median:.6g}"
                return say(text, loss=loss, median=usual)
        return None

    def _verdict_on_suspect(self, base: Verdict, *, n: int) -> Verdict:
        """Return the verdict on a node that ran again, `n` times in all."""
        if not self.is_over:
            return as_screened(base, say(ITS_FIRST_RUN_AGAIN))
        if self.fit is None:
            why = say("no control beside it has a score: more nodes are low than are not")
            return undecided(base, why)
        pair = compare(self.fit, base.arm, family=len(self.suspects), alpha=ALPHA)
        if isinstance(pair, NoComparison):
            return undecided(base, pair.reason)
        text = "{rounds} rounds beside {controls:+control}"
        method = say(text, rounds=self.fit.n_blocks, controls=len(self.controls))
        base = with_change(base, pair.estimate, pair.ci95)
        base = replace(base, n=n, mde80=relative(pair.mde80), method=method)
        # healthy nodes differ permanently by 0.2 to 0.5 %, so a bound just below zero is no fault
        upper = 2 * pair.estimate - pair.lower
        low, high = pair.ci95
        if upper < LOSS_AT:
            text = "a loss of {loss:size} or more, 95 % over all suspects"
            return decided(base, VerdictKind.SLOWER, say(text, loss=-relative(upper)))
        if pair.estimate < LOSS_AT or (low < LARGE_LOSS_AT and high > LOSS_AT):
            text = "a loss of {loss:size} is neither shown nor excluded"
            return undecided(base, say(text, loss=-relative(LOSS_AT)))
        return not_accused(base, say("low in its first run, not when run again beside controls"))

    def _notes(self, verdicts: Sequence[Verdict]) -> Iterator[Message]:
        yield from self._unread_logs()
        if not self.is_screened:
            return
        if self.is_common:
            yield say(_ALL_NODES_FAIL)
            return
        text = "first runs of nodes differ by {sigma:.2%} (one sigma); 0.2 to 0.5 % is no fault"
        yield say(text, sigma=self.sigma)
        if len(self.low) > len(self.suspects):
            text = "{low} of {nodes:+node} are low: do not trust the median, give reference_tgs="
            yield say(text, low=len(self.low), nodes=len(self.values))
        if self.shift is None:
            yield say("if most nodes are equally slow, only a reference shows it")
        else:
            text = "the median node is {shift:percent} from the reference of {reference:g} TGS"
            yield say(text, **self._reference)
        floor = self.study.asked.floor_tgs or 0.0
        for verdict in verdicts:
            if verdict.tgs is not None and verdict.tgs < floor:
                text = "{node} is below the floor of {floor:g} TGS: {tgs:.1f} TGS in {runs:+run}"
                yield say(text, node=verdict.arm, floor=floor, tgs=verdict.tgs, runs=verdict.n)
        if self.is_over:
            yield from filter(None, map(self._scatter, self.suspects))

    def _scatter(self, name: str) -> Message | None:
        """Return a note if the fresh runs of a node spread far more than those of all others.

        Both spreads are standard deviations of a job, without differences between nodes and rounds.
        """
        others = [score for score in self.fresh if score.arm != name]
        block_means = {
            score.block: fmean(other.value for other in others if other.block == score.block)
            for score in others
        }
        differences = [
            score.value - block_means[score.block]
            for score in self.fresh
            if score.arm == name and score.block in block_means
        ]
        # any of the others serves as control
        fit = fit_group(others, controls={score.arm for score in others[:1]})
        if len(differences) < _LEAST_RUNS or fit is None or fit.df < _LEAST_OTHERS_DF:
            return None
        if stdev(differences) <= max(SCATTER * fit.sigma, SCATTER_AT):
            return None
        text = "the runs of {node} scatter: {own:.2%} (one sigma), all others {others:.2%}"
        return say(text, node=name, own=stdev(differences), others=fit.sigma)

    def _unread_logs(self) -> Iterator[Message]:
        nodes: dict[str, list[str]] = {}
        for name, runs in self.by_arm.items():
            for why in _log_lines(runs, FailureClass.NODE_UNASKED):
                nodes.setdefault(why, []).append(name)
        text = "the own log of {nodes} is not known: {why}; the verdict depends on runs alone"
        for why, names in nodes.items():
            yield say(text, nodes=at_most(3, names), why=verbatim(why))


class NodeStudy(CellArms, frozen=True, kw_only=True, dict=True):
    """One check of nodes; its cells are the load on each node alone."""

    progress_class = _NodeProgress
    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES, cell_nodes=1)
    cells: tuple[Cell, ...]
    asked: Nodes = Nodes()
    seed: int = 0
    loss_tolerance: Real = 0.02

    def __post_init__(self) -> None:
        names = [cell.nodelist[0] for cell in self.cells if len(cell.nodelist) == 1]
        self.refuse_nodes(names, least=MIN_NODES)
        what = f"{len(names)} nodes need up to {self.most_jobs} jobs"
        self.refuse_budget(what, least=self.most_jobs, most=self.most_jobs)

    @property
    def most_suspects(self) -> int:
        """How many nodes are run again at most."""
        return max(MIN_SUSPECTS, len(self.cells) // SHARE)

    @property
    def most_jobs(self) -> int:
        """How many jobs the study takes if as many nodes as possible run again."""
        again = min(self.most_suspects + CONTROLS, len(self.cells))
        return len(self.cells) + self.asked.rounds * again

    @property
    def ids(self) -> Sequence[str]:
        """The names of the nodes in lower case, in the order of the node list."""
        return [cell.nodelist[0].lower() for cell in self.cells]

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study: jobs and waves."""
        first = say("{nodes} jobs, one on each node, all at once", nodes=len(self.cells))
        text = (
            "then {rounds} rounds of the suspects (at most {suspects}) and {controls} "
            "controls: at most {jobs} jobs in {waves} waves"
        )
        again = say(
            text,
            rounds=self.asked.rounds,
            suspects=self.most_suspects,
            controls=CONTROLS,
            jobs=self.most_jobs,
            waves=1 + self.asked.rounds,
        )
        return first, again

    def place_of(self, trial: Trial) -> Message | None:
        """Return the place of a run: `first run of 32 nodes`, then e.g. `round 2 of 4`."""
        if trial.stage == SCREEN:
            return say("first run of {nodes} nodes", nodes=len(self.cells))
        text = "round {round} of {rounds}, suspects and controls"
        return say(text, round=trial.block, rounds=self.asked.rounds)


def _log_lines(results: Sequence[TrialResult], cls: FailureClass) -> tuple[str, ...]:
    """Return the lines of a failure class from the nodes' own logs, each once."""
    lines = (
        finding.text
        for result in results
        for finding in result.findings
        if finding.cls == cls and finding.source.lower() in ("", result.trial.arm)
    )
    return tuple(dict.fromkeys(lines))
