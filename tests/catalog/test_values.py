"""The values that XLA ends the process on: the catalog's rule, and the jaxlib that is installed."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.model.profile import Flag, Profile
from pytest_xlatune.prepare.lint import Target

WORDS = ("yes", "no", "on", "off", "t", "2", "", "maybe", "four", "x", "truE,", "4,5")
FIGURES = ("4", "+4", "-1", "04", "4.0", "1e9", "0x10", "1G", "1_000", ".5", "5.", "inf", "1e400")
LARGE = ("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808")
VALUES = ("true", "TRUE", "1", "0", "False", *WORDS, *FIGURES, *LARGE, "30s", "1h30m", "500 ms")
OF_A_TYPE = 2
OWN_SETTERS = (
    "xla_gpu_executable_warn_stuck_timeout",
    "xla_gpu_enable_triton_gemm_int4",
    "xla_gpu_execution_terminate_timeout",
)


def accepted(jaxlib: str) -> list[str]:
    known = [each for each in history().flags if history().is_accepted(each, jaxlib)]
    kinds: dict[str, list[str]] = {}
    for each in known:
        kinds.setdefault(history().kind(each), []).append(each)
    some = [flag for kind in ("bool", "int32", "int64", "float", "enum", "string")
            for flag in kinds[kind][:OF_A_TYPE]]  # fmt: skip
    return [*some, *(each for each in OWN_SETTERS if each in known)]


@pytest.mark.jax
def test_the_rule_refuses_what_the_installed_xla_refuses() -> None:
    target = Target(python=sys.executable, environ=os.environ)
    target([])
    flags = [
        Flag(name=name, value=value)
        for name in accepted(target.jaxlib)
        for value in (None, *VALUES)
    ]
    context = Context(jaxlib=target.jaxlib)
    for flag, answer in zip(flags, target([str(each) for each in flags]), strict=True):
        rules = {each.rule for each in check([Profile(id="p", flags=(flag,))], context)}
        dies = answer.options is None
        kind = history().kind(flag.name)
        if kind == "enum" and not rules & {"bad-value"}:
            continue  # of their words the table knows only what none can be
        assert ("bad-value" in rules) is dies, (str(flag), answer.refused, answer.unknown)
