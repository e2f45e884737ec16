"""A recipe is guarded where another cell of the model would lose by it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.program import FOLDER
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import Profile, effective_values, parse_flags, profile
from pytest_xlatune.model.result import Recipe, TuningRecord, Verdict, VerdictKind
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.guards import Doubt, conflicts, sign
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell, read_cells, write_cells
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.deployed import deployed_env
from tests.helpers.deploying import (
    AG,
    DEPLOYED,
    ENV,
    OVERLAP,
    apply,
    covered,
    repository,
)
from tests.helpers.history import trial_of

FASTER, SLOWER, SAME = VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT
ONCE, UNTOLD, INVALID = VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE, VerdictKind.INVALID
BOTH = profile("ag-1g+chan-8", "--xla_ag=1", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
CHAN = profile("chan-8", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
OTHER = profile("other", "--xla_z=1")
ANOTHER_NAME = replace(BOTH, id="the-same-by-another-name")


def elsewhere(tag: str, kind: VerdictKind) -> OtherCell:
    verdict = Verdict(arm="overlap-2", kind=kind, n=4)
    return OtherCell(config_tag=tag, sweep=f"sweep-{tag}", verdict=verdict)


def without_recipe(cell: MeasuredCell) -> MeasuredCell:
    """The same cell where nothing won: its first profile was screened once and lost nothing."""
    first, *others = cell.conclusion.verdicts
    lost = replace(first, kind=ONCE, n=1)
    return replace(cell, conclusion=replace(cell.conclusion, verdicts=(lost, *others)))


def tuned(cell: MeasuredCell, gains: dict[str, tuple[float, float]]) -> MeasuredCell:
    """The cell with AG as its recipe, and these changes and half widths of its arms."""
    verdicts = []
    for verdict in cell.conclusion.verdicts:
        gain, width = gains.get(verdict.arm, (0.01, 0.001))
        verdicts.append(replace(verdict, delta=gain, ci95=(gain - width, gain + width)))
    recipe = Recipe(arm=AG.id, largest=AG.id, parts=())
    record = TuningRecord(finalists=tuple(gains), recipe=recipe)
    return replace(
        cell, conclusion=replace(cell.conclusion, verdicts=tuple(verdicts), record=record)
    )


def patched(folder: Path, cells: Sequence[MeasuredCell]) -> Path:
    """Apply the patch of these cells in a repository; return the env file."""
    root = repository(folder, {ENV: DEPLOYED})
    apply(root, patch_of(cells).text)
    return root / ENV


def ag_of(environ: dict[str, str]) -> str | None:
    return effective_values(parse_flags(environ["XLA_FLAGS"])).get("xla_ag")


def test_recipes_that_conflict_are_guarded_by_the_parallelism(tmp_path: Path) -> None:
    cells = [covered(AG), covered(OVERLAP, parallelism="PP=8")]
    for cell in cells:
        (found,) = conflicts(cell, cells)
        assert (found.doubt, found.settings) == (Doubt.CONTRARY, ("xla_ag",))
    assert conflicts(cells[0], cells)[0].guard == '"${MAXTEXT_DCN_PP:-1}" -le 1'
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
    "it hurts there": (((ANOTHER_NAME, SLOWER),), Doubt.HARMFUL, "slower there, -10.0 %"),
    "a part of it cannot run there": (
        ((AG, INVALID),),
        Doubt.HARMFUL,
        "NOT for PP=8: xla_ag: cannot run there: out of memory",
    ),
    "a part of it is slower there": (
        ((CHAN, SLOWER), (AG, SAME)),
        Doubt.HARMFUL,
        "NOT for PP=8: NCCL_NCHANNELS_PER_NET_PEER: slower there",
    ),
    "both parts are harmless there, and were not measured together": (
        ((AG, SAME), (CHAN, SAME)),
        Doubt.UNMEASURED,
        "NOT verified on PP=8: xla_ag, NCCL_NCHANNELS_PER_NET_PEER",
    ),
    "nothing was measured there": ((), Doubt.UNMEASURED, "not measured there"),
    "the whole was measured there, whatever its parts do alone": (
        ((BOTH, SAME), (AG, INVALID)),
        None,
        "",
    ),
}


@pytest.mark.parametrize(("there", "doubt", "words"), MEASURED_THERE.values(), ids=MEASURED_THERE)
def test_every_part_of_a_recipe_that_was_measured_elsewhere_counts(
    tmp_path: Path, there: tuple[tuple[Profile, VerdictKind], ...], doubt: Doubt | None, words: str
) -> None:
    first = covered(BOTH)
    cells = [first, without_recipe(covered(OTHER, parallelism="PP=8", others=there))]
    assert [found.doubt for found in conflicts(first, cells)] == ([doubt] if doubt else [])
    assert words in patch_of(cells).text
    env = patched(tmp_path, cells)
    on = deployed_env(env, parallelism="PP=8")
    assert (ag_of(on) is not None) is (doubt is None)
    assert ("NCCL_NCHANNELS_PER_NET_PEER" in on) is (doubt is None)
    assert ag_of(deployed_env(env, parallelism="FSDP=8")) == "1"


@pytest.mark.parametrize(
    ("delta", "half_width", "doubt"),
    [
        pytest.param(0.02, 0.005, Doubt.NOT_AS_FAST, id="it takes half of its gain"),
        pytest.param(0.04, 0.02, Doubt.NOT_AS_FAST, id="a loss against it is not excluded"),
        pytest.param(0.04, 0.005, None, id="as fast with it"),
    ],
)
def test_a_gain_over_the_baseline_that_is_less_than_the_own_recipe_is_guarded(
    tmp_path: Path, delta: float, half_width: float, doubt: Doubt | None
) -> None:
    """AG and CHAN win on FSDP. On PP AG alone wins, and CHAN takes a part of what it gains."""
    first = covered(BOTH)
    second = covered(AG, parallelism="PP=8", others=((BOTH, FASTER),))
    cells = [first, tuned(second, {AG.id: (0.04, 0.005), BOTH.id: (delta, half_width)})]
    assert cells[1].recipe == AG
    found = conflicts(first, cells)
    assert [conflict.doubt for conflict in found] == ([doubt] if doubt else [])
    env = patched(tmp_path, cells)
    on = deployed_env(env, parallelism="PP=8")
    assert ag_of(on) == "1"
    assert ("NCCL_NCHANNELS_PER_NET_PEER" in on) is (doubt is None)
    assert "NCCL_NCHANNELS_PER_NET_PEER" in deployed_env(env, parallelism="FSDP=8")


def test_small_losses_by_several_recipes_do_not_add_up_against_the_own_one() -> None:
    """Each of two others takes 0.8 % of what PP gains, which is less than the margin."""
    b, c = (profile(name, f"--xla_{name}=1") for name in ("b", "c"))
    both = profile("both", "--xla_b=1 --xla_c=1")
    more = profile("ag+b", "--xla_ag=1 --xla_b=1")
    most = profile("all", "--xla_ag=1 --xla_b=1 --xla_c=1")
    others = tuple((recipe, FASTER) for recipe in (more, most, both, b, c))
    gains = {"ag": (0.04, 0.001), "ag+b": (0.032, 0.001), "all": (0.024, 0.001)}
    pp = tuned(covered(AG, parallelism="PP=8", others=others), gains)
    fsdp, tp = covered(b), covered(c, parallelism="TP=8")
    cells = [pp, fsdp, tp]
    reach = [
        [found.doubt for found in conflicts(cell, cells) if found.other is pp]
        for cell in (fsdp, tp)
    ]
    assert reach == [[], [Doubt.NOT_AS_FAST]]


def test_two_recipes_that_are_harmless_apart_do_not_meet_unguarded_in_a_third_cell() -> None:
    third = covered(OTHER, parallelism="TP=8", others=((AG, SAME), (CHAN, SAME)))
    cells = [covered(AG), covered(CHAN, parallelism="PP=8"), without_recipe(third)]
    assert [found.other for found in conflicts(cells[0], cells)] == [cells[1]]
    assert [found.other for found in conflicts(cells[1], cells)] == [cells[0], cells[2]]


def of(kind: VerdictKind, delta: float | None = None, *, can_run: bool = True) -> Verdict:
    return Verdict(arm="a", kind=kind, delta=delta, n=1 if can_run else 0, can_run=can_run)


DEAD = of(INVALID, can_run=False)


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (of(FASTER, 0.03), of(SLOWER, -0.03), "flips: faster on FSDP=8, slower on PP=8"),
        (of(FASTER, 0.03), of(FASTER, 0.01), "the same"),
        (of(FASTER, 0.03), DEAD, "cannot run on PP=8"),
        (DEAD, DEAD, "cannot run on FSDP=8, PP=8"),
        (of(FASTER, 0.03), of(INVALID), "not valid on PP=8"),
        (of(FASTER, 0.037), of(ONCE, -0.01), "against a single run"),
        (of(ONCE, 0.037), of(ONCE, -0.01), "opposite in single runs"),
        (of(FASTER, 0.02), of(SAME, -0.001), "a difference on FSDP=8 only"),
        (of(UNTOLD, 0.02), of(SLOWER, -0.02), "opposite, not confirmed"),
    ],
)
def test_the_sign_table_says_what_is_known_of_each_side(
    here: Verdict, there: Verdict, said: str
) -> None:
    assert said in sign({"FSDP=8": here, "PP=8": there})


@pytest.mark.parametrize(("axes", "is_deployed"), [("FSDP=8", True), ("PP=8", False)])
def test_a_trial_whose_env_files_the_node_sources_gets_what_the_guard_reads(
    axes: str, is_deployed: bool, tmp_path: Path
) -> None:
    env = patched(
        tmp_path, (covered(AG), covered(OTHER, parallelism="PP=8", others=((AG, SLOWER),)))
    )
    launcher = CommandLauncher(argv=("bash", "-c", "echo found:$XLA_FLAGS"), env_files=(str(env),))
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse(axes))
    spec = launcher.launch(trial_of(cell), cell)
    folder = tmp_path / "trial"
    folder.mkdir()
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    argv = [word.replace(FOLDER, str(folder)) for word in spec.argv]
    done = subprocess.run(
        argv, cwd=folder, env={"PATH": os.environ["PATH"], **spec.env}, capture_output=True,
        text=True, check=True, timeout=240,
    )  # fmt: skip
    found = done.stdout.partition("found:")[2]
    assert ("--xla_ag=1" in found) is is_deployed


def test_configurations_are_told_apart_by_their_tag_and_batch_sizes_cannot_be(
    tmp_path: Path,
) -> None:
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


def deployment_of(cell: MeasuredCell) -> str:
    text = markdown(tuning((cell,)))
    return text.partition("Recommended deployment")[2].partition("## Appendix")[0]


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
    recipe = profile("overlap-2", "--xla_b=2")
    cell = replace(covered(recipe), elsewhere=tuple(elsewhere(*each) for each in found))
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
