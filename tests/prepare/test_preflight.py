"""The look before anything is submitted: everything wrong at once, and cheap."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.preflight import Preflight, Site, image_faults, image_file, look


def site(folder: Path, *, image: str = "", env_files: tuple[str, ...] = ()) -> Site:
    return Site(
        cell=Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=4"), image=image),
        launcher=CommandLauncher(argv=(sys.executable, "/no/train.py"), env_files=env_files),
        resources=Resources(),
        executor=LocalExecutor(),
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


class Choosy(CommandLauncher):
    """A launcher that asks something of the node."""

    def checks(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        return (("exit 0", "never said"), ("exit 1", "no runtime here"))


def test_this_machine_starts_one_rank(tmp_path: Path) -> None:
    clean = dataclasses.replace(site(tmp_path), launcher=Choosy(argv=(sys.executable,)))
    two = dataclasses.replace(clean, resources=Resources(tasks_per_node=2))
    (fault,) = {*look(two).faults} - {*look(clean).faults}
    assert fault.startswith("tasks_per_node is 2, and the local executor starts one process")


def test_what_a_launcher_asks_of_the_machine_is_tried(tmp_path: Path) -> None:
    choosy = dataclasses.replace(site(tmp_path), launcher=Choosy(argv=(sys.executable,)))
    assert look(choosy).faults == ("this machine: no runtime here",)


def test_caches_that_cannot_be_made_are_faults_before_a_trial_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept, away = tmp_path / "kept", tmp_path / "file" / "programs"
    begun = site(tmp_path)
    protocol = msgspec.structs.replace(
        begun.cell.protocol, autotune_cache=str(kept), compile_cache=str(away)
    )
    cell = msgspec.structs.replace(begun.cell, protocol=protocol)
    launcher = CommandLauncher(argv=(sys.executable,))
    (fault,) = look(dataclasses.replace(begun, cell=cell, launcher=launcher)).faults
    assert fault.startswith(f"this machine: compile_cache {away} cannot be made or written")
    assert kept.is_dir()


def test_an_image_file_that_was_written_over_is_a_fault(tmp_path: Path) -> None:
    image = tmp_path / "jax.sif"
    image.write_bytes(b"one")
    digest = hashlib.sha256(b"one").hexdigest()
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=4"), image=f"{image}@sha256:{digest}"
    )
    assert image_file(cell) == str(image)
    assert image_faults(cell, tmp_path) == ()
    with mock.patch("hashlib.file_digest", side_effect=AssertionError("read twice")):
        assert image_faults(cell, tmp_path) == ()
    image.write_bytes(b"other")
    (fault,) = image_faults(cell, tmp_path)
    assert "another image lies there now" in fault
    assert hashlib.sha256(b"other").hexdigest() in fault
    image.unlink()
    assert image_faults(cell, tmp_path) == (), "whether it is there is asked elsewhere"


def test_an_image_by_name_is_the_runtimes_business(tmp_path: Path) -> None:
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=4"),
        image=f"rocm/jax:26.4@sha256:{'0' * 64}",
    )
    assert image_file(cell) == ""
    assert image_faults(cell, tmp_path) == ()
