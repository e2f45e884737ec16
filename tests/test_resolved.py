"""A sweep with nothing left to ask: what is found out before anything of it runs."""

from __future__ import annotations

import pytest

from pytest_xlatune import Protocol, Sweep, profile
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.sweep.inputs import Inputs


def sweep(**config_tags: dict[str, str]) -> Sweep:
    return Sweep(
        name="tags",
        model_tag="tiny",
        parallelism="FSDP=2",
        max_target_length=16,
        launcher=MaxTextLauncher(python="python3", config="/configs/tiny.yml"),
        profiles=(profile("overlap-2", "--xla_overlap=2"),),
        protocol=Protocol(steps=12),
        executor="local",
        config_tags=config_tags,
    )


def test_another_configuration_is_another_cell() -> None:
    resolved = sweep(sparse={"sparse_matmul": "true"}).resolve(Inputs())
    resolved.check()


def test_a_configuration_that_cannot_be_launched_is_told_before_the_first_trial() -> None:
    resolved = sweep(long={"max_target_length": "32"}).resolve(Inputs())
    with pytest.raises(ConfigError, match=r"long.* overrides max_target_length=32"):
        resolved.check()
