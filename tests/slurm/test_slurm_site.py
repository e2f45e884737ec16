"""The MaxText sweeps on the lab, by nothing but a settings file; containers under srun."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import profile
from tests.helpers import quick_compile
from tests.helpers.history import trial_of
from tests.slurm.on_lab import Project, Trials, processes_with, wait_until

PROFILE = profile("p", "--xla_a=1")
ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "sweeps" / "quickstart"
# what the two files ask of a site; here the site's trainer is the quickstart's
SITE = f"""\
model = "quickstart"
budget = 54
nodelist = "node[001-002]"
devices = 2
pdbs = 4
max-target-length = 16

[launcher]
python = "{sys.executable}"
module = "{QUICKSTART}/train.py"
config = "{QUICKSTART}/configs/quickstart.yml"
cwd = "/tmp"

[deployed]
JAX_PLATFORMS = "cpu"
XLA_FLAGS = "--xla_backend_optimization_level=0 {quick_compile.flags()}"

[overrides]
log_config = false
base_emb_dim = 32
base_mlp_dim = 64
head_dim = 8
vocab_size = 64
"""


@pytest.mark.part("sweeps")
@pytest.mark.jax
@pytest.mark.parametrize(
    ("sweep", "chosen", "axis"),
    [
        ("pp8", "baseline or [overlap-2]", "pipeline"),
        ("fsdp8", "baseline or [ag-1g]", "fsdp"),
    ],
)
def test_the_maxtext_sweeps_run_on_the_lab(
    project: Project, sweep: str, chosen: str, axis: str
) -> None:
    (project.path / "xlatune.toml").write_text(SITE, encoding="utf-8")
    said = project.run(
        str(ROOT / "sweeps" / f"test_{sweep}.py"),
        *("-n", "0", "-m", "wave1 or wave2", "-k", chosen),
        *("--rootdir", str(project.path), "--xlatune-config", "xlatune.toml"),
        *("--xlatune-parallelism", "PP=2" if axis == "pipeline" else "FSDP=2"),
        timeout_s=280,
    )
    assert " passed" in said, said
    assert "failed" not in said, said
    assert "error" not in said.lower(), said
    logs = list(project.path.glob("work/*/*/*/*/spec.json"))
    assert logs
    assert all(f"dcn_{axis}_parallelism=2" in path.read_text() for path in logs)


def test_a_container_on_every_node_knows_its_rank_and_ends_with_its_job(
    trials: Trials, podman_site: Any
) -> None:
    """srun around the container: one container a node, started by that node's payload."""
    probe = 'echo "$SLURM_PROCID of $SLURM_NTASKS: $XLA_FLAGS"; trap "exit 0" TERM; echo up; '
    spec = podman_site.spec(PROFILE, "bash", "-c", f"{probe} while :; do sleep 0.2; done")
    job = trials.launch("contained", spec)

    def logs() -> list[str]:
        folder = trials.folder(job)
        paths = [folder / f"log.{rank}.txt" for rank in (0, 1)]
        return [path.read_text() if path.exists() else "" for path in paths]

    wait_until(lambda: all("up" in log for log in logs()))
    first, second = logs()
    # the first rank alone is asked to tell what XLA has read
    told = f'--xla_dump_to="{trials.folder(job)}/'
    assert re.search(rf"(?m)^0 of 2: {re.escape(told)}.* --xla_from_image=1 --xla_a=1$", first)
    assert "1 of 2: --xla_from_image=1 --xla_a=1" in second
    assert len(containers_of(trials.folder(job))) == 2
    trials.executor.cancel([job], root=trials.root)
    assert trials.end(job).state == "cancelled"
    wait_until(lambda: not containers_of(trials.folder(job)))


# what pyxis adds to srun taken away again: the step, its variables and its end are Slurm's own
WITHOUT_PYXIS = """\
#!/bin/sh
for each do
  shift
  case $each in --container-*|--no-container-*) ;; *) set -- "$@" "$each" ;; esac
done
exec srun "$@"
"""


def test_a_step_for_pyxis_is_the_rank_that_it_belongs_to(trials: Trials, tmp_path: Path) -> None:
    srun = tmp_path / "srun-without-pyxis"
    srun.write_text(WITHOUT_PYXIS)
    srun.chmod(0o755)
    probe = 'echo "$SLURM_PROCID of $SLURM_NTASKS on $SLURM_STEP_NODELIST: $TRICKY"; echo up; '
    launcher = ContainerLauncher(
        inner=CommandLauncher(argv=("bash", "-c", f"{probe} exec sleep 300")),
        runtime="pyxis",
        program=str(srun),
    )
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=2"),
        image=f"{tmp_path}/x.sqsh@sha256:{'0' * 64}",
        deployed={"TRICKY": "a,b 'c' \"d\""},
    )
    job = trials.launch("stepped", launcher.launch(trial_of(cell, PROFILE), cell))
    paths = [trials.folder(job) / f"log.{rank}.txt" for rank in (0, 1)]
    wait_until(lambda: all(p.exists() and "up\n" in p.read_text() for p in paths))
    for rank, path in enumerate(paths):
        assert f"{rank} of 2 on node[001-002]: a,b 'c' \"d\"" in path.read_text()
    trials.executor.cancel([job], root=trials.root)
    assert trials.end(job).state == "cancelled"


def test_the_nodes_are_asked_whether_they_can(lab: ModuleType, tmp_path: Path) -> None:
    sight = SlurmExecutor().probe(
        [str(tmp_path), "/no/such/file"],
        nodelist=("node001", "node002"),
        options={},
    )
    both = ("node001", "node002")
    assert (sight.why_not, dict(sight.unseen)) == ("", {"/no/such/file": both})


def containers_of(folder: Path) -> list[str]:
    """The first processes of the containers of an attempt, as the machine itself sees them."""
    found = []
    for process in processes_with(f"{folder}/container.entry.sh"):
        with contextlib.suppress(OSError):
            # only the entry itself; not who asks for it, and not the shell that minds its input
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            is_bash = (process / "cmdline").read_bytes().startswith(b"bash\0")
            if is_bash and Path("/proc", parent, "comm").read_text().strip() == "conmon":
                found.append(process.name)
    return found
