"""Check site, keys and flags before anything is submitted, and report all faults at once.

Faults stop a campaign before it begins; notes are for people and go into the ledger. The checks are
cheap if trials run on this machine. Otherwise a short job asks the nodes once, before the first
trial of a cell, whether they see the trials' files. This module creates only a temporary marker in
the work directory.

With an unknown key, or with layers that cannot be divided into the stages of a pipeline, every
trial would fail at its start, after waiting in the queue and half a minute of imports. A MaxText
release lists its keys in files that can be read without importing it: `configs/base.yml`, and from
0.2 on the fields of `configs/types.py`, by which it validates. Its interpreter is started once to
find these files, and runs nothing of MaxText.

Profiles are checked by the catalog's rules, which cost nothing, in every campaign. A full preflight
in a test and `xlatune flags lint` also ask the XLA of the trainer's interpreter: the interpreter
starts once, loads only jaxlib, touches no device, and forks for each text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.catalog.context import Context, Level, Objection
from pytest_xlatune.catalog.effect import Examined, ParsedText, examine
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.record import read_json
from pytest_xlatune.report.bubble import config_of, pipeline_of, stages_of
from pytest_xlatune.sweep.resolved import ResolvedSweep

_WORKERS = Path(__file__).parents[1] / "workers"
_KEYS_WORKER, _LINT_WORKER = _WORKERS / "maxtext_keys.py", _WORKERS / "xla_lint.py"
_LEFTOVER = "TUNE_PROFILE"  # a variable of env files that were edited to tune by hand
_TIMEOUT_S = 120.0
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")  # variables for the interpreter


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the checks: faults, which must be fixed first, and notes."""

    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def raise_faults(self, what: str) -> None:
        """Raise all faults in one message.

        Raises:
            ConfigError: there is a fault.
        """
        if self.faults:
            listed = "".join(f"\n  - {fault}" for fault in self.faults)
            raise ConfigError(f"{what} cannot begin, nothing was submitted:{listed}")


def merged(preflights: Sequence[Preflight]) -> Preflight:
    """Return several results as one, each sentence once."""
    return Preflight(
        faults=tuple(dict.fromkeys(fault for check in preflights for fault in check.faults)),
        notes=tuple(dict.fromkeys(note for check in preflights for note in check.notes)),
    )


def check_site(
    resolved: ResolvedSweep,
    folder: Path,
    cell: Cell,
    *,
    is_first: bool,
    is_busy: bool,
) -> Preflight:
    """Return everything that is wrong where the trials of a cell will run.

    Args:
        resolved: the sweep.
        folder: the folder of the campaign; it need not exist.
        cell: the cell of the trials; with several slots, on the nodes of all slots.
        is_first: whether no trial of the cell has run.
        is_busy: whether trials of the cell may be running.
    """
    site, launcher = resolved.sweep.site, resolved.sweep.launcher
    executor, nodes = site.chosen_executor, cell.nodelist
    faults = [*_folder_faults(folder), *_leftovers(launcher.env_files_of(cell))]
    image_file = [cell.image.partition("@")[0]] if cell.image.startswith("/") else []
    needed = list(dict.fromkeys((*launcher.files(cell), *image_file)))
    faults += executor.faults(nodelist=nodes, resources=site.resources)
    if executor.is_here:
        return Preflight(faults=(*faults, *_absent(needed)))
    node_faults = executor.node_faults(nodes) if nodes else ()
    # A busy node is no fault, because a sweep may wait in the queue over night.
    busy = "" if is_busy or not nodes else executor.busy_note(nodes)
    notes = [busy] if busy else []
    can_ask = is_first and nodes and not faults and not node_faults
    # a node that takes no job may be a result of the study; once a sweep on several slots has
    # begun, a missing node of one slot does not stop other slots
    judges_nodes = (resolved.slots and not is_first) or resolved.sweep.traits.cell_nodes > 0
    (notes if judges_nodes else faults).extend(node_faults)
    if can_ask:
        marker = folder / f"preflight.{os.getpid()}"
        marker.touch()
        try:
            sight = executor.probe(
                [str(marker), *needed], nodelist=nodes, options=site.resources.options
            )
        finally:
            marker.unlink()
        if sight.why_not:
            why = f"the nodes could not be asked whether they see the files: {sight.why_not}"
            notes += [why, *_absent(needed)]
        for path, blind_nodes in sight.unseen.items():
            target = f"the work directory {folder}" if path == str(marker) else path
            faults.append(f"{', '.join(blind_nodes)} cannot see {target}")
    elif is_first:
        # a file that this machine does not have may exist on the nodes
        notes += [f"the nodes were not asked, and here {fault}" for fault in _absent(needed)]
    return Preflight(faults=tuple(faults), notes=tuple(notes))


def _folder_faults(folder: Path) -> Iterator[str]:
    marker = folder / f"preflight.{os.getpid()}"
    try:
        secure_files.make_folder(folder)
        secure_files.write_bytes(marker, b"written to see whether it can be\n")
        marker.unlink(missing_ok=True)  # another host may have a process with our id
    except OSError as error:
        yield (
            f"work directory {folder} cannot be written: {error.strerror or error}; name another "
            "with --xlatune-workdir"
        )


def _leftovers(env_files: Iterable[str]) -> Iterator[str]:
    for name in env_files:
        try:
            lines = Path(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # it is reported with the other files
        if any(_LEFTOVER in line.partition("#")[0] for line in lines):
            yield (
                f"{name}: {_LEFTOVER} is left over from tuning by hand; it would be part of every "
                "trial, also of the baseline. Take it out"
            )


def _absent(paths: Iterable[str]) -> list[str]:
    return [f"{path} does not exist on this machine" for path in paths if not Path(path).exists()]


def check_shape(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, files: Sequence[DeployedFile]
) -> Preflight:
    """Return a fault if MaxText refuses the cell's pipeline, and a note for each such profile.

    If the launcher does not start MaxText, nothing is checked. `files` include the trainer's
    configuration if it is on this machine.
    """
    config = config_of(files)
    if why := refused_shape(launcher, cell, BASELINE, config):
        return Preflight(faults=(f"cell {cell.label!r} cannot run: {why}",))
    reasons = ((profile, refused_shape(launcher, cell, profile, config)) for profile in profiles)
    return Preflight(
        notes=tuple(f"profile {profile.id!r} cannot run: {why}" for profile, why in reasons if why)
    )


def refused_shape(
    launcher: Launcher, cell: Cell, profile: Profile, config: Mapping[str, str]
) -> str:
    """Return why MaxText refuses the pipeline of a profile; "" if it accepts it.

    It is also "" if the launcher does not start MaxText. `config` has the settings of the trainer's
    configuration; {} if it is not on this machine.
    """
    starts_maxtext = isinstance(launcher.inside, MaxTextLauncher | MaxTextSlurmLauncher)
    if not starts_maxtext or stages_of(cell) == 1:
        return ""
    return pipeline_of(cell, profile, config).refused


def check_keys(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, environ: Mapping[str, str]
) -> Preflight:
    """Return a fault for each key that the trainer's release does not know.

    Those of the cell and of the profiles are checked. `environ` gives PATH and HOME.
    """
    inside = launcher.inside
    if not isinstance(inside, MaxTextLauncher) or not inside.package:
        return Preflight()
    unchecked = "the keys of the configuration were not checked"
    if inside is not launcher:
        return Preflight(notes=(f"{unchecked}: {inside.package} is in an image, or at a commit",))
    worker = _KEYS_WORKER.read_text(encoding="utf-8")
    words = ("-c", worker, inside.package, inside.config_of(cell))
    try:
        answer = _ask(inside.python, words, environ=environ, cwd=inside.cwd)
    except ConfigError as error:
        return Preflight(notes=(f"{unchecked}: {error}",))
    if not answer["base"]:
        why = f"{inside.python} has no package {inside.package} with a configs/base.yml"
        return Preflight(notes=(f"{unchecked}: {why}",))
    overrides = [(f"cell {cell.label!r}", cell.overrides)]
    overrides += [(f"profile {profile.id!r}", profile.overrides) for profile in profiles]
    release = f"{inside.package} {answer['version']}".strip()
    faults = []
    for where, keys in overrides:
        for key, value in keys.items():
            # a field of a nested group is written:  lora.rank=8
            if key.partition(".")[0] not in answer["known"]:
                place = f"{where}, {key}={value}"
                unknown = str(ConfigError.unknown("key", key, valid=answer["known"], where=place))
                hint = unknown.partition(" Known:")[0]
                faults.append(f"{hint} ({release} does not have it: {answer['base']})")
    return Preflight(faults=tuple(faults))


def _ask(
    python: str,
    words: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str = "",
    text: str = "",
) -> Any:
    """Run the trainer's interpreter, and return the JSON of the last line that it prints.

    `text` is its standard input.

    Raises:
        ConfigError: it cannot be run.
    """
    path = shutil.which(python, path=environ.get("PATH"))
    if path is None:
        raise ConfigError(f"{python} is not on this machine; name the trainer's own Python")
    errors = ""
    try:
        done = subprocess.run(
            [path, *words],
            env={name: environ[name] for name in _PASSED_ON if name in environ},
            cwd=cwd or None,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        errors = done.stderr.strip()
        return read_json(done.stdout.rstrip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        last_line = (errors or str(error)).splitlines()[-1]
        raise ConfigError(f"{python} cannot be run: {last_line[:300]}") from None


# the same line from jaxlib 0.4 to 0.12:
# F1120 08:41:35.850612   18489 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_a --b
_UNKNOWN = re.compile(r"parse_flags_from_env\.cc:\d+\] Unknown flags? in XLA_FLAGS: (.*)")

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
        objections = check(profiles, context)
        return Examined(objections=objections, unchecked=(why,), jaxlib=context.jaxlib)
    examined = examine(profiles, context.deployed, target, env=context.env)
    rules = check(profiles, replace(context, jaxlib=target.jaxlib))
    kept = (objection for objection in rules if objection.rule not in _FROM_XLA)
    objections = (*kept, *examined.objections)
    return replace(examined, objections=objections, jaxlib=target.jaxlib)


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
        words, text = ("-P", str(_LINT_WORKER)), json.dumps(list(texts))
        document = _ask(self.python, words, environ=self.environ, text=text)
        self.jaxlib = document["jaxlib"]
        if not document["names"]:
            raise ConfigError(f"the XLA of {self.python} does not describe its options")
        return [_parsed_text(answer, document["names"]) for answer in document["answers"]]


def _parsed_text(answer: Mapping[str, Any], names: Sequence[str]) -> ParsedText:
    text: str = answer["output"]
    if answer["options"] is not None:
        return ParsedText(options={**dict.fromkeys(names, ZERO), **_options(answer["options"])})
    # The message decides, because the exit status does not: the process aborts up to jaxlib 0.6,
    # and exits with 1 from 0.7.
    if unknown := _UNKNOWN.search(text):
        flags = (word.lstrip("-").partition("=")[0] for word in unknown[1].split())
        return ParsedText(options=None, unknown=tuple(flags))
    lines = text.strip().splitlines() or [f"exit code {answer['exit_code']}"]
    return ParsedText(options=None, refused=lines[0][:300])


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
    return _preflight_of(
        objection
        for objection in check(profiles, context)
        if objection.level is Level.FAULT or notes is None or objection.rule in notes
    )


def check_flags(
    profiles: Sequence[Profile],
    context: Context,
    *,
    python: str,
    environ: Mapping[str, str],
    measured: Collection[str] = (),
) -> Preflight:
    """Check the flags by the XLA of the trainer's interpreter, in addition to the rules.

    An unknown flag is a note, because the sweep drops its profile. It is a fault if the flags of
    all profiles are unknown. `python` is "" if the launcher names no interpreter. Profiles whose
    ids are `measured` are not checked again.
    """
    unmeasured = [profile for profile in profiles if profile.id not in measured]
    if not unmeasured:
        return Preflight()
    flagged = {profile.id for profile in profiles if profile.flags}
    if not flagged and not context.deployed:
        return check_rules(profiles, context)
    try:
        if not python:
            raise ConfigError("the launcher names no interpreter")
        objections = lint(unmeasured, context, Target(python=python, environ=environ)).objections
    except XlatuneError as error:
        found = check_rules(profiles, context)
        return replace(found, notes=(*found.notes, f"flags were not checked: {error}"))
    found = _preflight_of(objections)
    refused = {objection.profile for objection in objections if objection.rule in _REFUSED}
    if not flagged or not flagged <= refused:
        return found
    all_refused = f"the XLA of {python} refuses the flags of every profile"
    return Preflight(faults=(all_refused, *found.faults, *found.notes))


def _preflight_of(objections: Iterable[Objection]) -> Preflight:
    faults, notes = list[str](), list[str]()
    for objection in objections:
        drops_profile = objection.rule in _DROPPED and objection.profile != BASELINE_ID
        is_fault = objection.level is Level.FAULT and not drops_profile
        (faults if is_fault else notes).append(str(objection))
    return Preflight(faults=tuple(faults), notes=tuple(notes))
