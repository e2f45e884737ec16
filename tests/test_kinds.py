"""A sweep file with a value of another kind is refused where it stands, before a ledger has it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_xlatune import ConfigError, Patience, Protocol, Resources, Stacks, Sweep, profile
from pytest_xlatune.launchers.command import CommandLauncher

SLOW = profile("slow", "--xla_slow=1")


def declared(**changed: Any) -> Sweep:
    launcher = CommandLauncher(argv=("train", "{overrides}"))
    return Sweep(**{"name": "kinds", "launcher": launcher, "profiles": (SLOW,), **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"overrides": {"w": 512}}, "'kinds': overrides['w'] is 512 (int), expected a text: write"),
        ({"deployed": {"DEBUG": True}}, "deployed['DEBUG'] is True (bool), expected a text"),
        ({"config_tags": {"fp8": {"bits": 8}}}, "config_tags['fp8']['bits'] is 8 (int)"),
        ({"budget": "30"}, "budget is '30' (str), expected a whole number"),
        ({"per_device_batch_size": "8"}, "per_device_batch_size is '8' (str), expected a number"),
        ({"nodelist": "node1"}, "nodelist is 'node1' (str), expected a tuple"),
        ({"profiles": ("slow",)}, "profiles[0] is 'slow' (str), expected Profile"),
        ({"profiles": SLOW}, "expected a tuple: write (..., )"),
        ({"derived": Stacks(wave="wave3", slots=1)}, "expected a tuple: write (..., )"),
        ({"executor": "locl"}, "unknown executor 'locl' in sweep 'kinds'; did you mean 'local'"),
        ({"protocol": 15}, "protocol is 15 (int), expected Protocol"),
        ({"protocol": Protocol(steps=15.0)}, "'kinds', protocol: steps is 15.0 (float)"),  # type: ignore[arg-type]
        ({"launcher": CommandLauncher(argv="train x")}, "launcher: argv is 'train x' (str)"),  # type: ignore[arg-type]
        ({"resources": Resources(patience=60)}, "resources: patience is 60 (int)"),  # type: ignore[arg-type]
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_another_kind_is_named_with_its_place(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        declared(**changed)
    assert message in str(told.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"profiles": [SLOW]},
        {"nodelist": ["node1", "node2"]},
        {"per_device_batch_size": 8},
        {"per_device_batch_size": None, "sigma_prior": 0.01},
        {"config_tags": {"fp8": {"bits": "8"}}, "derived": (Stacks(wave="wave3", slots=1),)},
        {"resources": Resources(patience=Patience(training_s=60))},
    ],
    ids=str,
)
def test_what_means_the_same_is_taken(changed: dict[str, Any]) -> None:
    assert declared(**changed).name == "kinds"


@pytest.mark.parametrize("where", ["env", "overrides"])
def test_a_profile_takes_texts_alone(where: str) -> None:
    with pytest.raises(ConfigError, match=r"profile 'p': WIDTH is 512 \(int\).*write '512'"):
        profile("p", **{where: {"WIDTH": 512}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (Protocol(steps=10), "5 of them, and a score needs 6; ask for steps=11 or more"),
        (Protocol(steps=3), "0 of them, and a score needs 6; ask for steps=11 or more"),
        (Protocol(steps=15, first_step=12), "ask for steps=18 or more"),
    ],
    ids=["one step short", "before the window", "a late window"],
)
def test_a_protocol_without_a_score_is_refused(protocol: Protocol, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        protocol.check_window()
    Protocol(steps=11).check_window()
