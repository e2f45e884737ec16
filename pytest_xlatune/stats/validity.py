"""Decide whether a trial measured what it was meant to: settings in effect, same computation.

This is decided before any statistics. Each setting is compared with the strongest witness that
shows it: XLA's dump of its options for a flag, the framework's configuration lines for an override,
the lines of NCCL_DEBUG for a variable of NCCL or RCCL. A list of the environment, such as the line
of our wrapper, only shows what was asked for, because a program may change it before XLA reads it.
A witness that should show a setting but is silent is reported too. This module reads no log and no
file: its arguments say what these show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pytest_xlatune.model.channels import CHANNELS, Options, flags_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    PGLE,
    Profile,
    effective_values,
    parse_flags,
    read_as_xla,
)
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.result import Effect, SettingKind, TrialSetting, Witness
from pytest_xlatune.model.text import is_relative, same_value

# Options that say where things are and not what the program computes. XLA omits them from a list of
# the options that are not at their default.
_OMITTED_OPTIONS = ("xla_dump_", "xla_force_host_platform_device_count")
_NCCL_PREFIXES = ("NCCL_", "RCCL_")
_KEY_VARIABLE = "M_"  # MaxText reads a key from the variable M_<KEY>
# values that the framework replaces: `-1`, for example, becomes the parallelism that is left
_CHOSEN_LATER = frozenset({"", "-1", "auto", "default", "none", "null"})
# an enum as Python prints it:  ProfilerType.NONE    RematLocation.DEVICE
_MEMBER = re.compile(r"[A-Z]\w*\.(\w+)")
Defaults = Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """What the logs and dumps of an attempt show of its settings.

    Attributes:
        flags: text of XLA_FLAGS in a list of the environment; None if there is no such list.
        env: other variables of such a list, possibly only some; empty if there is no list.
        options: XLA's dump of its options; None without a dump.
        config: the keys that the framework says it uses; empty if it prints none.
        nccl: the variables that NCCL or RCCL says it reads; empty if it prints none.
        read: the flags that readers of other channels say they read; empty if none says so.
        is_restarted: whether the program started more than once. Then the options may come from a
            start that died, and the start that trained may have lacked them.
        expects_options: whether the program was asked to dump its options and ran far enough to.
        expects_readers: whether NCCL, RCCL and the readers of other channels were asked to print
            what they read, and the program ran far enough for it.
        pgle_found: most operations of the PGLE profile that XLA found in a program; None if
            unknown.
        pgle_unread: the file of such a profile that XLA could not read; "" if none.
    """

    flags: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    options: Options | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    is_restarted: bool = False
    expects_options: bool = False
    expects_readers: bool = False
    pgle_found: int | None = None
    pgle_unread: str = ""


def judge_settings(
    profile: Profile,
    witnesses: Witnesses,
    *,
    deployed: str = "",
    overrides: Mapping[str, str] | None = None,
    exempt: Iterable[str] = (),
    defaults: Defaults = lambda _: (),
) -> tuple[TrialSetting, ...]:
    """Return each setting with the evidence that it was in effect.

    Args:
        profile: the profile that was applied.
        witnesses: what the attempt shows.
        deployed: text of the deployed XLA_FLAGS.
        overrides: all keys that the trainer was given, the profile's on top of the cell's.
        exempt: patterns of the names of settings that nothing can show, according to the sweep.
        defaults: flag -> all defaults that it is known to have had. They distinguish an option at
            its default from one that was lost.
    """
    # the last value of a flag wins, so the profile's flags come after the deployed ones
    flags = effective_values((*parse_flags(deployed), *profile.flags))
    profile_flags = {flag.name for flag in profile.flags}
    keys = overrides or profile.overrides
    flag_testimony = _flag_testimony(witnesses, defaults)
    # kind, name, value, evidence, and whether the profile itself has the setting
    evidence: list[tuple[SettingKind, str, str, _Testimony, bool]] = [
        *(
            (SettingKind.FLAG, name, value, flag_testimony(name, value), name in profile_flags)
            for name, value in flags.items()
        ),
        *(
            (SettingKind.VARIABLE, name, value, _variable_testimony(witnesses, name, value), True)
            for name, value in profile.env.items()
            if name not in CHANNELS
        ),
        *(
            (SettingKind.FLAG, flag, value, _channel_testimony(witnesses, name, flag, value), True)
            for name, text in profile.env.items()
            if name in CHANNELS
            for flag, value in flags_in(name, text).items()
        ),
        *(
            (
                SettingKind.OVERRIDE,
                key,
                value,
                _key_testimony(witnesses, key, value),
                key in profile.overrides,
            )
            for key, value in keys.items()
        ),
    ]
    patterns = tuple(exempt)
    return tuple(
        TrialSetting(
            name=name,
            kind=kind,
            asked=value,
            effect=testimony.effect,
            witness=testimony.witness,
            seen=testimony.seen,
            why=testimony.why,
            is_deployed=not is_of_profile,
            is_exempt=any(fnmatchcase(name, pattern.removeprefix("--")) for pattern in patterns),
        )
        for kind, name, value, testimony, is_of_profile in evidence
        # the keys of the cell are reported only if they are contradicted
        if is_of_profile or kind is SettingKind.FLAG or testimony.effect is Effect.CONTRADICTED
    )


_NOT_SET = say("not set")


def contradictions(settings: Iterable[TrialSetting]) -> tuple[Message, ...]:
    """Return a reason for each setting that a witness contradicts: the trial is invalid."""
    return tuple(
        setting.why
        if setting.why is not None and setting.why.code is MessageCode.PGLE
        else say(
            "{setting} is {seen} in {witness}, expected '{asked}': the profile was not in effect",
            setting=setting.label,
            seen=_NOT_SET if setting.evidence is None else setting.evidence,
            witness=setting.witness,
            asked=setting.asked,
        )
        for setting in settings
        if setting.effect is Effect.CONTRADICTED
    )


def unproved(settings: Iterable[TrialSetting]) -> tuple[Message, ...]:
    """Return the reasons why settings are not known to have been in effect."""
    labels: dict[Effect, list[str]] = {Effect.ASKED: [], Effect.NOT_SEEN: []}
    for setting in settings:
        if setting.effect in labels:
            labels[setting.effect].append(setting.label)
    kinds = {
        Effect.ASKED: "asked for, but no reader of them says that they are in effect: {names}",
        Effect.NOT_SEEN: "not seen, although their readers were asked to print them: {names}",
    }
    return tuple(say(kinds[effect], names=names) for effect, names in labels.items() if names)


def other_device(
    devices: Mapping[str, str], reference: Mapping[str, str], *, arm: str
) -> Message | None:
    """Return that only one of a trial and `arm` ran on the CPU; None if nothing shows that.

    Both mappings are witness -> device. Only the same witness is compared in both, because a
    trainer for GPUs may well compile a part of itself for the CPU.
    """
    for witness, ran in devices.items():
        was = reference.get(witness, ran)
        if was != ran and "cpu" in (was, ran):
            return say(
                "it ran on {ran} and {arm} on {was}, as {witness} shows, so it has no score: "
                "scores of different devices do not compare",
                ran=ran,
                was=was,
                arm=arm,
                witness=witness,
            )
    return None


def different_loss(
    loss: float,
    reference: float,
    *,
    tolerance: float,
    others: Iterable[float] = (),
    first: float | None = None,
) -> Message | None:
    """Return how a loss differs from the baseline's; None if it does not.

    With the same data and random numbers, another loss means another computation. But a GPU adds up
    in another order in each job, so a loss may be twice as far off as the farthest loss of the
    baseline's trials, up to five times the tolerance. And if a run memorises its one batch, so that
    the loss falls below a tenth of the first one, the tolerance is relative to that tenth: on an
    H200, two equal jobs began at 9.5 and ended at 0.061 and 0.048.

    Args:
        loss: the trial's loss.
        reference: the median loss of the baseline.
        tolerance: how far off the loss may be, as a share of the reference.
        others: the losses of the baseline's trials.
        first: the loss of the baseline's first step; None if unknown.
    """
    scale = max(abs(reference), _MEMORISED_SHARE * abs(first or 0.0))
    distance = abs(loss - reference)
    # a NaN fulfils no comparison, so it is not within the tolerance
    if distance <= tolerance * scale:
        return None
    farthest = max((abs(other - reference) for other in others), default=0.0)
    if distance <= min(_TIMES_BASELINES * farthest, _TIMES_TOLERANCE * tolerance * scale):
        return None
    return say(
        "its loss is {loss:.6g}, the baseline's {reference:.6g}: more than {tolerance:.0%} "
        "apart (loss_tolerance), so it does not compute the same",
        loss=loss,
        reference=reference,
        tolerance=tolerance,
    )


_MEMORISED_SHARE = 0.1  # share of the first loss below which a run has memorised its batch
# A loss is accepted beyond the tolerance if it is within both limits: so many times the distance of
# the baseline's farthest loss, and so many times the tolerance.
_TIMES_BASELINES, _TIMES_TOLERANCE = 2.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Testimony:
    """The evidence of the strongest witness for one setting.

    Attributes:
        effect: whether the setting was in effect.
        witness: the witness.
        seen: the value that it shows; "" if it shows none.
        why: the reason in place of a value; None if `seen` says all.
    """

    effect: Effect
    witness: Witness = Witness.NONE
    seen: str = ""
    why: Message | None = None


_NOT_SEEN = _Testimony(effect=Effect.NOT_SEEN)
_ASKED = _Testimony(effect=Effect.ASKED)


def _testimony(witness: Witness, seen: str | Message, *, agrees: bool) -> _Testimony:
    """Return the evidence from a value, or from the reason why no value is shown.

    `agrees` says whether the witness shows the setting as it was asked for.
    """
    effect = Effect.IN_EFFECT if agrees else Effect.CONTRADICTED
    if isinstance(seen, Message):
        return _Testimony(effect=effect, witness=witness, why=seen)
    return _Testimony(effect=effect, witness=witness, seen=seen)


def _flag_testimony(witnesses: Witnesses, defaults: Defaults) -> Callable[[str, str], _Testimony]:
    """Return a function that gives the evidence for a flag and its value."""
    listed, dropped = _listed(witnesses.flags)

    def testimony(name: str, value: str) -> _Testimony:
        if name == PGLE and (
            why := pgle_refused(value, witnesses.pgle_found, witnesses.pgle_unread)
        ):
            return _Testimony(effect=Effect.CONTRADICTED, witness=Witness.LOG, why=why)
        dumped = _dumped(name, value, witnesses.options, defaults) if witnesses.options else None
        if dumped is not None:
            # another start than the one that trained may have dumped the options
            is_uncertain = witnesses.is_restarted and dumped.effect is Effect.IN_EFFECT
            return dataclasses.replace(dumped, effect=Effect.ASKED) if is_uncertain else dumped
        if listed is not None:
            listed_value = listed.get(name)
            if listed_value is None or not same_value(listed_value, value):
                return _listed_otherwise(listed_value, dropped)
        if _is_silent(name, value, witnesses):
            return _NOT_SEEN
        return (
            _Testimony(effect=Effect.ASKED, witness=Witness.LOG) if listed is not None else _ASKED
        )

    return testimony


def pgle_refused(file: str, operations: int | None, unread: str) -> Message | None:
    """Return why XLA scheduled without the profile that it was given; None if nothing says so.

    Args:
        file: the file that the flag names.
        operations: how many of its operations XLA found, the largest number over all programs;
            None if unknown.
        unread: a file that XLA says it could not read; "" if none.
    """
    if unread == file:
        return coded(
            MessageCode.PGLE,
            "XLA could not read {file}, the profile for its scheduler, and scheduled without it",
            file=file,
        )
    return (
        coded(
            MessageCode.PGLE,
            "XLA found no operation of {file} in any program, and scheduled without it: the "
            "profile belongs to another program. A program also differs if autotuning chooses "
            "other kernels; Protocol(autotune_cache=...) pins them",
            file=file,
        )
        if operations == 0
        else None
    )


def _listed_otherwise(listed: str | None, dropped: str) -> _Testimony:
    """Return the evidence of a list of the environment with another value, or without the flag."""
    seen = None if listed is None else repr(listed)
    why = _NOT_SET if listed is None else None
    if dropped:
        why = say(
            "{seen}, for XLA stops reading at '{at}'",
            seen=_NOT_SET if seen is None else seen,
            at=dropped[:40],
        )
    return _Testimony(effect=Effect.CONTRADICTED, witness=Witness.LOG, seen=seen or "", why=why)


def _is_silent(name: str, value: str, witnesses: Witnesses) -> bool:
    """Return whether XLA should have printed a flag; the caller has found that it did not."""
    if witnesses.options is None:
        return witnesses.expects_options
    return witnesses.options.is_whole or not (
        name.startswith(_OMITTED_OPTIONS) or is_relative(value)
    )


def _listed(text: str | None) -> tuple[Mapping[str, str] | None, str]:
    """Return the flags of an environment list as XLA reads them, and the text that it drops."""
    if text is None:
        return None, ""
    try:
        read, dropped = read_as_xla(text)
    except ConfigError:  # the text is cut off, or is no list of flags, so it shows nothing
        return None, ""
    return effective_values(read), dropped


def _dumped(name: str, value: str, options: Options, defaults: Defaults) -> _Testimony | None:
    """Return the evidence of a dump for a flag; None if the dump does not show the flag."""
    if name.startswith(_OMITTED_OPTIONS) and not options.is_whole:
        return None
    newer_name = ALIASES.get(name, name)
    values = options.values
    is_renamed = newer_name in values and name not in values
    dumped = values.get(newer_name if is_renamed else name)
    if dumped is None:
        known = defaults(name)
        # Even a whole dump of jaxlib 0.6 omits a field whose value is empty, 0 or false: the
        # protocol buffer declares these fields without presence.
        if options.is_whole and known and value.lower() in ("", "0", "false"):
            return _testimony(Witness.OPTIONS, say("left out"), agrees=True)
        # A dump that is not whole leaves out the options at their default, so this option is at its
        # default. That shows nothing if no default is known, or the value is empty or edits a list.
        if options.is_whole or not known or not value or is_relative(value):
            return None
        agrees = any(same_value(value, default) for default in known)
        return _testimony(Witness.OPTIONS, say("at its default"), agrees=agrees)
    if is_relative(value):
        agrees = _is_edited(value, dumped)
    elif is_renamed:
        should_be_on = same_value(value, "true", kind="bool")
        agrees = _is_on(dumped) == should_be_on
    else:
        agrees = same_value(value, dumped) or (
            name in APPENDING and _parts(value) <= _parts(dumped)
        )
    return _testimony(Witness.OPTIONS, repr(dumped), agrees=agrees)


def _is_edited(value: str, dumped: str) -> bool:
    """Return whether a list has what `+FUSION,-CUBLAS` adds, and lacks what it removes."""
    have = {part.lower() for part in _parts(dumped)}
    edits = [edit.strip().lower() for edit in value.split(",") if edit.strip()]
    return all((edit[1:] in have) == (edit[0] == "+") for edit in edits)


def _is_on(mode: str) -> bool:
    """Return whether the mode that replaces a boolean flag means "on"."""
    return mode.lower().rpartition("_")[2] not in ("default", "off")


def _parts(text: str) -> set[str]:
    return {part for part in text.split(",") if part}


def has_witness(variable: str) -> bool:
    """Return whether anything may show that a variable was in effect, if the trainer reads it."""
    return variable in CHANNELS or variable.startswith((*_NCCL_PREFIXES, _KEY_VARIABLE))


def _variable_testimony(witnesses: Witnesses, name: str, value: str) -> _Testimony:
    """Return the evidence for a variable of the environment that carries no flags."""
    if name.startswith(_KEY_VARIABLE) and (key := name[2:].lower()) in witnesses.config:
        return _key_testimony(witnesses, key, value)
    is_nccl = name.startswith(_NCCL_PREFIXES)
    if is_nccl and (logged := witnesses.nccl.get(name)) is not None:
        return _testimony(Witness.NCCL, repr(logged), agrees=same_value(value, logged))
    listed = witnesses.env.get(name)
    if listed is not None and listed != value and HIDDEN not in value:
        return _Testimony(effect=Effect.CONTRADICTED, witness=Witness.LOG, seen=repr(listed))
    # the library prints what it reads, or was asked to, but not this variable
    if is_nccl and (witnesses.nccl or witnesses.expects_readers):
        return _NOT_SEEN
    return _Testimony(effect=Effect.ASKED, witness=Witness.LOG) if listed is not None else _ASKED


def _channel_testimony(witnesses: Witnesses, variable: str, flag: str, value: str) -> _Testimony:
    """Return the evidence for a flag in another channel than XLA_FLAGS."""
    if witnesses.read:  # all flags that the library read are listed
        read = witnesses.read.get(flag)
        agrees = read is not None and same_value(value, read)
        return _testimony(Witness.READER, "" if read is None else repr(read), agrees=agrees)
    text = witnesses.env.get(variable)
    listed = None if text is None else flags_in(variable, text).get(flag)
    if text is not None and (listed is None or not same_value(value, listed)):
        seen = "" if listed is None else repr(listed)
        return _Testimony(effect=Effect.CONTRADICTED, witness=Witness.LOG, seen=seen)
    if witnesses.expects_readers and CHANNELS[variable].log_pattern:
        return _NOT_SEEN
    return _ASKED if text is None else _Testimony(effect=Effect.ASKED, witness=Witness.LOG)


def _key_testimony(witnesses: Witnesses, name: str, value: str) -> _Testimony:
    """Return the evidence for a key of the framework's configuration."""
    used = witnesses.config.get(name)
    if used is None:
        return _NOT_SEEN if witnesses.config else _ASKED
    # The ledger keeps no secret, so the value that was asked for is not known here.
    if HIDDEN in value:
        return _ASKED
    if _same_key(value, used):
        return _testimony(Witness.CONFIG, repr(used), agrees=True)
    if value.strip().lower() in _CHOSEN_LATER:
        return _Testimony(effect=Effect.ASKED, witness=Witness.CONFIG, seen=repr(used))
    return _testimony(Witness.CONFIG, repr(used), agrees=False)


def _same_key(asked: str, printed: str) -> bool:
    """Return whether a value as a framework prints it is the one that was asked for.

    Python prints `True`, `7.0`, `ProfilerType.NONE` and `['a', 'b']`.
    """
    plain_asked, plain_printed = _plain(asked), _plain(printed)
    with contextlib.suppress(ValueError):
        return float(plain_asked) == float(plain_printed)
    return same_value(plain_asked, plain_printed)


def _plain(text: str) -> str:
    """Return a value without quotes, brackets and blanks, and only the last name of an enum."""
    member = _MEMBER.fullmatch(text.strip())
    return re.sub(r"[\s\[\](){}'\"]", "", member[1] if member else text)
