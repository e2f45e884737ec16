"""What a tuning document covers: cells added or measured anew, and the files that deploy them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.measured_cell import (
    MeasuredCell,
    extended,
    names,
    read_cells,
    write_cells,
)
from pytest_xlatune.sweep.deployed import deployed_files, refuse_changed
from tests.helpers.deploying import AG, DEPLOYED, ENV, OVERLAP, YML, covered, repository


def test_another_parallelism_extends_and_the_same_cell_takes_its_place() -> None:
    fsdp, pp = covered(AG), covered(OVERLAP, parallelism="PP=8")
    cells = extended(extended((), fsdp), pp)
    assert [each.label for each in cells] == ["FSDP=8", "PP=8"]
    again = replace(fsdp, written_s=2e9)
    assert extended(cells, again) == (again, pp)


def test_a_cell_that_is_measured_anew_keeps_what_it_was() -> None:
    first = covered(AG)
    deployed = {"XLA_FLAGS": "--xla_ag=1"}
    again = replace(first, cell_digest="another", cells=(replace(first.cell, deployed=deployed),))
    (only,) = extended((first,), again)
    (earlier,) = only.earlier
    assert earlier.cell_digest == first.cell_digest
    assert only.deploys(earlier), "what was recommended is what is deployed now"
    other = replace(again, cells=(replace(first.cell, deployed={"XLA_FLAGS": "--xla_ag=2"}),))
    assert not extended((first,), other)[0].deploys(earlier)


def test_a_ledger_that_was_begun_anew_keeps_what_the_old_one_found() -> None:
    def with_jobs(*jobs: str) -> MeasuredCell:
        trial = Trial(
            cell_digest="d", profile=AG, protocol=Protocol(), study="tuning", stage="wave1"
        )
        result = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=jobs)
        return replace(covered(AG), history=(result,))

    (goes_on,) = extended((with_jobs("1", "2"),), with_jobs("1", "2", "3"))
    assert goes_on.earlier == ()
    (anew,) = extended((with_jobs("1", "2"),), with_jobs("7"))
    assert len(anew.earlier) == 1


def test_the_data_comes_back_as_it_was_and_damage_is_named() -> None:
    cells = (covered(AG), covered(OVERLAP, parallelism="PP=8"))
    assert read_cells(write_cells(cells), where="d.json") == cells
    for text in ("{", "[]", '{"schema": 99, "cells": []}', '{"schema": 1, "cells": [{}]}'):
        with pytest.raises(Exception, match=r"d\.json.*move it aside"):
            read_cells(text, where="d.json")


def test_two_cells_of_one_label_are_told_apart() -> None:
    one = covered(AG)
    two = replace(one, sweep="second", cell_digest="2")
    assert list(names([one, two]).values()) == ["FSDP=8 (sweep)", "FSDP=8 (second)"]


def test_the_files_that_deploy_a_cell_are_named_inside_their_repository(tmp_path: Path) -> None:
    root = repository(tmp_path, {ENV: DEPLOYED + "export API_KEY=hush-hush\n", YML: "a: 1\n"})
    launcher = MaxTextLauncher(config=str(root / "configs/{model_tag}.yml"), module="train")
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))
    env, config = deployed_files(launcher, cell, env_file=str(root / ENV), root=tmp_path)
    assert (env.path, config.path) == (ENV, YML)
    assert env.is_shell
    assert not config.is_shell
    assert config.text == "a: 1\n"
    assert "hush" not in env.text
    assert "export API_KEY=(hidden)" in env.text
    (missing, _) = deployed_files(
        launcher, cell, env_file=str(root / "configs/new.env.sh"), root=tmp_path
    )
    assert missing.is_new


def test_a_file_that_names_the_image_is_none_that_recipes_go_into(tmp_path: Path) -> None:
    env, image = "configs/tiny.env.sh", "container_env.sh"
    root = repository(tmp_path, {env: DEPLOYED, "configs/tiny.gpu.yml": "a: 1\n"})
    launcher = MaxTextSlurmLauncher(checkout=str(root), sbatch=("-w", "n1"))
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))

    def shells() -> list[str]:
        files = deployed_files(launcher, cell, env_file="", root=tmp_path)
        return [file.path for file in files if file.is_shell]

    assert shells() == [env], "one that is not there is no new file"
    (root / image).write_text("DOCKER_IMAGE=rocm/jax:1\n", encoding="utf-8")
    assert shells() == [env, image]
    (root / env).write_bytes(b"\xff")
    assert shells() == []


def test_a_trainers_configuration_that_changed_is_refused_and_a_comment_is_not() -> None:
    launcher = MaxTextLauncher(config="/c.yml", module="train")
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))
    before = DeployedFile(path=YML, text="a: 1\n", is_shell=False)
    shell = DeployedFile(path=ENV, text="export A=1\n")

    def go_on(file: DeployedFile) -> None:
        refuse_changed([before, shell], [file], launcher=launcher, cell=cell, where="here")

    go_on(replace(before, text="# why\na: 1  # so\n\n"))
    go_on(replace(shell, text="export A=2\n"))  # is part of the cell, and compared there
    with pytest.raises(ConfigError, match=r"tiny\.yml has changed since.*--xlatune-fresh"):
        go_on(replace(before, text="a: 2\n"))
