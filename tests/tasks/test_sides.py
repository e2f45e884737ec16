"""Two directories of plain logs: what they prove, what they do not, and what is not counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.tasks.compare_logs import compare_sides
from tests.helpers.examples import tried


def log(tgs: float, *, steps: int = 15, config: str = "", seed: int = 0, loss: str = "7.1") -> str:
    random = Random(f"{tgs} {seed}")
    lines = [config]
    for step in range(steps):
        step_s = 512 / tgs * (1 + random.uniform(-0.002, 0.002))
        lines.append(
            f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 1.5, "
            f"Tokens/s/device: {512 / step_s:.4f}, total_weights: 512, loss: {loss}"
        )
    return "\n".join([*lines, ""])


def side(folder: Path, *tgs: float) -> Path:
    folder.mkdir(parents=True)
    for number, each in enumerate(tgs):
        (folder / f"job-{number}.log").write_text(log(each, seed=number), encoding="utf-8")
    return folder


A = (1000.0, 1003.0, 998.0, 1001.0)


@pytest.mark.parametrize(
    ("b", "kind", "passes"),
    [
        pytest.param((1050.0, 1053.0, 1049.0, 1051.0), "FASTER", True, id="faster"),
        pytest.param((1001.0, 1002.0, 999.0, 1000.0), "EQUIVALENT", True, id="level"),
        pytest.param((950.0, 951.0, 949.0, 952.0), "SLOWER", False, id="slower"),
        pytest.param((1080.0, 930.0, 1010.0, 970.0), "INCONCLUSIVE", None, id="noisy"),
    ],
)
def test_several_jobs_a_side(
    tmp_path: Path, b: tuple[float, ...], kind: str, *, passes: bool | None
) -> None:
    found = compare_sides(side(tmp_path / "a", *A), side(tmp_path / "b", *b), margin=0.01)
    assert (found.verdict.kind, found.passes) == (kind, passes)
    assert found.verdict.n == 4
    assert found.exit == {True: 0, False: 1, None: 10}[passes]
    assert "order of these jobs" in sentence(found.verdict.reasons[0])


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        pytest.param(
            (1000.0,), (1200.0,), "A has 1 scored job and B has 1 scored job", id="one each"
        ),
        pytest.param(
            A, (1200.0,), "A has 4 scored jobs and B has 1 scored job;", id="one on one side"
        ),
        pytest.param(
            (1000.0, 1001.0),
            (1200.0, 1201.0),
            "A has 2 scored jobs and B has 2 scored jobs;",
            id="two each",
        ),
    ],
)
def test_too_few_jobs_are_no_verdict_and_it_says_what_is_missing(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float, ...], words: str
) -> None:
    found = compare_sides(side(tmp_path / "a", *a), side(tmp_path / "b", *b), margin=0.01)
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert found.verdict.ci95 is None
    assert found.passes is None
    assert words in sentence(found.verdict.reasons[0])
    assert "5 in all are needed" in sentence(found.verdict.reasons[0])
    assert found.ratio == pytest.approx(1.2, rel=0.01)


@settings(max_examples=tried(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    a=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
    b=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
)
def test_swapping_the_sides_inverts_the_ratio(
    tmp_path_factory: pytest.TempPathFactory, a: list[float], b: list[float]
) -> None:
    b = [each * 1.0001 for each in b]
    folder = tmp_path_factory.mktemp("swap")
    one, other = side(folder / "one", *a), side(folder / "other", *b)
    there, back = compare_sides(one, other), compare_sides(other, one)
    shutil.rmtree(folder)
    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    mirror = {VerdictKind.FASTER: VerdictKind.SLOWER, VerdictKind.SLOWER: VerdictKind.FASTER}
    assert back.verdict.kind is mirror.get(there.verdict.kind, there.verdict.kind)
    if there.verdict.ci95 is not None:
        assert back.verdict.ci95 is not None
        low, high = (1 + end for end in there.verdict.ci95)
        assert [1 / (1 + end) for end in back.verdict.ci95] == pytest.approx([high, low])


def test_copies_failures_and_other_files_are_not_counted_and_named(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", *A[:1])
    shutil.copy(a / "job-0.log", a / "job-9.log")
    (a / "notes.md").write_text("which node was slow\n", encoding="utf-8")
    (a / "oom.log").write_text(
        log(500.0) + "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n",
        encoding="utf-8",
    )
    (a / "short.log").write_text(log(500.0, steps=7), encoding="utf-8")
    (a / ".hidden").write_text("x", encoding="utf-8")
    shutil.rmtree(b)
    found = compare_sides(a, side(b, 1010.0, 1011.0))
    assert [job.path.name for job in found.a.jobs] == [f"job-{n}.log" for n in range(4)]
    out = {path.name: reason for path, reason in found.a.left_out}
    assert "a copy of" in out["job-9.log"]
    assert "not the log of" in out["notes.md"]
    assert out["oom.log"].startswith("oom")
    assert "no score" in out["short.log"]
    assert ".hidden" not in out


def test_a_sub_folder_is_one_job(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", *A), tmp_path / "b"
    for number, tgs in enumerate((1010.0, 1011.0, 1012.0)):
        folder = b / f"job-{number}"
        folder.mkdir(parents=True)
        for rank in (0, 1):
            (folder / f"log.{rank}.txt").write_text(log(tgs, seed=rank), encoding="utf-8")
    (b / "two").mkdir()
    for name in ("x.log", "y.log"):
        (b / "two" / name).write_text(log(1013.0), encoding="utf-8")
    shutil.copytree(b / "job-0", b / "job-9")
    found = compare_sides(a, b)
    assert [job.path.name for job in found.b.jobs] == ["log.0.txt"] * 3
    reason = "2 logs in the folder"
    copy = f"a copy of {b / 'job-0' / 'log.0.txt'}"
    expected = ((b / "job-9" / "log.0.txt", copy), (b / "two", reason))
    for (path, told), (left_out, words) in zip(found.b.left_out, expected, strict=True):
        assert path == left_out
        assert told.startswith(words)


def test_the_ranks_of_a_job_are_one_job(tmp_path: Path) -> None:
    """submitit writes one log for each task: counted as jobs they would make any n."""
    for name, level in (("a", 1000.0), ("b", 1050.0)):
        (tmp_path / name).mkdir()
        for job in range(3):
            for task in range(4):
                text = log(level + job, seed=10 * job + task)
                (tmp_path / name / f"{80 + job}_{task}_log.out").write_text(text, encoding="utf-8")
    found = compare_sides(tmp_path / "a", tmp_path / "b")
    assert found.verdict.n == 3
    assert found.a.left_out == ()


def test_one_window_for_all(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 1010.0, 1011.0)
    (b / "long.log").write_text(log(1012.0, steps=40), encoding="utf-8")
    found = compare_sides(a, b)
    assert {score.window for s in (found.a, found.b) for score in s.scores} == {(5, 14)}


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 1010.0, 1011.0)
    with pytest.raises(ConfigError, match="does not exist"):
        compare_sides(a, tmp_path / "gone")
    with pytest.raises(ConfigError, match="expected a fraction"):
        compare_sides(a, b, margin=1.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"is empty: no log .* per job"):
        compare_sides(a, tmp_path / "empty")
    shutil.copy(a / "job-0.log", b / "same.log")
    with pytest.raises(ConfigError, match=r"same log as .*other side"):
        compare_sides(a, b)
    config = "Config param profiler: xplane\nConfig param steps: 40\n"
    (b / "same.log").write_text(log(1010.0, steps=40, config=config), encoding="utf-8")
    with pytest.raises(ConfigError, match="ran by different protocols"):
        compare_sides(a, b)


def written(folder: Path, *logs: str) -> Path:
    folder.mkdir(parents=True)
    for number, text in enumerate(logs):
        (folder / f"job-{number}.log").write_text(text, encoding="utf-8")
    return folder


def test_another_loss_is_another_training(tmp_path: Path) -> None:
    a = side(tmp_path / "a", *A)
    b = written(tmp_path / "b", *(log(1050.0 + at, seed=at, loss="7.9") for at in range(4)))
    found = compare_sides(a, b, margin=0.01)
    assert (found.verdict.kind, found.passes) == (VerdictKind.INVALID, None)
    assert sentence(found.verdict.reasons[0]).startswith("not the same training: ")
    assert "7.9" in sentence(found.verdict.reasons[0])


def test_jobs_of_several_lengths_say_so(tmp_path: Path) -> None:
    steps = (15, 40, 8, 20)
    a = written(tmp_path / "a", *(log(1000 + at, steps=n) for at, n in enumerate(steps)))
    found = compare_sides(a, side(tmp_path / "b", *(1010.0, 1011.0, 1013.0)))
    assert {score.window for s in (found.a, found.b) for score in s.scores} == {(5, 14)}
    told = [*map(sentence, found.verdict.reasons)]
    assert any("15 to 40 steps" in each for each in told)
    assert found.a.left_out[0][1] == (
        "no score: 3 usable steps in the window 5-14, 6 needed (last step seen: 7)"
    )


def test_logs_that_are_no_healthy_jobs_are_told_by_reason(tmp_path: Path) -> None:
    a = side(tmp_path / "a", *A)
    bad = written(tmp_path / "bad", log(1000, loss="nan"), log(1001, loss="nan"), "hello\n")
    with pytest.raises(
        ConfigError,
        match=r"bad holds no log .* \(job-0.log, job-1.log: "
        r"numerical-failure: .*; job-2.log: ",
    ):
        compare_sides(a, bad)


def test_a_job_that_ended_badly_behind_its_last_step_counts(tmp_path: Path) -> None:
    """As in `triage` and `steps`: all steps are there, so its end changes no figure."""
    bad_end = "== Training FAILED (exit=143, 84s) ==\n"
    logs = (log(at, config="Config param steps: 15") for at in (1050.0, 1053.0, 1049.0, 1051.0))
    b = written(tmp_path / "b", *(each + bad_end for each in logs))
    found = compare_sides(side(tmp_path / "a", *A), b, margin=0.01)
    assert (found.verdict.kind, found.verdict.n, found.b.left_out) == (VerdictKind.FASTER, 4, ())


def test_a_side_without_any_score_says_why(tmp_path: Path) -> None:
    a = side(tmp_path / "a", *A)
    odd = [log(1000.0 + at).replace("Tokens/s/device: ", "Tokens/s/device: nan #") for at in (0, 1)]
    found = compare_sides(a, written(tmp_path / "b", *odd), margin=0.01)
    assert (found.verdict.kind, found.passes) == (VerdictKind.INCONCLUSIVE, None)
    assert "B has 0 scored jobs (no score: no step" in sentence(found.verdict.reasons[0])


def test_a_warm_up_moves_the_window_of_all_jobs(tmp_path: Path) -> None:
    def cold(tgs: float, seed: int) -> str:
        first, rest = log(0.992 * tgs, steps=25, seed=seed), log(tgs, steps=25, seed=seed)
        return "\n".join([*first.splitlines()[:9], *rest.splitlines()[9:], ""])

    a = written(tmp_path / "a", *(cold(1000.0 + at, at) for at in range(6)))
    b = written(tmp_path / "b", *(cold(1001.0 + at, at) for at in range(6)))
    found = compare_sides(a, b)
    assert {score.window for s in (found.a, found.b) for score in s.scores} == {(8, 24)}
    assert "starts at step 8" in sentence(found.verdict.reasons[0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 950.0, 951.0, 949.0)
    assert main(["compare", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    assert "verdict: SLOWER" in shown
    assert "job-2.log" in shown
    assert main(["compare", str(a), str(b), "--gate", "0.01"]) == 1
    assert "1.0 %: regression" in capsys.readouterr().out
    assert main(["compare", str(b), str(a), "--gate", "0.01", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema", "a", "b", "ratio", "verdict", "gate"]
    assert document["gate"] == {"margin": 0.01, "passes": True}
    assert [job["n_steps"] for job in document["b"]["jobs"]] == [10] * 4
    assert main(["compare", str(a / "job-0.log"), str(b / "job-0.log"), "--gate", "0.01"]) == 10
    assert "verdict: none" in capsys.readouterr().out
    assert main(["compare", str(a), str(tmp_path / "gone")]) == 2
