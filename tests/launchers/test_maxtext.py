"""The MaxText launcher: its whole command line, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.probes import make_cell, make_trial, maxtext


def keys_of(spec: LaunchSpec) -> list[str]:
    return [argument for argument in spec.argv if "=" in argument]


def test_the_whole_maxtext_command() -> None:
    cell = make_cell("PP=2,FSDP=4", max_target_length=1048576, overrides={"remat_policy": "full"})
    trial = make_trial(cell, profile("mb-16", overrides={"num_pipeline_microbatches": "16"}))
    spec = maxtext(python="/mt/bin/python").launch(trial, cell)
    assert spec.argv == (
        *("/mt/bin/python", "-m", "MaxText.train", "/cfg/tiny.gpu.yml"),
        f"run_name={trial.id}",
        "base_output_directory=output",
        "per_device_batch_size=7",
        "max_target_length=1048576",
        "dcn_pipeline_parallelism=2",
        "dcn_fsdp_parallelism=4",
        "remat_policy=full",
        "num_pipeline_microbatches=16",
        "steps=15",
        "dataset_type=synthetic",
        "metrics_file=metrics.jsonl",
    )
    assert (spec.metrics_file, spec.last_step, spec.cwd) == ("metrics.jsonl", 14, "")


@pytest.mark.parametrize(
    ("parallelism", "prefix", "expected"),
    [
        ("FSDP=8", {}, {"dcn_fsdp": 8, "dcn_pipeline": 1}),
        ("PP=8", {}, {"dcn_pipeline": 8, "dcn_fsdp": 1}),
        ("TP=8", {}, {"ici_tensor": 8}),
        ("DP=8", {}, {"dcn_data": 8, "dcn_fsdp": 1, "dcn_pipeline": 1}),
        ("PP=2,FSDP=4", {}, {"dcn_pipeline": 2, "dcn_fsdp": 4}),
        ("FSDP=4,TP=2", {}, {"dcn_fsdp": 4, "ici_tensor": 2, "dcn_pipeline": 1}),
        ("EP=4", {}, {"ici_expert": 4}),
        ("PP=2,FSDP=2", {"PP": "ici", "FSDP": "ici"}, {"ici_pipeline": 2, "ici_fsdp": 2}),
        ("FSDP=4", {"PP": "ici", "FSDP": "ici"}, {"ici_fsdp": 4, "ici_pipeline": 1}),
    ],
    ids=[
        "fsdp takes the pipeline of the model config back",
        "pipeline takes the fsdp of the model config back",
        "tensor lies inside a slice",
        "data takes both back",
        "a hybrid names both and takes nothing back",
        "a hybrid over both networks",
        "expert lies inside a slice",
        "the prefix is a setting",
        "the prefix holds for what is taken back too",
    ],
)
def test_parallelism_becomes_overrides(
    parallelism: str, prefix: Mapping[str, str], expected: Mapping[str, int]
) -> None:
    cell = make_cell(parallelism)
    spec = maxtext(axis_prefix=prefix).launch(make_trial(cell), cell)
    found = {each for each in keys_of(spec) if "_parallelism=" in each}
    assert found == {f"{axis}_parallelism={degree}" for axis, degree in expected.items()}


@pytest.mark.parametrize(
    ("module", "head"),
    [
        ("MaxText.train", ("-m", "MaxText.train")),
        ("maxtext.trainers.pre_train.train", ("-m", "maxtext.trainers.pre_train.train")),
        ("/repo/train.py", ("/repo/train.py",)),
    ],
    ids=["a module of MaxText 0.1", "a module of MaxText 0.2", "a script"],
)
def test_program_in_front_of_the_keys(module: str, head: tuple[str, ...]) -> None:
    cell = make_cell()
    argv = maxtext(module=module).launch(make_trial(cell), cell).argv
    assert argv[: len(head) + 2] == ("python3", *head, "/cfg/tiny.gpu.yml")


def test_last_override_wins_and_each_key_appears_once() -> None:
    cell = make_cell(overrides={"remat_policy": "full", "dcn_pipeline_parallelism": "-1"})
    trial = make_trial(cell, profile("remat", overrides={"remat_policy": "minimal"}))
    keys = keys_of(maxtext().launch(trial, cell))
    assert "remat_policy=minimal" in keys
    assert "dcn_pipeline_parallelism=-1" in keys
    names = [each.split("=")[0] for each in keys]
    assert len(names) == len(set(names))


def test_profiler_keys_appear_only_when_the_protocol_profiles() -> None:
    cell = make_cell()
    plain = maxtext().launch(make_trial(cell), cell)
    assert not [each for each in plain.argv if "profiler" in each]
    trial = make_trial(cell, profiler="xplane", skip_first_steps=9, profiler_steps=2)
    profiled = keys_of(maxtext().launch(trial, cell))
    assert {"profiler=xplane", "skip_first_n_steps_for_profiler=9", "profiler_steps=2"} <= {
        *profiled
    }


def test_evaluations_come_from_the_protocol() -> None:
    cell = make_cell()
    assert "eval_interval=5" in keys_of(maxtext().launch(make_trial(cell, eval_interval=5), cell))


def test_several_processes_would_share_one_metrics_file_so_there_is_none() -> None:
    cell = make_cell(nodelist=("n1", "n2"))
    spec = maxtext().launch(make_trial(cell), cell)
    assert spec.metrics_file == ""
    assert not [each for each in spec.argv if each.startswith("metrics_file")]


@pytest.mark.parametrize(
    ("of_cell", "of_profile", "message"),
    [
        ({"steps": "99"}, {}, r"cell 'tiny-1b .*steps=99.*Protocol\(steps"),
        ({}, {"dataset_type": "grain"}, r"profile 'p' overrides dataset_type=grain"),
        ({}, {"profiler": ""}, r"profiler=.*Protocol\(profiler"),
        ({}, {"per_device_batch_size": "9"}, r"Cell\(per_device_batch_size"),
        ({}, {"dcn_fsdp_parallelism": "4"}, "the cell's parallelism"),
    ],
    ids=[
        "a cell cannot change the steps",
        "a profile cannot bring real data",
        "a profile cannot empty the profiler",
        "a profile cannot change the batch",
        "a profile cannot change the parallelism",
    ],
)
def test_overrides_that_change_the_measurement_are_refused(
    of_cell: dict[str, str], of_profile: dict[str, str], message: str
) -> None:
    cell = make_cell(overrides=of_cell)
    trial = make_trial(cell, profile("p", overrides=of_profile))
    with pytest.raises(ConfigError, match=message):
        maxtext().launch(trial, cell)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": "tiny.yml"}, "config 'tiny.yml' is relative"),
        ({"module": "train.py"}, "script 'train.py' is relative"),
        ({"python": "venv/bin/python"}, "interpreter 'venv/bin/python' is relative"),
        ({"cwd": "repo"}, "cwd 'repo' is relative"),
        ({"env_files": ("x.env.sh",)}, "env file 'x.env.sh' is relative"),
        ({"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
        ({"axis_prefix": {"QQ": "ici"}}, "unknown axis 'QQ'"),
        ({"inherit": ("PATH", "XLA_FLAGS")}, "`inherit` passes XLA_FLAGS on"),
        ({"inherit": ("XLA_*",)}, "`inherit` passes XLA_FLAGS on"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_misuse_is_refused_at_construction(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        maxtext(**changes)


def test_relative_paths_are_fine_in_a_given_directory() -> None:
    launcher = maxtext(config="configs/x.yml", module="train.py", cwd="/repo")
    assert launcher.describe() == "maxtext python3 train.py configs/x.yml cwd=/repo"
