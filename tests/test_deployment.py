"""What is recommended is a patch that git takes, and what it deploys is what was measured."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_xlatune.campaign.deployed_files import deployed_files, refuse_changed
from pytest_xlatune.cells import Cell, DeployedFile, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.deployed import deployed_env
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.hidden import hide_assignments
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.program import FOLDER
from pytest_xlatune.preflight.flags import ground_of
from pytest_xlatune.profiles import (
    BASELINE,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
)
from pytest_xlatune.report import markdown
from pytest_xlatune.report.covered import (
    Covered,
    Elsewhere,
    extended,
    names,
    read_cells,
    write_cells,
)
from pytest_xlatune.report.deployment import conflicts, diff, patch_of
from pytest_xlatune.report.phrases import Language
from pytest_xlatune.report.tuning import tuning
from pytest_xlatune.results import (
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)

ENV = "configs/tiny.env.sh"
YML = "configs/tiny.yml"
DEPLOYED = """\
# what is deployed
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"
export NCCL_ALGO=Ring
: the end
"""


def covered(
    recipe: Profile,
    *,
    parallelism: str = "FSDP=8",
    config_tag: str = "",
    text: str | None = DEPLOYED,
    yml: str | None = None,
    others: tuple[tuple[Profile, VerdictKind], ...] = (),
    written_s: float = 1e9,
) -> Covered:
    """A cell whose winner is `recipe`."""
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse(parallelism), config_tag=config_tag)
    files = []
    if text is not None:
        files.append(DeployedFile(path=ENV, text=hide_assignments(text), is_new=not text))
    if yml is not None:
        files.append(DeployedFile(path=YML, text=yml, is_shell=False))
    verdicts = [Verdict(profile=recipe.id, kind=VerdictKind.FASTER, delta=0.1, n=4, tgs=110.0)]
    verdicts += [
        Verdict(
            profile=each.id,
            kind=kind,
            can_run=kind is not VerdictKind.INVALID,
            delta=-0.1 if kind is VerdictKind.SLOWER else None,
        )
        for each, kind in others
    ]
    return Covered(
        sweep="sweep",
        cell_digest=cell.digest,
        written_s=written_s,
        cell=cell,
        profiles=(recipe, *(each for each, _ in others)),
        conclusion=Conclusion(
            verdicts=tuple(verdicts),
            baseline=Verdict(profile="baseline-deployed", kind=VerdictKind.SCREENED, tgs=100.0),
            complete=True,
        ),
        history=(),
        files=tuple(files),
    )


def git(repository: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, timeout=30)


def repository(tmp_path: Path, files: dict[str, str]) -> Path:
    """A git repository with some files, as it would be on another machine."""
    root = tmp_path / "repository"
    (root / "configs").mkdir(parents=True)
    git(root, "init", "-q")
    for path, text in files.items():
        (root / path).write_bytes(text.encode())
    return root


def apply(root: Path, patch: str) -> None:
    (root / "recommended.patch").write_bytes(patch.encode())
    git(root, "apply", "--check", "recommended.patch")
    git(root, "apply", "--whitespace=error-all", "recommended.patch")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(DEPLOYED, id="a file as usual"),
        pytest.param(DEPLOYED.rstrip("\n"), id="its last line does not end"),
        pytest.param("export XLA_FLAGS=--xla_a=1\n", id="less than the context"),
        pytest.param("", id="no such file yet"),
        pytest.param(f"{DEPLOYED}\n\n", id="blank lines at its end"),
        pytest.param(
            "export HF_TOKEN=hush-hush\nexport XLA_FLAGS=--xla_a=1\n: a\n", id="a secret near by"
        ),
    ],
)
@pytest.mark.parametrize(
    "recipe",
    [
        profile("fast", "--xla_b=2 --xla_a=3"),
        profile("variables", env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "^LL128"}),
        profile("odd", "--xla_c='two words'", env={"ODD": "a 'b' \"c\" $HOME `id`, \\ and\ttab"}),
    ],
    ids=lambda each: each.id,
)
def test_git_applies_it_and_the_shell_then_deploys_what_was_measured(
    tmp_path: Path, text: str, recipe: Profile
) -> None:
    root = repository(tmp_path, {ENV: text} if text else {})
    before = deployed_env(root / ENV) if text else {}
    apply(root, patch_of([covered(recipe, text=text)]).text)
    after = deployed_env(root / ENV)
    flags = append_flags(before.get("XLA_FLAGS", ""), recipe.flags)
    assert effective_values(parse_flags(after.pop("XLA_FLAGS", ""))) == effective_values(
        parse_flags(flags)
    )
    before.pop("XLA_FLAGS", None)
    assert after == {**before, **recipe.env}


def test_a_secret_is_no_context_and_in_no_patch(tmp_path: Path) -> None:
    text = "export XLA_FLAGS=--xla_a=1\nexport HF_TOKEN=hush-hush\n"
    made = patch_of([covered(profile("fast", "--xla_b=2"), text=text)])
    assert made.text == ""
    assert "hold a secret" in next(iter(made.missing.values()))
    secret = profile("secret", "--xla_b=2", env={"API_KEY": "hush-hush"}).shown
    root = repository(tmp_path, {ENV: DEPLOYED})
    patch = patch_of([covered(secret)]).text
    assert "hush" not in patch
    assert "# API_KEY: set it yourself, its value is not shown" in patch
    apply(root, patch)
    assert "API_KEY" not in deployed_env(root / ENV)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("scan_layers: true\n", "scan_layers: false\n"),
        ("a: 1\nscan_layers: true  # cheap\nb: 2\n", "a: 1\nscan_layers: false  # cheap\nb: 2\n"),
        ('scan_layers: "yes"\n', "scan_layers: false\n"),
        ("scan_layers:\nb: 1\n", "scan_layers: false\nb: 1\n"),
        ("a: 1", "a: 1\nscan_layers: false\n"),
        ("# scan_layers: true\na: 1\n", "# scan_layers: true\na: 1\nscan_layers: false\n"),
    ],
)
def test_a_key_of_the_trainer_is_changed_where_it_stands(
    tmp_path: Path, before: str, after: str
) -> None:
    recipe = profile("unrolled", "--xla_b=2", overrides={"scan_layers": "false"})
    root = repository(tmp_path, {ENV: DEPLOYED, YML: before})
    apply(root, patch_of([covered(recipe, yml=before)]).text)
    assert (root / YML).read_text(encoding="utf-8") == after


@pytest.mark.parametrize(
    "yml", ["scan_layers:\n  - true\n", "scan_layers: [1]\n", "scan_layers: 1\nscan_layers: 2\n"]
)
def test_a_key_without_a_single_value_is_left_to_people(yml: str) -> None:
    recipe = profile("unrolled", "--xla_b=2", overrides={"scan_layers": "false"})
    made = patch_of([covered(recipe, yml=yml)])
    assert "has no single value" in next(iter(made.missing.values()))
    assert YML not in made.paths
    assert ENV in made.paths, "its flags are deployed all the same"


AG, OVERLAP = profile("ag", "--xla_ag=1"), profile("overlap", "--xla_ag=8 --xla_o=2")


@pytest.mark.parametrize(
    ("dcn_pp", "expected"),
    [pytest.param("1", "1", id="on FSDP"), pytest.param("8", "8", id="on PP")],
)
def test_recipes_that_conflict_are_guarded_by_the_parallelism(
    tmp_path: Path, dcn_pp: str, expected: str
) -> None:
    cells = [covered(AG), covered(OVERLAP, parallelism="PP=8")]
    assert [each.settings for each in conflicts(cells)] == [("xla_ag",), ("xla_ag",)]
    root = repository(tmp_path, {ENV: DEPLOYED})
    apply(root, patch_of(cells).text)
    environ = deployed_env(root / ENV, base={"MAXTEXT_DCN_PP": dcn_pp})
    assert effective_values(parse_flags(environ["XLA_FLAGS"]))["xla_ag"] == expected
    # where nobody exports the variable, it is the cell without a pipeline
    bare = deployed_env(root / ENV)
    assert effective_values(parse_flags(bare["XLA_FLAGS"]))["xla_ag"] == "1"


def test_a_recipe_that_hurts_elsewhere_is_guarded_and_a_harmless_one_is_not() -> None:
    same = replace(AG, id="the-same-by-another-name")
    hurt = covered(OVERLAP, parallelism="PP=8", others=((same, VerdictKind.SLOWER),))
    (first, _) = conflicts([covered(AG), hurt])
    assert first.guard == '"${MAXTEXT_DCN_PP:-1}" -le 1'
    other = covered(profile("other", "--xla_z=1"), parallelism="PP=8")
    assert conflicts([covered(AG), other]) == []
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
        stage=Stage.SCREEN,
    )
    spec = launcher.launch(trial, cell)
    folder = tmp_path / "trial"
    folder.mkdir()
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    argv = [each.replace(FOLDER, str(folder)) for each in spec.argv]
    done = subprocess.run(
        argv, cwd=folder, env={"PATH": os.environ["PATH"], **spec.env}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("found:"))
    assert ("--xla_b=2" in found) is is_deployed
    ground = ground_of(cell, launcher)
    assert ("xla_b" in {flag.name for flag in ground.deployed}) is is_deployed
    assert not [name for name in ground.env if name.startswith("MAXTEXT_")]


def test_degrees_of_one_axis_are_told_apart_and_configurations_cannot_be() -> None:
    eight, four = covered(AG, parallelism="PP=8"), covered(OVERLAP, parallelism="PP=4")
    assert [each.guard for each in conflicts([eight, four])] == [
        '"${MAXTEXT_DCN_PP:-1}" -eq 8',
        '"${MAXTEXT_DCN_PP:-1}" -eq 4',
    ]
    made = patch_of([covered(AG, config_tag="dense"), covered(OVERLAP, config_tag="sparse")])
    assert made.text == ""
    assert set(made.missing.values()) == {"no variable tells the conflicting cells apart"}


def elsewhere(tag: str, kind: VerdictKind, *, can_run: bool = True) -> Elsewhere:
    verdict = Verdict(profile="overlap-2", kind=kind, can_run=can_run, n=4)
    return Elsewhere(config_tag=tag, sweep=f"sweep-{tag}", verdict=verdict)


def deployment_of(cell: Covered, language: Language = Language.ENGLISH) -> str:
    text = markdown.render(tuning((cell,), language))
    return text.partition("Recommended deployment")[2].partition("## Appendix")[0]


@pytest.mark.parametrize(
    ("found", "words", "has_patch"),
    [
        ((), "which it was not held against", True),
        (
            (("long", VerdictKind.EQUIVALENT), ("wide", VerdictKind.FASTER)),
            "excluded with `long`, `wide` too (`sweep-long/gate.md`, `sweep-wide/gate.md`)",
            True,
        ),
        (
            (("dense", VerdictKind.SLOWER), ("long", VerdictKind.EQUIVALENT)),
            "conditional: with `dense` it is slower or cannot run (`sweep-dense/gate.md`)",
            False,
        ),
        (
            (("dense", VerdictKind.INCONCLUSIVE),),
            "whether it costs anything with `dense` was measured and cannot be told",
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
        assert "dense would get it too, and it was found harmful there" in said
        assert "--xla_b=2" in said  # by hand
    assert read_cells(write_cells((cell,)), where="here") == (cell,)
    chinese = deployment_of(cell, Language.CHINESE)
    assert all(f"`{tag}`" in chinese for tag, _ in found)


def test_what_cannot_run_elsewhere_is_conditional_and_what_nobody_measured_is_not_told() -> None:
    assert elsewhere("dense", VerdictKind.INVALID, can_run=False).is_harmful
    nobody = elsewhere("dense", VerdictKind.INVALID)
    assert not nobody.is_harmful
    assert not nobody.holds


def test_wave_six_is_kept_for_the_recipe_that_it_was_about() -> None:
    recipe = profile("overlap-2", "--xla_b=2")
    before = replace(covered(recipe), elsewhere=(elsewhere("dense", VerdictKind.EQUIVALENT),))
    (same,) = extended((before,), covered(recipe))
    assert same.elsewhere == before.elsewhere
    (other,) = extended((before,), covered(profile("overlap-2", "--xla_b=4")))
    assert other.elsewhere == ()


def test_a_recipe_for_a_file_that_has_changed_is_not_deployed() -> None:
    old = covered(AG, written_s=1.0)
    new = covered(OVERLAP, parallelism="PP=8", text=DEPLOYED + "export MORE=1\n", written_s=2.0)
    made = patch_of([old, new])
    assert made.cells == (new.cell_digest,)
    assert made.missing == {old.cell_digest: "a file that deploys the cell has changed since"}


def test_a_path_that_a_diff_cannot_name_is_left_to_people() -> None:
    for path in ("../out.env.sh", "a b.env.sh", "tab\t.env.sh"):
        assert diff(DeployedFile(path=path, text="a\n"), "b\n") is None


# -- the document's data ---------------------------------------------------------------------------


def test_another_parallelism_extends_and_the_same_cell_takes_its_place() -> None:
    fsdp, pp = covered(AG), covered(OVERLAP, parallelism="PP=8")
    cells = extended(extended((), fsdp), pp)
    assert [each.label for each in cells] == ["FSDP=8", "PP=8"]
    again = replace(fsdp, written_s=2e9)
    assert extended(cells, again) == (again, pp)


def test_a_cell_that_is_measured_anew_keeps_what_it_was() -> None:
    first = covered(AG)
    deployed = {"XLA_FLAGS": "--xla_ag=1"}
    again = replace(first, cell_digest="another", cell=replace(first.cell, deployed=deployed))
    (only,) = extended((first,), again)
    (earlier,) = only.earlier
    assert earlier.cell_digest == first.cell_digest
    assert only.deploys(earlier), "what was recommended is what is deployed now"
    other = replace(again, cell=replace(first.cell, deployed={"XLA_FLAGS": "--xla_ag=2"}))
    assert not extended((first,), other)[0].deploys(earlier)


def test_a_ledger_that_was_begun_anew_keeps_what_the_old_one_found() -> None:
    def with_jobs(*jobs: str) -> Covered:
        trial = Trial(
            cell_digest="d", profile=AG, protocol=Protocol(), study="tuning", stage=Stage.SCREEN
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


# -- which files -----------------------------------------------------------------------------------


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


def test_a_trainers_configuration_that_changed_is_refused_and_a_comment_is_not() -> None:
    launcher = MaxTextLauncher(config="/c.yml", module="train")
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))
    before = DeployedFile(path=YML, text="a: 1\n", is_shell=False)
    shell = DeployedFile(path=ENV, text="export A=1\n")

    def go_on(file: DeployedFile) -> None:
        refuse_changed([before, shell], [file], launcher=launcher, cell=cell, where="here")

    go_on(replace(before, text="# why\na: 1  # so\n\n"))
    go_on(replace(shell, text="export A=2\n"))  # is part of the cell, and compared there
    with pytest.raises(ConfigError, match=r"tiny\.yml has changed since.*--xlatune-new-baseline"):
        go_on(replace(before, text="a: 2\n"))
