"""A sweep file with a value of another kind is refused where it stands, before a ledger has it."""

from __future__ import annotations

import math
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    ConfigError,
    Gate,
    MaxTextLauncher,
    Patience,
    Protocol,
    Resources,
    SiteSettings,
    Stacks,
    Sweep,
    profile,
)
from pytest_xlatune.sweep.groups import GROUPS

# what a checker of types would refuse, a sweep file may hold
xl: Any = pytest_xlatune

SLOW = profile("slow", "--xla_slow=1")


def declared(**changed: Any) -> Sweep:
    launcher = CommandLauncher(argv=("train", "{overrides}"))
    own = {name: value for name, value in changed.items() if name in Sweep.__struct_fields__}
    rest = {name: value for name, value in changed.items() if name not in own}
    groups = {
        keyword: group(**{k: v for k, v in rest.items() if k in group.__struct_fields__})
        for keyword, group in GROUPS.items()
    }
    return Sweep(name="kinds", **{"launcher": launcher, "profiles": (SLOW,), **groups, **own})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"overrides": {"w": 512}}, "'kinds', cell: overrides['w'] is 512 (int), expected a text"),
        ({"budget": "30"}, "budget is '30' (str), expected a whole number"),
        ({"nodelist": "node1"}, "nodelist is 'node1' (str), expected a tuple"),
        ({"profiles": ("slow",)}, "profiles[0] is 'slow' (str), expected Profile"),
        ({"executor": "locl"}, "'locl' in sweep 'kinds', site; did you mean 'local'"),
        ({"protocol": 15}, "protocol is 15 (int), expected Protocol"),
        ({"resources": Resources(patience=60)}, "resources: patience is 60 (int)"),  # type: ignore[arg-type]
        (lambda: xl.Protocol(steps="12"), "protocol: steps is '12' (str), expected a whole number"),
        (lambda: xl.Resources(tasks_per_node=0), "tasks_per_node is 0, expected at least 1"),
        (lambda: xl.Gate(margin="1 %"), "gate: margin is '1 %' (str), expected a number"),
        (lambda: xl.Nodes(floors=5), "'floors' in Nodes(...); did you mean 'floor_tgs'?"),
        (lambda: xl.CommandLauncher(argv=("a", 5)), "argv[1] is 5 (int), expected a text: write"),
        (lambda: xl.profile("p", ["--xla_a=1"]), "['--xla_a=1'] (list), expected one text"),
        (
            lambda: declared(retry_policy=xl.RetryPolicy(rules={"hang": 1})),
            "retry policy: rules['hang'] is 1 (int), expected RetryRule",
        ),
        (lambda: xl.profile("p", env={"WIDTH": 512}), "WIDTH is 512 (int), expected a text: write"),
        (Protocol(steps=3).check_window, "needs 6 of them; set steps=11 or more"),
        (Protocol(steps=15, first_step=12).check_window, "set steps=18 or more"),
        ({"nodelist": ("a", "a")}, "a is named twice"),
        ({"nodelist": ("--evil",)}, "begins with a dash"),
        ({"nodelist": ("n[1-2]",)}, "one node in each text: ('n1', 'n2')"),
        ({"launcher": None}, "launcher is None"),
        ({"profiles": ()}, "declares no profile"),
        (
            {"gate": Gate(margin=0.01), "derived": (Stacks(wave="wave3", slots=1),)},
            "nothing but its profiles; leave derived",
        ),
    ],
    ids=lambda said: said if isinstance(said, str) else "",
)
def test_what_a_sweep_file_says_wrong_is_refused_with_its_place(said: Any, message: str) -> None:
    """Python's own errors name no attribute, and pytest ends with 2 instead of 4."""
    with pytest.raises(ConfigError) as told:
        declared(**said) if isinstance(said, dict) else said()
    assert message in str(told.value)


def test_what_means_the_same_is_taken() -> None:
    lists = {"profiles": [SLOW], "nodelist": ["node1", "node2"]}
    assert declared(per_device_batch_size=8, **lists).name == "kinds"
    assert declared(profiles=(), derived=(Stacks(wave="wave3", slots=1),)).name == "kinds"
    assert declared(resources=Resources(patience=Patience(training_s=60))).name == "kinds"


NUMBERS: dict[str, tuple[Any, ...]] = {
    "budget": (-1, 2.5, math.nan, None),
    "max_target_length": (-1, 0, True),
    "per_device_batch_size": (-1.0, 0, math.nan, math.inf),
    "loss_tolerance": (-1.0, math.nan, math.inf, "0.1"),
    "node_hours": (-1, 0, math.nan, "1"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_in_its_range_in_a_sweep_file_too(name: str) -> None:
    for value in NUMBERS[name]:
        with pytest.raises(ConfigError, match=rf"{name} is .*, expected (a|more than 0) "):
            declared(**{name: value})


def sweep(**config_tags: dict[str, str]) -> Sweep:
    return Sweep(
        name="tags",
        cell=CellSettings(model_tag="tiny", parallelism="FSDP=2", protocol=Protocol(steps=12)),
        launcher=MaxTextLauncher(python="python3", config="/configs/tiny.yml"),
        profiles=(profile("overlap-2", "--xla_overlap=2"),),
        site=SiteSettings(executor="local"),
        config_tags=config_tags,
    )


def test_another_configuration_is_another_cell() -> None:
    declared = sweep(sparse={"sparse_matmul": "true"})
    resolved = declared.resolve()
    there = resolved.elsewhere("sparse", declared.profiles, Gate())
    for each in (resolved, there):
        each.check()
        (first, *_) = each.study().decide(()).due
        argv = declared.launcher.launch(first, each.cell).argv
        assert ("sparse_matmul=true" in argv) is (each is there)
        assert first.cell_digest == each.cell.digest
    assert there.cell.label == "tiny FSDP=2 sparse"
    assert there.cell.digest != resolved.cell.digest
    assert there.folder != resolved.folder, "a ledger of its own"
    # one that cannot be launched is told before the first trial
    with pytest.raises(ConfigError, match=r"long.* overrides max_target_length=32"):
        sweep(long={"max_target_length": "32"}).resolve().check()


@pytest.mark.parametrize(
    ("axes", "devices", "words"),
    [
        ("PP=7", 0, "multiplies to 7, which neither divides 8"),
        ("FSDP=12", 12, "12 devices cannot .* 8 nodes"),
        ("PP=8", 0, ""),
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
