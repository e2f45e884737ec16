"""Figures of two reports, computed again from the seconds of the steps, and written down.

The first sweep is ranked by rotations and by jobs; in the second nothing helps. Each
figure is compared twice: with a few lines of numpy, which know nothing of the package's statistics,
and with a number. How fast a trial was is a digest of its name, so that the order of the jobs,
which is drawn, changes no figure of a block.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used
from msgspec.structs import replace

from pytest_xlatune.executors import Request
from pytest_xlatune.launchers.rotated import SPEC_FILE
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.rotation import RotationSpec
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from pytest_xlatune.tasks.reports import publish
from tests.helpers import scripted
from tests.helpers.pages import read
from tests.helpers.turned import at_call, journal, line

BASE, TOKENS, STEPS, FIRST = "baseline-deployed", 512, 20, 5
NODES = ("node001", "node002")
LOOK = "rotation-look.0"  # a job of the baseline, with the worker in front
CELL = replace(scripted.CELL, protocol=Protocol(steps=STEPS), nodelist=NODES)
# true changes, as logarithms
HELPS = {"good": 0.05, "fair": 0.012, "slow": -0.04, "ring": 0.035, "chan": -0.03}
HARMS = {"loss": -0.02, "worse": -0.03, "worst": -0.05}


def noise(*name: object) -> float:
    """A number from -1 to 1 that is always the same for a name."""
    return zlib.crc32(repr(name).encode()) / 2**31 - 1


@dataclass
class Played(scripted.FakeExecutor):
    """Runs trials whose steps take the seconds that their names say, and remembers those.

    Attributes:
        jobs: `ring-confirm1.0` -> the seconds of its steps.
        turns: rotation -> program -> log seconds of a step in each of its turns.
        took_s: of each job in turn, with 30 s around its steps.
    """

    effects: Mapping[str, float]
    jobs: dict[str, Any] = field(default_factory=dict)
    turns: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        name = request.folder.name.rpartition("-")[0]
        told = spec.files.get(SPEC_FILE)
        rotation = RotationSpec.from_json(json.loads(told)) if told is not None else None
        if rotation is None or name == LOOK:
            seconds = self.job(name)
        else:
            seconds = self.rotation(name, rotation)
        lines = [
            f"completed step: {at}, seconds: {each:.9f}, TFLOP/s/device: 0.1, "
            f"Tokens/s/device: {TOKENS / each:.6f}, total_weights: 512, loss: 7.1\n"
            for at, each in enumerate(seconds)
        ]
        start_s = 1.8e9 + 1000 * len(self.took_s)
        self.took_s.append(30 + float(sum(seconds)))
        ended = Outcome(
            state=State.COMPLETED,
            exit_code=0,
            nodes=NODES,
            start_s=start_s,
            end_s=start_s + self.took_s[-1],
        )
        self.script = lambda *_: ("".join(lines), ended)
        job = super().submit(spec, request)
        if rotation is not None:
            said = journal(rotation, is_over=False) + line("end", calls=len(seconds))
            (request.folder / "rotation.0.jsonl").write_text(said, encoding="utf-8")
        return job

    def job(self, name: str) -> Any:
        arm = re.split("-(?:wave|confirm)", name)[0]
        speed = self.effects.get(arm, 0.0) + 0.002 * noise(name)
        logs = [0.004 * noise(name, at) - speed for at in range(STEPS)]
        self.jobs[name] = 0.5 * np.exp(logs)
        self.jobs[name][0] *= 6
        if name == "ring-confirm1.0":  # a pause of the host makes the next step too short
            self.jobs[name][[9, 10]] *= 1.6, 0.4
        return self.jobs[name]

    def rotation(self, name: str, spec: RotationSpec) -> Any:
        seconds = np.full(spec.first_step + len(spec.order) * spec.turn_steps, 0.5)
        for at in range(spec.first_step, len(seconds)):
            program = at_call(spec, at)
            turn = (at - spec.first_step) // spec.turn_steps
            speed = self.effects.get(program, 0.0) + 0.001 * noise(name, program)
            speed += 0.003 * noise(name) + 1e-7 * noise(name, turn)
            seconds[at] *= math.exp(-speed)
            if (at - spec.first_step) % spec.turn_steps == spec.turn_steps - 1:
                own = self.turns.setdefault(name, {}).setdefault(program, [])
                own.append(math.log(seconds[at]))
        return seconds


@dataclass(frozen=True)
class Report:
    """What ran, and what is said of it."""

    ran: Played
    board: Mapping[str, Any]
    page: str
    tuning: str
    html: str

    def verdict(self, arm: str) -> Mapping[str, Any]:
        found = self.board["conclusion"]["verdicts"]
        return next(each for each in found if each["arm"] == arm)

    def score(self, name: str) -> Mapping[str, Any]:
        trials = self.board["trials"]
        return next(each["score"] for each in trials if each["id"].startswith(f"{name}-"))

    @property
    def record(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.board["conclusion"]["record"]
        return found

    # what numpy makes of the seconds

    @cached_property
    def scores(self) -> dict[str, float]:
        return {name: score(seconds) for name, seconds in self.ran.jobs.items()}

    def of(self, part: str) -> list[float]:
        return [value for name, value in self.scores.items() if name.startswith(part)]

    @property
    def level(self) -> float:
        """Of the baseline, by its jobs: the look, those of the screen and of the blocks."""
        return float(np.mean([self.scores[LOOK], *self.of(BASE)]))

    @cached_property
    def blocks(self) -> Fit:
        """Of fresh jobs: `ring-confirm1.0` is one of the first block."""
        names = [(re.split(r"-confirm|\.", name), at) for name, at in self.scores.items()]
        return Fit([(each[1], each[0], at) for each, at in names if len(each) == 3])

    def in_turns(self, arm: str) -> float:
        """Change of a program in the rotation that ranked, by its turns and the copies'."""
        (programs,) = self.ran.turns.values()
        speed = {name: -float(np.mean(own)) for name, own in programs.items()}
        base = np.mean([each for name, each in speed.items() if name.startswith(BASE)])
        return math.expm1(speed[arm] - base)

    def off_line(self, arm: str) -> float:
        """How far a screened job lies from the line through the baselines, by order of start."""
        screen = [
            (name.partition("-wave")[0], at) for name, at in self.scores.items() if "-wave" in name
        ]
        base = [(at, value) for at, (name, value) in enumerate(screen) if name == BASE]
        line = np.polyfit([at for at, _ in base], [value for _, value in base], 1)
        at, value = next((at, value) for at, (name, value) in enumerate(screen) if name == arm)
        return float(np.expm1(value - np.polyval(line, at)))


def score(seconds: Any) -> float:
    """Log of tokens over time in steady state, without the steps that are far off."""
    logs = np.log(seconds[FIRST:])
    off = np.abs(logs - np.median(logs))
    kept = seconds[FIRST:][off <= max(4 * 1.4826 * np.median(off), 0.01)]
    return math.log(TOKENS * len(kept) / kept.sum())


class Fit:
    """Least squares of block and arm, of (block, arm, score)."""

    def __init__(self, rows: Sequence[tuple[str, str, float]]) -> None:
        self.rows = rows
        self.blocks = sorted({block for block, _, _ in rows})
        arms = sorted({arm for _, arm, _ in rows} - {BASE})
        design = np.array(
            [
                [*(block == each for each in self.blocks), *(arm == each for each in arms)]
                for block, arm, _ in rows
            ],
            dtype=float,
        )
        values = np.array([value for _, _, value in rows])
        _, squares, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        self.df = len(rows) - int(rank)
        self.sigma = math.sqrt(squares[0] / self.df)
        self.copies = len(self.of(self.blocks[0], BASE))

    def of(self, block: str, arm: str) -> list[float]:
        return [value for at, name, value in self.rows if (at, name) == (block, arm)]

    def differences(self, arm: str) -> list[float]:
        return [fmean(self.of(at, arm)) - fmean(self.of(at, BASE)) for at in self.blocks]

    def change(self, arm: str) -> float:
        return float(np.mean(self.differences(arm)))

    def error(self) -> tuple[float, int]:
        """Standard error of a change, and its degrees of freedom."""
        pooled = self.sigma * math.sqrt((1 + 1 / self.copies) / len(self.blocks))
        return pooled, self.df

    def interval(self, arm: str, level: float = 0.95) -> list[float]:
        error, df = self.error()
        reach = t((1 + level) / 2, df) * error
        return [math.expm1(self.change(arm) + end) for end in (-reach, reach)]

    def told(self, arm: str, family: int) -> list[float]:
        """The interval of a winner, the best of a family: 1.25 % below it, 5 % above."""
        error, df = self.error()
        low = self.change(arm) - dunnett(family, df, self.copies, 0.0125) * error
        return [math.expm1(end) for end in (low, self.change(arm) + t(0.95, df) * error)]

    def likely(self, arm: str, family: int) -> list[float]:
        """The same where effects are N(0, 1 %) before."""
        error, df = self.error()
        kept = 0.01**2 / (0.01**2 + error**2)
        mean, spread = kept * self.change(arm), math.sqrt(kept) * error
        low = mean - dunnett(family, df, self.copies, 0.025) * spread
        return [math.expm1(each) for each in (mean, low, mean + t(0.95, df) * spread)]

    def mde80(self, family: int, alpha: float) -> float:
        error, df = self.error()
        return math.expm1((dunnett(family, df, self.copies, alpha) + t(0.8, df)) * error)


def t(probability: float, df: float) -> float:
    return float(scipy.stats.t.ppf(probability, df))


@cache
def dunnett(arms: int, df: int, weight: int, alpha: float) -> float:
    """One-sided, `arms` against one control of `weight` times their jobs, by its two integrals."""
    rho = 1 / (1 + weight)
    z = np.linspace(-8, 8, 201)
    s = np.linspace(1e-6, 4, 401)
    of_s = scipy.stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)

    def beyond(c: float) -> float:
        places = (c * s[:, None] - math.sqrt(rho) * z) / math.sqrt(1 - rho)
        inner = scipy.special.ndtr(places) ** arms * scipy.stats.norm.pdf(z)
        return float(np.trapezoid(np.trapezoid(inner, z, axis=1) * of_s, s)) - (1 - alpha)

    return float(scipy.optimize.brentq(beyond, 0.0, 20.0, xtol=1e-10))


def report(folder: Path, effects: Mapping[str, float], study: TuningStudy) -> Report:
    ran = Played(effects)
    made = scripted.campaign(folder, ran, cell=CELL, study=study)
    scripted.run(made)
    reports = folder / "reports"
    publish(made.folder, reports)
    return Report(
        ran=ran,
        board=json.loads((reports / "pretend/leaderboard.json").read_text(encoding="utf-8")),
        page=(reports / "pretend/leaderboard.md").read_text(encoding="utf-8"),
        tuning=(reports / "pretend-tuning.md").read_text(encoding="utf-8"),
        html=(reports / "pretend/leaderboard.html").read_text(encoding="utf-8"),
    )


def study(profiles: Sequence[Profile], **changes: Any) -> TuningStudy:
    return TuningStudy(
        cell=CELL, profiles=tuple(profiles), budget=60, blocks=4, block_baselines=2, **changes
    )


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Options of the compiler take turns, to be ranked; variables are ranked by jobs."""
    options = (profile(name, f"--xla_{name}=1") for name in ("good", "fair", "same", "slow"))
    variables = (
        profile(name, env={f"NCCL_{name.upper()}": "1"}) for name in ("ring", "tree", "chan")
    )
    mixed = study((*options, *variables), screen_baselines=2, finalists=5, rotation=RotationRule())
    return report(tmp_path_factory.mktemp("helps"), HELPS, mixed)


@pytest.fixture(scope="module")
def harms(tmp_path_factory: pytest.TempPathFactory) -> Report:
    names = ("idle", "none", "loss", "worse", "worst")
    profiles = [profile(name, f"--xla_{name}=1") for name in names]
    ordinary = study(profiles, screen_baselines=3, finalists=2)
    return report(tmp_path_factory.mktemp("harms"), HARMS, ordinary)


Of = Callable[[Report], Any]
STRAGGLED = "ring-confirm1.0"
# what it is, where the JSON has it, what numpy makes of it, and what it was
FIGURES: Sequence[tuple[str, Of, Of, Any]] = (
    (
        "TGS of a job with a pause",
        lambda it: it.score(STRAGGLED)["tgs"],
        lambda it: math.exp(it.scores[STRAGGLED]),
        1059.57309,
    ),
    (
        "seconds of its step",
        lambda it: it.score(STRAGGLED)["step_s"],
        lambda it: np.delete(it.ran.jobs[STRAGGLED], [0, 1, 2, 3, 4, 9, 10]).mean(),
        0.483213482,
    ),
    (
        "TGS of the baseline: its jobs, the look too",
        lambda it: it.board["conclusion"]["reference"]["tgs"],
        lambda it: math.exp(it.level),
        1023.81292,
    ),
    (
        "TGS of a winner: the baseline's with its change",
        lambda it: it.verdict("good")["tgs"],
        lambda it: math.exp(it.level + it.blocks.change("good")),
        1075.48681,
    ),
    (
        "change of a winner of fresh blocks",
        lambda it: it.verdict("ring")["delta"],
        lambda it: math.expm1(it.blocks.change("ring")),
        0.0342088447,
    ),
    (
        "its interval",
        lambda it: it.verdict("ring")["ci95"],
        lambda it: it.blocks.told("ring", 5),
        (0.0310469448, 0.0359631288),
    ),
    (
        "interval of an equivalent of blocks",
        lambda it: it.verdict("tree")["ci95"],
        lambda it: it.blocks.interval("tree"),
        (-0.00163956509, 0.0024651034),
    ),
    (
        "interval by which it is one",
        lambda it: [it.verdict("tree")["reasons"][0]["values"][end] for end in ("low", "high")],
        lambda it: it.blocks.interval("tree", 0.90),
        (-0.00128341614, 0.0021076177),
    ),
    (
        "what a small winner is likely to gain",
        lambda it: it.verdict("fair")["likely"],
        lambda it: it.blocks.likely("fair", 5),
        (0.0101191386, 0.00736640563, 0.0118243818),
    ),
    (
        "effect of a finalist that blocks find",
        lambda it: it.record["mde80"],
        lambda it: it.blocks.mde80(5, 0.05),
        0.00325569944,
    ),
    (
        "change of what only took turns",
        lambda it: it.verdict("slow")["delta"],
        lambda it: it.in_turns("slow"),
        -0.0386862567,
    ),
    (
        "noise of a job, by blocks",
        lambda it: it.record["sigma"],
        lambda it: it.blocks.sigma,
        0.00160058824,
    ),
    (
        "gain in the recipe",
        lambda it: it.record["recipe"]["parts"][0]["gain"],
        lambda it: math.expm1(it.blocks.change("good")),
        0.0504720014,
    ),
    (
        "change of a screened job, off a line of two",
        lambda it: it.verdict("chan")["delta"],
        lambda it: it.off_line("chan"),
        -0.0291860821,
    ),
    (
        "hours of the nodes",
        lambda it: it.board["record"]["node_hours"],
        lambda it: len(NODES) * sum(it.ran.took_s) / 3600,
        0.837080246,
    ),
)
WITHOUT_WINNER: Sequence[tuple[str, Of, Of, Any]] = (
    (
        "TGS of the baseline: all of its jobs",
        lambda it: it.board["conclusion"]["reference"]["tgs"],
        lambda it: math.exp(np.mean(it.of(BASE))),
        1023.76784,
    ),
    (
        "M: the highest end of an interval",
        lambda it: it.record["bound"],
        lambda it: max(it.blocks.interval(arm)[1] for arm in ("idle", "none")),
        0.00384602798,
    ),
    (
        "change of a screened job, off a line of three",
        lambda it: it.verdict("worse")["delta"],
        lambda it: it.off_line("worse"),
        -0.0283653042,
    ),
    (
        "noise of a job, by blocks",
        lambda it: it.record["sigma"],
        lambda it: it.blocks.sigma,
        0.00174757124,
    ),
    (
        "effect of a finalist",
        lambda it: it.record["mde80"],
        lambda it: it.blocks.mde80(2, 0.05),
        0.00327785263,
    ),
)


def ids(row: Sequence[Any]) -> list[Any]:
    return [pytest.param(*rest, id=name) for name, *rest in row]


def compared(it: Report, found: Of, expected: Of, number: Any) -> None:
    assert found(it) == pytest.approx(expected(it), rel=4e-6, abs=5e-8), "numpy makes another"
    assert found(it) == pytest.approx(number, rel=1e-6), "it was another"


@pytest.mark.parametrize(("found", "expected", "number"), ids(FIGURES))
def test_a_figure_follows_from_the_seconds(
    helps: Report, found: Of, expected: Of, number: Any
) -> None:
    compared(helps, found, expected, number)


@pytest.mark.parametrize(("found", "expected", "number"), ids(WITHOUT_WINNER))
def test_a_figure_of_a_sweep_without_a_winner_does(
    harms: Report, found: Of, expected: Of, number: Any
) -> None:
    compared(harms, found, expected, number)


# each stands in the leaderboard and in the tuning document
SHOWN = (
    "35 of 35 trials over, 35 jobs; 3 FASTER, 2 EQUIVALENT, 2 SCREENED",
    "★ `good` is faster than `baseline-deployed` by +5.0 % (95 % interval [+4.7, +5.2], n = 4).",
    "| `xla_good` | yes | needed | +5.0 | `baseline-deployed` | –",  # noqa: RUF001
    "| ★ `good` | `--xla_good=1` | 1075.5 | 0.4761 | +5.0 | [+4.7, +5.2] | 4 | FASTER |",
    "| +3.4 | [+3.1, +3.6] | 4 | FASTER | asked: NCCL_RING |",
    "| `same` | `--xla_same=1` | 1025.1 | 0.4995 | +0.1 | [-0.1, +0.3] | 4 | EQUIVALENT |",
    "| `baseline-deployed` | as deployed | 1023.8 | 0.5001 | – | – | 11 | baseline |",  # noqa: RUF001
    "| `slow` | `--xla_slow=1` | 984.2 | 0.5202 | -3.9 | – | 1 | screened",  # noqa: RUF001
    "another's (sigma) | 0.16 % |",
)
SHOWN_WITHOUT_WINNER = (
    "no measured profile beats the baseline by more than 0.4 % (M, at 95 %)",
    "| Any larger gain is ruled out, at 95 % (M) | 0.4 % |",
    "of a finalist (MDE80) | 0.3 % |",
    "| `worse` | `--xla_worse=1` | 994.7 | 0.5147 | -2.8 | – | 1 | screened",  # noqa: RUF001
    "| `baseline-deployed` | as deployed | 1023.8 | 0.5001 | – | – | 11 | baseline |",  # noqa: RUF001
)


def test_both_documents_show_these_figures(helps: Report, harms: Report) -> None:
    for it, shown in ((helps, SHOWN), (harms, SHOWN_WITHOUT_WINNER)):
        for text in (it.page, it.tuning):
            assert [each for each in shown if each not in text] == []


def test_the_page_draws_a_change_and_its_ends_where_the_figures_are(helps: Report) -> None:
    marks, drawn = read(helps.html).marks, []
    for each in helps.board["conclusion"]["verdicts"]:
        own = marks[each["arm"]]
        drawn.append((each["delta"], float(own["circle"]["cx"].strip("%"))))
        for end, place in zip(each["ci95"] or (), ("x1", "x2"), strict=False):
            drawn.append((end, float(own["ends"][place].strip("%"))))
    figures, places = zip(*drawn, strict=True)
    scale = np.polyfit(figures, places, 1)
    assert scale[0] > 0
    assert np.abs(np.polyval(scale, figures) - places).max() < 0.05
