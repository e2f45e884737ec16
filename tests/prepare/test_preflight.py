"""The look before anything is submitted: everything wrong at once, and cheap."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import BatchSize, CellSettings, CompileCheck, SiteSettings, Sweep
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, parse_flags, profile
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.lint import check_flags, check_rules
from pytest_xlatune.prepare.preflight import Preflight, check_keys, check_site
from pytest_xlatune.sweep.deployed import context_of
from pytest_xlatune.tasks.runs import run_preflight
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture
from tests.helpers.probes import make_cell, probe
from tests.helpers.tables import rows

KNOWN = profile("known", "--xla_cpu_multi_thread_eigen=false")


def checked(folder: Path, *, image: str = "", env_files: tuple[str, ...] = ()) -> Preflight:
    sweep = Sweep(
        name="s",
        launcher=CommandLauncher(argv=(sys.executable, "/no/train.py"), env_files=env_files),
        profiles=(KNOWN,),
        cell=CellSettings(model_tag="m", parallelism="FSDP=4", image=image),
        site=SiteSettings(executor="local"),
    )
    return check_site(sweep.resolve(), folder / "work", is_first=True, is_busy=False)


def test_everything_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, dirty = tmp_path / "clean.env.sh", tmp_path / "dirty.env.sh"
    clean.write_text("# TUNE_PROFILE is no more\nexport A=1\n")
    dirty.write_text("export A=1\nTUNE_PROFILE=overlap-2\n")
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 1 << 62)
    found = checked(tmp_path, image="/no/image.sif", env_files=(str(clean), str(dirty)))
    with pytest.raises(ConfigError, match="nothing was submitted") as error:
        found.raise_faults("sweep 's'")
    message = str(error.value)
    assert message.count("\n  - ") == len(found.faults) == 4
    assert f"{dirty}: TUNE_PROFILE is left over" in message
    assert "/no/train.py does not exist" in message
    assert "/no/image.sif does not exist" in message
    assert "MiB free" in message
    assert not list((tmp_path / "work").iterdir()), "the marker is gone"


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file in its place")
    faults = checked(tmp_path).faults
    assert any("cannot be written" in fault for fault in faults)
    Preflight(notes=("a note",)).raise_faults("sweep 's'")


UNKNOWN = profile("unknown", "--xla_cpu_enable_warp_drive=true")
BAD_VALUE = profile("bad-value", "--xla_cpu_enable_fast_math=maybe")
THRESHOLD = profile("t", "--xla_gpu_collective_permute_decomposer_threshold=1024")
BLOCKED = profile("inflated", "--xla_gpu_collective_inflation_factor=0")


@pytest.mark.usefixtures("xla")
@rows(
    "profiles, deployed, accepted, faults, notes",
    {
        "a bad value hides no unknown one": (
            [KNOWN, BAD_VALUE, UNKNOWN], "", (), 0, ("profile bad-value", "profile unknown")),
        "that none is known is a fault": ([UNKNOWN], "", (), 2, ()),
        "an unknown deployed one is a fault": ([KNOWN], "--xla_bogus=1", (), 1, ()),
        "a blocked one is a fault, though known": ([KNOWN, BLOCKED], "", (), 1, ()),
        "a measured sweep could not be asked again": (
            [KNOWN, UNKNOWN], "", ("known",), 0, ("profile unknown",)),
        "of what was measured nothing is asked": (
            [KNOWN, BLOCKED], "", ("known", "inflated"), 0, ()),
    },
)  # fmt: skip
def test_the_trainers_own_xla_says_which_flags_it_knows(
    profiles: list[Profile], deployed: str, accepted: Any, faults: int, notes: tuple[str, ...]
) -> None:
    context = Context(deployed=parse_flags(deployed))
    found = check_flags(
        profiles, context, python=sys.executable, environ=os.environ, accepted=accepted
    )
    assert len(found.faults) == faults, found
    assert tuple(note.partition(":")[0] for note in found.notes) == notes


def test_where_xla_cannot_be_asked_the_rules_still_hold() -> None:
    for python, why in (("/no/such/python", "not on this machine"), ("false", "cannot be run")):
        found = check_flags([KNOWN, BLOCKED], Context(), python=python, environ=os.environ)
        assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
        assert why in found.notes[-1]


def test_an_env_file_that_only_the_nodes_can_read_makes_an_absent_partner_a_note(
    tmp_path: Path,
) -> None:
    env_file = tmp_path / "node.env.sh"
    env_file.write_text("test -e /dev/kfd.absent\n")
    launcher = CommandLauncher(argv=("/bin/true",), env_files=(str(env_file),))
    found = check_rules([THRESHOLD, BLOCKED], context_of(make_cell(), launcher))
    assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
    assert "[partner]" in found.notes[0]
    with pytest.raises(ConfigError, match="silently drops"):
        context_of(make_cell(deployed={"XLA_FLAGS": "--xla_a=1 , --xla_b=2"}), probe())


# --- keys of a release ----------------------------------------------------------------------------

BASE = """\
steps: 150_001 # of a whole run
per_device_batch_size: 12.0
remat_policy: 'full'
logical_axis_rules: [
                      ['batch', 'data'],
                    ]
ici_fsdp_parallelism: -1
ici_pipeline_parallelism: 1
"""
TYPES = """\
class Lora:
    rank: int = 8

class Config:
    lora: Lora
    emb_dim: int
    not_a_field = 3
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package `maxtext` that would fail to be imported: it is only read."""
    configs = tmp_path / "maxtext" / "configs"
    configs.mkdir(parents=True)
    (tmp_path / "maxtext" / "__init__.py").write_text("raise RuntimeError\n")
    (configs / "base.yml").write_text(BASE)
    (configs / "types.py").write_text(TYPES)
    (tmp_path / "tiny-1b.gpu.yml").write_text('base_config: "base.yml"\nremat_policy: minimal\n')
    return tmp_path


def maxtext_in(checkout: Path, **changes: Any) -> MaxTextLauncher:
    values = {"python": sys.executable, "module": "maxtext.trainers.pre_train.train", **changes}
    axes = {"FSDP": "ici", "PP": "ici"}
    config = "{model_tag}.gpu.yml"
    return MaxTextLauncher(config=config, cwd=str(checkout), axis_prefix=axes, **values)


def look(
    checkout: Path, *profiles: Profile, overrides: dict[str, str] | None = None, **launcher: str
) -> Preflight:
    cell = make_cell("FSDP=2", overrides=overrides or {})
    return check_keys(maxtext_in(checkout, **launcher), cell, profiles, environ=os.environ)


def test_every_unknown_key_is_named_at_once_with_its_place_and_the_nearest(checkout: Path) -> None:
    """Keys of the base, and fields of the types, are known."""
    found = look(
        checkout,
        profile("known", overrides={"remat_policy": "minimal"}),
        profile("typo", overrides={"remat_polisy": "full"}),
        overrides={"not_a_field": "3", "emb_dim": "64", "lora.rank": "4"},
    )
    lacks = f"(maxtext does not have it: {checkout / 'maxtext' / 'configs' / 'base.yml'})"
    of_profile = "in profile 'typo', remat_polisy=full; did you mean 'remat_policy'?"
    assert found.faults == (
        f"unknown key 'not_a_field' in cell 'tiny-1b FSDP=2 pdbs=7', not_a_field=3. {lacks}",
        f"unknown key 'remat_polisy' {of_profile} {lacks}",
    )


def test_a_release_that_cannot_be_asked_is_a_note(checkout: Path) -> None:
    for changes, why in (
        ({"python": "/no/such/python"}, "were not checked: /no/such/python: it is not"),
        ({"module": "elsewhere.train"}, "it has no package elsewhere"),
    ):
        found = look(checkout, overrides={"nonsense": "1"}, **changes)
        assert found.faults == ()
        assert why in "".join(found.notes)


def test_an_old_release_accepts_what_the_configuration_and_its_parents_declare(
    checkout: Path,
) -> None:
    configs = checkout / "maxtext" / "configs"
    (configs / "types.py").unlink()
    (configs / "gpu").mkdir()
    (configs / "gpu" / "common.yml").write_text("of_parent: 1\n")
    (checkout / "tiny-1b.gpu.yml").write_text('base_config: "gpu/common.yml"\nof_file: 1\n')
    overrides = {"of_parent": "2", "of_file": "2", "of_none": "2"}
    (fault,) = look(checkout, overrides=overrides).faults
    assert fault.startswith("unknown key 'of_none'")


def test_a_key_that_a_study_varies_is_held_against_the_release_too(checkout: Path) -> None:
    sweep = Sweep(
        name="s",
        cell=CellSettings(model_tag="tiny-1b", parallelism="FSDP=2", per_device_batch_size=4),
        launcher=maxtext_in(checkout),
        site=SiteSettings(executor="local"),
        study=BatchSize(sizes=(4, 8), by="remat_polcy", by_values=("full", "none")),
        compile_check=CompileCheck(memory_limit_gib=1),
    )
    preflight = run_preflight(sweep.resolve(), checkout, is_first=True, is_busy=False, cells=())
    (fault,) = preflight.faults
    assert fault.startswith("unknown key 'remat_polcy' in cell ")
    assert "did you mean 'remat_policy'?" in fault


def test_other_trainers_have_no_keys_to_look_at(checkout: Path) -> None:
    assert look(checkout, module="train.py", overrides={"nonsense": "1"}) == Preflight()
    inside = ContainerLauncher(inner=maxtext_in(checkout), runtime="podman")
    found = check_keys(inside, make_cell(), (), environ={})
    assert found.faults == ()
    assert "maxtext is in an image" in " ".join(found.notes)
