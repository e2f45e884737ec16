"""Check the site before anything is submitted, and report all faults at once.

Faults stop a campaign before it begins; notes are for people and go into the ledger. The checks are
cheap if trials run on this machine. Otherwise a short job asks the nodes once, before the first
trial of a cell, whether they see the trials' files. This module creates only a temporary marker in
the work directory.

With an unknown key, or with layers that cannot be divided into the stages of a pipeline, every
trial would fail at its start, after waiting in the queue and half a minute of imports. A MaxText
release lists its keys in files that can be read without importing it: `configs/base.yml`, and from
0.2 on the fields of `configs/types.py`, by which it validates. Its interpreter is started once to
find these files, and runs nothing of MaxText.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import read_json
from pytest_xlatune.report.bubble import config_of, pipeline_of, stages_of
from pytest_xlatune.sweep.resolved import ResolvedSweep

_KEYS_WORKER = Path(__file__).parents[1] / "workers" / "maxtext_keys.py"


def image_file(cell: Cell) -> str:
    """Return the path of the cell's image file without its digest; "" if it is no file."""
    return cell.image.partition("@")[0] if cell.image.startswith("/") else ""


_UNCHECKED = "the keys of the configuration were not checked"
MIN_FREE_BYTES = 1 << 30  # of the work directory
_LEFTOVER = "TUNE_PROFILE"  # a variable of env files that were edited to tune by hand
_CHECK_TIMEOUT_S = 60.0
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH")  # variables for the trainer's interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
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


def merged(preflights: Iterable[Preflight]) -> Preflight:
    """Return several results as one, each sentence once."""
    faults, notes = dict[str, None](), dict[str, None]()
    for preflight in preflights:
        faults |= dict.fromkeys(preflight.faults)
        notes |= dict.fromkeys(preflight.notes)
    return Preflight(faults=tuple(faults), notes=tuple(notes))


def check_site(
    resolved: ResolvedSweep,
    folder: Path,
    *,
    cell: Cell | None = None,
    is_first: bool,
    is_busy: bool,
) -> Preflight:
    """Return everything that is wrong where the trials of a sweep will run.

    Args:
        resolved: the sweep.
        folder: the folder of the campaign; it need not exist.
        cell: the cell of the trials; None is the sweep's, on the nodes of all slots.
        is_first: whether no trial of the cell has run.
        is_busy: whether trials of the cell may be running.
    """
    site, launcher = resolved.sweep.site, resolved.sweep.launcher
    cell = cell or msgspec.structs.replace(resolved.cell, nodelist=resolved.nodelist)
    executor, nodes = site.chosen_executor, cell.nodelist
    faults = [*_folder_faults(folder), *_leftovers(launcher.env_files_of(cell))]
    paths = dict.fromkeys((*launcher.files(cell), image_file(cell)))
    needed = [path for path in paths if path]
    faults += executor.faults(nodelist=nodes, resources=site.resources)
    if executor.is_here:
        return Preflight(faults=(*faults, *_absent(needed)))
    node_faults = executor.node_faults(nodes) if nodes else ()
    # A busy node is no fault, because a sweep may wait in the queue over night.
    busy = "" if is_busy or not nodes else executor.busy_note(nodes)
    notes = [busy] if busy else []
    # a node that takes no job may be a result of the study; once a sweep on several slots has
    # begun, a missing node of one slot does not stop other slots
    judges_nodes = (resolved.slots and not is_first) or resolved.sweep.traits.cell_nodes > 0
    if judges_nodes and node_faults:
        return Preflight(faults=(*faults, *_absent(needed)), notes=(*notes, *node_faults))
    if is_first and nodes and not faults and not node_faults:
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
    return Preflight(faults=(*faults, *node_faults), notes=tuple(notes))


def _folder_faults(folder: Path) -> Iterator[str]:
    marker = folder / f"preflight.{os.getpid()}"
    try:
        secure_files.make_folder(folder)
        secure_files.write_bytes(marker, b"written to see whether it can be\n")
        marker.unlink(missing_ok=True)  # another host may have a process with our id
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        yield (
            f"work directory {folder} cannot be written: {error.strerror or error}; name another "
            "with --xlatune-workdir"
        )
        return
    if free_bytes < MIN_FREE_BYTES:
        yield (
            f"work directory {folder} has {free_bytes / 2**20:.0f} MiB free, expected at least "
            f"{MIN_FREE_BYTES >> 20}: logs and dumps would be cut. Free some space, or name "
            "another with --xlatune-workdir"
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
    if not isinstance(launcher.inside, MaxTextLauncher | MaxTextSlurmLauncher):
        return ""
    return "" if stages_of(cell) == 1 else pipeline_of(cell, profile, config).refused


def check_keys(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, environ: Mapping[str, str]
) -> Preflight:
    """Return a fault for each key that the trainer's release does not know.

    Those of the cell and of the profiles are checked. `environ` gives PATH and HOME.
    """
    inside = launcher.inside
    package = inside.package if isinstance(inside, MaxTextLauncher) else ""
    if package and inside is not launcher:
        return Preflight(notes=(f"{_UNCHECKED}: {package} is in an image, or at a commit",))
    if not package or not isinstance(launcher, MaxTextLauncher):
        return Preflight()
    try:
        release, base, known = known_keys(launcher, cell, environ)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        return Preflight(notes=(f"{_UNCHECKED}: {launcher.interpreter}: {error}",))
    overrides = [(f"cell {cell.label!r}", cell.overrides)]
    overrides += [(f"profile {profile.id!r}", profile.overrides) for profile in profiles]
    faults = []
    for where, keys in overrides:
        for key, value in keys.items():
            # a field of a nested group is written:  lora.rank=8
            if key.partition(".")[0] not in known:
                what = f"{where}, {key}={value}"
                hint = str(ConfigError.unknown("key", key, valid=known, where=what))
                hint = hint.partition(" Known:")[0]
                faults.append(f"{hint} ({release} does not have it: {base})")
    return Preflight(faults=tuple(faults))


def known_keys(
    launcher: MaxTextLauncher, cell: Cell, environ: Mapping[str, str]
) -> tuple[str, str, frozenset[str]]:
    """Return the trainer's release, its base configuration, and the keys that it accepts.

    Raises:
        OSError, ValueError, LookupError, SubprocessError: the keys cannot be read.
    """
    python = shutil.which(launcher.interpreter, path=environ.get("PATH"))
    if python is None:
        raise LookupError("it is not on this machine")
    worker = _KEYS_WORKER.read_text(encoding="utf-8")
    done = subprocess.run(
        [python, "-c", worker, launcher.package, launcher.config_of(cell)],
        env={name: environ[name] for name in _PASSED_ON if name in environ},
        cwd=launcher.cwd or None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_CHECK_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"it failed with {done.stderr.strip()[-200:]!r}")
    answer = read_json(done.stdout)
    if not answer["base"]:
        raise LookupError(f"it has no package {launcher.package} with a configs/base.yml")
    release = f"{launcher.package} {answer['version']}".strip()
    return release, answer["base"], frozenset(answer["known"])
