"""`xlatune triage` names the rank that is behind, `steps` and `watch` one that is slower."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pytest_xlatune.cli import main

CONFIG = "Config param steps: 40\n"


def lines(rank: int, steps: int, *, slow: float = 1.0, label: bool = False) -> str:
    rng = random.Random(rank)
    front = f"{rank}: " if label else ""
    return "".join(
        f"{front}completed step: {step}, seconds: {0.5 * slow * rng.gauss(1, 0.004):.4f}, "
        f"TFLOP/s/device: 1.0, Tokens/s/device: 1000.0, total_weights: 64, loss: 7.1\n"
        for step in range(steps)
    )


def look(rank: int, **said: object) -> dict[str, object]:
    process = {
        "pid": 9 + rank, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "", "main_cores": 0.0,
        "stacks": [["/u/train.py:4 main"]], **said,
    }  # fmt: skip
    last = "completed step: 6, ..."
    return {
        "node": f"n{rank}", "rank": rank, "at_s": 1e9, "quiet_s": 700.0, "last_lines": [last],
        "processes": [process],
    }  # fmt: skip


def triage(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    main(["triage", "--json", *args])
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    found: dict[str, object] = log["behind"]
    return found


def test_the_folder_of_a_trial_that_stood_still_names_rank_and_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        (tmp_path / f"log.{rank}.txt").write_text(CONFIG + lines(rank, 7))
    (tmp_path / "hang.json").write_text(json.dumps(look(0)))
    (tmp_path / "hang.1.json").write_text(json.dumps(look(1, call="read", on="/data/a", stacks=[])))
    found = triage(capsys, str(tmp_path))
    said = "rank 1 on n1 is behind after step 6: waits for /data/a; 1 other rank waiting in "
    assert found["sentence"] == f"{said}train.py:4 main"
    assert (found["ranks"], found["node"]) == ([1], "n1")
    assert main(["triage", str(tmp_path)]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "Which rank is behind" in shown
    assert "waits for /data/a" in shown


def test_what_is_no_look_is_left_out_and_the_lines_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, steps in enumerate((9, 9, 5)):
        (tmp_path / f"log.{rank}.txt").write_text(CONFIG + lines(rank, steps))
    (tmp_path / "hang.json").write_text("[1, 2")
    (tmp_path / "hang.1.json").write_text('{"node": 7}')
    found = triage(capsys, str(tmp_path))
    assert found["ranks"] == [2]
    assert "others came to step 8; its last line: completed step: 4" in str(found["sentence"])


def test_of_logs_of_submitit_each_rank_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, steps in enumerate((9, 5, 9)):
        (tmp_path / f"77_{rank}_log.out").write_text(CONFIG + lines(rank, steps))
    (tmp_path / "78_0_log.out").write_text(CONFIG + lines(0, 1))  # another job
    assert triage(capsys, str(tmp_path / "77"))["ranks"] == [1]


@pytest.mark.parametrize("name", ["rank_{}.log", "slurm-77-rank{}.out"])
def test_of_logs_that_name_their_rank_each_rank_has_its_own(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, steps in enumerate((9, 5, 9)):
        (tmp_path / name.format(rank)).write_text(CONFIG + lines(rank, steps))
    (tmp_path / "slurm-78-rank0.out").write_text(CONFIG + lines(0, 1))  # another job
    assert triage(capsys, str(tmp_path / name.format(0)))["ranks"] == [1]


def test_a_healthy_job_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(lines(rank, 40 - 20 * rank, label=True) for rank in range(2))
    (tmp_path / "log.txt").write_text(CONFIG + text)
    assert triage(capsys, str(tmp_path / "log.txt")) is None


@pytest.mark.parametrize("is_one", [True, False], ids=["one log with labels", "a log a rank"])
def test_steps_names_the_rank_that_takes_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_one: bool
) -> None:
    texts = [lines(r, 40, slow=1.08 if r == 3 else 1.0, label=is_one) for r in range(8)]
    path = tmp_path / "log.0.txt"
    if is_one:
        path.write_text(CONFIG + "".join(texts))
    else:
        for rank, text in enumerate(texts):
            (tmp_path / f"log.{rank}.txt").write_text(CONFIG + text)
    main(["steps", str(path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "rank 3 takes 7." in said or "rank 3 takes 8." in said
    assert "median of 8 ranks" in said


@pytest.mark.parametrize("ranks", [1, 8])
def test_steps_of_ranks_alike_names_none(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(lines(rank, 40, label=True) for rank in range(ranks))
    (tmp_path / "log.txt").write_text(CONFIG + text)
    main(["steps", str(tmp_path / "log.txt")])
    assert "longer for a step" not in capsys.readouterr().out
