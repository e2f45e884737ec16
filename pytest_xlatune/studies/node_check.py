"""Which nodes are slow: a job on every node at once, what looks slow again beside controls.

An arm is a node: the cell on that node alone. The first run of a node only chooses the
suspects; fresh runs side by side carry an accusation. A node that cannot run the load is an answer
too, and the study goes on. The reference note is docs/how-to/studies.md. This module must not know
of executors or logs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median, stdev
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, MessageCode, at_most, say, verbatim
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    Finding,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import ITS_FIRST_RUN, ITS_FIRST_RUN_AGAIN, RUN_AGAIN
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.beside import spread_of
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_group
from pytest_xlatune.stats.compare import NoComparison, compare
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    OnNodeFailure,
    Policy,
    Traits,
    name_of,
)
from pytest_xlatune.studies.cell_arms import (
    LEVEL,
    CellArms,
    CellWalk,
    decided,
    dropped,
    in_a_sentence,
    is_excused,
    not_accused,
    refuse_budget,
    refuse_nodes,
    refuse_unless_positive,
    undecided,
    worst_first,
)
from pytest_xlatune.studies.trials import first_loss, losses_of, median_loss, usable
from pytest_xlatune.studies.verdicts import (
    at_level,
    beside,
    changed,
    measured,
    screened,
    so_far,
    with_comparison,
)
from pytest_xlatune.studies.vetoes import NOT_FINITE

_ALL_NODES_FAIL = (
    "more nodes failed than were measured: look at the load, and at what the nodes share; no "
    "node is accused"
)

KIND = "nodes"
HEALTHY_FILE = "healthy.nodes"  # in the work directory; `--xlatune-nodelist=@healthy` reads it
MEDIAN = "the median node"

LOSS_AT = math.log1p(-0.02)  # a loss that counts
LARGE_LOSS_AT = math.log1p(-0.05)
# these only choose who runs again: by one run and -2 %, 63 % of simulated checks of 32 healthy
# nodes accused one, where 3 % of the jobs are bad
SUSPECT_SIGMAS, SUSPECT_AT = 2.0, 0.01  # below the median by both
MIN_SUSPECTS, SHARE = 3, 4  # suspects: a fourth of the nodes, three at least
MIN_NODES = 3
MIN_ROUNDS = 2
ALPHA = 0.05
SCATTER = 3.0  # times the spread of all others: a node's own runs scatter
SCATTER_AT = 0.005  # of them at least: where nothing varies, less means nothing
_OWN_RUNS, _REST_DF = 3, 4  # fresh runs of it, degrees of freedom of the others, at least
_MAD_DF = 0.37  # its efficiency there: degrees of freedom per further value
SCREEN, ROUND = "screen", "round"


class NodesRecord(CellsRecord, frozen=True, kw_only=True):
    """What a node study found besides its verdicts.

    Attributes:
        nodes: all that were asked about, by the names that Slurm knows.
        healthy: those that are recommended.
        suspects, controls: those that were run again, and those beside them.
        rounds: how often.
        shift: of the median node against the reference, a relative change; None without one.
        told: which nodes are slower, cannot run, or cannot be told.
    """

    kind: ClassVar[str] = KIND
    nodes: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    rounds: int = 0
    shift: Real | None = None
    told: Message | None = None

    @property
    def summary(self) -> tuple[Message, ...]:
        """Which nodes are slow, and which ones can be recommended."""
        good = say("{nodes:,}", nodes=self.healthy) if self.healthy else say("none")
        return (
            say(
                "{nodes:+node}: {told}",
                nodes=len(self.nodes),
                told=self.told or say("no verdict yet"),
            ),
            say("recommended: {nodes}", nodes=good),
        )

    @property
    def objection(self) -> tuple[Message, ...]:
        """That no node can be recommended, once all were run."""
        if self.healthy or self.told is None:
            return ()
        return (say("no node of {nodes} can be recommended", nodes=len(self.nodes)), *self.summary)

    @property
    def files(self) -> Mapping[str, str]:
        """The recommended nodes, as `--xlatune-nodelist=@healthy` reads them."""
        if not self.healthy:
            return {}
        count = f"{len(self.healthy)} of {counted(len(self.nodes), 'node')}"
        head = f"# {count}; a sweep takes them with --xlatune-nodelist=@healthy\n"
        return {HEALTHY_FILE: f"{head}{','.join(self.healthy)}\n"}


class Nodes(DeclaredStudy, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Nodes())`, and the nodes that it is run on.

    Attributes:
        rounds: fresh runs of each suspect, beside the controls.
        controls: nodes near the median that run beside the suspects.
        reference_tgs: Tokens/s/device of a healthy node, from an earlier check of the same cell;
            without it the median of these nodes is all that they are held against.
        reference: the path of an earlier check's `nodes.json`, in the place of `reference_tgs`: its
            median node, if its cell is this one on whatever nodes.
        floor_tgs: Tokens/s/device of which the report says which nodes are below; None is none.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key: what tells this check from the last one, e.g. a date: runs of another key are not used.
    """

    kind: ClassVar[str] = KIND
    # a node 3 % slow among bad jobs is found in 55 % of the checks with 4, in 73 % with 8
    # (python benchmarks/node_rates.py)
    rounds: int = 4
    controls: int = 4
    reference_tgs: Real | None = None
    reference: str = ""
    floor_tgs: Real | None = None
    peak_tflops: Real | None = None
    key: str = ""

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS or self.controls < 1:
            raise ConfigError(
                f"nodes: {self.rounds} rounds with {self.controls} controls, expected at least "
                f"{MIN_ROUNDS} rounds and 1 control; 4 and 4 have the error rates of "
                "docs/reference/error_rates.md"
            )
        refuse_unless_positive(
            "nodes",
            reference_tgs=self.reference_tgs,
            floor_tgs=self.floor_tgs,
            peak_tflops=self.peak_tflops,
        )
        if self.reference and self.reference_tgs is not None:
            raise ConfigError(
                f"nodes: reference={self.reference!r} and reference_tgs={self.reference_tgs:g} are "
                "both given; give one of them"
            )

    def study(self, asked: Asked) -> NodeStudy:
        """Return the study of the pinned nodes, each by itself.

        Raises:
            ConfigError: the earlier check cannot be read, or is of another cell.
        """
        if self.reference:
            tgs = asked.read_reference(self.reference)
            return replace(self, reference="", reference_tgs=tgs).study(asked)
        return NodeStudy(
            cells=tuple(replace(asked.cell, nodelist=(node,)) for node in asked.cell.nodelist),
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )


class NodeStudy(CellArms["NodeWalk"], frozen=True, kw_only=True, dict=True):
    """One check of nodes.

    Attributes:
        cells: the load on each node alone.
        asked: the demands.
        budget: jobs that it may cost.
        seed: of the random orders inside a round.
        loss_tolerance: relative distance from the other nodes' loss at which a node computes wrong.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES, cell_nodes=1)
    cells: tuple[Cell, ...]
    asked: Nodes = Nodes()
    budget: int = 50
    seed: int = 0
    loss_tolerance: Real = 0.02

    def __post_init__(self) -> None:
        found = [each.nodelist[0] for each in self.cells if len(each.nodelist) == 1]
        refuse_nodes(found, least=MIN_NODES, study="node")
        what = f"{len(found)} nodes need {len(found)} jobs to begin with"
        refuse_budget(what, budget=self.budget, least=len(found), most=self.most_jobs)

    @cached_property
    def name(self) -> str:
        """The study's word, and which check it is where that was said."""
        return name_of(KIND, *filter(None, [self.asked.key]))

    @property
    def policy(self) -> Policy:
        """A node that cannot run is an answer; all nodes compute the same."""
        return Policy(on_node_failure=OnNodeFailure.VERDICT, asks_nodes=True)

    @property
    def most_suspects(self) -> int:
        """How many nodes are run again at most."""
        return max(MIN_SUSPECTS, len(self.cells) // SHARE)

    @property
    def most_jobs(self) -> int:
        """What it costs where as many nodes as can be are run again."""
        return len(self.cells) + self.asked.rounds * (self.most_suspects + self.asked.controls)

    @property
    def ids(self) -> Sequence[str]:
        """The nodes, in the order of the node list."""
        return [each.nodelist[0].lower() for each in self.cells]

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it: jobs and waves."""
        nodes, asked = len(self.cells), self.asked
        return (
            say("{nodes} jobs, one on each node, all at once", nodes=nodes),
            say(
                "then {rounds} rounds of the suspects (at most {suspects}) and {controls} "
                "controls: at most {jobs} jobs in {waves} waves",
                rounds=asked.rounds,
                suspects=self.most_suspects,
                controls=asked.controls,
                jobs=min(self.most_jobs, self.budget),
                waves=1 + asked.rounds,
            ),
        )

    def begin(self, history: History) -> NodeWalk:
        """Return the walk before the first runs."""
        return NodeWalk(self, history)

    def place_of(self, trial: Trial) -> Message | None:
        """Return where a run stands: `first run of 32 nodes`, then `round 2 of 4`."""
        if trial.stage == SCREEN:
            return say("first run of {nodes} nodes", nodes=len(self.cells))
        return say(
            "round {round} of {rounds}, suspects and controls",
            round=trial.block,
            rounds=self.asked.rounds,
        )

    @cached_property
    def first_trials(self) -> tuple[Trial, ...]:
        """The first run of every node."""
        return tuple(self.trial_of(arm, SCREEN) for arm in self.every_arm)

    def round_of(self, number: int, names: Sequence[str]) -> tuple[Trial, ...]:
        """Return a round of these nodes."""
        return self.block(ROUND, number, (arm for arm in self.every_arm if arm.id in names))


class NodeWalk(CellWalk[NodeStudy]):
    """One check as far as it came, and what it shows."""

    is_screened = False  # whether the first run of every node is over
    suspects: tuple[str, ...] = ()  # the nodes that are run again
    controls: tuple[str, ...] = ()  # those beside them
    affordable = 0  # rounds that the budget allows
    rounds = 0  # those that were begun

    def walk(self) -> None:
        """Run every node once, then rounds of those that are low, beside controls."""
        study = self.study
        self.run(study.first_trials)
        self.is_screened = True
        if self.is_common or not self.low:
            return
        self.suspects = self.low[: study.most_suspects]
        self.controls = self._nearest_the_median()[: study.asked.controls]
        names = [*self.suspects, *self.controls]
        affordable = (study.budget - len(study.first_trials)) // len(names)
        self.affordable = 0 if affordable < MIN_ROUNDS else min(affordable, study.asked.rounds)
        # what failed in a round is in no later one
        while self.rounds < self.affordable and {*names} & {*self.suspects}:
            self.rounds += 1
            trials = study.round_of(self.rounds, names)
            ended = self.run(trials, later=(self.affordable - self.rounds) * len(trials))
            lost = {e.trial.arm for e in ended if usable(e) is None or hard_errors(e)}
            names = [name for name in names if name not in lost]

    def _nearest_the_median(self) -> tuple[str, ...]:
        """Return the nodes that are neither low nor faulty, the nearest to the median first."""
        rest = [name for name in self.values if name not in {*self.low, *self.faulty}]
        return tuple(sorted(rest, key=lambda name: (abs(self.values[name] - self.level), name)))

    # -- what the first runs show

    @cached_property
    def first(self) -> list[TrialResult]:
        """The first runs so far."""
        return self.of(self.study.first_trials)

    @cached_property
    def values(self) -> Mapping[str, float]:
        """Node -> log score of its first run."""
        return {each.trial.arm: score.value for each in self.first if (score := usable(each))}

    @cached_property
    def level(self) -> float:
        """The median node's log score."""
        return median(self.values.values()) if self.values else math.nan

    @cached_property
    def sigma(self) -> float:
        """How far nodes' first runs are apart, slow ones hardly counted."""
        return spread_of(list(self.values.values()))

    @cached_property
    def is_common(self) -> bool:
        """Whether so many nodes failed that it is what they share, and no node's fault."""
        failed = sum(each.status.is_final and usable(each) is None for each in self.first)
        return failed > len(self.values) or len(self.values) < MIN_NODES

    @cached_property
    def faulty(self) -> frozenset[str]:
        """The nodes whose own log named a hard error by the end of their first run."""
        return frozenset(each.trial.arm for each in self.first if hard_errors(each))

    @cached_property
    def low(self) -> tuple[str, ...]:
        """The nodes whose first run is low, the lowest first; not those whose fault is known."""
        limit = self.level - max(SUSPECT_SIGMAS * self.sigma, SUSPECT_AT)
        low = (n for n, v in self.values.items() if v < limit and n not in self.faulty)
        return tuple(sorted(low, key=lambda name: (self.values[name], name)))

    @property
    def shift(self) -> float | None:
        """The median node against the reference, a log ratio; None without one."""
        reference = self.study.asked.reference_tgs
        if reference is None or not self.values:
            return None
        return self.level - math.log(reference)

    # -- what all runs show

    @cached_property
    def fresh(self) -> tuple[BlockScore, ...]:
        """The scores of the rounds."""
        last = {name: max(each.epoch for each in own) for name, own in self.by_arm.items() if own}
        return tuple(
            BlockScore(block=each.trial.block, arm=each.trial.arm, value=score.value)
            for own in self.by_arm.values()
            for each in own
            # a node that was brought back is another one than before
            if each.trial.block and (score := usable(each))
            and each.epoch == last[each.trial.arm]
        )  # fmt: skip

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares of the rounds: nodes and rounds."""
        return fit_group(self.fresh, controls=self.controls)

    @cached_property
    def usual_loss(self) -> float | None:
        """The median of all losses; None where too few nodes ran to say what is usual."""
        every = [each for own in self.by_arm.values() for each in own]
        return median_loss(every) if len(self.values) >= MIN_NODES else None

    # -- verdicts

    def conclusion(self) -> Conclusion:
        """Return a verdict on every node, and the nodes that can be recommended."""
        asked, shift = self.study.asked, self.shift
        reference = self._median_line()
        verdicts = worst_first(beside(self._verdict(name), reference) for name in self.by_arm)
        names = [each.nodelist[0] for each in self.study.cells]
        good = {each.arm for each in verdicts if each.kind in LEVEL}
        sigma = self.fit.sigma if self.fit is not None and math.isfinite(self.fit.sigma) else None
        record = NodesRecord(
            peak_tflops=asked.peak_tflops,
            sigma=self.sigma if sigma is None and self.values else sigma,
            mde80=next((each.mde80 for each in verdicts if each.mde80), None),
            nodes=tuple(names),
            healthy=tuple(each for each in names if each.lower() in good) if self.is_over else (),
            suspects=self.suspects,
            controls=self.controls,
            rounds=self.rounds,
            shift=None if shift is None else relative(shift),
            told=in_a_sentence(verdicts) if self.is_screened else None,
        )
        return Conclusion(
            reference=reference,
            verdicts=tuple(verdicts),
            record=record,
            alpha=ALPHA if self.rounds else 0.0,
            complete=self.is_over,
            notes=tuple(self._notes(verdicts)),
        )

    def _median_line(self) -> Verdict | None:
        if not self.values:
            return None
        scored = [each for each in self.first if usable(each)]
        line = measured(Verdict(arm=MEDIAN, kind=VerdictKind.EQUIVALENT, delta=0.0), scored)
        line = at_level(line, self.level)
        return replace(line, job_ids=(), step_s=None, method=say("the median of the first runs"))

    def _verdict(self, name: str) -> Verdict:
        """Return the verdict on a node: its runs, then what its own log says."""
        runs = self.by_arm[name]
        verdict = self._of_runs(replace(so_far(name, runs), against=say("the median node")), runs)
        if hard := hard_errors(*runs):
            why = say("its own log: {lines: | }", lines=at_most(3, hard))
            verdict = dropped(verdict, why)
        if said := _findings(runs, FailureClass.NODE_SAID):
            own = say("its own log says: {lines: | }", lines=at_most(3, said))
            verdict = replace(verdict, reasons=(*verdict.reasons, own))
        return verdict

    def _of_runs(self, base: Verdict, runs: Sequence[TrialResult]) -> Verdict:
        over, name = [each for each in runs if each.status.is_final], base.arm
        if not over:
            return base
        if name in self.values:
            base = changed(base, self.values[name] - self.level)
        if lost := [each for each in over if usable(each) is None]:
            return self._lost(base, lost, runs=len(runs))
        if wrong := self._wrong_loss(over):
            return dropped(base, wrong)
        if not self.is_screened:
            return screened(base, say(ITS_FIRST_RUN))
        if self.is_common:
            return undecided(base, say(_ALL_NODES_FAIL))
        found = self._suspect(base, n=len(over)) if name in self.suspects else self._of_first(base)
        if found.kind in LEVEL and self.is_over and self.shift is not None and (
            self.shift <= LOSS_AT
        ):  # fmt: skip
            return undecided(
                found,
                say(
                    "like the other nodes, but their median is {shift:percent} from the "
                    "reference of {reference:g} TGS: all are slow, or the load has changed",
                    shift=relative(self.shift),
                    reference=self.study.asked.reference_tgs,
                ),
            )
        return found

    def _lost(self, base: Verdict, lost: Sequence[TrialResult], *, runs: int) -> Verdict:
        """Return what follows from runs of a node that are over and have no score."""
        why = lost[0].reason or NOT_FINITE
        if self.is_common and not lost[0].trial.block:
            return undecided(base, say("{reasons:; }", reasons=(why, say(_ALL_NODES_FAIL))))
        blamed = [each for each in lost if not is_excused(each)]
        if not blamed:
            return undecided(base, say(RUN_AGAIN, why=why))
        counts = {"failed": len(lost), "runs": runs}
        failed = say("{failed} of {runs:+run} failed: {why}", why=blamed[0].reason or why, **counts)
        return dropped(base, failed)

    def _wrong_loss(self, scored: Sequence[TrialResult]) -> Message | None:
        """Return how the loss of a node differs from that of all others; None: it does not."""
        usual, tolerance = self.usual_loss, self.study.loss_tolerance
        if usual is None:
            return None
        began = first_loss([each for own in self.by_arm.values() for each in own])
        for loss in losses_of(scored):
            if different_loss(loss, usual, tolerance=tolerance, first=began):
                both = {"loss": loss, "median": usual}
                return say(
                    "its loss is {loss:.6g}, that of the median node {median:.6g}, more "
                    "than {tolerance:.0%} apart: it computes something else",
                    tolerance=tolerance,
                    **both,
                )
        return None

    def _of_first(self, base: Verdict) -> Verdict:
        """Return the verdict on a node that is not run again."""
        if base.arm in self.low:
            low = {"low": len(self.low), "nodes": len(self.values)}
            why = say(
                "low in its first run, and not run again: {low} of {nodes:+node} are low, "
                "at most {most} are run again",
                most=self.study.most_suspects,
                **low,
            )
            return undecided(base, why)
        df = max(_MAD_DF * (len(self.values) - 1), 1.0)
        reach = t_quantile(0.975, df) * self.sigma
        at = self.values[base.arm] - self.level
        base = changed(base, at, (at - reach, at + reach))
        base = replace(base, method=say("first runs of all nodes, noise from their spread"))
        return not_accused(base, say("not low in its first run"))

    def _suspect(self, base: Verdict, *, n: int) -> Verdict:
        if not self.rounds:
            asked = {"budget": self.study.budget, "ask": self.study.most_jobs}
            return undecided(
                base,
                say(
                    "low in its first run; the budget of {budget} jobs leaves none to run it "
                    "again, ask for {ask}",
                    **asked,
                ),
            )
        if not self.is_over:
            return screened(base, say(ITS_FIRST_RUN_AGAIN))
        fit = self.fit
        if fit is None:
            why = say("no control beside it has a score: more nodes are low than are not")
            return undecided(base, why)
        found = compare(fit, base.arm, family=len(self.suspects), alpha=ALPHA)
        if isinstance(found, NoComparison):
            return undecided(base, found.reason)
        is_dunnett = found.method.code is MessageCode.DUNNETT
        method = say(
            "{rounds} rounds beside {controls:+control}, {rule}",
            rounds=fit.n_blocks,
            controls=len(self.controls),
            rule=say("Dunnett" if is_dunnett else "Bonferroni"),
        )
        base = with_comparison(base, found, kind=base.kind, reasons=())
        return _held_against_controls(replace(base, n=n, method=method), found)

    # -- notes

    def _notes(self, verdicts: Sequence[Verdict]) -> list[Message]:
        study, notes = self.study, self._unasked()
        if not self.is_screened:
            return notes
        if self.is_common:
            return [*notes, say(_ALL_NODES_FAIL)]
        notes.append(
            say(
                "first runs of nodes differ by {sigma:.2%} (one standard deviation, slow nodes "
                "hardly counted); nodes differ for good by 0.2 to 0.5 %, which is no fault",
                sigma=self.sigma,
            )
        )
        if len(self.low) > len(self.suspects):
            low = {"low": len(self.low), "nodes": len(self.values)}
            notes.append(
                say(
                    "{low} of {nodes:+node} are low: the median is not to be trusted. Say what "
                    "a healthy node does: Nodes(reference_tgs=...), from an earlier check",
                    **low,
                )
            )
        if self.suspects and self.affordable < study.asked.rounds:
            rounds = {"allowed": self.affordable, "rounds": study.asked.rounds}
            jobs = {"budget": study.budget, "most": study.most_jobs}
            notes.append(
                say(
                    "the budget of {budget} jobs allows {allowed} of {rounds} rounds; {most} "
                    "jobs are the most that all take",
                    **jobs,
                    **rounds,
                )
            )
        if self.shift is None:
            text = (
                "nodes are held against their own median: where most of them are slow alike, only "
                "a reference shows it"
            )
            notes.append(say(text))
        else:
            known = {"shift": relative(self.shift), "reference": study.asked.reference_tgs}
            text = "the median node is {shift:percent} from the reference of {reference:g} TGS"
            notes.append(say(text, **known))
        return [
            *notes,
            *self._below_the_floor(verdicts),
            *(self._scatter() if self.is_over else ()),
        ]

    def _below_the_floor(self, verdicts: Sequence[Verdict]) -> list[Message]:
        floor = self.study.asked.floor_tgs or 0.0
        below = [each for each in verdicts if each.tgs is not None and each.tgs < floor]
        return [
            say("{node} is below the floor of {floor:g} TGS: {tgs:.1f} TGS in {runs:+run}",
                node=each.arm, floor=floor, tgs=each.tgs, runs=each.n)
            for each in below
        ]  # fmt: skip

    def _scatter(self) -> list[Message]:
        """Return of which nodes the fresh runs spread far more than those of all others.

        Both are standard deviations of one job, nodes and rounds apart.
        """
        notes = []
        for name in self.suspects:
            others = [each for each in self.fresh if each.arm != name]
            rounds: dict[Hashable, list[float]] = {}
            for each in others:
                rounds.setdefault(each.block, []).append(each.value)
            own = [
                each.value - fmean(rounds[each.block])
                for each in self.fresh
                if each.arm == name and each.block in rounds
            ]
            rest = fit_group(others, controls={each.arm for each in others[:1]})
            if len(own) < _OWN_RUNS or rest is None or rest.df < _REST_DF:
                continue
            if stdev(own) > max(SCATTER * rest.sigma, SCATTER_AT):
                text = (
                    "the runs of {node} scatter: {own:.2%} (one standard deviation of its fresh "
                    "runs), all others {others:.2%}"
                )
                notes.append(say(text, node=name, own=stdev(own), others=rest.sigma))
        return notes

    def _unasked(self) -> list[Message]:
        """Return of which nodes the own log is not known, and why."""
        nodes: dict[Message, list[str]] = {}
        for name, runs in self.by_arm.items():
            for why in dict.fromkeys(_not_asked(runs)):
                nodes.setdefault(why, []).append(name)
        return [
            say(
                "the own log of {nodes} is not known: {why}; its verdict rests on its runs alone",
                nodes=at_most(3, names),
                why=why,
            )
            for why, names in nodes.items()
        ]


def _held_against_controls(base: Verdict, found: Comparison) -> Verdict:
    """Return the verdict by a comparison with the controls."""
    # healthy nodes differ for good by 0.2 to 0.5 %: a bound below zero alone is no fault
    upper = 2 * found.estimate - found.lower
    low, high = found.ci95
    limit, worse = -relative(LOSS_AT), -relative(LARGE_LOSS_AT)
    if upper < LOSS_AT:
        why = say("a loss of {loss:size} or more, 95 % over all suspects", loss=-relative(upper))
        return decided(base, VerdictKind.SLOWER, why)
    if low < LARGE_LOSS_AT and high > LOSS_AT:
        both = {"loss": limit, "worse": worse}
        return undecided(
            base, say("its interval holds losses of {loss:size} and of {worse:size}", **both)
        )
    if found.estimate < LOSS_AT:
        return undecided(
            base, say("a loss of {loss:size} is neither shown nor excluded", loss=limit)
        )
    return not_accused(base, say("low in its first run, not when run again beside controls"))


def hard_errors(*results: TrialResult) -> tuple[str, ...]:
    """Return the hard errors in the log of the node of these runs: see docs/how-to/studies.md."""
    return _findings(results, FailureClass.NODE_FAULT)


def _findings(results: Sequence[TrialResult], cls: FailureClass) -> tuple[str, ...]:
    """Return what the site's command told of a node on that node itself, each line once."""
    found = (
        each.text
        for result in results
        for each in result.findings
        if each.cls == cls and not _is_elsewhere(each, result)
    )
    return tuple(dict.fromkeys(found))


def _is_elsewhere(finding: Finding, result: TrialResult) -> bool:
    return bool(finding.source) and finding.source.lower() != result.trial.arm


def _not_asked(results: Sequence[TrialResult]) -> Iterator[Message]:
    """Yield why the own log of a node is not known."""
    for result in results:
        for each in result.findings:
            if each.cls == FailureClass.NODE_UNASKED:
                yield verbatim(each.text)
            elif each.cls in (FailureClass.NODE_FAULT, FailureClass.NODE_SAID) and (
                _is_elsewhere(each, result)
            ):
                yield say("the command ran on {node}", node=each.source)
