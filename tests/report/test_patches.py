"""Patches that git takes and that deploy what was measured, guarded where a cell would lose."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.launchers.command import FOLDER, CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import (
    BASELINE,
    NO_ENV_ID,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
)
from pytest_xlatune.model.redact import hide_assignments
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.report.deployment import diff, patch_of
from pytest_xlatune.report.document import markdown
from pytest_xlatune.report.guards import conflicts, sign
from pytest_xlatune.report.measured_cell import (
    MeasuredCell,
    OtherCell,
    extended,
    read_cells,
    write_cells,
)
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.deployed import deployed_env, deployed_files, refuse_changed
from pytest_xlatune.tasks.reports import add_to_document
from tests.helpers.finished import HISTORY
from tests.helpers.history import measured, trial_of
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import tried
from tests.helpers.tables import recorded

ENV = "configs/tiny.env.sh"
YML = "configs/tiny.yml"
DEPLOYED = """\
# what is deployed
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"
export NCCL_ALGO=Ring
# the end
"""
AG, OVERLAP = profile("ag", "--xla_ag=1"), profile("overlap", "--xla_ag=8 --xla_o=2")
BOTH = profile("fast", "--xla_a=3", env={"NCCL_ALGO": "Tree"})
ODD = profile("odd", "--xla_c='two words'", env={"ODD": "a 'b' \"c\" $HOME `id`, \\ and\ttab"})


def covered(
    recipe: Profile,
    *,
    parallelism: str = "FSDP=8",
    config_tag: str = "",
    text: str | None = DEPLOYED,
    yml: str | None = None,
    others: tuple[tuple[Profile, VerdictKind], ...] = (),
    written_s: float = 1e9,
) -> MeasuredCell:
    """A cell whose winner is `recipe`."""
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse(parallelism), config_tag=config_tag)
    files = []
    if text is not None:
        files.append(DeployedFile(path=ENV, text=hide_assignments(text), is_new=not text))
    if yml is not None:
        files.append(DeployedFile(path=YML, text=yml, is_shell=False))
    verdicts = [Verdict(arm=recipe.id, kind=VerdictKind.FASTER, delta=0.1, n=4, tgs=110.0)]
    for each, kind in others:
        slower = -0.1 if kind is VerdictKind.SLOWER else None
        verdict = Verdict(arm=each.id, kind=kind, delta=slower, n=4)
        if kind is VerdictKind.INVALID:
            reasons = (verbatim("out of memory: 9 GiB"),)
            verdict = replace(verdict, can_run=False, n=0, reasons=reasons)
        verdicts.append(verdict)
    return MeasuredCell(
        sweep="sweep",
        cell_digest=cell.digest,
        written_s=written_s,
        cells=(cell,),
        profiles=(recipe, *(each for each, _ in others)),
        conclusion=Conclusion(
            verdicts=tuple(verdicts),
            reference=Verdict(arm="baseline-deployed", kind=VerdictKind.SCREENED, tgs=100.0),
            complete=True,
        ),
        history=(),
        files=tuple(files),
    )


def repository(tmp_path: Path, files: dict[str, str]) -> Path:
    """A git repository with some files, as it would be on another machine."""
    root = tmp_path / "repository"
    Repository(root)
    (root / "configs").mkdir()
    for path, text in files.items():
        (root / path).write_bytes(text.encode())
    return root


def apply(root: Path, patch: str) -> None:
    (root / "recommended.patch").write_bytes(patch.encode())
    git = Repository(root).git
    git("apply", "--check", "recommended.patch")
    git("apply", "--whitespace=error-all", "recommended.patch")


def deployed(folder: Path, text: str, recipe: Profile) -> str:
    """Apply the patch as people do, source the result as the trainer does; return the new file."""
    root = repository(folder, {ENV: text} if text else {})
    before = deployed_env(root / ENV) if text else {}
    patch = patch_of([covered(recipe, text=text)])
    assert patch.text, patch.missing
    apply(root, patch.text)
    subprocess.run(["bash", "-n", root / ENV], check=True, timeout=60)
    after = deployed_env(root / ENV)
    if recipe.id != NO_ENV_ID:
        flags = append_flags(before.pop("XLA_FLAGS", ""), recipe.flags)
        found = effective_values(parse_flags(after.pop("XLA_FLAGS", "")))
        assert found == effective_values(parse_flags(flags))
        assert after == {**before, **recipe.env}
    return (root / ENV).read_text(encoding="utf-8")


def test_git_applies_it_and_the_shell_then_deploys_what_was_measured(tmp_path: Path) -> None:
    near = "export HF_TOKEN=hush-hush\nexport XLA_FLAGS=--xla_a=1\n: a\n"
    for at, text in enumerate((DEPLOYED, near, "")):  # a file as usual, a secret near by, no file
        for recipe in (BOTH, ODD):
            deployed(tmp_path / f"{at}{recipe.id}", text, recipe)


CHANGED, TAKEN_OUT, APPENDED = (
    recorded("env_files.txt", part) for part in ("changed in place", "taken out", "appended to")
)
NO_ENV = profile(NO_ENV_ID, "--xla_a=3")


@pytest.mark.parametrize("end", ["\n", ""], ids=["lines", "its last line does not end"])
@pytest.mark.parametrize("name", [*CHANGED, *TAKEN_OUT])
def test_what_stands_plainly_changes_where_it_stands(tmp_path: Path, name: str, end: str) -> None:
    recipe, (text, expected) = (
        (BOTH, CHANGED[name]) if name in CHANGED else (NO_ENV, TAKEN_OUT[name])
    )
    after = deployed(tmp_path, text.removesuffix("\n") + end, recipe).splitlines()
    lines = [line for line in after if line and not line.startswith("#")]
    assert lines == expected.splitlines()


@pytest.mark.parametrize("text", [text for text, _ in APPENDED.values()], ids=APPENDED)
def test_what_does_not_is_appended_to(tmp_path: Path, text: str) -> None:
    after = deployed(tmp_path, text, BOTH)
    assert after.startswith(text)
    assert "export NCCL_ALGO=Tree\n" in after[len(text) :]
    assert "--xla_a=3" in after[len(text) :]


def test_lists_that_add_up_and_edits_of_a_list_are_appended(tmp_path: Path) -> None:
    text = 'export XLA_FLAGS="--xla_disable_hlo_passes=a --xla_gpu_enable_command_buffer=FUSION"\n'
    for flag in ("--xla_disable_hlo_passes=b", "--xla_gpu_enable_command_buffer=+CUBLAS"):
        assert deployed(tmp_path / flag, text, profile("fast", flag)).startswith(text)


TWO_SIGNS = 'export A="x # y"  # it\'s'
PIECES = st.sampled_from(
    [
        *(text.removesuffix("\n") for text, _ in APPENDED.values()),
        "export NCCL_ALGO=Ring",
        'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1 --xla_b=2"',
        'export XLA_FLAGS="--xla_b=1 $XLA_FLAGS"',
        'export XLA_FLAGS+=" --xla_a=2"',
        "export OTHER='it is'",
        "# it's NCCL_ALGO=Ring here",
        "export XLA_FLAGS=--xla_b=2 \\",
        "  NCCL_ALGO=Ring",
        "",
        TWO_SIGNS,
    ]
)


@settings(max_examples=tried(60), deadline=None)
@example(lines=["export XLA_FLAGS=--xla_b=2 \\", "export MORE=--xla_a=1"])
@example(lines=[TWO_SIGNS, APPENDED["a text of several lines"][0].removesuffix("\n")])
@given(lines=st.lists(PIECES, min_size=1, max_size=6))
def test_whatever_the_file_is_it_comes_to_what_was_measured(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in [": the file", *lines])
    with tempfile.TemporaryDirectory() as folder:
        root = repository(Path(folder), {ENV: text})
        try:
            before = deployed_env(root / ENV)
            flags = append_flags(before.get("XLA_FLAGS", ""), BOTH.flags)
            effective_values(parse_flags(flags))
        except Exception:  # noqa: BLE001 - no such file is deployed anywhere
            return
        deployed(Path(folder) / "again", text, BOTH)


def test_a_secret_is_no_context_and_in_no_patch(tmp_path: Path) -> None:
    text = "export XLA_FLAGS=--xla_a=1\nexport HF_TOKEN=hush-hush\n"
    made = patch_of([covered(profile("fast", "--xla_b=2"), text=text)])
    assert made.text == ""
    assert "hold a secret" in next(iter(made.missing.values()))
    declared = profile("secret", "--xla_b=2", env={"API_KEY": "hush-hush"})
    root = repository(tmp_path, {ENV: DEPLOYED})
    patch = patch_of([covered(Profile.from_json(declared.to_json()))]).text
    assert "hush" not in patch
    assert "# API_KEY: set it yourself" in patch
    apply(root, patch)
    assert "API_KEY" not in deployed_env(root / ENV)


def test_keys_of_the_trainer_are_told_beside_the_patch_of_the_lines() -> None:
    recipe = profile("unrolled", "--xla_b=2", overrides={"scan_layers": "false"})
    cell = covered(recipe, yml="scan_layers: true\n")
    made = patch_of([cell])
    assert ([*made.paths], dict(made.missing)) == ([ENV], {})
    text = markdown(tuning([cell])).split("## Recommended deployment")[1].split("\n## ")[0]
    assert "```\nscan_layers=false\n```" in text
    assert "There is no patch" not in text


def test_a_recipe_for_a_file_that_has_changed_is_not_deployed() -> None:
    old, text = covered(AG, written_s=1.0), f"{DEPLOYED}export MORE=1\n"
    made = patch_of([old, covered(OVERLAP, parallelism="PP=8", text=text, written_s=2.0)])
    assert "--xla_o=2" in made.text
    assert "has changed since" in made.missing[old.cell_digest]
    assert diff(DeployedFile(path="../out.env.sh", text="a\n"), "b\n") is None


def test_the_history_of_a_cell_grows_with_each_recipe_that_is_deployed(tmp_path: Path) -> None:
    """Three times a recipe is found, applied and measured again: the document has three rows."""
    root = repository(tmp_path, {ENV: "export XLA_FLAGS=--xla_one=1\n"})
    document = tmp_path / "tiny-tuning.md"
    document.write_text("by hand\n", encoding="utf-8")
    for at, flag in enumerate(("--xla_one=2", "--xla_two=2", "--xla_three=2")):
        tgs = 100.0 * 1.1**at
        text = (root / ENV).read_text(encoding="utf-8")
        made = covered(profile(f"gain-{at}", flag), text=text, written_s=1e9 + at)
        cell = replace(made.cell, deployed=deployed_env(root / ENV))
        trials = [trial_of(cell, stage="confirm", block=block) for block in range(1, 5)]
        base = Verdict(arm=BASELINE.id, kind=VerdictKind.SCREENED, tgs=tgs, n=4)
        made = replace(
            made,
            cells=(cell,),
            cell_digest=cell.digest,
            conclusion=replace(made.conclusion, reference=base),
            history=tuple(measured(trial, math.log(tgs)) for trial in trials),
        )
        add_to_document(tmp_path, made)
        apply(root, (tmp_path / "tiny-tuning.patch").read_text(encoding="utf-8"))
    # what a person wrote is kept beside it, and named
    kept = tmp_path / "tiny-tuning.by-hand.md"
    assert kept.read_text(encoding="utf-8") == "by hand\n"
    text = document.read_text(encoding="utf-8")
    assert f"`{kept.name}`" in text
    dated = re.findall(r"^\| \d{4}-\d\d-\d\d \d\d:\d\d \| (.*) \|$", text, re.MULTILINE)
    found = [row.split(" | ")[:3:2] for row in dated]
    assert found == [["100.0", "`gain-0`"], ["110.0", "`gain-1`"], ["121.0", "`gain-2`"]]
    assert " ".join(text.split()).count("measurement of FSDP=8 is deployed") == 1


FSDP = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))


def test_another_parallelism_extends_and_a_cell_that_is_measured_anew_keeps_what_it_was() -> None:
    first, pp = covered(AG), covered(OVERLAP, parallelism="PP=8")
    cells = extended(extended((), first), pp)
    assert [cell.label for cell in cells] == ["FSDP=8", "PP=8"]
    later = replace(first, written_s=2e9)
    assert extended(cells, later) == (later, pp)
    assert read_cells(write_cells(cells), where="d.json") == cells
    for text in ("{", '{"schema": 99, "cells": []}'):
        with pytest.raises(Exception, match=r"d\.json.*move it aside"):
            read_cells(text, where="d.json")
    for flags, is_deployed in (("--xla_ag=1", True), ("--xla_ag=2", False)):
        cell = replace(first.cell, deployed={"XLA_FLAGS": flags})
        other = replace(first, cell_digest="another", cells=(cell,), written_s=2e9)
        (anew,) = extended((first,), other)
        assert extended(extended((anew,), first), other) == (anew,), "reported twice"
        (earlier,) = anew.earlier
        assert earlier.written_s == first.written_s
        assert anew.deploys(earlier) is is_deployed
    # the same cell with new jobs is another measurement, with its old jobs and more it is not
    before = replace(first, history=tuple(HISTORY[:2]))
    for history, count in ((HISTORY[:3], 0), (HISTORY[5:6], 1)):
        (anew,) = extended((before,), replace(first, history=tuple(history), written_s=2e9))
        assert len(anew.earlier) == count


def test_the_files_that_deploy_a_cell_are_named_inside_their_repository(tmp_path: Path) -> None:
    root = repository(tmp_path, {ENV: DEPLOYED + "export API_KEY=hush-hush\n", YML: "a: 1\n"})
    launcher = MaxTextLauncher(config=str(root / "configs/{model_tag}.yml"), module="train")
    env, config = deployed_files(launcher, FSDP, env_file=str(root / ENV), root=tmp_path)
    assert (env.path, env.is_shell) == (ENV, True)
    assert (config.path, config.is_shell, config.text) == (YML, False, "a: 1\n")
    assert "hush" not in env.text
    assert "export API_KEY=(hidden)" in env.text
    new_file = str(root / "configs/new.env.sh")
    assert deployed_files(launcher, FSDP, env_file=new_file, root=tmp_path)[0].is_new
    # a file that names the image is none that recipes go into
    (root / "configs/tiny.gpu.yml").write_text("a: 1\n", encoding="utf-8")
    slurm = MaxTextSlurmLauncher(checkout=str(root), sbatch=("-w", "n1"))
    for paths in ([ENV], [ENV, "container_env.sh"]):
        files = deployed_files(slurm, FSDP, env_file="", root=tmp_path)
        assert [file.path for file in files if file.is_shell] == paths
        (root / "container_env.sh").write_text("DOCKER_IMAGE=rocm/jax:1\n", encoding="utf-8")


def test_a_trainers_configuration_that_changed_is_refused() -> None:
    launcher = MaxTextLauncher(config="/c.yml", module="train")

    def check(path: str, after: str) -> None:
        old = DeployedFile(path=path, text="a: 1\n", is_shell=path == ENV)
        new = [replace(old, text=after)]
        refuse_changed([old], new, launcher=launcher, cell=FSDP, where="here")

    with pytest.raises(ConfigError, match=r"tiny\.yml has changed since.*--xlatune-fresh"):
        check(YML, "a: 2\n")
    check(YML, "# why\na: 1  # so\n\n")
    check(ENV, "a: 2\n")  # which the cell itself compares


# --- guards --------------------------------------------------------------------------------------

FASTER, SLOWER, SAME = VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT
ONCE, UNTOLD, INVALID = VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE, VerdictKind.INVALID
AG_AND_CHAN = profile("ag-1g+chan-8", "--xla_ag=1", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
CHAN = profile("chan-8", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
OTHER = profile("other", "--xla_z=1")
ANOTHER_NAME = replace(AG_AND_CHAN, id="the-same-by-another-name")


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
        ((AG_AND_CHAN, SAME), (AG, INVALID)),
        "",
    ),
}


@pytest.mark.parametrize(("there", "words"), MEASURED_THERE.values(), ids=MEASURED_THERE)
def test_only_the_whole_recipe_that_was_measured_elsewhere_needs_no_guard(
    tmp_path: Path, there: tuple[tuple[Profile, VerdictKind], ...], words: str
) -> None:
    first = covered(AG_AND_CHAN)
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
    cells = [covered(AG_AND_CHAN), covered(AG, parallelism="PP=8", others=((AG_AND_CHAN, FASTER),))]
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
