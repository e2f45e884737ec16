"""The payload: the exact environment, its files, and an outcome however the trainer ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import (
    log_files,
    node_findings,
    read_outcomes,
    read_started,
    with_probe,
    write_spec,
)
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers import probe_environment
from pytest_xlatune.workers.probe_environment import code_digest
from tests.helpers.payloads import PATH, Start, outcome, trainer
from tests.helpers.waiting import LIMIT_S, until

AWKWARD = {
    "COMMAS": "rdma0,rdma1:1,^mlx5_0",
    "QUOTES": """--xla_a='x y' "z" `id` $(id) $HOME \\""",
    "EMPTY": "",
    "SPACES": "  a  b  ",
    "NEWLINES": "one\ntwo\r\n",
    "UNICODE": "naïve ☃",
    "BYTES": b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "BRACES": "{rank} {} %j",
}


def environment_of(log: Path) -> dict[bytes, bytes]:
    lines = log.read_bytes().removesuffix(b"\0").split(b"\0")
    pairs = (line.partition(b"=") for line in lines)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    ("argv", "end", "reason"),
    [
        pytest.param(("true",), (State.COMPLETED, 0, None), "", id="exit 0"),
        pytest.param(("sh", "-c", "exit 3"), (State.FAILED, 3, None), "", id="exit 3"),
        pytest.param(("sh", "-c", "kill -9 $$"), (State.FAILED, None, 9), "", id="killed inside"),
        pytest.param(
            ("no-such-program",),
            (State.FAILED, None, None),
            "no-such-program could not be started",
            id="no such program",
        ),
        pytest.param(
            ("~/bin/python",),
            (State.FAILED, None, None),
            "only a shell reads ~",
            id="a home that a shell would know",
        ),
        pytest.param(
            ("/etc",),
            (State.FAILED, None, None),
            "/etc could not be started: Permission denied",
            id="a folder is no program",
        ),
        pytest.param(("a\0b",), (State.FAILED, None, None), "null byte", id="a NUL in an argument"),
    ],
)
def test_however_the_trainer_ends_there_is_an_outcome(
    tmp_path: Path,
    start: Start,
    argv: tuple[str, ...],
    end: tuple[State, int | None, int | None],
    reason: str,
) -> None:
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    before_s = time.time()
    assert start(tmp_path).wait(LIMIT_S) == 0
    found = outcome(tmp_path)
    assert (found.state, found.exit_code, found.signal) == end
    assert found.is_started is (end != (State.FAILED, None, None))
    assert reason in found.reason
    assert found.start_s is not None
    assert found.end_s is not None
    assert before_s <= found.start_s <= found.end_s <= time.time()
    assert len(found.nodes) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (LaunchSpec(argv=("true",), cwd="/no/such/place"), "/no/such/place"),
        (LaunchSpec(argv=("true",), files={"../out.txt": ""}), "leads out of"),
        (
            LaunchSpec(argv=("true",), files={"/tmp/out.txt": ""}),
            "leads out of",
        ),
        (None, "spec.json"),
    ],
    ids=["no working directory", "a file above the folder", "an absolute file", "no spec"],
)
def test_a_spec_that_cannot_be_run_fails_with_its_reason(
    tmp_path: Path, start: Start, spec: LaunchSpec | None, reason: str
) -> None:
    if spec is not None:
        write_spec(tmp_path / "a", spec)
    (tmp_path / "a").mkdir(exist_ok=True)
    start(tmp_path / "a").wait(LIMIT_S)
    assert outcome(tmp_path / "a").state is State.FAILED
    assert reason in outcome(tmp_path / "a").reason


def test_the_environment_is_what_the_spec_says_and_the_token_of_the_start(
    tmp_path: Path, start: Start
) -> None:
    spec = LaunchSpec(
        argv=("env", "-0"),
        env=AWKWARD,
        inherit=("PATH", "SITE_*", "ABSENT", "GONE"),
        unset=("GONE", "SITE_B"),
    )
    write_spec(tmp_path, spec)
    ours = {"SITE_A": "1, 2", "SITE_B": "b", "GONE": "g", "SECRET_TOKEN": "s3cret", "SITEX": "x"}
    start(tmp_path, environ=ours).wait(LIMIT_S)
    expected = {name: value.encode("utf-8", "surrogateescape") for name, value in AWKWARD.items()}
    expected |= {"PATH": PATH["PATH"].encode(), "SITE_A": b"1, 2"}
    found = environment_of(tmp_path / "log.0.txt")
    started = read_started(tmp_path)
    assert started is not None
    assert found.pop(b"XLATUNE_START") == started.token.encode()
    assert found == {name.encode(): value for name, value in expected.items()}


def test_a_node_has_the_name_that_slurm_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are pinned by these names, and a host may call itself otherwise."""
    monkeypatch.setenv("SLURMD_NODENAME", "node042")
    assert payload._node() == "node042"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert payload._node() == platform.node()


def test_a_secret_is_in_no_part_of_the_spec_that_stays(tmp_path: Path) -> None:
    secret = "hush-hush"
    spec = LaunchSpec(
        argv=("train", f"log in with {secret}", "steps=5"),
        env={"HF_TOKEN": secret, "BANNER": f"welcome {secret}", "LEVEL": "4"},
        files={"a.sh": f"echo {secret}\n", "b.sh": "true\n"},
    )
    write_spec(tmp_path, spec)
    kept = (tmp_path / payload.SPEC).read_text()
    assert secret not in kept
    assert all(each in kept for each in ("steps=5", '"4"', "true")), "what is no secret stays"
    assert (tmp_path / payload.SECRETS).read_text().count(secret) == 4


def test_folder_and_rank_are_filled_in_where_the_spec_asks_for_them(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", 'echo "$1 $XLA_FLAGS"', "sh", "{xlatune.folder}/metrics.{xlatune.rank}")
    env = {**PATH, "XLA_FLAGS": "--xla_dump_to={xlatune.folder}/dump.{xlatune.rank}"}
    write_spec(tmp_path, LaunchSpec(argv=argv, env=env))
    start(tmp_path, environ={"SLURM_PROCID": "3"}).wait(LIMIT_S)
    expected = f"{tmp_path}/metrics.3 --xla_dump_to={tmp_path}/dump.3\n"
    assert (tmp_path / "log.3.txt").read_text() == expected


def test_files_are_there_before_the_trainer_starts_in_the_folder(
    tmp_path: Path, start: Start
) -> None:
    files = {"env.sh": "export A='☃'\n", "configs/model.yml": "steps: 15\n"}
    argv = ("cat", "env.sh", "configs/model.yml")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH, files=files))
    start(tmp_path).wait(LIMIT_S)
    assert (tmp_path / "log.0.txt").read_text(encoding="utf-8") == "".join(files.values())


def test_output_and_errors_are_in_one_log_while_the_trainer_runs(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", "echo out; echo err >&2; echo out2; exec sleep 60")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    start(tmp_path)
    log = tmp_path / "log.0.txt"
    until(lambda: log.exists() and log.read_text() == "out\nerr\nout2\n")
    assert trainer(tmp_path).is_alive
    assert not read_outcomes(tmp_path)


def test_each_rank_has_its_own_files_and_ends_its_process_as_its_trainer_ended(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", "echo rank {xlatune.rank}; exit $(( {xlatune.rank} * 7 ))")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    ranks = [
        start(tmp_path, environ={"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"node00{rank}"})
        for rank in range(3)
    ]
    assert [each.wait(LIMIT_S) for each in ranks] == [0, 7, 14]
    found = read_outcomes(tmp_path)
    assert {rank: each.exit_code for rank, each in found.items()} == {0: 0, 1: 7, 2: 14}
    assert [each.nodes for each in found.values()] == [("node000",), ("node001",), ("node002",)]
    assert {rank: log.read_text() for rank, log in log_files(tmp_path).items()} == {
        rank: f"rank {rank}\n" for rank in range(3)
    }
    assert {each.name for each in tmp_path.glob("outcome*")} == {
        "outcome.json", "outcome.1.json", "outcome.2.json"
    }  # fmt: skip


def test_an_attempt_is_run_once_however_often_it_is_started(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("sh", "-c", "echo run >> runs"), env=PATH))
    started = [start(tmp_path) for _ in range(3)]
    assert [each.wait(LIMIT_S) for each in started] == [0, 0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"
    assert outcome(tmp_path).state is State.COMPLETED


HARD = "echo hard: Xid 79 on GPU 3; echo 2 corrected errors"


@pytest.mark.parametrize("trainer_ends", ["true", "exit 3"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", []),
        (HARD, [("node-fault", "Xid 79 on GPU 3"), ("node-said", "2 corrected errors")]),
        (
            f"{HARD}; exit 4",
            [("node-unasked", "exit 4: 2 corrected errors"), ("node-fault", "Xid 79 on GPU 3")],
        ),
        ("exec sleep 60", [("node-unasked", "no answer in 1 s")]),
        ("kill -9 $$", [("node-unasked", "signal 9")]),
        ("printf '\\377\\000'", [("node-said", "\ufffd\x00")]),
        ('echo "$XLA_FLAGS$SECRET"', []),
    ],
    ids=["silent", "hard", "hard and failed", "hangs", "killed", "no text", "environment"],
)
def test_a_sites_command_tells_of_the_node_and_costs_no_trial(
    tmp_path: Path,
    script: str,
    expected: list[tuple[str, str]],
    trainer_ends: str,
) -> None:
    spec = LaunchSpec(
        argv=("sh", "-c", f"echo of the trainer; {trainer_ends}"),
        env={**PATH, "XLA_FLAGS": "--a", "SECRET": "b"},
        node_health=("sh", "-c", script),
    )
    write_spec(tmp_path, spec)
    program = (
        "from pytest_xlatune.executors import payload; payload.HEALTH_S = 1.0; "
        f"payload.run({str(tmp_path)!r})"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
    assert outcome(tmp_path).state is (
        State.COMPLETED if trainer_ends == "true" else State.FAILED
    ), "the command decides nothing of the trial"
    found = node_findings(tmp_path)
    assert [(each.cls, each.text) for each in found] == expected
    assert {each.source for each in found} <= set(outcome(tmp_path).nodes)
    assert (tmp_path / "log.0.txt").read_text() == "of the trainer\n"


def test_a_command_that_is_missing_or_writes_without_end_is_told(
    tmp_path: Path, start: Start
) -> None:
    for name, command in (("missing", ("no-such-command",)), ("endless", ("yes",))):
        folder = tmp_path / name
        write_spec(folder, LaunchSpec(argv=("true",), env=PATH, node_health=command))
        assert start(folder).wait(LIMIT_S) == 0
        assert outcome(folder).state is State.COMPLETED
    (missing,) = node_findings(tmp_path / "missing")
    assert missing.cls == "node-unasked"
    assert "no-such-command could not be started: No such file" in missing.text
    endless = node_findings(tmp_path / "endless")
    assert endless[0].cls == "node-unasked"
    assert (tmp_path / "endless" / "health.txt").stat().st_size <= 1 << 20


def test_a_job_that_is_ended_asks_no_command_and_that_is_told(tmp_path: Path) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("true",), env=PATH, node_health=("true",)))
    (found,) = node_findings(tmp_path)
    assert (found.cls, found.source) == ("node-unasked", "")
    assert "was not run" in found.text
    write_spec(tmp_path, LaunchSpec(argv=("true",), env=PATH))
    assert node_findings(tmp_path) == ()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("imports", ["import model", "import importlib"])
def test_a_pipe_among_the_files_of_a_trainer_is_not_waited_for(
    tmp_path: Path, imports: str
) -> None:
    (tmp_path / "train.py").write_text(f"{imports}\n")
    os.mkfifo(tmp_path / "model.py")
    assert code_digest(str(tmp_path), str(tmp_path / "train.py")).endswith(" Python files")
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert probe_environment.repositories([str(tmp_path), str(tmp_path / "train.py")]) == {}


@pytest.mark.parametrize("verb", ["trainer", "devices"])
def test_what_a_trial_runs_on_is_asked_before_its_trainer_edits_anything(
    tmp_path: Path, start: Start, verb: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib\nimport model\npathlib.Path('model.py').write_text('x = 2\\n')\n"
    )
    (tmp_path / "model.py").write_text("x = 1\n")
    before = code_digest(str(tmp_path), str(tmp_path / "train.py"))
    asks = (sys.executable, "{xlatune.folder}/xlatune_environment.py", "trainer",
            str(tmp_path / "train.py"))  # fmt: skip
    spec = LaunchSpec(
        argv=(sys.executable, str(tmp_path / "train.py")), env=PATH, probe=asks, paths=()
    )
    write_spec(tmp_path, with_probe(spec, devices=verb == "devices"))
    start(tmp_path).wait(LIMIT_S)
    assert outcome(tmp_path).state is State.COMPLETED
    told = json.loads((tmp_path / "environment.json").read_text())
    assert told["node"]["kernel"] == platform.release()
    assert told["code"] == {str(tmp_path): before}, told
    assert code_digest(str(tmp_path), str(tmp_path / "train.py")) != before
