"""Lint profiles by the catalog's rules, and by the XLA of an interpreter.

The rules cost nothing and are applied in every campaign. A full preflight in a test and `xlatune
flags lint` also ask the XLA of the trainer's interpreter: the interpreter starts once, loads only
jaxlib, touches no device, and forks for each text. The catalog evaluates the results.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from pytest_xlatune.catalog.context import Context, Level, Objection
from pytest_xlatune.catalog.effect import Examined, ParsedText, examine
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.model.channels import LIBTPU, overridden
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.record import read_json
from pytest_xlatune.prepare.preflight import Preflight

_WORKER = Path(__file__).parents[1] / "workers" / "xla_lint.py"
_TIMEOUT_S = 120.0
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")  # variables for the interpreter
# the same line from jaxlib 0.4 to 0.12:
# F1120 08:41:35.850612   18489 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_a --b
_UNKNOWN = re.compile(r"parse_flags_from_env\.cc:\d+\] Unknown flags? in XLA_FLAGS: (.*)")
# messages about bad values:  Couldn't interpret value nota for flag xla_cpu_enable_fast_math.
# Illegal value for --xla_gpu_enable_command_buffer 'BOGUS'
_BAD_VALUE = re.compile(r"(Couldn't interpret value .*? for flag \w+|Illegal value for --.*)")

# an option:  xla_dump_to: "/tmp/x"
# a part of a map:  xla_options {\n  key: "a"\n  value: "1"\n}
_OPTION = re.compile(r"^(\w+)(?: *\{\n((?: .*\n)*)\}|: *(.*)$)", re.MULTILINE)
_PART = re.compile(r"^ +\w+: *(.*)$", re.MULTILINE)
# what the text format may leave out, depending on the release
ZERO = "0, false or empty"
_ZEROS = frozenset({"0", "false", '""'})


# rules that are left out if XLA itself is asked, which is more reliable than a table of releases
_FROM_XLA = frozenset({"unknown-flag", "bad-value", "no-op", "adds-up", "twin"})
# faults of a profile for which the sweep drops it, and runs the others
_DROPPED = frozenset({"unknown-flag", "bad-value"})
# faults with which XLA runs no program
_REFUSED = _DROPPED | {"refused"}
# rules whose notes a campaign keeps, because each means a trial that measures nothing
COSTLY = frozenset({"near-miss", "twin"})


def lint(profiles: Sequence[Profile], context: Context, target: Target | None = None) -> Examined:
    """Return all objections to profiles, and to the deployed settings below them.

    `target` is the XLA that reads the flags; with None only the catalog's tables are used.

    Raises:
        ConfigError: the target's XLA cannot be run.
    """
    if target is None:
        why = "no XLA was asked: names and defaults are those of the catalog's tables"
        if context.jaxlib and not history().is_probed(context.jaxlib):
            why += f", which know other releases than jaxlib {context.jaxlib}"
        return Examined(
            objections=check(profiles, context), unchecked=(why,), jaxlib=context.jaxlib
        )
    examined = examine(profiles, context.deployed, target, env=context.env)
    with_release = msgspec.structs.replace(context, jaxlib=target.jaxlib)
    objections = [
        objection for objection in check(profiles, with_release) if objection.rule not in _FROM_XLA
    ]
    objections += (*examined.objections, *_channels(profiles))
    order = {profile.id: at for at, profile in enumerate(profiles)}
    objections.sort(key=lambda objection: order.get(objection.profile, -1))
    return msgspec.structs.replace(examined, objections=tuple(objections), jaxlib=target.jaxlib)


def _channels(profiles: Sequence[Profile]) -> Iterator[Objection]:
    """Yield an objection to each flag of libtpu that a later one in the variable overrides."""
    for profile in profiles:
        for name, value, last in overridden(LIBTPU, profile.env.get(LIBTPU, "")):
            yield Objection(
                rule="not-in-effect",
                level=Level.FAULT,
                profile=profile.id,
                text=f"--{name}={value} is not in effect: {name} is {last!r} in the whole text",
            )


@dataclass(slots=True, kw_only=True)
class Target:
    """The XLA of an interpreter; call it with texts of XLA_FLAGS.

    Attributes:
        python: the interpreter, a path or a name on PATH.
        environ: the environment of this process; only its variables in `_PASSED_ON` are passed on.
        jaxlib: the release of jaxlib; "" before the first call.
    """

    python: str
    environ: Mapping[str, str]
    jaxlib: str = ""

    def __call__(self, texts: Sequence[str]) -> list[ParsedText]:
        """Return how XLA parses each text.

        Raises:
            ConfigError: there is no such interpreter, or it has no working jaxlib.
        """
        document = self._run(texts)
        self.jaxlib = document["jaxlib"]
        if not document["names"]:
            raise ConfigError(f"the XLA of {self.python} does not describe its options")
        return [_parsed_text(answer, document["names"]) for answer in document["answers"]]

    def _run(self, texts: Sequence[str]) -> dict[str, Any]:
        path = shutil.which(self.python, path=self.environ.get("PATH"))
        if path is None:
            raise ConfigError(f"{self.python} is not on this machine; name the target's own Python")
        env = {name: self.environ[name] for name in _PASSED_ON if name in self.environ}
        with TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.json"
            try:
                done = subprocess.run(
                    [path, "-P", str(_WORKER), str(result)],
                    env=env,
                    input=json.dumps(list(texts)),
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_TIMEOUT_S,
                    check=False,
                )
                document: dict[str, Any] = read_json(result.read_text(encoding="utf-8"))
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                text = str(error) if isinstance(error, subprocess.TimeoutExpired) else done.stderr
                lines = text.strip().splitlines() or ["it printed nothing"]
                raise ConfigError(f"the XLA of {path} cannot be run: {lines[-1][:300]}") from None
        return document


def _parsed_text(answer: Mapping[str, Any], names: Sequence[str]) -> ParsedText:
    text: str = answer["output"]
    if answer["options"] is not None:
        return ParsedText(options={**dict.fromkeys(names, ZERO), **_options(answer["options"])})
    # The message decides, because the exit status does not: the process aborts up to jaxlib 0.6,
    # and exits with 1 from 0.7.
    unknown = _UNKNOWN.search(text)
    if unknown:
        names = tuple(word.lstrip("-").partition("=")[0] for word in unknown[1].split())
        return ParsedText(options=None, unknown=names)
    bad = _BAD_VALUE.search(text)
    lines = text.strip().splitlines() or [f"exit code {answer['exit_code']}"]
    return ParsedText(options=None, refused=bad[0] if bad else lines[0][:300])


def _options(text: str) -> dict[str, str]:
    """Return the options of a text in protobuf's format; commas join the parts of a list or map."""
    values: dict[str, list[str]] = {}
    for name, parts, value in _OPTION.findall(text):
        words = [_unescaped(part) for part in _PART.findall(parts)] if parts else []
        # a part of a map has the lines  key: "x"  and  value: "y"
        values.setdefault(name, []).append("=".join(words) if parts else _unescaped(value))
    return {name: ",".join(words) for name, words in values.items()}


def _unescaped(value: str) -> str:
    if value in _ZEROS:
        return ZERO
    text = value.removeprefix('"').removesuffix('"').encode("ascii", "replace")
    return text.decode("unicode_escape").encode("latin-1", "replace").decode("utf-8", "replace")


def check_rules(
    profiles: Sequence[Profile], context: Context, *, notes: frozenset[str] | None = None
) -> Preflight:
    """Check profiles and deployed settings by the catalog's rules; no XLA is asked.

    `notes` are the rules whose notes are returned; None for all.
    """
    objections = [
        objection
        for objection in check(profiles, context)
        if objection.level is Level.FAULT or notes is None or objection.rule in notes
    ]
    return _preflight_of(objections)


def check_flags(
    profiles: Sequence[Profile],
    context: Context,
    *,
    python: str,
    environ: Mapping[str, str],
    accepted: Collection[str] = (),
) -> Preflight:
    """Check the flags by the XLA of the trainer's interpreter, in addition to the rules.

    An unknown flag is a note, because the sweep drops its profile. It is a fault if the flags of
    all profiles are unknown. `python` is "" if the launcher names no interpreter. `accepted` has
    the ids of profiles that were measured, so that XLA accepts their flags.
    """
    flagged = {profile.id for profile in profiles if profile.flags or LIBTPU in profile.env}
    profiles = [profile for profile in profiles if profile.id not in accepted]
    if not profiles:
        return Preflight()
    if flagged <= {*accepted} and not context.deployed and LIBTPU not in context.env:
        return check_rules(profiles, context)
    try:
        if not python:
            raise ConfigError("the launcher names no interpreter")
        linted = lint(profiles, context, Target(python=python, environ=environ))
    except XlatuneError as error:
        preflight = check_rules(profiles, context)
        return Preflight(
            faults=preflight.faults, notes=(*preflight.notes, f"flags were not checked: {error}")
        )
    preflight = _preflight_of(linted.objections)
    refused = {objection.profile for objection in linted.objections if objection.rule in _REFUSED}
    if flagged and flagged <= refused:
        return Preflight(
            faults=(
                (f"the XLA of {python} refuses the flags of every profile"),
                *preflight.faults,
                *preflight.notes,
            )
        )
    return preflight


def _preflight_of(objections: Sequence[Objection]) -> Preflight:
    faults, notes = [], []
    for objection in objections:
        drops_profile = objection.rule in _DROPPED and objection.profile != BASELINE_ID
        if objection.level is Level.FAULT and not drops_profile:
            faults.append(str(objection))
        else:
            notes.append(str(objection))
    return Preflight(faults=tuple(faults), notes=tuple(notes))
