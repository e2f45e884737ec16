"""What is recommended is a patch that git takes, and what it deploys is what was measured."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.profile import (
    BASELINE,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
)
from pytest_xlatune.model.result import TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.deployment import diff, patch_of, patch_of_setting
from pytest_xlatune.report.measured_cell import extended
from pytest_xlatune.sweep.deployed import deployed_env
from pytest_xlatune.tasks.reports import add_to_document
from tests.helpers.deploying import (
    AG,
    DEPLOYED,
    ENV,
    OVERLAP,
    YML,
    apply,
    covered,
    elsewhere,
    repository,
)
from tests.helpers.history import measured


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
    made_secret = profile("secret", "--xla_b=2", env={"API_KEY": "hush-hush"})
    secret = type(made_secret).from_json(made_secret.to_json())
    root = repository(tmp_path, {ENV: DEPLOYED})
    patch = patch_of([covered(secret)]).text
    assert "hush" not in patch
    assert "# API_KEY: set it yourself" in patch
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
    assert "--xla_o=2" in made.text
    assert "has changed since" in made.missing[old.cell_digest]


def test_a_path_that_a_diff_cannot_name_is_left_to_people() -> None:
    for path in ("../out.env.sh", "a b.env.sh", "tab\t.env.sh"):
        assert diff(DeployedFile(path=path, text="a\n"), "b\n") is None


def test_the_history_of_a_cell_grows_with_each_recipe_that_is_deployed(tmp_path: Path) -> None:
    """Three times a recipe is found, applied and measured again: the document has three rows."""
    text = "export XLA_FLAGS=--xla_one=1\n"
    root = repository(tmp_path, {ENV: text})
    for at, flag in enumerate(("--xla_one=2", "--xla_two=2", "--xla_three=2")):
        text = (root / ENV).read_text(encoding="utf-8")
        made = covered(profile(f"gain-{at}", flag), text=text, written_s=1e9 + at)
        cell = replace(made.cell, deployed=deployed_env(root / ENV))
        conclusion = replace(made.conclusion, reference=line_of(100.0 * 1.1**at))
        history = tuple(baseline_of(cell, 100.0 * 1.1**at, f"{at}{job}") for job in range(4))
        made = replace(
            made, cells=(cell,), cell_digest=cell.digest, conclusion=conclusion, history=history
        )
        document = tmp_path / "tiny-tuning.md"
        is_first = not document.exists()
        if is_first:
            document.write_text("by hand\n", encoding="utf-8")
        add_to_document(tmp_path, made)
        assert ("a fresh start" in document.read_text(encoding="utf-8")) is is_first
        apply(root, (tmp_path / "tiny-tuning.patch").read_text(encoding="utf-8"))
    assert "--xla_one=2" in (root / ENV).read_text(encoding="utf-8")
    assert "--xla_one=1" not in (root / ENV).read_text(encoding="utf-8"), "changed in place"
    # what a person wrote is kept beside it, and named
    kept = tmp_path / "tiny-tuning.by-hand.md"
    assert kept.read_text(encoding="utf-8") == "by hand\n"
    text = document.read_text(encoding="utf-8")
    assert f"`{kept.name}`" in text
    rows = re.findall(r"^\| \d{4}-\d\d-\d\d \d\d:\d\d \| (.*) \|$", text, re.MULTILINE)
    assert [row.split(" | ")[0] for row in rows] == ["100.0", "110.0", "121.0"]
    assert [row.split(" | ")[2] for row in rows] == ["`gain-0`", "`gain-1`", "`gain-2`"]
    # what became of the baseline since then, with its interval; nothing yet of today's
    assert rows[0].split(" | ")[4].startswith("+21.0 % [")
    assert rows[1].split(" | ")[4].startswith("+10.0 % [")
    said = " ".join(text.split())
    assert said.count("measurement of FSDP=8 is deployed") == 1


def line_of(tgs: float) -> Verdict:
    return Verdict(arm="baseline-deployed", kind=VerdictKind.SCREENED, tgs=tgs, n=4)


def baseline_of(cell: Cell, tgs: float, job: str) -> TrialResult:
    trial = Trial(
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=cell.protocol,
        study="tuning",
        stage="confirm",
        block=1 + int(job[-1]),
    )
    wobble = tgs * (1 + 0.001 * (int(job[-1]) % 2 - 0.5))
    return replace(measured(trial, math.log(wobble)), job_ids=(job,))


@pytest.mark.parametrize(
    ("setting", "before", "after"),
    [
        ("per_device_batch_size=6", "steps: 9\nper_device_batch_size: 4.0 # of 8\n",
         "steps: 9\nper_device_batch_size: 6 # of 8\n"),
        ("per_device_batch_size=6", "steps: 9\n", "steps: 9\nper_device_batch_size: 6\n"),
        ("remat_policy=minimal", "remat_policy: 'full'\n", "remat_policy: minimal\n"),
    ],
    ids=["in place", "added", "no number"],
)  # fmt: skip
def test_one_setting_is_a_patch_of_the_configuration(
    tmp_path: Path, setting: str, before: str, after: str
) -> None:
    root = repository(tmp_path, {YML: before, ENV: DEPLOYED})
    files = (DeployedFile(path=ENV, text=DEPLOYED),
             DeployedFile(path=YML, text=before, is_shell=False))  # fmt: skip
    apply(root, patch_of_setting(files, setting))
    assert (root / YML).read_text("utf-8") == after
    assert (root / ENV).read_text("utf-8") == DEPLOYED


@pytest.mark.parametrize("name", ["NCCL_ALGO", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_variable_is_a_patch_of_the_env_file(tmp_path: Path, name: str) -> None:
    root = repository(tmp_path, {ENV: DEPLOYED})
    apply(root, patch_of_setting((DeployedFile(path=ENV, text=DEPLOYED),), f"{name}=0.93"))
    lines = (root / ENV).read_text("utf-8").splitlines()
    assert [each for each in lines if name in each] == [f"export {name}=0.93"]


def test_two_keys_are_one_patch_and_never_half_of_it(tmp_path: Path) -> None:
    before = "steps: 9\nper_device_batch_size: 4\nremat_policy: full\n"
    deployed = DeployedFile(path=YML, text=before, is_shell=False)
    root = repository(tmp_path, {YML: before})
    apply(root, patch_of_setting((deployed,), "per_device_batch_size=8 remat_policy=minimal"))
    assert (root / YML).read_text("utf-8") == (
        "steps: 9\nper_device_batch_size: 8\nremat_policy: minimal\n"
    )
    assert not patch_of_setting((deployed,), "per_device_batch_size=8 NCCL_ALGO=Ring")
    same = patch_of_setting((deployed,), "per_device_batch_size=4 remat_policy=minimal")
    assert "batch_size: 8" not in same
    assert "+remat_policy: minimal" in same


def test_a_setting_that_no_file_has_to_learn_is_no_patch() -> None:
    deployed = DeployedFile(path=YML, text="per_device_batch_size: 6.0\n", is_shell=False)
    hidden = DeployedFile(path=YML, text="- a list\n", is_shell=False)
    assert not patch_of_setting((deployed,), "per_device_batch_size=6")
    assert not patch_of_setting((hidden,), "per_device_batch_size=6")
    assert not patch_of_setting((), "per_device_batch_size=6")
    assert not patch_of_setting((deployed,), "")
