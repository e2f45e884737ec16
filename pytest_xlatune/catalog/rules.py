"""What is wrong with a profile before anything runs: named rules over its settings.

A rule looks at what a profile sets, on top of what is deployed, and objects in one sentence. What
would measure nothing, or something wrong, is a fault; a profile whose id begins with `control` is
*meant* to do nothing, which is then no fault but what is asked of it. What only the target's own
XLA can say is asked elsewhere (`effect`). No rule guesses: where a fact is not known it is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_xlatune.catalog import idle
from pytest_xlatune.catalog.entries import Status, load
from pytest_xlatune.catalog.ground import Case, Ground, Level, Objection, Rule, is_control
from pytest_xlatune.catalog.history import history
from pytest_xlatune.catalog.program import no_algorithm
from pytest_xlatune.profiles import ALIASES, APPENDING, BASELINE_ID, Profile
from pytest_xlatune.profiles import effective_values as values_of
from pytest_xlatune.spelling import same_value

_FRACTIONS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
# libtpu reads these from LIBTPU_INIT_ARGS; the parser of XLA_FLAGS aborts on them
_TPU = ("xla_tpu_", "xla_jf_", "xla_sc_", "xla_enable_async_", "megascale_")
_TPU_NAMES = ("xla_latency_hiding_scheduler_rerun", "xla_memory_scheduler", "vmodule")
# an integer as C reads it with base 0:  16777216    0x1000000    -1
_INTEGER = re.compile(r"\s*[-+]?(?:0[xX][0-9a-fA-F]+|\d+)")
# a size as people write it:  16M    4MiB
_SIZE = re.compile(r"(\d+)\s*([kKmMgG])(?:i?[bB])?")
_SHIFT = {"k": 10, "m": 20, "g": 30}


def check(profiles: Sequence[Profile], ground: Ground) -> tuple[Objection, ...]:
    """Return every objection: those to what is deployed first, then in the profiles' order."""
    deployed = Profile(
        id=BASELINE_ID,
        flags=tuple(ground.deployed),
        env={
            name: value
            for name, value in ground.env.items()
            if name != "XLA_FLAGS" and name.isidentifier()  # bash exports functions too
        },
    )
    bare = Ground(jaxlib=ground.jaxlib, device=ground.device)
    found = [
        *_objections(deployed, bare, [rule for rule in RULES if rule.of_deployed]),
        *(each for profile in profiles for each in _objections(profile, ground, RULES)),
    ]
    return tuple(found)


def why_not(profile: Profile, ground: Ground) -> str:
    """Return why a profile that nobody declared is not worth a trial; "" where nothing says so.

    What a rule calls a fault keeps it from running, as it would a declared one. So does what is as
    deployed anyway, for nobody asked for this very profile; env files on the nodes may change that.
    What does nothing to the deployed program may act beside another flag or key, which makes
    another program: that is asked of single flags and of variables alone.
    """
    if len(values_of(profile.flags)) > 1 or profile.overrides:
        ground = replace(ground, program=None)
    found = (
        each
        for each in check([profile], ground)
        if each.profile == profile.id
        and (each.level is Level.FAULT or (each.rule == "no-op" and ground.is_complete))
    )
    return next((each.text for each in found), "")


def does_nothing(profile: Profile, ground: Ground) -> str:
    """Return why all of a profile does nothing for certain; "" where that is not known.

    As certain as what the ground says is deployed. A flag without its partner counts where it is
    all that the profile sets, for another one beside it may well act.
    """
    sole = len(profile.flags) == 1 and not profile.env
    wanted = {"no-op", "partner"} if sole else {"no-op"}
    named = replace(profile, id="asked")  # of a control no rule says that it is idle
    found = (each for each in check([named], ground) if each.profile == named.id)
    texts = [each.text for each in found if each.rule in wanted] if ground.is_complete else []
    return "" if profile.overrides or not texts else texts[0].partition(": a run of it")[0]


def _objections(profile: Profile, ground: Ground, rules: Sequence[Rule]) -> Iterator[Objection]:
    asked = values_of(profile.flags)
    case = Case(
        profile=profile,
        ground=ground,
        asked=asked,
        after=values_of((*ground.deployed, *profile.flags)),
        env={**ground.env, **profile.env},
    )
    for rule in rules:
        if rule.is_idle and is_control(profile):
            continue
        level = rule.level if ground.is_complete or not rule.is_idle else Level.NOTE
        for text in rule.check(case):
            yield Objection(rule=rule.name, level=level, profile=profile.id, text=text)


def _blocked(case: Case) -> Iterator[str]:
    for name, value in case.asked.items():
        for entry in load().find(name):
            hits = not entry.blocked or any(same_value(value, each) for each in entry.blocked)
            if entry.status is Status.BLOCKED and hits:
                yield f"--{name} is never set: it {entry.mechanism}"


def _tpu(case: Case) -> Iterator[str]:
    for name in case.asked:
        is_tpu = name.startswith(_TPU) or name in _TPU_NAMES
        if is_tpu and name not in history().flags:
            yield f"--{name} is read from LIBTPU_INIT_ARGS; in XLA_FLAGS the process aborts on it"


def _plain_integer(case: Case) -> Iterator[str]:
    integers = load().integers()
    for name, value in case.profile.env.items():
        size = _SIZE.fullmatch(value)
        named = name.startswith(("NCCL_", "RCCL_"))
        if not value or not (name in integers or (named and size)):
            continue
        begins = _INTEGER.match(value)
        if begins is None:
            yield f"{name}={value} is read as 0; expected a plain integer"
        elif begins.end() != len(value):
            right = f"; write {int(size[1]) << _SHIFT[size[2].lower()]}" if size else ""
            yield f"{name}={value} is read as {begins.group().strip()}, the rest is ignored{right}"


def _memory_fraction(case: Case) -> Iterator[str]:
    one, other = _FRACTIONS
    if {one, other} <= case.env.keys() and case.profile.env.keys() & {one, other}:
        yield f"{one} and {other} are both set, which JAX refuses; use the one that is deployed"


def _second_name(case: Case) -> Iterator[str]:
    names = {flag.name for flag in case.profile.flags}
    for old, new in ALIASES.items():
        if {old, new} <= names:
            yield f"--{old} and --{new} write one option: the last of either wins"


def _adds_up(case: Case) -> Iterator[str]:
    before = values_of(case.ground.deployed)
    for name, value in case.asked.items():
        if name not in APPENDING:
            continue
        if not value:
            yield (
                f"--{name}= restores nothing: XLA adds an empty entry. Take the deployed one out "
                "of XLA_FLAGS instead"
            )
        elif name in before:
            yield f"--{name}={value} is added to the deployed {before[name]}, not in its place"


def _unknown(case: Case) -> Iterator[str]:
    jaxlib, probed = case.ground.jaxlib, history()
    for name in case.asked:
        accepted = probed.is_accepted(name, jaxlib) if jaxlib else None
        if accepted is False or (not jaxlib and name not in probed.flags):
            gone = [each for each in load().find(name) if each.status is Status.GONE]
            hint = f": {gone[0].mechanism}" if gone else ""
            yield f"--{name} is {probed.when(name)}{hint}"


def _aborts(case: Case) -> Iterator[str]:
    shape = case.ground.program
    if shape is not None:
        yield from no_algorithm(case.profile.env, shape)
    both = {idle.P2P, idle.DECOMPOSER}
    takes = case.is_on(idle.P2P) and idle.DECOMPOSER in case.after and both & case.asked.keys()
    if shape is not None and shape.has_cycle and takes:
        yield f"--{idle.P2P} makes the compiler abort on this program: its permutes form a cycle"


RULES: tuple[Rule, ...] = (
    Rule(
        name="blocked",
        says="a flag that makes results wrong, or every compilation crash",
        check=_blocked,
        of_deployed=True,
    ),
    Rule(
        name="tpu-flag",
        says="a flag of libtpu in XLA_FLAGS, where the process aborts on it",
        check=_tpu,
        of_deployed=True,
    ),
    Rule(
        name="plain-integer",
        says="`NCCL_BUFFSIZE=16M`: NCCL reads 16 and says nothing",
        check=_plain_integer,
        of_deployed=True,
    ),
    Rule(
        name="memory-fraction",
        says="both spellings of the memory fraction, which JAX refuses",
        check=_memory_fraction,
        of_deployed=True,
    ),
    Rule(
        name="aborts",
        says="send and recv for permutes that form a cycle, or no algorithm left for a collective",
        check=_aborts,
    ),
    Rule(name="partner", says="a flag without the flag it needs", check=idle.partner, is_idle=True),
    Rule(
        name="latency-hiding",
        says="an overlap flag where the latency hiding scheduler is off",
        check=idle.latency_hiding,
        is_idle=True,
    ),
    Rule(
        name="overruled", says="a flag beside another that overrides it", check=idle.overruled,
        is_idle=True,
    ),
    Rule(
        name="program",
        says="a value that does nothing to the deployed program (`--dump`)",
        check=idle.program,
        is_idle=True,
    ),
    Rule(
        name="no-op",
        says="every setting is deployed already, or the default of the release",
        check=idle.no_op,
        level=Level.NOTE,
        is_idle=True,
    ),
    Rule(
        name="adds-up",
        says="a flag that XLA appends to what is deployed: nothing later undoes it",
        check=_adds_up,
        level=Level.NOTE,
    ),
    Rule(
        name="second-name",
        says="two names of one option in one profile",
        check=_second_name,
        level=Level.NOTE,
    ),
    Rule(
        name="unknown-flag",
        says="a flag that the release does not accept",
        check=_unknown,
        level=Level.NOTE,
        of_deployed=True,
    ),
)  # fmt: skip
