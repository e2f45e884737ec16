"""What is made of XLA's answers, by a stand-in: each kind of setting that is not in effect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_xlatune.catalog.context import Level
from pytest_xlatune.catalog.effect import ParsedText, examine
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, parse_flags, profile, read_as_xla

DEFAULT = {"a": "0", "b": "false", "xla_disable_hlo_passes": "", "map": "k=1,l=2", "mode": "OFF"}


def stand_in(texts: Sequence[str]) -> list[ParsedText]:
    """Parse as XLA does: an appending flag, a map, an older name, unknown and bad ones."""
    return [answer(text) for text in texts]


def answer(text: str) -> ParsedText:
    options = dict(DEFAULT)
    try:
        flags, _ = read_as_xla(text)
    except ConfigError as error:
        return ParsedText(options=None, refused=str(error))
    unknown = [flag.name for flag in flags if flag.name.startswith("no_")]
    bad = [flag for flag in flags if flag.value == "bad"]
    if bad:
        return ParsedText(
            options=None, refused=f"Couldn't interpret value bad for flag {bad[0].name}"
        )
    if unknown:
        return ParsedText(options=None, unknown=tuple(unknown))
    for flag in flags:
        value = flag.value or ""
        if flag.name == "xla_disable_hlo_passes":
            value = ",".join(filter(None, (options[flag.name], value)))
        elif flag.name == "map":
            pairs = dict(each.split("=") for each in f"{options['map']},{value}".split(","))
            value = ",".join(f"{k}={v}" for k, v in sorted(pairs.items()))
        if flag.name == "old_mode":
            options["mode"] = "ON" if value == "true" else "OFF"
        elif flag.name != "custom":
            options[flag.name] = value
    if "b=twin" in text:
        options["a"] = "9"  # one that overrides another, whatever the order
    return ParsedText(options=options)


@pytest.mark.parametrize(
    ("text", "deployed", "rules"),
    [
        pytest.param("--a=1", "", [], id="in effect"),
        pytest.param("--no_such=1", "", ["unknown-flag"], id="unknown"),
        pytest.param("--a=bad", "", ["bad-value"], id="a bad value"),
        pytest.param("--a=1 --a=2", "", ["not-in-effect"], id="overridden by itself"),
        pytest.param("--a=1 --b=twin", "", ["not-in-effect"], id="overridden by another name"),
        pytest.param(
            "--xla_disable_hlo_passes=x", "--xla_disable_hlo_passes=y", ["adds-up"], id="appended"
        ),
        pytest.param("--map=l=3", "--map=k=5", ["adds-up"], id="merged into a map"),
        pytest.param("--a=0", "", ["no-op"], id="the default"),
        pytest.param("--a=0", "--a=1", [], id="back to the default is a change"),
        pytest.param("--old_mode=true", "", [], id="an older name of an option"),
    ],
)
def test_what_is_found(text: str, deployed: str, rules: list[str]) -> None:
    found = examine([profile("p", text)], parse_flags(deployed), stand_in)
    assert [each.rule for each in found.objections] == rules, found
    assert not found.unchecked


def rules_of(profiles: Sequence[Profile], deployed: str = "", **env: str) -> list[tuple[str, str]]:
    found = examine(profiles, parse_flags(deployed), stand_in, env=env)
    return [(each.profile, each.rule) for each in found.objections]


def test_a_flag_without_an_option_is_unchecked_not_idle() -> None:
    found = examine([profile("p", "--custom=1")], (), stand_in)
    assert not found.objections
    (unchecked,) = found.unchecked
    assert "--custom has no option" in unchecked


def test_one_of_two_profiles_that_come_to_the_same_is_named() -> None:
    twins = [profile("first", "--a=1"), profile("second", "--a=0 --a=1 --b=false")]
    assert rules_of(twins) == [("second", "not-in-effect"), ("second", "twin")]
    apart = [profile("first", "--a=1"), profile("second", "--a=1", env={"NCCL_ALGO": "Ring"})]
    assert not rules_of(apart)


def test_a_refused_flag_that_is_deployed_is_a_fault_and_hides_nothing() -> None:
    found = examine(
        [profile("p", "--a=1"), profile("q", "--a=0")], parse_flags("--no_such=1"), stand_in
    )
    assert [(each.profile, each.rule, each.level) for each in found.objections] == [
        ("baseline-deployed", "unknown-flag", Level.FAULT),
        ("q", "no-op", Level.NOTE),
    ]
    assert "--no_such" in found.objections[0].text


def test_xla_is_asked_about_each_text_once() -> None:
    asked: list[str] = []

    def once(texts: Sequence[str]) -> list[ParsedText]:
        assert texts, "an interpreter is started for nothing"
        asked.extend(texts)
        return stand_in(texts)

    texts = {"one": "--a=1", "again": "--a=1", "both": "--a=1 --b=true"}
    examine([profile(name, text) for name, text in texts.items()], (), once)
    assert sorted(asked) == ["", "--a=1", "--a=1 --b=true", "--b=true"]
