"""`xlatune triage` names the rank that is behind, `steps` and `watch` one that is slower."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main


def lines(rank: int, steps: int, *, slow: float = 1.0, label: bool = False) -> str:
    rng = random.Random(rank)
    front = f"{rank}: " if label else ""
    return "Config param steps: 40\n" * (rank == 0 or not label) + "".join(
        f"{front}completed step: {step}, seconds: {0.5 * slow * rng.gauss(1, 0.004):.4f}, "
        f"TFLOP/s/device: 1.0, Tokens/s/device: 1000.0, total_weights: 64, loss: 7.1\n"
        for step in range(steps)
    )


def look(rank: int, **said: object) -> str:
    process = {
        "pid": 9 + rank, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "", "main_cores": 0.0,
        "stacks": [["/u/train.py:4 main"]], **said,
    }  # fmt: skip
    looked = {
        "node": f"n{rank}", "rank": rank, "at_s": 1e9, "quiet_s": 700.0,
        "last_lines": ["completed step: 6, ..."], "processes": [process],
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
        pytest.param(
            "log.{}.txt",
            (9, 5, 9),
            {"hang.json": "[1, 2", "hang.1.json": '{"node": 7}'},
            "",
            "others came to step 8; its last line: completed step: 4",
            id="what is no look is left out, and the lines tell",
        ),
        pytest.param(
            "slurm-77-rank{}.out", (9, 5, 9), {"slurm-78-rank0.out": ""}, "slurm-77-rank0.out", "",
            id="job and rank in the name",
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


@pytest.mark.parametrize(
    ("is_one", "slow"),
    [(True, 3), (False, 3), (True, None)],
    ids=["one log with labels", "a log a rank", "ranks alike"],
)
def test_steps_names_the_rank_that_takes_longer(
    is_one: bool, slow: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [lines(at, 40, slow=1.08 if at == slow else 1.0, label=is_one) for at in range(8)]
    for at, text in enumerate(["".join(texts)] if is_one else texts):
        (tmp_path / f"log.{at}.txt").write_text(text)
    main(["steps", str(tmp_path / "log.0.txt")])
    said = " ".join(capsys.readouterr().out.split())
    if slow is None:
        assert "longer for a step" not in said
    else:
        assert "rank 3 takes 7." in said or "rank 3 takes 8." in said
