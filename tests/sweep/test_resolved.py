"""A sweep with nothing left to ask: what is found out before anything of it runs."""

from __future__ import annotations

import pytest

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    ConfigError,
    Gate,
    MaxTextLauncher,
    Protocol,
    SiteSettings,
    Sweep,
    profile,
)


def sweep(**config_tags: dict[str, str]) -> Sweep:
    return Sweep(
        name="tags",
        cell=CellSettings(
            model_tag="tiny",
            parallelism="FSDP=2",
            max_target_length=16,
            protocol=Protocol(steps=12),
        ),
        launcher=MaxTextLauncher(python="python3", config="/configs/tiny.yml"),
        profiles=(profile("overlap-2", "--xla_overlap=2"),),
        site=SiteSettings(executor="local"),
        config_tags=config_tags,
    )


def test_another_configuration_is_another_cell() -> None:
    declared = sweep(sparse={"sparse_matmul": "true"})
    resolved = declared.resolve()
    resolved.check()
    there = resolved.elsewhere("sparse", declared.profiles[0], Gate())
    there.check()
    assert there.cell.digest != resolved.cell.digest
    assert there.cell.label == "tiny FSDP=2 sparse"
    assert there.cell.overrides == {"sparse_matmul": "true"}
    # a ledger of its own, and trials that the other cell's study takes for strangers
    assert there.folder != resolved.folder
    trial, *_ = there.study().decide(()).due
    assert trial.cell_digest == there.cell.digest
    assert trial.id not in {each.id for each in resolved.study().decide(()).due}
    for each, is_sparse in ((resolved, False), (there, True)):
        (first, *_) = each.study().decide(()).due
        argv = declared.launcher.launch(first, each.cell).argv
        assert ("sparse_matmul=true" in argv) is is_sparse


def test_a_configuration_that_cannot_be_launched_is_told_before_the_first_trial() -> None:
    resolved = sweep(long={"max_target_length": "32"}).resolve()
    with pytest.raises(ConfigError, match=r"long.* overrides max_target_length=32"):
        resolved.check()


@pytest.mark.parametrize(
    ("axes", "devices", "words"),
    [
        ("PP=7", 0, "multiplies to 7, which neither divides 8 nodes nor is a multiple of them"),
        ("PP=4,FSDP=3", 0, "multiplies to 12, which neither divides 8 nodes"),
        ("FSDP=12", 12, "12 devices cannot be spread over 8 nodes evenly"),
        ("PP=8", 0, ""),
        ("PP=2", 0, ""),
        ("PP=8,FSDP=8", 64, ""),
        ("TP=6,FSDP=4", 24, ""),
    ],
)
def test_axes_are_held_against_the_nodes(axes: str, devices: int, words: str) -> None:
    sweep = Sweep(
        name="nodes",
        launcher=CommandLauncher(argv=("train", "{steps}")),
        profiles=(profile("p", "--xla_a=1"),),
        cell=CellSettings(model_tag="m", parallelism=axes, devices=devices),
        site=SiteSettings(nodelist=tuple(f"n{number}" for number in range(8))),
    )
    if not words:
        assert sweep.resolve().cell.nodelist
        return
    with pytest.raises(ConfigError, match=words):
        sweep.resolve()
