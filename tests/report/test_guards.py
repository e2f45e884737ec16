"""A recipe is guarded where another cell of the model would lose by it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.program import FOLDER
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE, effective_values, parse_flags, profile
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.covered import Covered, read_cells, write_cells
from pytest_xlatune.report.deployment import conflicts, patch_of
from pytest_xlatune.report.language import Language
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.deployed import context_of, deployed_env
from tests.report.deploying import AG, DEPLOYED, ENV, OVERLAP, apply, covered, elsewhere, repository


@pytest.mark.parametrize(
    ("dcn_pp", "expected"),
    [pytest.param("1", "1", id="on FSDP"), pytest.param("8", "8", id="on PP")],
)
def test_recipes_that_conflict_are_guarded_by_the_parallelism(
    tmp_path: Path, dcn_pp: str, expected: str
) -> None:
    cells = [covered(AG), covered(OVERLAP, parallelism="PP=8")]
    for cell in cells:
        assert [each.settings for each in conflicts(cell, cells)] == [("xla_ag",)]
    root = repository(tmp_path, {ENV: DEPLOYED})
    apply(root, patch_of(cells).text)
    environ = deployed_env(root / ENV, base={"MAXTEXT_DCN_PP": dcn_pp})
    assert effective_values(parse_flags(environ["XLA_FLAGS"]))["xla_ag"] == expected
    # without the variable it is the cell without a pipeline
    bare = deployed_env(root / ENV)
    assert effective_values(parse_flags(bare["XLA_FLAGS"]))["xla_ag"] == "1"


def test_a_recipe_that_hurts_elsewhere_is_guarded_and_a_harmless_one_is_not() -> None:
    same = replace(AG, id="the-same-by-another-name")
    hurt = covered(OVERLAP, parallelism="PP=8", others=((same, VerdictKind.SLOWER),))
    mine = covered(AG)
    (found,) = conflicts(mine, [mine, hurt])
    assert found.guard == '"${MAXTEXT_DCN_PP:-1}" -le 1'
    other = covered(profile("other", "--xla_z=1"), parallelism="PP=8")
    assert conflicts(mine, [mine, other]) == conflicts(other, [mine, other]) == []
    assert "if [[" not in patch_of([covered(AG), other]).text


@pytest.mark.parametrize(("axes", "is_deployed"), [("FSDP=8", True), ("PP=8", False)])
def test_a_trial_whose_env_files_the_node_sources_gets_what_the_guard_reads(
    axes: str, is_deployed: bool, tmp_path: Path
) -> None:
    """The variable is there before the file is sourced; a launcher's own `deployed` has its say."""
    slow = (profile("other", "--xla_b=2"), VerdictKind.SLOWER)
    first = covered(profile("overlap-2", "--xla_b=2"))
    second = covered(profile("idle", "--xla_c=1"), parallelism="PP=8", others=(slow,))
    root = repository(tmp_path, {ENV: DEPLOYED})
    apply(root, patch_of((first, second)).text)
    launcher = CommandLauncher(
        argv=("bash", "-c", "echo found:$XLA_FLAGS"), env_files=(str(root / ENV),)
    )
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse(axes))
    trial = Trial(
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=cell.protocol,
        study="tuning",
        stage="wave1",
    )
    spec = launcher.launch(trial, cell)
    folder = tmp_path / "trial"
    folder.mkdir()
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    argv = [each.replace(FOLDER, str(folder)) for each in spec.argv]
    done = subprocess.run(
        argv, cwd=folder, env={"PATH": os.environ["PATH"], **spec.env}, capture_output=True,
        text=True, check=True, timeout=240,
    )  # fmt: skip
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("found:"))
    assert ("--xla_b=2" in found) is is_deployed
    context = context_of(cell, launcher)
    assert ("xla_b" in {flag.name for flag in context.deployed}) is is_deployed
    assert not [name for name in context.env if name.startswith("MAXTEXT_")]


def test_degrees_of_one_axis_are_told_apart_and_configurations_cannot_be() -> None:
    eight, four = covered(AG, parallelism="PP=8"), covered(OVERLAP, parallelism="PP=4")
    for mine, other, degree in ((eight, four, 8), (four, eight, 4)):
        (found,) = conflicts(mine, [eight, four])
        assert found.other is other
        assert found.guard == f'"${{MAXTEXT_DCN_PP:-1}}" -eq {degree}'
    made = patch_of([covered(AG, config_tag="dense"), covered(OVERLAP, config_tag="sparse")])
    assert made.text == ""
    assert set(made.missing.values()) == {"no variable tells the conflicting cells apart"}


def deployment_of(cell: Covered, language: Language = Language.ENGLISH) -> str:
    text = markdown(tuning((cell,), language))
    return text.partition("Recommended deployment")[2].partition("## Appendix")[0]


@pytest.mark.parametrize(
    ("found", "words", "has_patch"),
    [
        ((), "on another configuration of the model", True),
        (
            (("long", VerdictKind.EQUIVALENT), ("wide", VerdictKind.FASTER)),
            "exclude a loss with `long`, `wide` too (`sweep-long/gate.md`, `sweep-wide/gate.md`)",
            True,
        ),
        (
            (("dense", VerdictKind.SLOWER), ("long", VerdictKind.EQUIVALENT)),
            "conditional: with `dense` it is slower or cannot run (`sweep-dense/gate.md`)",
            False,
        ),
        (
            (("dense", VerdictKind.INCONCLUSIVE),),
            "measured it with `dense` and cannot tell whether it loses there",
            True,
        ),
    ],
    ids=["wave 6 did not run", "no loss", "harmful in one", "cannot be told"],
)
def test_a_recipe_says_for_which_configurations_it_is_shown(
    found: tuple[tuple[str, VerdictKind], ...], words: str, has_patch: bool
) -> None:
    recipe = profile("overlap-2", "--xla_b=2")
    cell = replace(covered(recipe), elsewhere=tuple(elsewhere(*each) for each in found))
    said = deployment_of(cell)
    assert words in said
    assert bool(patch_of((cell,)).text) is has_patch
    if not has_patch:
        assert "dense would get it too, and a gate found it harmful there" in said
        assert "--xla_b=2" in said  # by hand
    assert read_cells(write_cells((cell,)), where="here") == (cell,)
    chinese = deployment_of(cell, Language.CHINESE)
    assert all(f"`{tag}`" in chinese for tag, _ in found)


def test_harm_elsewhere_makes_a_recipe_conditional_and_an_unmeasured_gate_says_nothing() -> None:
    assert elsewhere("dense", VerdictKind.INVALID, can_run=False).is_harmful
    unmeasured = elsewhere("dense", VerdictKind.INVALID)
    assert not unmeasured.is_harmful
    assert not unmeasured.holds
