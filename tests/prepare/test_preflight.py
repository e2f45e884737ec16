"""The look before anything is submitted: everything wrong at once, and cheap."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_xlatune import CellSettings, SiteSettings, Sweep
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, parse_flags, profile
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.lint import check_flags, check_rules
from pytest_xlatune.prepare.preflight import Preflight, check_site
from pytest_xlatune.sweep.deployed import context_of
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture
from tests.helpers.probes import make_cell, probe

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
@pytest.mark.parametrize(
    ("profiles", "deployed", "faults", "notes"),
    [
        pytest.param(
            [KNOWN, BAD_VALUE, UNKNOWN], "", 0,
            ("profile bad-value: Couldn't interpret", "profile unknown: unknown to this XLA"),
            id="a bad value hides no unknown one",
        ),
        pytest.param([UNKNOWN], "", 2, (), id="that none is known is a fault"),
        pytest.param([KNOWN], "--xla_bogus=1", 1, (), id="an unknown deployed one is a fault"),
        pytest.param([KNOWN, BLOCKED], "", 1, (), id="a blocked one is a fault, though known"),
    ],
)  # fmt: skip
def test_the_trainers_own_xla_says_which_flags_it_knows(
    profiles: list[Profile], deployed: str, faults: int, notes: tuple[str, ...]
) -> None:
    context = Context(deployed=parse_flags(deployed))
    found = check_flags(profiles, context, python=sys.executable, environ=os.environ)
    assert len(found.faults) == faults, found
    assert len(found.notes) == len(notes), found
    assert all(said.startswith(note) for said, note in zip(found.notes, notes, strict=True))


@pytest.mark.usefixtures("xla")
def test_where_one_was_measured_that_another_is_refused_is_a_note() -> None:
    # a measured sweep with a profile of an unknown flag could not be asked again
    here = {"python": sys.executable, "environ": os.environ}
    found = check_flags([KNOWN, UNKNOWN], Context(), **here, accepted={KNOWN.id})  # type: ignore[arg-type]
    assert not found.faults
    assert [note.partition(":")[0] for note in found.notes] == ["profile unknown"]
    # of what was measured nothing is asked
    ids, nowhere = {KNOWN.id, BLOCKED.id}, "/no/such/python"
    found = check_flags([KNOWN, BLOCKED], Context(), python=nowhere, environ={}, accepted=ids)
    assert (found.faults, found.notes) == ((), ())


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
