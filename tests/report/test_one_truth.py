"""All views of a sweep say the same: terminal, markdown, page, JSON, junit, patch, messages, lines.

A drawn sweep runs as a campaign into a real ledger; each view is read back from its text, and each
figure in it is compared with the JSON's, and the JSON's verdicts with the JSON's trials.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from pytest_xlatune.model.cell import DeployedFile, Protocol
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Conclusion,
    NoiseRecord,
    Outcome,
    TrialResult,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import fine, interval, percent, points, rate, significant, size
from pytest_xlatune.plugin.controller import _in_short
from pytest_xlatune.report.lines import (
    best_lines,
    paragraph,
    summary_message,
    words,
    words_beside,
)
from pytest_xlatune.report.render import markdown, terminal
from pytest_xlatune.studies.gate import Gate, GateStudy
from pytest_xlatune.tasks.answers import Measured
from pytest_xlatune.tasks.live import Feed
from pytest_xlatune.tasks.publish import document_of, publish, read_known
from tests.helpers import scripted
from tests.helpers.document.agreement import disagreements
from tests.helpers.document.lines import ABSENT, blocks, in_line, split
from tests.helpers.examples import tried
from tests.helpers.pages import ReadPage, read

STEPS = 30
BASE = "baseline-deployed"
PROFILES = (
    *(profile(f"p{at}", f"--xla_p{at}=1") for at in range(5)),
    profile("v0", env={"NCCL_ALGO": "Ring"}),
)
CELL = replace(scripted.CELL, protocol=Protocol(steps=STEPS))
LESS = replace(
    CELL,
    protocol=Protocol(steps=STEPS, metric="field:wait", metric_is_better="lower", metric_unit="s"),
)


@dataclass(frozen=True)
class World:
    """How fast each arm is, how noisy jobs are, and what goes wrong."""

    effects: Mapping[str, float]
    sigma: float
    seed: int
    warm_steps: int  # slow steps at the begin of each job
    is_less_better: bool
    broken: str  # an arm that XLA refuses
    losing: str  # an arm that loses every third run
    unseen: str  # an arm of whose settings nothing is seen
    stop_after: int  # turns; 0 runs to the end

    def script(self, trial_id: str, attempt: int) -> tuple[str, Outcome]:
        arm = next((a for a in self.effects if trial_id.startswith(f"{a}-")), BASE)
        uniform = [int(digest([self.seed, trial_id, at], length=8), 16) / 16**8 for at in range(4)]
        if arm == self.broken:
            return scripted.UNKNOWN_FLAG, scripted.FAILED
        if arm == self.losing and uniform[3] < 0.4:
            return scripted.log(steps=2), scripted.KILLED
        change = self.effects.get(arm, 0.0) + self.sigma * math.sqrt(4) * (sum(uniform[:3]) - 1.5)
        return self._log(math.exp(change), is_told=arm != self.unseen), scripted.OK

    def _log(self, factor: float, *, is_told: bool) -> str:
        lines = [] if is_told else ["XLA_FLAGS="]
        for step in range(STEPS):
            seconds = 0.5 / factor * (1 + 0.1 * (step < self.warm_steps))
            if step == 0:
                seconds = 20 / factor
            lines.append(
                f"completed step: {step}, seconds: {seconds:.6f}, TFLOP/s/device: 0.1, "
                f"Tokens/s/device: {512 / seconds:.3f}, total_weights: 512, loss: 7.1, "
                f"wait: {20 / factor:.6f}"
            )
        return "\n".join([*lines, ""])


arms = st.sampled_from([each.id for each in PROFILES])
maybe = st.one_of(st.just(""), arms)
# rounding is hardest near a half of the last digit, and where a change is nearly none
effect = st.one_of(
    st.sampled_from([0.0, 0.0, 0.0004, -0.0004, 0.03, 0.0345, -0.0205, -0.05]),
    st.floats(-0.06, 0.06),
)
worlds = st.builds(
    World,
    effects=st.fixed_dictionaries({each.id: effect for each in PROFILES}),
    sigma=st.sampled_from([0.0005, 0.002, 0.006, 0.02]),
    seed=st.integers(0, 10_000),
    warm_steps=st.sampled_from([0, 0, 12, 18]),
    is_less_better=st.booleans(),
    broken=maybe,
    losing=maybe,
    unseen=maybe,
    stop_after=st.sampled_from([0, 0, 0, 7, 15]),
)


ENV_FILE = DeployedFile(path="configs/pretend.env.sh", text="export XLA_FLAGS=--xla_deployed=1\n")
# one arm is the recipe of both cells, so that the patch holds both
CLEAR = World(
    effects={**{each.id: 0.0 for each in PROFILES}, "p1": 0.06, "p2": -0.03},
    sigma=0.0005,
    seed=7,
    warm_steps=0,
    is_less_better=False,
    broken="",
    losing="",
    unseen="",
    stop_after=0,
)


def swept(world: World, folder: Path, axes: str = "FSDP=4") -> tuple[Path, list[str]]:
    """Run a sweep; return the folder of its ledger and its live lines."""
    cell = LESS if world.is_less_better else CELL
    cell = replace(cell, parallelism=type(cell.parallelism).parse(axes))
    made = scripted.campaign(
        folder / axes,
        scripted.ScriptedExecutor(world.script),
        cell=cell,
        profiles=PROFILES,
        files=(ENV_FILE,),
    )
    feed = Feed(made.setup.folder, session_id="first")
    lines = []
    for turn in range(400):
        view = made.view()
        if view.stopped or not view.pending or turn == (world.stop_after or -1):
            break
        made.turn()
        lines += [each.line for each in feed.landed() if each.result is not None]
    return made.setup.folder, lines


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables of a markdown text: titles, and rows of cells without backticks."""
    found = []
    for kind, lines in blocks(text):
        if kind == "table":
            rows = [[cell.replace("`", "") for cell in split(line)] for line in lines]
            found.append((rows[0], rows[2:]))
    return found


def _without_id(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {name: trial[name] for name in trial if name != "id"}


class Views:
    """What the JSON of a sweep says, as every other view has to write it."""

    def __init__(self, board: Mapping[str, Any]) -> None:
        self.board = board
        said = board["conclusion"]
        self.conclusion = Conclusion.from_json(said)
        self.verdicts = {each.arm: each for each in self.conclusion.verdicts}
        self.reference = self.conclusion.baseline
        winner = self.conclusion.winner
        self.winner = winner.arm if winner else ""

    def of(self, arm: str) -> Verdict:
        return self.reference if arm == BASE else self.verdicts[arm]

    def cells(self, arm: str) -> dict[str, str]:
        """Column -> the text that a table must have for an arm."""
        verdict, is_base = self.of(arm), arm == BASE
        figure = significant(verdict.figure.value) if verdict.figure else rate(verdict.tgs)
        return {
            "TGS": figure,
            "first step (s)": figure,
            "step (s)": significant(verdict.step_s),
            f"delta % vs {BASE}": ABSENT if is_base else points(verdict.delta),
            "95 %": ABSENT if is_base else interval(verdict.ci95),
            "n": str(verdict.n),
            "verdict": "baseline" if is_base and verdict.n else words_beside(verdict),
        }


def check_json(views: Views) -> None:
    """Hold the verdicts of the JSON against its trials: one window, and means of the very jobs.

    A figure beside a change is the baseline's times that change, whatever its own jobs come to.
    """
    conclusion, trials = views.conclusion, views.board["trials"]
    protocol = views.board["cell"]["protocol"]
    first = conclusion.first_step or protocol["first_step"]
    scored = [(TrialResult.from_json(_without_id(each)), each["id"]) for each in trials]
    scored = [pair for pair in scored if pair[0].score]
    for each, name in scored:
        assert each.score is not None
        low, high = each.score.window
        if each.score.figure is None:
            assert low >= first, f"{name} is scored from step {low}, the sweep from {first}"
            assert high <= protocol["steps"] - 1
    level = math.nan
    for verdict in (conclusion.baseline, *conclusion.verdicts):
        jobs = set(verdict.job_ids)
        own = [
            each.score.value
            for each, _ in scored
            if each.score
            and each.trial.arm == verdict.arm
            and each.status == "measured"
            and jobs & set(each.job_ids)
        ]
        if verdict.tgs is None and verdict.figure is None:
            continue
        assert len(own) == verdict.n, verdict
        mean = fmean(own)
        if verdict is conclusion.baseline:
            level = mean
        elif verdict.delta is not None:
            mean = level + math.log1p(verdict.delta)
        if verdict.figure is not None:
            assert math.isclose(verdict.figure.metric.figure(mean), verdict.figure.value)
        else:
            assert math.isclose(math.exp(mean), verdict.tgs or 0.0)
        if verdict.delta is not None and verdict.ci95 is not None:
            assert verdict.ci95[0] <= verdict.delta <= verdict.ci95[1]


def check_tables(views: Views, text: str, *, all_arms: bool) -> None:
    """Compare every row of every table of a markdown text that is about an arm."""
    shown = check_rows(views, tables(text))
    if all_arms:
        pending = re.search(r"^(?:Not measured yet: |尚未测量：)(.*)[.。]$", text, re.MULTILINE)  # noqa: RUF001
        shown |= set(re.findall(r"`([^`]+)`", pending[1])) if pending else set()
        assert shown >= {BASE, *views.verdicts}


def check_rows(views: Views, found_tables: Sequence[tuple[list[str], list[list[str]]]]) -> set[str]:
    """Compare the rows of tables that are about an arm; return the arms."""
    shown = set()
    for titles, rows in found_tables:
        if titles[0] == "Profile" and "verdict" in titles and "n" in titles:
            for row in rows:
                arm = row[0].removeprefix("★ ")
                shown.add(arm)
                assert row[0].startswith("★") == (arm == views.winner), row
                expected = views.cells(arm)
                found = dict(zip(titles, row, strict=True))
                for column in found.keys() & expected.keys():
                    assert found[column] == expected[column], (arm, column, row)
        elif titles[:2] == ["Profile", "Flags"] and "reason" in titles:
            shown |= {row[0] for row in rows}
            assert all(views.of(row[0]).kind == "INVALID" for row in rows)
        elif titles == ["Figure", "Value"]:
            check_figures(views, rows)
    return shown


def check_page(views: Views, text: str, markdown_text: str) -> None:
    """The page: the tables of the markdown, the plots where the JSON's figures put them."""
    page = read(text)
    found = [(rows[0], rows[1:]) for rows in page.tables]
    check_rows(views, [each for each in found if each[0][0] != "Arm"])
    for titles, rows in tables(markdown_text):
        assert (titles, [[in_line(cell) for cell in row] for row in rows]) in found
    check_forest(views, page)
    trials = [TrialResult.from_json(_without_id(each)) for each in views.board["trials"]]
    stages = next(rows for titles, rows in found if titles[0] == "Stage")
    assert sum(int(row[2]) for row in stages[:-1]) == int(stages[-1][2])
    assert int(stages[-1][2]) == sum(len(each.job_ids) for each in trials)
    timed = [each for each in trials if each.outcome is not None and each.outcome.end_s is not None]
    assert sum("bar" in said.get("class", "").split() for _, said in page.tags) >= len(timed)
    runs: dict[str, list[float]] = {}
    for each in trials:
        if each.score is not None:
            runs.setdefault(each.trial.arm, []).append(each.score.value)
            if each.score.timings and each.score.tgs:
                assert (
                    f"{rate(each.score.tgs)} TGS, {significant(each.score.step_s)} s/step" in text
                )
    for each in trials:
        own = runs.get(each.trial.arm, [])
        if each.score is not None and len(own) > 1:
            off = percent(math.expm1(each.score.value - fmean(own)))
            assert f"{each.trial.arm}, job {', '.join(each.job_ids)}: {off}<" in text


def check_forest(views: Views, page: ReadPage) -> None:
    """Each arm with a change has its row, its words, and its marks at one scale."""
    shown = {
        arm: each
        for arm, each in views.verdicts.items()
        if each.delta is not None and each.kind != "INVALID" and each.n
    }
    cannot = {arm: each for arm, each in views.verdicts.items() if not each.can_run}
    assert page.forest.keys() == (shown | cannot if shown else shown).keys()
    for arm in cannot if shown else ():
        assert page.forest[arm]["why"]
        assert "circle" not in page.marks[arm]
    positions = [
        (0.0, float(each["zero"]["x1"].strip("%")))
        for each in page.marks.values()
        if "zero" in each
    ]
    for arm, verdict in shown.items():
        expected, said, marks = views.cells(arm), page.forest[arm], page.marks[arm]
        assert said["delta"] == expected[f"delta % vs {BASE}"]
        assert said["ends"] == expected["95 %"]
        assert said["count"] == expected["n"]
        assert said["said"] == expected["verdict"]
        assert said["name"].startswith("★") == (arm == views.winner)
        assert verdict.kind.lower() in marks["svg"]["class"].split()
        assert verdict.delta is not None
        positions.append((verdict.delta, float(marks["circle"]["cx"].strip("%"))))
        assert ("ends" in marks) == (verdict.ci95 is not None)
        if verdict.ci95 is not None:
            ends = (marks["ends"]["x1"], marks["ends"]["x2"])
            positions += [
                (end, float(at.strip("%"))) for end, at in zip(verdict.ci95, ends, strict=True)
            ]
    if positions:
        (low, left), (high, right) = min(positions), max(positions)
        for delta, at in positions:
            share = (delta - low) / (high - low or 1.0)
            assert abs(left + share * (right - left) - at) < 0.05, (delta, at)


def check_figures(views: Views, rows: Sequence[Sequence[str]]) -> None:
    """M, the power, the noise and alpha."""
    said = {re.findall(r"\((\w+)\)$", row[0])[0]: row[1] for row in rows if row[0][-1] == ")"}
    record = views.conclusion.tuning
    assert ("M" in said) == (views.conclusion.winner is None)
    if "M" in said:
        assert said["M"] == size(record.bound)
    assert said["MDE80"] == size(record.mde80)
    assert said["sigma"] == fine(record.sigma)
    assert said["alpha"] == f"{views.conclusion.alpha:.3g} of 0.05"


def check_sentences(views: Views, text: str) -> None:
    """The sentence about the winner, or M."""
    plain = " ".join(text.replace("`", "").split())
    best, bound = views.conclusion.winner, views.conclusion.tuning.bound
    if best is not None:
        assert (
            f"★ {best.arm} is faster than {BASE} by {points(best.delta)} % (95 % interval "
            f"{interval(best.ci95)}, n = {best.n})." in plain
        )
    else:
        assert "★" not in plain
        if bound is not None and not any(
            each.kind == "FASTER" for each in views.conclusion.verdicts
        ):
            assert f"gains more than {size(bound)} (M)" in plain


def check_terminal(views: Views, lines: Sequence[str]) -> None:
    """Each row of a wide terminal is that of the markdown, column by column."""
    titles: list[str] = []
    for line in lines:
        parts = re.split(r" {2,}", line.strip())
        if parts[0] == "Profile":
            titles = parts
        arm = parts[0].removeprefix("★ ")
        if "verdict" not in titles or "n" not in titles or arm not in {BASE, *views.verdicts}:
            continue
        if len(parts) != len(titles):
            continue  # not of this table
        expected, found = views.cells(arm), dict(zip(titles, parts, strict=True))
        for column in found.keys() & expected.keys():
            assert found[column] == expected[column], (arm, column, line)


def check_junit(views: Views) -> None:
    """What junit gets of each verdict, and what `-v` shows of it."""
    for verdict in (views.reference, *views.conclusion.verdicts):
        said = dict(Measured(verdict).properties())
        assert json.loads(said["xlatune"]) == verdict.to_json()
        assert said["xlatune.n"] == str(verdict.n)
        assert said["xlatune.verdict"] == verdict.kind
        assert said["xlatune.words"] == words(verdict)
        assert said.get("xlatune.jobs", "") == ",".join(verdict.job_ids)
        if verdict.delta is not None:
            assert said["xlatune.delta_pct"] == f"{100 * verdict.delta:+.3f}"
            assert percent(verdict.delta) in _in_short(said), _in_short(said)
        if verdict.tgs is not None:
            assert said["xlatune.tgs"] == f"{verdict.tgs:.3f}"


def check_messages(views: Views, folder: Path) -> None:
    """Paragraphs, the message at the end of a session, the leading lines."""
    known = read_known(folder)
    assert known.conclusion == views.conclusion
    text = summary_message(cell=known.cell, conclusion=known.conclusion, history=known.history)
    for line in best_lines(known.conclusion):
        assert line in text
        found = re.search(
            r"- (?:Best so far: )?(\S+) @ (.*) \((?:(.*), )?([A-Z]+), n = (\d+)\)$", line
        )
        assert found is not None, line
        verdict = views.of(found[1])
        assert (found[4], found[5]) == (verdict.kind, str(verdict.n))
        gain = None if verdict.delta is None else f"{percent(verdict.delta)} vs {BASE}"
        assert found[3] == gain
    if views.winner:
        assert best_lines(known.conclusion)[0].startswith(f"- Best so far: {views.winner} @")
    for verdict in views.conclusion.verdicts:
        said = paragraph(verdict)
        if verdict.delta is not None:
            assert f"Delta {percent(verdict.delta)} against {BASE}" in said
        if verdict.ci95 is not None:
            assert f"95 % interval {interval(verdict.ci95)}" in said


def axes_of(views: Views) -> str:
    """The axes of a cell, as a remark of a patch names them."""
    return ",".join(f"{axis}={size}" for axis, size in views.board["cell"]["parallelism"]["axes"])


def check_patch(views: Views, path: Path, *, others: Sequence[Views]) -> None:
    """The patch tells of each setting of the recipe what the table of the recipe does.

    With two cells it holds what was recommended for each, and the other's may be guarded.
    """
    recipe = views.conclusion.tuning.recipe
    if not path.exists() or (others and recipe is None):
        return
    assert recipe is not None
    text = path.read_text(encoding="utf-8")
    heads = [each for each in text.splitlines() if f"# {recipe.arm}: measured on" in each]
    heads = [each for each in heads if not others or axes_of(views) in each]
    event(f"patch of two: {len(others) > 0}, this cell's recipe: {bool(heads)}")
    if not heads:
        assert others, text
        return
    assert heads[0].endswith(f", jobs {', '.join(views.of(recipe.arm).job_ids)}")
    text = text[text.index(heads[0]) :]
    text = (
        text.partition(": measured on")[0]
        + text.partition(": measured on")[2].partition(": measured on")[0]
    )
    for part in recipe.parts:
        line = next(
            each for each in text.splitlines() if f"{', '.join(part.settings)}: {part.need}" in each
        )
        if part.gain is not None:
            assert f"({percent(part.gain)}" in line
    for other in others:
        remark = re.search(rf"# NOT verified on {axes_of(other)}: .*", text)
        there = other.of(recipe.arm)
        if remark is not None and "%" in remark[0] and there.delta is not None:
            assert percent(there.delta) in remark[0], remark[0]
            assert "if [[ " in text.partition(remark[0])[2], "what is not verified there is guarded"


def check_live(views: Views, lines: Sequence[str], *, is_last: bool) -> None:
    """The line of each trial has the figure that the trial has in the JSON, once windows agree."""
    by_job = {job: each for each in views.board["trials"] for job in each["job_ids"][-1:]}
    for line in lines[-1:] if is_last else ():
        job = re.search(r"\(job (\d+)\)", line)
        assert job is not None, line
        score = by_job[job[1]]["score"]
        if score is not None and score.get("tgs") is not None:
            assert f" {rate(score['tgs'])} TGS " in line


# a sweep takes a second or two: a failing one is not made smaller
FEW = settings(
    max_examples=tried(3),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
MANY = settings(FEW, max_examples=tried(20))


@FEW
@example(world=CLEAR, has_two=True, flips=True)
@example(world=CLEAR, has_two=True, flips=False)
@example(world=CLEAR, has_two=False, flips=False)
@given(world=worlds, has_two=st.booleans(), flips=st.booleans())
def test_every_view_has_the_same_figures(world: World, *, has_two: bool, flips: bool) -> None:
    check_views(world, has_two=has_two, flips=flips)


@pytest.mark.part("sweeps")
@MANY
@given(world=worlds, has_two=st.booleans(), flips=st.booleans())
def test_every_view_has_the_same_figures_in_many_worlds(
    world: World, *, has_two: bool, flips: bool
) -> None:
    check_views(world, has_two=has_two, flips=flips)


def check_views(world: World, *, has_two: bool, flips: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        reports = root / "reports"
        sweeps = [swept(world, root)]
        if has_two:
            sign = -1 if flips else 1
            effects = {arm: sign * size for arm, size in world.effects.items()}
            other = replace(world, seed=world.seed + 1, effects=effects)
            sweeps.append(swept(other, root, "PP=4"))
        boards = []
        for folder, lines in sweeps:
            publish(folder, reports, zh=True)
            views = Views(
                json.loads((reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8"))
            )
            boards.append(views)
            event(f"winner: {bool(views.winner)}, moved: {bool(views.conclusion.first_step)}")
            check_json(views)
            document = document_of(read_known(folder))
            text = (reports / "pretend" / "leaderboard.md").read_text(encoding="utf-8")
            assert text == markdown(document)
            assert disagreements(text) == []
            check_tables(views, text, all_arms=True)
            check_sentences(views, text)
            html = (reports / "pretend" / "leaderboard.html").read_text(encoding="utf-8")
            check_page(views, html, text)
            check_sentences(views, read(html).text)
            check_terminal(views, terminal(document, width=600))
            narrow = " ".join(" ".join(terminal(document, width=80)).split())
            for arm in (BASE, *views.verdicts):
                cells = views.cells(arm)
                if views.of(arm).delta is not None:
                    assert cells[f"delta % vs {BASE}"] in narrow
            check_junit(views)
            check_messages(views, folder)
            check_live(views, lines, is_last=not world.stop_after)
        kept = json.loads((reports / "pretend-tuning.json").read_text(encoding="utf-8"))["cells"]
        assert [each["conclusion"] for each in kept] == [
            views.board["conclusion"] for views in boards
        ]
        for name in ("pretend-tuning.md", "pretend-tuning.zh.md"):
            check_summary(boards, (reports / name).read_text(encoding="utf-8"))
            assert disagreements((reports / name).read_text(encoding="utf-8")) == []
        for views in boards:
            others = [each for each in boards if each is not views]
            check_patch(views, reports / "pretend-tuning.patch", others=others)
        if not has_two:
            for name in ("pretend-tuning.md", "pretend-tuning.zh.md"):
                check_tables(boards[0], (reports / name).read_text(encoding="utf-8"), all_arms=True)


def gated(world: World, folder: Path) -> Path:
    """Run a gate of all profiles; return the folder of its ledger."""
    cell = LESS if world.is_less_better else CELL
    study = GateStudy(cell=cell, profiles=PROFILES, gate=Gate(margin=0.01))
    executor = scripted.ScriptedExecutor(world.script)
    made = scripted.campaign(folder, executor, cell=cell, study=study)
    for turn in range(400):
        view = made.view()
        if view.stopped or not view.pending or turn == (world.stop_after or -1):
            break
        made.turn()
    return made.setup.folder


def check_gate(views: Views, text: str) -> None:
    """Each candidate's line has the figures of its verdict, and the summary counts them."""
    plain = " ".join(text.replace("`", "").split())
    record = views.conclusion.record
    if isinstance(record, NoiseRecord) and record.sigma is not None:
        assert f"Noise of one job's score (sigma): {fine(record.sigma)}." in plain
    for verdict in views.conclusion.verdicts:
        assert paragraph(verdict) in plain.replace("\\", ""), verdict.arm
    # one without a trial is counted as not measured yet
    counted = Counter(
        each.word or str(each.kind)
        for each in views.conclusion.verdicts
        if each.n or each.kind != VerdictKind.INCONCLUSIVE
    )
    state = plain.partition("State: ")[2].partition(" ## ")[0]
    for kind, count in counted.items():
        assert f"{count} {kind}" in state, state


@FEW
@given(world=worlds)
def test_every_view_of_a_gate_has_the_same_figures(world: World) -> None:
    check_views_of_gate(world)


@pytest.mark.part("sweeps")
@MANY
@given(world=worlds)
def test_every_view_of_a_gate_has_the_same_figures_in_many_worlds(world: World) -> None:
    check_views_of_gate(world)


def check_views_of_gate(world: World) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        folder = gated(world, root)
        publish(folder, root / "reports")
        where = root / "reports" / "pretend"
        views = Views(json.loads((where / "gate.json").read_text(encoding="utf-8")))
        event(f"stopped: {bool(world.stop_after)}")
        check_json(views)
        document = document_of(read_known(folder))
        text = (where / "gate.md").read_text(encoding="utf-8")
        assert text == markdown(document)
        assert disagreements(text) == []
        check_tables(views, text, all_arms=False)
        check_terminal(views, terminal(document, width=600))
        check_junit(views)
        check_gate(views, text)


def check_summary(boards: Sequence[Views], text: str) -> None:
    """The TL;DR of the tuning document has one row a cell."""
    titles, rows = tables(text)[0]
    assert titles[0] == "Cell"
    assert len(rows) == len(boards)
    for views, row in zip(boards, rows, strict=True):
        found = dict(zip(titles, row, strict=True))
        shown = views.of(views.winner or BASE)
        expected = views.cells(shown.arm)
        assert found["delta %"] == (points(shown.delta) if views.winner else ABSENT)
        assert found["95 %"] == (interval(shown.ci95) if views.winner else ABSENT)
        assert found["n"] == str(shown.n)
        assert row[3] == expected["TGS"]
        assert row[4] == views.cells(BASE)["TGS"]
        assert found["jobs"] == (", ".join(shown.job_ids) or ABSENT)
