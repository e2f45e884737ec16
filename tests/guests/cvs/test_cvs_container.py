"""A CVS file's image runs in a real container: mounts, environment, the token by reference only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune import Sweep
from pytest_xlatune.executors import Request
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.guests.cvs.launcher import CvsLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import State, Submission
from pytest_xlatune.sweep.groups import UserOptions
from tests.helpers.containers import PodmanSite
from tests.helpers.cvs_written import first, write
from tests.helpers.probes import make_trial
from tests.helpers.waiting import until

TOKEN = "hf_" + "never-to-be-told"
TRAINER = """\
import json, os, sys
held = open(os.environ["HF_TOKEN_PATH"]).read()
print(json.dumps([dict(os.environ), sys.argv[1:], os.getpid(), len(held), os.listdir("/data")]))
"""


def test_the_image_of_a_file_runs_with_its_mounts_and_never_tells_the_token(
    podman_site: PodmanSite, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    (shared / "data").mkdir(parents=True)
    (shared / "data" / "c4.parquet").touch()
    (shared / ".hf_token").write_text(TOKEN)
    (shared / "train.py").write_text(TRAINER)
    data: Any = first()
    data["config"] |= {"container_image": podman_site.image, "nnodes": "1", "shm_size": "64M"}
    data["config"]["hf_token_file"] = f"{shared}/.hf_token"
    data["config"]["container_config"] |= {
        "device_list": ["/dev/null"],
        "volume_dict": {str(shared): str(shared), f"{shared}/data": "/data"},
    }
    path = write(tmp_path, "gen1.json", data)
    sweep = Sweep.from_cvs(path, runtime="podman")
    outer = sweep.launcher
    assert isinstance(outer, ContainerLauncher)
    assert isinstance(outer.inner, CvsLauncher)
    assert outer.args == ("--device=/dev/null", "--shm-size=64m", "--privileged")
    # as this machine's sandbox can start one: without privileges, with its own mounts
    python = "/usr/bin/python3"
    launcher = dataclasses.replace(
        outer,
        inner=dataclasses.replace(outer.inner, scripts=(f"{shared}/train.py",), python=python),
        program=podman_site.program,
        args=podman_site.args,
        mounts=(*outer.mounts, "/usr:/usr:ro"),
    )
    cell = replace(sweep, launcher=launcher).resolve(UserOptions(values={"executor": "local"})).cell
    spec = launcher.launch(make_trial(cell), cell)
    assert TOKEN not in json.dumps(spec.to_json())
    folder = tmp_path / "run" / "t1"
    request = Request(folder=folder, job_name="t1", comment="t1", resources=Resources())
    job = LocalExecutor(lock=tmp_path / "lock").submit(spec, request)
    submission = Submission(trial_id="t1", attempt=1, executor="local", job_id=job, folder="run/t1")

    def poll() -> Any:
        return LocalExecutor().poll([submission], root=tmp_path)[job]

    until(lambda: poll().state.is_final)
    log = (folder / "log.0.txt").read_text()
    assert poll().state is State.COMPLETED, log
    env, argv, pid, held, listed = json.loads(log.splitlines()[-1])
    assert pid < 20, "it has its own process ids"
    assert held == len(TOKEN)
    assert listed == ["c4.parquet"]
    assert env["NVTE_CK_USES_BWD_V3"] == "1"
    assert "--xla_gpu_enable_cublaslt=True" in env["XLA_FLAGS"]
    assert "dtype=bfloat16" in argv
    for each in (each for each in folder.rglob("*") if each.is_file()):
        assert TOKEN.encode() not in each.read_bytes(), each
