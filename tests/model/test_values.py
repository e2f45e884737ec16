"""Cells, profiles and records: identity, XLA_FLAGS as XLA reads them, an equal value back."""

from __future__ import annotations

import json
import math
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.executors import JOB_NAME_PREFIX, request_for
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.hosts import compress, expand
from pytest_xlatune.model.pretty_json import pretty_json
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
from pytest_xlatune.model.record import Real, Record, canonical, digest
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.text import same_value
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from tests.helpers.tables import rows

CELL = Cell(
    model_tag="llama3.1-405b",
    parallelism=Parallelism.parse("PP=2,FSDP=4"),
    per_device_batch_size=7,
    max_target_length=4096,
    devices=8,
)
TRIAL = Trial(
    cell_digest=CELL.digest,
    profile=profile("overlap-2", "--xla_a=1"),
    protocol=CELL.protocol,
    study="tuning",
    stage="wave2",
)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Parallelism.parse, {"text": "FSDP=0"}, "expected AXIS=DEGREE"),
        (Parallelism.parse, {"text": "FSDP=2,FSDP=4"}, "given twice"),
        (Parallelism.parse, {"text": "FDSP=8"}, "did you mean 'FSDP'"),
        (CELL, {"devices": 16}, "multiply to 8, but the cell has 16 devices"),
        (CELL, {"parallelism": Parallelism.parse("PP=8"), "devices": 12}, "multiply to 8"),
        *((CELL, {"model_tag": tag}, "model tag") for tag in ("", "../x")),
        *((CELL, {"per_device_batch_size": size}, "a number above 0") for size in (0, math.nan)),
        *((Protocol, {name: 0}, f"{name} is 0") for name in ("steps", "min_steps", "deadline_s")),
        (Protocol, {"metric": ""}, "expected 'tgs' .* or 'none'"),
    ],
    ids=str,
)
def test_what_can_be_no_cell_is_refused(make: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(make, **values) if isinstance(make, Cell) else make(**values)


def test_label_and_invariant() -> None:
    assert CELL.label == "llama3.1-405b PP=2,FSDP=4 pdbs=7"
    assert Parallelism.parse("pp=2, fsdp=4") == CELL.parallelism
    assert CELL.tokens_per_device_step == 28672
    assert replace(CELL, max_target_length=None).tokens_per_device_step is None
    stages = Cell(model_tag="m", parallelism=Parallelism.parse("PP=8"), devices=64)
    assert stages.devices == 64, "stages over slices share the devices of all"


def test_a_cell_is_told_apart_by_what_it_holds_fixed() -> None:
    def digest(**settings: Any) -> str:
        return replace(CELL, protocol=Protocol(**settings)).digest

    assert replace(CELL, nodelist=("node001",)).digest != CELL.digest
    assert Cell.from_json(CELL.to_json()).digest == CELL.digest
    assert digest(metric="busbw") != digest()
    assert digest(deadline_s=9) == CELL.digest


def test_identity_covers_what_matters_and_ignores_words_and_patience() -> None:
    def ids(*changes: dict[str, Any]) -> set[str]:
        return {replace(TRIAL, **each).id for each in changes}

    others = ids(
        {"profile": profile("overlap-2", "--xla_a=2")},
        {"stage": "confirm"},
        {"block": 1},
        {"design": ConfirmDesign(arms=3, blocks=4, baselines=2)},
        {"cell_digest": "0" * 16},
        {"protocol": Protocol(steps=25)},
    )
    assert len(others - {TRIAL.id}) == 6
    noted = profile("overlap-2", "--xla_a=1", note="because", wave="wave9")
    patient = replace(CELL.protocol, deadline_s=9)
    assert ids({"profile": noted}, {"protocol": patient}) == {TRIAL.id}


def job_name_of(name: str) -> str:
    trial = replace(TRIAL, profile=Profile(id=name), arm=name)
    folder, resources = Path("/work"), Resources()
    request = request_for(trial, 1, run="first", folder=folder, nodelist=(), resources=resources)
    return request.job_name


# an id:  overlap-2+ag-1g.2g
@given(st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,63}", fullmatch=True))
def test_every_profile_has_a_job_name_that_slurm_takes(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,200}", job_name_of(name))
    assert job_name_of(name).startswith(JOB_NAME_PREFIX)


def test_names_that_differ_in_what_is_replaced_stay_apart() -> None:
    assert len({job_name_of(name) for name in ("a+b", "a_b", "a+b+c", "a_b+c")}) == 4


def test_host_lists() -> None:
    for text, names in (
        ("node[001-003]", "node001 node002 node003"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[1-2,007],gpu-a[1-2]", "n1 n2 n007 gpu-a1 gpu-a2"),
    ):
        assert expand(text) == tuple(names.split())
    for names, text in (
        ("", ""),
        ("n9 n10", "n[9-10]"),
        ("n1 n02", "n[1,02]"),  # different padding is no run
        ("0a a 1a", "0a,a,1a"),
    ):
        assert compress(names.split()) == text
    for text, message in (
        ("", "'' is no name"),
        ("n[1-", "is no name"),
        ("n[3-1]", "range 3-1 is backwards"),
        ("n[1-256][1-256]a,b", "more than 65536 nodes"),
        ("n1 n2", "'n1 n2' is no name"),
        ("n1,n[1-2]", "n1 is named twice"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            expand(text)
        assert repr(text) in str(caught.value)


NAMES = st.lists(
    st.one_of(
        st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,8}", fullmatch=True),
        st.builds("node{:03d}".format, st.integers(0, 1200)),
        st.builds("gpu-a{}-ib".format, st.integers(0, 30)),
    ),
    min_size=1,
    unique=True,
)


@given(NAMES)
def test_expand_reads_back_what_compress_wrote(names: list[str]) -> None:
    assert expand(compress(names)) == tuple(names)


@given(st.text("n01[]-, a", max_size=12))
def test_any_text_is_names_or_a_config_error(text: str) -> None:
    try:
        names = expand(text)
    except ConfigError:
        return
    assert all(names)
    assert expand(compress(names)) == names


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


class Colour(StrEnum):
    RED = "red"


class Inner(Record, frozen=True, kw_only=True):
    number: Real = 0.0


class Outer(Record, frozen=True, kw_only=True):
    name: str
    maybe: int | None = None
    pair: tuple[int, str] = (0, "")
    many: tuple[Inner, ...] = ()
    table: dict[str, Real | None]
    colour: Colour = Colour.RED
    flag: bool = False
    words: frozenset[str] | None = None


INNER = st.builds(Inner, number=st.floats(allow_nan=False))
OUTER = st.builds(
    Outer,
    name=st.text(st.characters(exclude_categories=["Cs"])),
    maybe=st.none() | st.integers(),
    pair=st.tuples(st.integers(), st.just("x")),
    many=st.lists(INNER, max_size=3).map(tuple),
    table=st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False), max_size=3),
    flag=st.booleans(),
    words=st.none() | st.frozensets(st.text(max_size=2), max_size=3),
)


@given(OUTER)
def test_a_record_comes_back_equal_through_json_text(record: Outer) -> None:
    text = json.dumps(record.to_json(), allow_nan=False)
    assert Outer.from_json(json.loads(text)) == record


def test_nan_is_a_word() -> None:
    assert Inner(number=math.nan).to_json() == {"number": "nan"}
    assert math.isnan(Inner.from_json({"number": "nan"}).number)
    assert Inner.from_json({"number": 3}).number == 3.0


GOOD = Outer(name="a", table={}).to_json()


def test_a_wrong_value_names_its_place() -> None:
    wrong: dict[str, Any] = {
        "another version.*nknown field `later`": GOOD | {"later": 1},
        r"Outer: Expected `str`, got `int` - at `\$.name`": GOOD | {"name": 5},
        r"\$\.many\[0\]\.number": GOOD | {"many": [{"number": "many"}]},
        r"\$\.colour": GOOD | {"colour": "blue"},
        "Expected `object`": [],
    }
    for message, data in wrong.items():
        with pytest.raises(LedgerError, match=message):
            Outer.from_json(data)


def test_a_foreign_number_is_refused_before_it_reaches_xdist() -> None:
    class Foreign(float):
        """What numpy.float64 is: a subclass of float."""

    with pytest.raises(TypeError, match="builtins only"):
        Inner(number=Foreign(1.0)).to_json()


def test_digest_ignores_order_and_sees_values() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert canonical({"b": "é", "a": [1.5]}) == '{"a":[1.5],"b":"\\u00e9"}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical(math.nan)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(width=32, allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(JSON)
def test_json_that_is_laid_out_is_the_same_json(value: object) -> None:
    assert json.loads(pretty_json(value)) == value
