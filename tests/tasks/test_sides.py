"""Plain logs: two directories compared, and the rank of one job that is behind."""

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


def side(folder: Path, *jobs: float | str, **files: str) -> Path:
    """A folder with the log of each job, of this speed or this text; and with other files."""
    for number, job in enumerate(jobs):
        files[f"job-{number}.log"] = job if isinstance(job, str) else log(job, seed=number)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


A = (1000.0, 1003.0, 998.0, 1001.0)
FAST = (1050.0, 1053.0, 1049.0, 1051.0)
# all steps are there, so the bad end behind them changes no figure
BAD_END = "== Training FAILED (exit=143, 84s) ==\n"
ENDED_BADLY = [log(tgs, config="Config param steps: 15") + BAD_END for tgs in FAST]
NO_RATE = [log(tgs).replace("Tokens/s/device: ", "Tokens/s/device: nan #") for tgs in (1e3, 1001)]
LOSSES = [log(1050.0 + at, seed=at, loss="7.9") for at in range(4)]


ENDS = {"FASTER": 0, "INCONCLUSIVE": 10, "INVALID": 11}


@pytest.mark.parametrize(
    ("a", "b", "kind", "words"),
    [
        pytest.param(A, FAST, "FASTER", "", id="faster"),
        pytest.param(A, (1080.0, 930.0, 1010.0, 970.0), "INCONCLUSIVE", "", id="noisy"),
        pytest.param(A, ENDED_BADLY, "FASTER", "", id="a bad end behind the last step counts"),
        pytest.param(A[:2], (1200.0, 1201.0), "INCONCLUSIVE", "more jobs: 2 de", id="two each"),
        pytest.param(A, NO_RATE, "INCONCLUSIVE", "run more jobs: ", id="one without a score"),
        pytest.param(A, LOSSES, "INVALID", "not the same training: ", id="another loss"),
    ],
)
def test_two_sides_end_in_a_verdict_or_in_what_is_missing_for_one(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float | str, ...], kind: str, words: str
) -> None:
    found = compare_sides(side(tmp_path / "a", *a), side(tmp_path / "b", *b), margin=0.01)
    assert (found.verdict.kind, found.exit) == (kind, ENDS[kind])
    assert (found.verdict.ci95 is None) == bool(words)
    assert words in sentence(found.verdict.reasons[0])
    assert (found.b.left_out == ()) == ("nan" not in str(b))


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


def test_what_counts_as_a_job_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Copies, failures and ranks counted as jobs would make any n."""
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n"
    others = {
        "job-9.log": log(A[0], seed=0),
        "notes.md": "which node was slow\n",
        "oom.log": log(500.0) + oom,
        "short.log": log(500.0, steps=8),
        ".hidden": "x",
    }
    long = log(1002.0, steps=40, seed=7)
    a = side(tmp_path / "a", *A, long, **others)
    b = tmp_path / "b"
    for number, tgs in enumerate((1010.0, 1011.0, 1012.0)):
        side(b / f"job-{number}", **{f"log.{rank}.txt": log(tgs, seed=rank) for rank in (0, 1)})
    side(b / "two", **{"x.log": log(1013.0), "y.log": log(1013.0)})
    shutil.copytree(b / "job-0", b / "job-9")
    found = compare_sides(a, b)
    assert [job.path.name for job in found.a.jobs] == [f"job-{n}.log" for n in range(5)]
    out = {path.name: reason for path, reason in found.a.left_out}
    assert out.keys() == others.keys() - {".hidden"}
    assert "a copy of" in out["job-9.log"]
    assert out["oom.log"].startswith("oom")
    short = "no score: 3 usable steps in the window 5-14, 6 needed (last step seen: 7)"
    assert out["short.log"] == short
    assert {score.window for s in (found.a, found.b) for score in s.scores} == {(5, 14)}
    assert [job.path.name for job in found.b.jobs] == ["log.0.txt"] * 3
    assert [path for path, _ in found.b.left_out] == [b / "job-9" / "log.0.txt", b / "two"]
    # submitit writes one log for each task
    tasks = {
        f"{80 + job}_{task}_log.out": log(1050.0 + job, seed=10 * job + task)
        for job in range(3)
        for task in range(4)
    }
    found = compare_sides(a, side(tmp_path / "c", **tasks))
    assert (len(found.b.jobs), found.b.left_out) == (3, ())


OTHER_PROTOCOL = "Config param profiler: xplane\nConfig param steps: 40\n"
NAN = log(1000, loss="nan")
REFUSED: dict[str, tuple[tuple[float | str, ...], str]] = {
    "no folder": ((), "does not exist"),
    "one log on both sides": ((A[0],), "same log as .*other side"),
    "another protocol": (
        (log(1010.0, steps=40, config=OTHER_PROTOCOL),), "ran by different protocols"),
    "no healthy job": (
        (NAN, "hello\n"), r"b holds no log .* \(job-0.log: numerical-failure: .*; job-1.log: "),
}  # fmt: skip


@pytest.mark.parametrize(("b", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, b: tuple[float | str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        compare_sides(side(tmp_path / "a", *A), side(tmp_path / "b", *b))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 950.0, 951.0, 949.0)
    gate = ("--gate", "0.01")
    for argv, status, said in (
        ((a, b), 0, "verdict: SLOWER"),
        ((a, b, *gate), 1, "1.0 %: regression"),
        ((b, a, *gate), 0, "1.0 %: pass"),
        ((a / "job-0.log", b / "job-0.log", *gate), 10, "verdict: none"),
    ):
        assert main(["compare", *map(str, argv)]) == status
        assert said in capsys.readouterr().out


def look(rank: int, **told: object) -> str:
    """What a node saw of a process that stands still."""
    process = {
        "pid": 9 + rank, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "",
        "stacks": [["/u/train.py:4 main"]], **told,
    }  # fmt: skip
    node = {"node": f"n{rank}", "rank": rank, "at_s": 1e9, "quiet_s": 700.0}
    return json.dumps({**node, "processes": [process]})


def test_triage_names_the_rank_that_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [log(1000, steps=7, seed=rank, config="Config param steps: 40") for rank in (0, 1)]
    looks = {"hang.json": look(0), "hang.1.json": look(1, call="read", on="/data/a", stacks=[])}
    logs = {f"log.{rank}.txt": text for rank, text in enumerate(lines)}
    assert main(["triage", "--json", str(side(tmp_path / "still", **logs, **looks))]) == 3
    (behind,) = (each["behind"] for each in json.loads(capsys.readouterr().out)["logs"])
    assert behind["ranks"] == [1]
    said = "rank 1 on n1 is behind after step 6: waits for /data/a; 1 other rank waiting in "
    assert f"{said}train.py:4 main" in behind["sentence"]
    # one log of two ranks of a healthy job
    labelled = (f"{rank}: {line}\n" for rank in (0, 1) for line in lines[rank].splitlines())
    healthy = side(tmp_path / "healthy", **{"log.txt": "".join(labelled)}) / "log.txt"
    main(["triage", "--json", str(healthy)])
    assert json.loads(capsys.readouterr().out)["logs"][0]["behind"] is None
