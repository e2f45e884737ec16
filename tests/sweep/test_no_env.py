"""What the image alone gives: every deployed flag back to a known default."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.ledger import LEDGER, CampaignOpened, EnvironmentSeen, Ledger
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values, profile
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.deployed import NoEnv
from pytest_xlatune.sweep.groups import CellSettings, SiteSettings, UserOptions

COMMAND = CommandLauncher(argv=("train", "{steps}"))


def restored(flags: str, how: NoEnv) -> Profile:
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=8"), deployed={"XLA_FLAGS": flags}
    )
    return how.profile(COMMAND, cell)


def test_defaults_are_those_of_the_targets_release() -> None:
    flags = "--xla_gpu_all_gather_combine_threshold_bytes=8589934592 --xla_gpu_autotune_level=2"
    found = restored(flags, NoEnv(jaxlib="0.7.2"))
    assert (found.id, found.wave) == (NO_ENV_ID, "wave1")
    assert effective_values(found.flags) == {
        "xla_gpu_all_gather_combine_threshold_bytes": "31457287",
        "xla_gpu_autotune_level": "4",
    }


def test_without_a_release_only_what_no_release_changed_is_known() -> None:
    assert effective_values(restored("--xla_gpu_autotune_level=2", NoEnv()).flags) == {
        "xla_gpu_autotune_level": "4"
    }
    unknown = restored("--xla_gpu_all_gather_combine_threshold_bytes=1", NoEnv())
    assert unknown.is_baseline
    assert "the default of xla_gpu_all_gather_combine_threshold_bytes in every jaxlib" in (
        unknown.note
    )


@pytest.mark.parametrize(
    ("flags", "how", "words"),
    [
        pytest.param("", NoEnv(), "no XLA flag is deployed", id="nothing deployed"),
        pytest.param(
            "--xla_mine=1 --xla_ours=2",
            NoEnv(jaxlib="0.7.2"),
            "xla_mine, xla_ours in jaxlib 0.7.2 is not known",
            id="unknown ones, all are named",
        ),
        pytest.param(
            "--xla_gpu_enable_pipelined_all_gather=true",
            NoEnv(jaxlib="0.12.0.1"),
            "xla_gpu_enable_pipelined_all_gather",
            id="an alias whose value is not shown",
        ),
        pytest.param(
            "--xla_disable_hlo_passes=fusion",
            NoEnv(),
            "the default back",
            id="values that add up",
        ),
    ],
)
def test_there_is_none_and_the_note_says_why(flags: str, how: NoEnv, words: str) -> None:
    found = restored(flags, how)
    assert found.is_baseline
    assert words in found.note


def test_what_is_stated_wins_and_what_is_kept_stays() -> None:
    flags = "--xla_force_host_platform_device_count=4 --xla_gpu_autotune_level=2 --xla_mine=a"
    how = NoEnv(
        defaults={"xla_gpu_autotune_level": "3", "xla_mine": ""},
        keep=("xla_force_host_platform_device_count",),
    )
    assert effective_values(restored(flags, how).flags) == {
        "xla_gpu_autotune_level": "3",
        "xla_mine": "",
    }


def test_env_files_are_sourced_where_they_can_be_read(tmp_path: Path) -> None:
    first, second = tmp_path / "image.env.sh", tmp_path / "model.env.sh"
    first.write_text("export XLA_FLAGS=--xla_gpu_autotune_level=2\n", encoding="utf-8")
    second.write_text('export XLA_FLAGS="$XLA_FLAGS --xla_mine=1"\n', encoding="utf-8")
    launcher = MaxTextLauncher(
        cwd="/opt/maxtext", config="a.yml", env_files=(str(first), str(second))
    )
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
    how = NoEnv(defaults={"xla_mine": "0"})
    assert [str(flag) for flag in how.profile(launcher, cell).flags] == [
        "--xla_gpu_autotune_level=4",
        "--xla_mine=0",
    ]
    second.unlink()
    gone = how.profile(launcher, cell)
    assert gone.is_baseline
    assert f"{second} cannot be read here" in gone.note


@pytest.mark.parametrize(
    ("defaults", "ids", "why"),
    [
        pytest.param({"xla_mine": "0"}, [NO_ENV_ID, "a"], "", id="known"),
        pytest.param({}, ["a"], "the default of xla_mine", id="unknown"),
    ],
)
def test_a_sweep_has_it_where_it_can_be_made(
    defaults: dict[str, str], ids: list[str], why: str
) -> None:
    sweep = Sweep(
        name="s",
        launcher=COMMAND,
        profiles=(profile("a", "--xla_a=1"),),
        no_env=NoEnv(defaults=defaults),
        cell=CellSettings(deployed={"XLA_FLAGS": "--xla_mine=1"}),
        site=SiteSettings(executor="local"),
    )
    resolved = sweep.resolve(UserOptions(values={"model_tag": "m", "parallelism": "FSDP=8"}))
    assert [each.id for each in resolved.sweep.profiles] == ids
    assert why in resolved.no_env
    assert bool(resolved.no_env) is bool(why)
    assert resolved.has_no_env is (not why)
    assert sweep.finalist_count() == 2


def test_variables_stay_but_for_those_that_the_sweep_states() -> None:
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=8"),
        deployed={
            "XLA_FLAGS": "--xla_gpu_autotune_level=2",
            "NCCL_PROTO": "Simple",
            "NCCL_IB_HCA": "mlx5_0",
        },
    )
    found = NoEnv(variables={"NCCL_PROTO": "LL,LL128,Simple"}).profile(COMMAND, cell)
    assert found.env == {"NCCL_PROTO": "LL,LL128,Simple"}
    assert effective_values(found.flags) == {"xla_gpu_autotune_level": "4"}
    assert found.note.endswith("variables stay as deployed: NCCL_IB_HCA")
    with pytest.raises(ConfigError, match=r"unknown variable 'NCCL_PROTOS'.*did you mean"):
        NoEnv(variables={"NCCL_PROTOS": "Simple"}).profile(COMMAND, cell)


def test_variables_alone_make_a_pair_too() -> None:
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=8"), deployed={"NCCL_ALGO": "Ring"}
    )
    found = NoEnv(variables={"NCCL_ALGO": "Ring,Tree"}).profile(COMMAND, cell)
    assert (found.id, found.env, found.flags) == (NO_ENV_ID, {"NCCL_ALGO": "Ring,Tree"}, ())
    assert NoEnv().profile(COMMAND, cell).is_baseline


def test_flags_that_are_the_cell_stay_as_deployed() -> None:
    flags = "--xla_force_host_platform_device_count=8 --xla_gpu_autotune_level=2"
    assert effective_values(restored(flags, NoEnv()).flags) == {"xla_gpu_autotune_level": "4"}
    alone = restored("--xla_force_host_platform_device_count=8", NoEnv(jaxlib="0.7.2"))
    assert alone.is_baseline
    assert "could go back" in alone.note


def seen_by(folder: Path, cell: Cell, session: str, jaxlib: str) -> None:
    """Write the ledger of a session whose trial told what it ran with."""
    ledger = Ledger(folder / LEDGER)
    opened = CampaignOpened(
        session=session, sweep="s", study="tuning", cells=(cell,), declared={}, command=""
    )
    node = NodeEnvironment(name="node001", packages={"jaxlib": jaxlib})
    seen = EnvironmentSeen(trial_id="t", cell_digest=cell.digest, nodes=(node,))
    ledger.append(opened, seen, at_s=1e9)


def test_without_a_release_the_one_that_earlier_trials_recorded_is_taken(tmp_path: Path) -> None:
    flag = "xla_gpu_all_gather_combine_threshold_bytes"
    sweep = Sweep(
        name="s",
        launcher=COMMAND,
        profiles=(profile("a", "--xla_a=1"),),
        no_env=NoEnv(),
        cell=CellSettings(deployed={"XLA_FLAGS": f"--{flag}=8589934592"}),
        site=SiteSettings(executor="local"),
    )
    said = UserOptions(values={"model_tag": "m", "parallelism": "FSDP=8"})
    first = sweep.resolve(said, workdir=tmp_path)
    assert not first.has_no_env
    assert "A trial records its jaxlib" in first.no_env
    seen_by(tmp_path / first.folder, first.cell, "one", "0.7.2")
    later = sweep.resolve(said, workdir=tmp_path)
    assert (later.has_no_env, later.jaxlib, later.no_env) == (True, "0.7.2", "")
    assert effective_values(later.sweep.find(NO_ENV_ID).flags) == {flag: "31457287"}
    # the processes of a session all find the same, whenever they look
    own = sweep.resolve(said, workdir=tmp_path, session="one")
    assert not own.has_no_env
    seen_by(tmp_path / first.folder, first.cell, "two", "0.4.30")
    assert sweep.resolve(said, workdir=tmp_path, session="two").jaxlib == "0.7.2"
    # a release that the sweep names stands
    named = replace(sweep, no_env=NoEnv(jaxlib="0.7.2"))
    assert named.resolve(said, workdir=tmp_path).jaxlib == ""
