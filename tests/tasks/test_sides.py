"""Plain logs: two directories compared, and the rank of one job that is behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

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


def side(folder: Path, *jobs: float | str) -> Path:
    """A folder with the log of each job, of this speed or this text."""
    return written(
        folder,
        {
            f"job-{number}.log": job if isinstance(job, str) else log(job, seed=number)
            for number, job in enumerate(jobs)
        },
    )


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


A = (1000.0, 1003.0, 998.0, 1001.0)
FAST = (1050.0, 1053.0, 1049.0, 1051.0)
# all steps are there, so the bad end behind them changes no figure
BAD_END = "== Training FAILED (exit=143, 84s) ==\n"


@pytest.mark.parametrize(
    ("b", "kind", "passes"),
    [
        pytest.param(FAST, "FASTER", True, id="faster"),
        pytest.param((1080.0, 930.0, 1010.0, 970.0), "INCONCLUSIVE", None, id="noisy"),
        pytest.param(
            [log(tgs, config="Config param steps: 15") + BAD_END for tgs in FAST],
            "FASTER",
            True,
            id="a job that ended badly behind its last step counts",
        ),
    ],
)
def test_several_jobs_a_side(
    tmp_path: Path, b: tuple[float, ...], kind: str, *, passes: bool | None
) -> None:
    found = compare_sides(side(tmp_path / "a", *A), side(tmp_path / "b", *b), margin=0.01)
    assert (found.verdict.kind, found.passes) == (kind, passes)
    assert (found.verdict.n, found.b.left_out) == (4, ())
    assert found.exit == {True: 0, False: 1, None: 10}[passes]


NO_RATE = [log(tgs).replace("Tokens/s/device: ", "Tokens/s/device: nan #") for tgs in (1e3, 1001)]
LOSSES = [log(1050.0 + at, seed=at, loss="7.9") for at in range(4)]


@pytest.mark.parametrize(
    ("a", "b", "kind", "words"),
    [
        (A[:2], (1200.0, 1201.0), "INCONCLUSIVE", "run more jobs: 2 degrees of freedom"),
        (A, NO_RATE, "INCONCLUSIVE", "run more jobs: "),
        (A, LOSSES, "INVALID", "not the same training: "),
    ],
    ids=["two each", "a side without any score", "another loss is another training"],
)
def test_what_is_no_verdict_says_what_is_missing(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float | str, ...], kind: str, words: str
) -> None:
    found = compare_sides(side(tmp_path / "a", *a), side(tmp_path / "b", *b), margin=0.01)
    assert (found.verdict.kind, found.verdict.ci95, found.passes) == (kind, None, None)
    assert words in sentence(found.verdict.reasons[0])


@settings(max_examples=tried(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    a=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
    b=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
)
def test_swapping_the_sides_inverts_the_ratio(
    tmp_path_factory: pytest.TempPathFactory, a: list[float], b: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("swap")
    one, other = side(folder / "one", *a), side(folder / "other", *(tgs * 1.0001 for tgs in b))
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
    a = side(tmp_path / "a", *A)
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n"
    written(
        a,
        {
            "job-9.log": log(A[0], seed=0),
            "notes.md": "which node was slow\n",
            "oom.log": log(500.0) + oom,
            "short.log": log(500.0, steps=7),
            ".hidden": "x",
        },
    )
    found = compare_sides(a, side(tmp_path / "b", 1010.0, 1011.0))
    assert [job.path.name for job in found.a.jobs] == [f"job-{n}.log" for n in range(4)]
    out = {path.name: reason for path, reason in found.a.left_out}
    assert out.keys() == {"job-9.log", "notes.md", "oom.log", "short.log"}
    assert "a copy of" in out["job-9.log"]
    assert out["oom.log"].startswith("oom")


def test_a_sub_folder_is_one_job_and_so_are_the_ranks_of_one(tmp_path: Path) -> None:
    a = side(tmp_path / "a", *A)
    b = written(
        tmp_path / "b",
        {
            f"job-{number}/log.{rank}.txt": log(tgs, seed=rank)
            for number, tgs in enumerate((1010.0, 1011.0, 1012.0))
            for rank in (0, 1)
        },
    )
    written(b / "two", {"x.log": log(1013.0), "y.log": log(1013.0)})
    shutil.copytree(b / "job-0", b / "job-9")
    found = compare_sides(a, b)
    assert [job.path.name for job in found.b.jobs] == ["log.0.txt"] * 3
    assert [path for path, _ in found.b.left_out] == [b / "job-9" / "log.0.txt", b / "two"]
    # submitit writes one log for each task: counted as jobs they would make any n
    tasks = {
        f"{80 + job}_{task}_log.out": log(1050.0 + job, seed=10 * job + task)
        for job in range(3)
        for task in range(4)
    }
    found = compare_sides(a, written(tmp_path / "c", tasks))
    assert (len(found.b.jobs), found.b.left_out) == (3, ())


def test_one_window_for_all(tmp_path: Path) -> None:
    steps = (15, 40, 8, 20)
    a = side(tmp_path / "a", *(log(1000 + at, steps=count) for at, count in enumerate(steps)))
    found = compare_sides(a, side(tmp_path / "b", 1010.0, 1011.0, 1013.0))
    assert {score.window for s in (found.a, found.b) for score in s.scores} == {(5, 14)}
    assert found.a.left_out[0][1] == (
        "no score: 3 usable steps in the window 5-14, 6 needed (last step seen: 7)"
    )


OTHER_PROTOCOL = "Config param profiler: xplane\nConfig param steps: 40\n"


@pytest.mark.parametrize(
    ("b", "words"),
    [
        pytest.param(None, "does not exist", id="no folder"),
        pytest.param((A[0],), "same log as .*other side", id="one log on both sides"),
        pytest.param(
            (log(1010.0, steps=40, config=OTHER_PROTOCOL),),
            "ran by different protocols",
            id="another protocol",
        ),
        pytest.param(
            (log(1000, loss="nan"), log(1001, loss="nan"), "hello\n"),
            r"b holds no log .* \(job-0.log: numerical-failure: .*; job-2.log: ",
            id="no healthy job",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, b: tuple[float | str, ...] | None, words: str
) -> None:
    a, other = side(tmp_path / "a", *A), tmp_path / "b"
    if b is not None:
        other.mkdir()
        side(other, *b)
    with pytest.raises(ConfigError, match=words):
        compare_sides(a, other)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 950.0, 951.0, 949.0)
    assert main(["compare", str(a), str(b)]) == 0
    assert "verdict: SLOWER" in capsys.readouterr().out
    assert main(["compare", str(a), str(b), "--gate", "0.01"]) == 1
    assert "1.0 %: regression" in capsys.readouterr().out
    assert main(["compare", str(b), str(a), "--gate", "0.01"]) == 0
    assert "1.0 %: pass" in capsys.readouterr().out
    assert main(["compare", str(a / "job-0.log"), str(b / "job-0.log"), "--gate", "0.01"]) == 10
    assert "verdict: none" in capsys.readouterr().out


def lines(rank: int, steps: int, *, label: bool = False) -> str:
    text = log(1000, steps=steps, seed=rank, config="Config param steps: 40")
    return "".join(f"{rank}: {line}\n" for line in text.splitlines()) if label else text


def look(rank: int, **said: object) -> str:
    process = {
        "pid": 9 + rank, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "",
        "stacks": [["/u/train.py:4 main"]], **said,
    }  # fmt: skip
    looked = {
        "node": f"n{rank}", "rank": rank, "at_s": 1e9, "quiet_s": 700.0,
        "processes": [process],
    }  # fmt: skip
    return json.dumps(looked)


@pytest.mark.parametrize(
    ("name", "steps", "others", "path", "said"),
    [
        pytest.param(
            "log.{}.txt",
            (7, 7),
            {"hang.json": look(0), "hang.1.json": look(1, call="read", on="/data/a", stacks=[])},
            "",
            "rank 1 on n1 is behind after step 6: waits for /data/a; 1 other rank waiting in "
            "train.py:4 main",
            id="the folder of a trial that stood still",
        ),
    ],
)  # fmt: skip
def test_triage_names_the_rank_that_is_behind(
    *, name: str, steps: tuple[int, ...], others: dict[str, str], path: str, said: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for at, count in enumerate(steps):
        (tmp_path / name.format(at)).write_text(lines(at, count))
    for other, text in others.items():
        (tmp_path / other).write_text(text or lines(0, 1))
    assert main(["triage", "--json", str(tmp_path / path)]) == 3
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert log["behind"]["ranks"] == [1]
    assert said in log["behind"]["sentence"]


def test_a_healthy_job_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(lines(rank, 40 - 20 * rank, label=True) for rank in range(2)))
    main(["triage", "--json", str(path)])
    found: Any = json.loads(capsys.readouterr().out)
    assert found["logs"][0]["behind"] is None
