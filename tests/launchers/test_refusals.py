"""What a launcher refuses: when it is declared, and when it is asked to launch a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell, with_python
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.probes import make_cell, make_trial, maxtext, maxtext_slurm, probe

SHA = "sha256:" + "0123456789abcdef" * 4
NAMED, SQSH = f"rocm/jax-training:maxtext-v26.4@{SHA}", f"/shared/images/jax.sqsh@{SHA}"
CODE = "3f2a" + 36 * "0"
Make = Callable[..., Launcher]


def container(**changes: Any) -> ContainerLauncher:
    inner = CommandLauncher(argv=("train",))
    return ContainerLauncher(**{"inner": inner, "mounts": ("/shared",), **changes})


def of_commits(**changes: Any) -> CheckoutLauncher:
    inner = CommandLauncher(argv=("/shared/trainer/train.py",), cwd="/shared/trainer")
    return CheckoutLauncher(**{"repository": "/shared/trainer", "inner": inner, **changes})


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (probe, {"argv": ("t", "{step}")}, r"unknown placeholder 'step'.*did you mean 'steps'"),
        (probe, {"argv": ("t", "{trial.id}")}, "unknown placeholder 'trial.id'"),
        (probe, {"argv": ("t", "{steps!r}")}, "unknown placeholder 'steps!r'"),
        (probe, {"argv": ("t", "a}")}, "write {{ and }}"),
        (probe, {"argv": ("t", "x{overrides}")}, "must be a separate argument"),
        (probe, {"argv": ()}, "argv is empty"),
        (maxtext, {"module": "train.py"}, "script 'train.py' is relative"),
        (maxtext, {"cwd": "repo"}, "cwd 'repo' is relative"),
        (maxtext, {"env_files": ("x.env.sh",)}, "env file 'x.env.sh' is relative"),
        (maxtext, {"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
        (maxtext, {"axis_prefix": {"QQ": "ici"}}, "unknown axis 'QQ'"),
        (maxtext, {"inherit": ("XLA_*",)}, "`inherit` passes XLA_FLAGS on"),
        (maxtext_slurm, {"sbatch": ("-N", "8")}, r"sbatch='-N 8' names no nodes"),
        (maxtext_slurm, {"sbatch": ("-w", "n1", "--", "a=1")}, "sbatch holds `--`"),
        (maxtext_slurm, {"checkout": "maxtext"}, "checkout 'maxtext' is relative"),
        (of_commits, {"repository": "trainer"}, "trainer"),
        (of_commits, {"repository": "/shared/$HOME"}, "HOME"),
        (container, {"runtime": "dokcer"}, "unknown runtime 'dokcer' in .*mean 'docker'"),
        (container, {"mounts": ("data",)}, "mount 'data': expected"),
        (container, {"mounts": ("/a,b",)}, "without commas"),
        (container, {"program": "sudo 'docker"}, "program .* No closing quotation"),
        (container, {"inner": container()}, "is a container too"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_misuse_is_refused_at_construction(
    make: Make, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def launch(launcher: Launcher, of: Profile = BASELINE, **cell: Any) -> LaunchSpec:
    made = make_cell(**cell)
    return launcher.launch(make_trial(made, of, **_protocol(made)), made)


def _protocol(cell: Cell) -> dict[str, Any]:
    return {"autotune_cache": cell.protocol.autotune_cache}


def overriding(**overrides: str) -> Profile:
    return profile("p", overrides=overrides)


CACHES = {"image": NAMED, "protocol": Protocol(autotune_cache="/shared/tuned")}
RELATIVE = CommandLauncher(argv=("python3", "-u", "train.py", "{steps}"))
JOB = maxtext_slurm()
EXPORTED = "_env_NCCL_PROTO is exported after .* NCCL_PROTO"


@pytest.mark.parametrize(
    ("launcher", "of", "cell", "message"),
    [
        (RELATIVE, BASELINE, {}, r"script 'train\.py' is relative"),
        (probe(argv=("t", "{max_target_length}")), BASELINE, {"max_target_length": None},
         r"Cell\(max_target_length=\.\.\.\)"),
        (probe(argv=("t",)), overriding(a="2"), {}, "override 'a' would be lost"),
        (probe(), BASELINE, {"deployed": {"XLA_FLAGS": "--xla_a=1 xla_b=2"}},
         r"the deployed XLA_FLAGS.*silently drops"),
        (maxtext(), BASELINE, {"overrides": {"steps": "99"}},
         r"cell 'tiny-1b .*steps=99.*Protocol\(steps"),
        (maxtext(), overriding(dataset_type="grain"), {}, "profile 'p' overrides dataset_type=gr"),
        (maxtext(), overriding(dcn_fsdp_parallelism="4"), {}, "the cell's parallelism"),
        (JOB, BASELINE, {"deployed": {"NCCL_ALGO": "Ring"}}, r"put it into .*tiny-1b\.env\.sh"),
        (JOB, BASELINE, {"overrides": {"_env_XLA_FLAGS": "--a=1"}},
         "_env_XLA_FLAGS is exported after"),
        (JOB, profile("p", env={"NCCL_PROTO": "LL"}), {"overrides": {"_env_NCCL_PROTO": "S"}},
         EXPORTED),
        (JOB, BASELINE, {"overrides": {"_env_X": "a b"}}, "_env_X='a b' cannot be a passthrough"),
        (JOB, BASELINE, {"overrides": {"base_output_directory": "/x"}}, "to the job's folder"),
        (container(), BASELINE, {"image": "rocm/jax:26.4"}, "no name with a digest.*RepoDigests"),
        (container(), BASELINE, {"image": SQSH}, "no name with a digest"),
        (container(runtime="pyxis"), BASELINE, {"image": f"jax.sqsh@{SHA}"}, "absolute path"),
        (container(mounts=("/data",)), BASELINE, CACHES,
         r"autotune_cache /shared/tuned/.* is in no mount"),
        *((of_commits(), BASELINE, {"code": code}, "needs a commit")
          for code in ("", "3f2a", f"{CODE}+uncommitted")),
    ],
)  # fmt: skip
def test_what_would_be_lost_or_change_the_measurement_is_refused(
    launcher: Launcher, of: Profile, cell: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(launcher, of, **cell)


def test_an_interpreter_takes_the_place_of_the_launchers_that_name_one() -> None:
    in_checkout = CheckoutLauncher(repository="/work", inner=maxtext())
    assert with_python(in_checkout, "/opt/new/python").interpreter == "/opt/new/python"
    assert with_python(probe(), "/opt/python").interpreter == "/opt/python"
    by_cell = LauncherByCell(inner=maxtext(), others={"new": maxtext(python="new")})
    assert by_cell.launcher_of(make_cell(launcher="new")).interpreter == "new"
    assert by_cell.launcher_of(make_cell()) == maxtext()
    with pytest.raises(ConfigError, match="names no interpreter"):
        with_python(CommandLauncher(argv=("train.sh",)), "/opt/new/python")
