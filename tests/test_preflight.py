"""The look before anything is submitted: everything wrong at once, and cheap."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_xlatune import preflight
from pytest_xlatune.cells import Cell, Parallelism, Resources
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.preflight import Preflight, Site, look, look_at_flags
from pytest_xlatune.profiles import Profile, profile


def site(folder: Path, *, image: str = "", env_files: tuple[str, ...] = ()) -> Site:
    return Site(
        cell=Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=4"), image=image),
        launcher=CommandLauncher(argv=(sys.executable, "/no/train.py"), env_files=env_files),
        resources=Resources(),
        executor="local",
        folder=folder / "work",
    )


def test_everything_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, dirty = tmp_path / "clean.env.sh", tmp_path / "dirty.env.sh"
    clean.write_text("# TUNE_PROFILE is no more\nexport A=1\n")
    dirty.write_text("export A=1\nTUNE_PROFILE=overlap-2\nTUNE_PROFILE=again\n")
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 1 << 62)
    found = look(site(tmp_path, image="/no/image.sif", env_files=(str(clean), str(dirty))))
    with pytest.raises(ConfigError, match="sweep 's' cannot begin, nothing was submitted") as error:
        found.raise_faults("sweep 's'")
    message = str(error.value)
    assert message.count("\n  - ") == len(found.faults) == 4
    assert f"{dirty}:2: TUNE_PROFILE is left over" in message
    assert "/no/train.py does not exist" in message
    assert "/no/image.sif does not exist" in message
    assert "MiB free" in message
    assert not list((tmp_path / "work").iterdir()), "the marker is gone"


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file in its place")
    faults = look(site(tmp_path)).faults
    assert any("cannot be written" in fault for fault in faults)


def test_nothing_wrong_is_silent() -> None:
    Preflight(notes=("a note",)).raise_faults("sweep 's'")


KNOWN = profile("known", "--xla_cpu_multi_thread_eigen=false")
UNKNOWN = profile("unknown", "--xla_cpu_enable_warp_drive=true")
BAD_VALUE = profile("bad-value", "--xla_cpu_enable_fast_math=maybe")


@pytest.mark.parametrize(
    ("profiles", "deployed", "faults", "notes"),
    [
        pytest.param([KNOWN], "", 0, (), id="all known"),
        pytest.param(
            [KNOWN, UNKNOWN], "", 0,
            ("profile unknown: unknown to this XLA: --xla_cpu_enable_warp_drive",),
            id="an unknown one is a note",
        ),
        pytest.param(
            [KNOWN, BAD_VALUE, UNKNOWN], "", 0,
            ("profile bad-value: Couldn't interpret", "profile unknown: Unknown flag"),
            id="a bad value hides unknown ones, so each is asked for",
        ),
        pytest.param([UNKNOWN], "", 2, (), id="that none is known is a fault"),
        pytest.param(
            [KNOWN], "--xla_bogus=1", 1, (), id="an unknown one that is deployed is a fault"
        ),
        pytest.param([profile("env", env={"A": "1"})], "", 0, (), id="nothing to ask"),
    ],
)  # fmt: skip
def test_the_trainers_own_xla_says_which_flags_it_knows(
    profiles: list[Profile], deployed: str, faults: int, notes: tuple[str, ...]
) -> None:
    found = look_at_flags(profiles, deployed=deployed, python=sys.executable, environ=os.environ)
    assert len(found.faults) == faults, found
    assert len(found.notes) == len(notes), found
    assert all(said.startswith(note) for said, note in zip(found.notes, notes, strict=True))


@pytest.mark.parametrize(
    ("python", "why"),
    [
        pytest.param("", "names no interpreter", id="no interpreter"),
        pytest.param("/no/such/python", "is not on this machine", id="in a container"),
    ],
)
def test_flags_that_cannot_be_asked_for_are_a_note(python: str, why: str) -> None:
    found = look_at_flags([KNOWN], deployed="", python=python, environ={})
    assert not found.faults
    assert why in found.notes[0]
