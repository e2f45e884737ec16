"""A recipe is guarded where another cell of the model would lose by it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import FOLDER, CommandLauncher
from pytest_xlatune.model.profile import Profile, effective_values, parse_flags, profile
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.guards import conflicts, sign
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell, read_cells, write_cells
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.deployed import deployed_env
from tests.helpers.deploying import AG, DEPLOYED, ENV, OVERLAP, apply, covered, repository
from tests.helpers.history import trial_of

FASTER, SLOWER, SAME = VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT
ONCE, UNTOLD, INVALID = VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE, VerdictKind.INVALID
BOTH = profile("ag-1g+chan-8", "--xla_ag=1", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
CHAN = profile("chan-8", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
OTHER = profile("other", "--xla_z=1")
ANOTHER_NAME = replace(BOTH, id="the-same-by-another-name")


def without_recipe(cell: MeasuredCell) -> MeasuredCell:
    """The same cell where nothing won: its first profile was screened once and lost nothing."""
    first, *others = cell.conclusion.verdicts
    lost = replace(first, kind=ONCE, n=1)
    return replace(cell, conclusion=replace(cell.conclusion, verdicts=(lost, *others)))


def patched(folder: Path, cells: Sequence[MeasuredCell]) -> Path:
    """Apply the patch of these cells in a repository; return the env file."""
    root = repository(folder, {ENV: DEPLOYED})
    apply(root, patch_of(cells).text)
    return root / ENV


def ag_of(environ: dict[str, str]) -> str | None:
    return effective_values(parse_flags(environ["XLA_FLAGS"])).get("xla_ag")


def test_recipes_that_conflict_are_guarded_by_the_parallelism(tmp_path: Path) -> None:
    cells = [covered(AG), covered(OVERLAP, parallelism="PP=8")]
    (found,) = conflicts(cells[0], cells)
    assert (found.is_harmful, found.guard) == (False, '"${MAXTEXT_DCN_PP:-1}" -le 1')
    env = patched(tmp_path, cells)
    for degree, expected in (("1", "1"), ("8", "8")):
        assert ag_of(deployed_env(env, base={"MAXTEXT_DCN_PP": degree})) == expected
    assert ag_of(deployed_env(env)) == "1", "without the variable there is no pipeline"
    # in a file of its own it needs no guard
    files = tuple(replace(file, path="configs/tiny-pp.env.sh") for file in cells[1].files)
    assert "if [[" not in patch_of([cells[0], replace(cells[1], files=files)]).text
    # degrees of one axis are told apart
    eight, four = covered(AG, parallelism="PP=8"), covered(OVERLAP, parallelism="PP=4")
    (found,) = conflicts(eight, [eight, four])
    assert (found.other, found.guard) == (four, '"${MAXTEXT_DCN_PP:-1}" -eq 8')


MEASURED_THERE = {
    "it hurts there": (((ANOTHER_NAME, SLOWER),), "NOT for PP=8: SLOWER there, -10.0 %"),
    "a part of it cannot run there": (((AG, INVALID),), "NOT for PP=8: xla_ag: dropped there"),
    "both parts are harmless there, and were not measured together": (
        ((AG, SAME), (CHAN, SAME)),
        "NOT verified on PP=8",
    ),
    "nothing was measured there": ((), "not measured there"),
    "the whole was measured there, whatever its parts do alone": (
        ((BOTH, SAME), (AG, INVALID)),
        "",
    ),
}


@pytest.mark.parametrize(("there", "words"), MEASURED_THERE.values(), ids=MEASURED_THERE)
def test_only_the_whole_recipe_that_was_measured_elsewhere_needs_no_guard(
    tmp_path: Path, there: tuple[tuple[Profile, VerdictKind], ...], words: str
) -> None:
    first = covered(BOTH)
    cells = [first, without_recipe(covered(OTHER, parallelism="PP=8", others=there))]
    assert bool(conflicts(first, cells)) is bool(words)
    assert words in patch_of(cells).text
    env = patched(tmp_path, cells)
    on = deployed_env(env, parallelism="PP=8")
    assert (ag_of(on) is None) is bool(words)
    assert ("NCCL_NCHANNELS_PER_NET_PEER" not in on) is bool(words)
    assert ag_of(deployed_env(env, parallelism="FSDP=8")) == "1"


def test_a_cell_with_another_recipe_gets_its_own_alone(tmp_path: Path) -> None:
    """AG and CHAN win on FSDP; on PP AG alone wins, and both together are measured too."""
    cells = [covered(BOTH), covered(AG, parallelism="PP=8", others=((BOTH, FASTER),))]
    env = patched(tmp_path, cells)
    on = deployed_env(env, parallelism="PP=8")
    assert ag_of(on) == "1"
    assert "NCCL_NCHANNELS_PER_NET_PEER" not in on
    assert "NCCL_NCHANNELS_PER_NET_PEER" in deployed_env(env, parallelism="FSDP=8")
    same = [covered(AG), covered(AG, parallelism="PP=8")]
    assert not conflicts(same[0], same), "both have the same recipe"


def test_two_recipes_that_are_harmless_apart_do_not_meet_unguarded_in_a_third_cell() -> None:
    third = covered(OTHER, parallelism="TP=8", others=((AG, SAME), (CHAN, SAME)))
    cells = [covered(AG), covered(CHAN, parallelism="PP=8"), without_recipe(third)]
    assert [found.other for found in conflicts(cells[0], cells)] == [cells[1], cells[2]]
    assert [found.other for found in conflicts(cells[1], cells)] == [cells[0], cells[2]]


def test_the_sign_table_says_where_an_effect_changes_its_sign() -> None:
    def of(kind: VerdictKind, delta: float | None = None, *, can_run: bool = True) -> Verdict:
        return Verdict(arm="a", kind=kind, delta=delta, n=1 if can_run else 0, can_run=can_run)

    nothing = "–"  # noqa: RUF001 - a dash
    for here, there, said in (
        (of(FASTER, 0.03), of(SLOWER, -0.03), "flips"),
        (of(FASTER, 0.03), of(INVALID, can_run=False), nothing),
        (of(ONCE, 0.037), of(ONCE, -0.01), "opposite, not confirmed"),
        (of(SAME, 0.002), of(SAME, -0.001), nothing),
    ):
        assert sign([here, there]) == said


def test_a_trial_whose_env_files_the_node_sources_gets_what_the_guard_reads(tmp_path: Path) -> None:
    cells = (covered(AG), covered(OTHER, parallelism="PP=8", others=((AG, SLOWER),)))
    env = patched(tmp_path, cells)
    launcher = CommandLauncher(argv=("bash", "-c", "echo found:$XLA_FLAGS"), env_files=(str(env),))
    for cell, is_deployed in ((cells[0].cell, True), (cells[1].cell, False)):
        spec = launcher.launch(trial_of(cell), cell)
        for name, text in spec.files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        argv = [word.replace(FOLDER, str(tmp_path)) for word in spec.argv]
        environ = {"PATH": os.environ["PATH"], **spec.env}
        out = subprocess.check_output(argv, cwd=tmp_path, env=environ, text=True, timeout=240)
        assert ("--xla_ag=1" in out.partition("found:")[2]) is is_deployed


def test_configurations_are_told_apart_by_tags_and_batch_sizes_cannot_be(tmp_path: Path) -> None:
    cells = [covered(AG, config_tag="dense"), covered(OVERLAP, config_tag="sparse")]
    env = patched(tmp_path, cells)
    for tag, expected in (("dense", "1"), ("sparse", "8"), ("", None)):
        assert ag_of(deployed_env(env, parallelism="FSDP=8", config_tag=tag)) == expected
    small, large = (
        replace(cell, cells=(replace(cell.cell, config_tag="", per_device_batch_size=size),))
        for size, cell in zip((1.0, 2.0), cells, strict=True)
    )
    made = patch_of([small, large])
    assert made.text == ""
    (missing,) = set(made.missing.values())
    assert "no variable tells" in missing


@pytest.mark.parametrize(
    ("found", "words", "remark"),
    [
        ((("long", SAME), ("wide", FASTER)), "exclude a loss with `long`, `wide` too", ""),
        ((("dense", SLOWER), ("long", SAME)), "cannot run (`sweep-dense/", "NOT for dense:"),
        ((("dense", UNTOLD),), "with `dense` and cannot tell", "NOT verified on dense"),
    ],
    ids=["no loss", "harmful in one", "cannot be told"],
)
def test_a_recipe_says_for_which_configurations_it_is_shown(
    found: tuple[tuple[str, VerdictKind], ...], words: str, remark: str
) -> None:
    others = tuple(
        OtherCell(
            config_tag=tag, sweep=f"sweep-{tag}", verdict=Verdict(arm="overlap-2", kind=kind, n=4)
        )
        for tag, kind in found
    )
    cell = replace(covered(profile("overlap-2", "--xla_b=2")), elsewhere=others)

    def deployment_of(cell: MeasuredCell) -> str:
        return markdown(tuning((cell,))).split("Recommended deployment")[1].split("## Appendix")[0]

    assert words in deployment_of(cell)
    patch = patch_of((cell,)).text
    assert remark in patch
    assert ("MAXTEXT_CONFIG_TAG" in patch) is bool(remark)
    # without the file the same lines are given by hand, with the same guard; a file is not named
    by_hand = deployment_of(replace(cell, files=()))
    assert "--xla_b=2" in by_hand
    assert ("MAXTEXT_CONFIG_TAG" in by_hand) is bool(remark)
    assert ".env.sh" not in by_hand
    assert read_cells(write_cells((cell,)), where="here") == (cell,)
