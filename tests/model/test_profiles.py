"""XLA_FLAGS as XLA itself reads it: parse and format invert, last wins, merge is associative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    APPENDING,
    BASELINE,
    BASELINE_ID,
    Flag,
    Flags,
    Profile,
    append_flags,
    check_unique,
    effective_values,
    format_flags,
    merge_flags,
    parse_flags,
    profile,
    restore_default,
    settings_digest,
)
from pytest_xlatune.model.text import same_value
from tests.helpers.tables import rows

VALUES = st.one_of(
    st.none(),
    st.just(""),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)
# some add up, and two are one flag
SPECIAL = (*sorted(APPENDING)[:2], "xla_gpu_enable_pipelined_all_gather")


def flags_named(names: st.SearchStrategy[str]) -> st.SearchStrategy[Flag]:
    return st.builds(lambda name, value: Flag(name=name, value=value), names, VALUES)


FLAG = flags_named(st.from_regex(r"xla_[a-z_]{1,12}", fullmatch=True))
ANY = FLAG | flags_named(st.sampled_from([*SPECIAL, "xla_a", "xla_gpu_pipeline_all_gather"]))
FLAGS = st.lists(ANY, max_size=8).map(tuple)


READ: dict[str, list[tuple[str, str | None]]] = {
    "\n--xla_a=1\r\n\t--xla_b": [("xla_a", "1"), ("xla_b", None)],
    "--xla_a='x y' --b=1": [("xla_a", "x y"), ("b", "1")],
    r'--xla_a="x\"y\\"': [("xla_a", 'x"y\\')],
    r"--xla_a='x\y'": [("xla_a", r"x\y")],
    "--xla_a='1'--xla_b=2": [("xla_a", "1"), ("xla_b", "2")],
}
DROPPED_OR_REFUSED = {
    "flags.txt --xla_a=1": "name of a file",
    "--xla_a=1 , --xla_b=2": "silently drops ', --xla_b=2'",
    "A_B=1 --xla_a=1": "A variable belongs into `env`",
    "--xla_a=b'c d": "silently drops",  # a quote inside a value does not quote
    "--xla_a='x": "never closes",
}


def test_parse() -> None:
    for text, expected in READ.items():
        assert [(flag.name, flag.value) for flag in parse_flags(text)] == expected
    for text, message in DROPPED_OR_REFUSED.items():
        with pytest.raises(ConfigError, match="here") as caught:
            parse_flags(text, where="here")
        assert message in str(caught.value)


@given(FLAGS)
def test_parse_and_format_invert(flags: Flags) -> None:
    assert parse_flags(format_flags(flags)) == flags


@given(FLAGS, FLAGS, FLAGS)
def test_merge_is_associative(a: Flags, b: Flags, c: Flags) -> None:
    assert merge_flags(merge_flags(a, b), c) == merge_flags(a, merge_flags(b, c))
    assert merge_flags(a, b, c) == merge_flags(merge_flags(a, b), c)


@given(FLAGS, FLAG)
def test_the_last_one_wins(flags: Flags, last: Flag) -> None:
    value = "true" if last.value is None else last.value
    assert effective_values([*flags, last])[last.name] == value
    more = Flag(name=SPECIAL[0], value=last.value)
    assert effective_values([*flags, more])[more.name].endswith(value)


@given(FLAGS, FLAGS)
def test_what_is_appended_equals_what_is_merged(deployed: Flags, more: Flags) -> None:
    text = append_flags(format_flags(deployed), more)
    assert effective_values(parse_flags(text)) == effective_values(merge_flags(deployed, more))


@given(FLAGS)
def test_digest_knows_settings_not_spelling(flags: Flags) -> None:
    assert settings_digest(flags, {}) == settings_digest(merge_flags(flags), {})
    more = [*flags, Flag(name="xla_new", value="1")]
    assert settings_digest(more, {}) != settings_digest(flags, {})
    assert settings_digest(flags, {"NCCL_ALGO": "Ring"}) != settings_digest(flags, {})


def test_what_is_in_effect() -> None:
    deployed = "  --xla_a='1 2'   --xla_b  "
    assert append_flags(deployed, parse_flags("--xla_c")) == "--xla_a='1 2'   --xla_b --xla_c"
    one = "--xla_gpu_enable_pipelined_all_gather=true --xla_gpu_pipeline_all_gather=off"
    assert effective_values(parse_flags(one)) == {"xla_gpu_pipeline_all_gather": "off"}
    both = parse_flags("--xla_disable_hlo_passes=fusion --xla_disable_hlo_passes=algsimp")
    assert effective_values(both) == {"xla_disable_hlo_passes": "fusion,algsimp"}


def test_restore_default_puts_every_deployed_flag_back_that_appending_can_undo() -> None:
    deployed = parse_flags("--xla_a=9 --xla_b --xla_a=8")
    restored = restore_default(deployed, {"xla_a": "1", "xla_b": "false"})
    assert effective_values([*deployed, *restored]) == {"xla_a": "1", "xla_b": "false"}
    with pytest.raises(ConfigError, match=r"cannot put .* back"):
        restore_default(parse_flags("--xla_disable_hlo_passes=fusion"), {})
    with pytest.raises(ConfigError, match=r"no default .* flag --xla_a;"):
        restore_default(parse_flags("--xla_a=1"), {"xla_b": "2"})


def test_a_profile_that_exists_is_valid() -> None:
    # an id that `-k` could not select
    for bad in ("Overlap", "-a", "x" * 65):
        with pytest.raises(ConfigError, match="profile id"):
            profile(bad)
    for env, message in (
        ({"XLA_FLAGS": "--xla_a"}, "replace the deployed ones"),
        ({"1X": "y"}, "name an environment variable"),
        ({"X": "\0"}, "NUL"),
    ):
        with pytest.raises(ConfigError, match=message):
            Profile(id="a", env=env)
    with pytest.raises(ConfigError, match="profile 'a'"):
        profile("a", "--xla_a oops")


@given(
    st.dictionaries(
        st.from_regex(r"NCCL_[A-Z]{1,6}", fullmatch=True),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    ),
    FLAGS,
)
def test_a_profile_survives_json(env: dict[str, str], flags: Flags) -> None:
    each = Profile(id="p", env=env, flags=flags, overrides={"k": "v"})
    # a name such as NCCL_KEY speaks of a secret, whose value is not kept
    kept = Profile.from_json(each.to_json())
    assert kept.same_as(each)
    assert Profile.from_json(kept.to_json()) == kept


def test_duplicate_ids_name_both_settings() -> None:
    twice = [profile("a", "--xla_x=1"), profile("a", "--xla_x=2")]
    with pytest.raises(ConfigError, match=r"duplicate profile id 'a' .*xla_x=1.*xla_x=2"):
        check_unique(twice, where="sweep")
    with pytest.raises(ConfigError, match=BASELINE_ID):
        check_unique([BASELINE], where="sweep")


SPELLINGS = {
    "a bare switch is on": ("", "true", "bool", True),
    "an empty text is no switch unless it is one": ("", "true", "", False),
    "two is not on": ("2", "true", "int64", False),
    "leading zeros": ("007", "7", "int32", True),
    "beyond a float": ("9223372036854775807", "9223372036854775806", "", False),
    "in the middle": ("symmetric", "COLLECTIVES_SYMMETRIC_MEMORY", "", True),
    "a list in any order": ("FUSION,CUBLAS", "cublas,fusion", "", True),
    "a path is itself": ("/a/B", "/a/b", "string", False),
}


@rows("one, other, kind, same", SPELLINGS)
def test_spellings(one: str, other: str, kind: str, *, same: bool) -> None:
    assert same_value(one, other, kind=kind) is same
    assert same_value(other, one, kind=kind) is same
