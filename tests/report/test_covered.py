"""What a tuning document covers: cells added or measured anew, and the files that deploy them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.measured_cell import extended, read_cells, write_cells
from pytest_xlatune.sweep.deployed import deployed_files, refuse_changed
from tests.helpers.deploying import AG, DEPLOYED, ENV, OVERLAP, YML, covered, repository
from tests.helpers.finished import HISTORY

CELL = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))


def test_another_parallelism_extends_and_the_same_cell_takes_its_place() -> None:
    fsdp, pp = covered(AG), covered(OVERLAP, parallelism="PP=8")
    cells = extended(extended((), fsdp), pp)
    assert [cell.label for cell in cells] == ["FSDP=8", "PP=8"]
    later = replace(fsdp, written_s=2e9)
    assert extended(cells, later) == (later, pp)
    assert read_cells(write_cells(cells), where="d.json") == cells
    for text in ("{", '{"schema": 99, "cells": []}'):
        with pytest.raises(Exception, match=r"d\.json.*move it aside"):
            read_cells(text, where="d.json")


def test_a_cell_that_is_measured_anew_keeps_what_it_was() -> None:
    first = covered(AG)
    deployed = replace(first.cell, deployed={"XLA_FLAGS": "--xla_ag=1"})
    again = replace(first, cell_digest="another", cells=(deployed,))
    (only,) = extended((first,), again)
    (earlier,) = only.earlier
    assert earlier.cell_digest == first.cell_digest
    assert only.deploys(earlier), "what was recommended is what is deployed now"
    changed = replace(first.cell, deployed={"XLA_FLAGS": "--xla_ag=2"})
    assert not extended((first,), replace(again, cells=(changed,)))[0].deploys(earlier)
    # the same cell with new jobs is another measurement, with its old jobs and more it is not
    before = replace(first, history=tuple(HISTORY[:2]))
    (goes_on,) = extended((before,), replace(first, history=tuple(HISTORY[:3])))
    assert goes_on.earlier == ()
    (anew,) = extended((before,), replace(first, history=tuple(HISTORY[5:6])))
    assert len(anew.earlier) == 1


def test_the_files_that_deploy_a_cell_are_named_inside_their_repository(tmp_path: Path) -> None:
    root = repository(tmp_path, {ENV: DEPLOYED + "export API_KEY=hush-hush\n", YML: "a: 1\n"})
    launcher = MaxTextLauncher(config=str(root / "configs/{model_tag}.yml"), module="train")
    env, config = deployed_files(launcher, CELL, env_file=str(root / ENV), root=tmp_path)
    assert (env.path, env.is_shell) == (ENV, True)
    assert (config.path, config.is_shell, config.text) == (YML, False, "a: 1\n")
    assert "hush" not in env.text
    assert "export API_KEY=(hidden)" in env.text
    new_file = str(root / "configs/new.env.sh")
    assert deployed_files(launcher, CELL, env_file=new_file, root=tmp_path)[0].is_new


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        pytest.param(YML, "a: 2\n", True, id="another value of the trainer"),
        pytest.param(YML, "# why\na: 1  # so\n\n", False, id="a comment"),
        pytest.param(ENV, "a: 2\n", False, id="a shell file, which the cell itself compares"),
    ],
)
def test_a_trainers_configuration_that_changed_is_refused(
    before: str, after: str, is_refused: bool
) -> None:
    old = DeployedFile(path=before, text="a: 1\n", is_shell=before == ENV)
    launcher = MaxTextLauncher(config="/c.yml", module="train")
    new = [replace(old, text=after)]
    match = r"tiny\.yml has changed since.*--xlatune-fresh"
    with pytest.raises(ConfigError, match=match) if is_refused else nullcontext():
        refuse_changed([old], new, launcher=launcher, cell=CELL, where="here")
