"""Keys that a release does not have: found by asking it, with their place, before any trial."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import (
    BatchSize,
    CellSettings,
    CompileCheck,
    Profile,
    SiteSettings,
    Sweep,
    profile,
)
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.prepare.preflight import Preflight, check_keys
from pytest_xlatune.tasks.runs import run_preflight
from tests.helpers.probes import make_cell

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


def maxtext(checkout: Path, **changes: Any) -> MaxTextLauncher:
    values = {"python": sys.executable, "module": "maxtext.trainers.pre_train.train", **changes}
    axes = {"FSDP": "ici", "PP": "ici"}
    config = "{model_tag}.gpu.yml"
    return MaxTextLauncher(config=config, cwd=str(checkout), axis_prefix=axes, **values)


def look(
    checkout: Path, *profiles: Profile, overrides: dict[str, str] | None = None, **launcher: str
) -> Preflight:
    cell = make_cell("FSDP=2", overrides=overrides or {})
    return check_keys(maxtext(checkout, **launcher), cell, profiles, environ=os.environ)


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
        ({"python": "/no/such/python"}, "/no/such/python: it is not"),
        ({"module": "elsewhere.train"}, "has no package elsewhere"),
    ):
        found = look(checkout, overrides={"nonsense": "1"}, **changes)
        (note,) = found.notes
        assert found.faults == ()
        assert "were not checked" in note
        assert why in note


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
        launcher=maxtext(checkout),
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
    inside = ContainerLauncher(inner=maxtext(checkout), runtime="podman")
    found = check_keys(inside, make_cell(), (), environ={})
    assert found.faults == ()
    assert "maxtext is in an image" in " ".join(found.notes)
