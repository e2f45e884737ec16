"""Containers under srun, of podman and of pyxis: a rank in each, which ends with its job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.history import trial_of
from tests.helpers.waiting import until
from tests.slurm.on_lab import Trials, processes_with

PROFILE = profile("p", "--xla_a=1")
PROBE = 'echo "$SLURM_PROCID of $SLURM_NTASKS on $SLURM_STEP_NODELIST"'
# what pyxis adds to srun taken away again: the step, its variables and its end are Slurm's own
WITHOUT_PYXIS = """\
#!/bin/sh
for each do
  shift
  case $each in --container-*|--no-container-*) ;; *) set -- "$@" "$each" ;; esac
done
exec srun "$@"
"""


def test_a_container_on_every_node_knows_its_rank_and_ends_with_its_job(
    trials: Trials, podman_site: Any
) -> None:
    """srun around the container: one container a node, started by that node's payload."""
    probe = f'{PROBE}; echo "$XLA_FLAGS"; trap "exit 0" TERM; echo up; '
    word = str(trials.root)  # of the process inside
    spec = podman_site.spec(PROFILE, "bash", "-c", f"{probe} while :; do sleep 0.2; done", word)
    first, second = until_up(trials, spec, word)
    # the first rank alone is asked to tell what XLA has read
    assert re.search(r'(?m)^--xla_dump_to="/.* --xla_from_image=1 --xla_a=1$', first)
    assert "\n--xla_from_image=1 --xla_a=1\n" in second


def test_a_step_for_pyxis_is_the_rank_that_it_belongs_to(trials: Trials, tmp_path: Path) -> None:
    srun = tmp_path / "srun-without-pyxis"
    srun.write_text(WITHOUT_PYXIS)
    srun.chmod(0o755)
    probe = f'{PROBE}; echo "$TRICKY"; echo up; exec sleep 300.47'
    launcher = ContainerLauncher(
        inner=CommandLauncher(argv=("bash", "-c", probe)), runtime="pyxis", program=str(srun)
    )
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=2"),
        image=f"{tmp_path}/x.sqsh@sha256:{'0' * 64}",
        deployed={"TRICKY": "a,b 'c' \"d\""},
    )
    logs = until_up(trials, launcher.launch(trial_of(cell, PROFILE), cell), "300.47")
    assert all(" on node[001-002]\na,b 'c' \"d\"\n" in log for log in logs)


def until_up(trials: Trials, spec: LaunchSpec, word: str) -> list[str]:
    """Launch a job and cancel it when both ranks are up; return their logs.

    A process of each has the word among its arguments, and ends with the job.
    """
    job = trials.launch("contained", spec)
    paths = [trials.folder(job) / f"log.{rank}.txt" for rank in (0, 1)]
    until(lambda: all(path.exists() and "up\n" in path.read_text() for path in paths))
    logs = [path.read_text() for path in paths]
    for rank, log in enumerate(logs):
        assert f"{rank} of 2 on " in log
    assert len(processes_with(word)) >= 2
    trials.executor.cancel([job], root=trials.root)
    assert trials.end(job).state == "cancelled"
    until(lambda: not processes_with(word))
    return logs
