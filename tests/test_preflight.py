"""The look before anything is submitted: everything wrong at once, and cheap."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune import preflight
from pytest_xlatune.cells import Cell, Parallelism, Resources
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.preflight import Preflight, Site, look


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
