"""maxtext-slurm: the command that is submitted, and what is refused before."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from pytest_xlatune import ConfigError, Profile, profile
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.maxtext_slurm import JOB_NAME_BYTES
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers import golden
from tests.helpers.checkout import DATA, OVERLAP, make_cell, make_launcher, make_trial, name_of


def rendered(spec: LaunchSpec) -> str:
    words = shlex.join(spec.argv).replace(" -- ", " \\\n    -- ")
    files = "".join(f"\n{name}:\n{text.strip()}\n" for name, text in spec.files.items())
    return f"{spec.env}\n{words}\n{files}"


def test_the_command_that_is_submitted() -> None:
    cell = make_cell(overrides={"num_pipeline_microbatches": "16", "base_config": "/a b/base.yml"})
    of = profile("overlap-2", OVERLAP, env={"NCCL_PROTO": "it's"})
    launcher = make_launcher()
    plain = rendered(launcher.launch(make_trial(cell, of), cell))
    evidence = rendered(launcher.launch(make_trial(cell, of, evidence=True), cell))
    golden.check(DATA / "command.txt", f"{launcher.describe()}\n\n{plain}\nevidence: {evidence}")


@pytest.mark.parametrize(
    ("sbatch", "nodes"),
    [
        pytest.param(("-N", "8", "-w", "node[001-008]"), 8, id="two words"),
        pytest.param(("-N2", "-wnode[001-002]"), 2, id="one word"),
        pytest.param(("--nodes=4", "--nodelist=node[001-008]"), 4, id="fewer than are named"),
        pytest.param(("--nodelist=node[001-003]",), 3, id="the list alone"),
    ],
)
def test_a_plan_counts_the_nodes_that_sbatch_is_asked_for(
    sbatch: tuple[str, ...], nodes: int
) -> None:
    assert make_launcher(sbatch=sbatch).nodes == nodes


def test_an_image_that_is_a_file_has_to_be_there() -> None:
    assert make_launcher().files(make_cell(image="/images/a.tar"))[-1] == "/images/a.tar"


def test_it_is_a_launcher() -> None:
    launcher: Launcher = make_launcher()
    cell = make_cell(launcher=launcher.describe())
    spec = launcher.launch(make_trial(cell), cell)
    assert spec == launcher.launch(make_trial(cell), cell)
    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert launcher.env_files_of(cell) == (
        "/shared/maxtext-slurm/train_env.sh",
        "/shared/maxtext-slurm/configs/deepseek3-671b.env.sh",
    )


def test_waiting_for_nodes_is_not_part_of_the_trials_deadline() -> None:
    cell = make_cell()
    spec = make_launcher(queue_s=3600).launch(make_trial(cell), cell)
    assert "--time=45:00" in spec.argv
    assert spec.deadline_s == 2700 + 3600
    own = make_launcher(sbatch=("-w", "n1", "-t", "50:00")).launch(make_trial(cell), cell)
    assert not [each for each in own.argv if each.startswith("--time")]


def test_a_job_name_has_at_most_243_bytes_and_is_refused_before_anything_is_submitted() -> None:
    launcher = make_launcher()
    free = JOB_NAME_BYTES - len(name_of(launcher.launch(make_trial(make_cell()), make_cell())))
    # the readable part of the tag goes first
    free += len("baseline-deployed-")
    fits = make_cell(overrides={"_env_K": "v" * (free - len("-_env_K_"))})
    spec = launcher.launch(make_trial(fits), fits)
    assert len(name_of(spec)) == JOB_NAME_BYTES
    assert "baseline" not in name_of(spec)
    # then the longest keys, which have another way to MaxText
    keys = {f"a_long_key_{at}": "v" * 40 for at in range(9)} | {"k": "1"}
    many = make_cell(overrides=keys)
    spec = launcher.launch(make_trial(many), many)
    assert len(name_of(spec)) <= JOB_NAME_BYTES
    exported = {key for key in keys if f"M_{key.upper()}=" in "".join(spec.files.values())}
    passed = {key for key in keys if f"{key}={keys[key]}" in spec.argv}
    assert exported
    assert passed
    assert exported | passed == set(keys)
    assert not exported & passed
    longer = make_cell(overrides={"_env_K": "v" * (free - len("-_env_K_") + 300)})
    with pytest.raises(ConfigError, match=r"bytes, but .* room for 243: .*deepseek3-671b\.env\.sh"):
        launcher.launch(make_trial(longer), longer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sbatch": ("-N", "8")}, r"sbatch='-N 8' names no nodes"),
        ({"sbatch": ("-w", "n1", "--", "steps=1")}, "sbatch holds `--`"),
        ({"checkout": "maxtext-slurm"}, "checkout 'maxtext-slurm' is relative"),
        ({"workspace": "outputs"}, "workspace 'outputs' is relative"),
        ({"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_misuse_is_refused_at_construction(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_launcher(**changes)


@pytest.mark.parametrize(
    ("cell", "of", "message"),
    [
        ({"deployed": {"NCCL_ALGO": "Ring"}}, BASELINE, r"put it into .*671b\.env\.sh"),
        ({"overrides": {"_env_XLA_FLAGS": "--a=1"}}, BASELINE, "_env_XLA_FLAGS is exported after"),
        (
            {"overrides": {"_env_NCCL_PROTO": "LL"}},
            profile("p", env={"NCCL_PROTO": "Simple"}),
            "_env_NCCL_PROTO is exported after .* NCCL_PROTO",
        ),
        ({"overrides": {"_env_X": "a b"}}, BASELINE, "_env_X='a b' cannot be a passthrough"),
        ({"overrides": {"base_output_directory": "/x"}}, BASELINE, "to the job's folder"),
        ({}, profile("p", overrides={"steps": "9"}), r"Protocol\(steps=\.\.\.\)"),
    ],
    ids=[
        "an environment of the cell",
        "flags that replace all that is deployed",
        "a variable that comes after the profile's",
        "a passthrough of two words",
        "another output folder",
        "a profile with steps of its own",
    ],
)
def test_what_would_be_lost_or_replace_the_deployed_is_refused(
    cell: dict[str, Any], of: Profile, message: str
) -> None:
    made = make_cell(**cell)
    with pytest.raises(ConfigError, match=message):
        make_launcher().launch(make_trial(made, of), made)
