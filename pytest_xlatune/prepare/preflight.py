"""Check the site before anything is submitted, and report all faults at once.

Faults stop a campaign before it begins; notes are for people and go into the ledger. The checks are
cheap if trials run on this machine. Otherwise the nodes are asked once, before the first trial of a
cell, whether they see the trials' files. This module creates the folders of a cell's caches, and
otherwise only a temporary marker in the work directory.

For an image by name, the runtime checks the digest, but an image file can be overwritten. Its
SHA-256 is computed once for each size and modification time, since reading tens of gigabytes takes
a while, and stored beside the ledger.

An unknown key makes every trial fail at its start, after waiting in the queue and half a minute of
imports; so do layers that cannot be divided into the stages of a pipeline. A MaxText release lists
its keys in files that can be read without importing it: `configs/base.yml`, and from 0.2 on the
fields of `configs/types.py`, by which it validates. Its interpreter is started once to find these
files, and runs nothing of MaxText.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Executor
from pytest_xlatune.launchers import Check, Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.bubble import NoPipeline, config_of, pipeline_of, stages_of
from pytest_xlatune.workers.maxtext_keys import BASE_KEY

_KEYS_WORKER = Path(__file__).parents[1] / "workers" / "maxtext_keys.py"
_KNOWN = "images.json"
_MARK = "@sha256:"


def image_file(cell: Cell) -> str:
    """Return the path of the cell's image file without its digest; "" if it is no file."""
    return cell.image.partition("@")[0] if cell.image.startswith("/") else ""


def image_faults(cell: Cell, folder: Path) -> tuple[str, ...]:
    """Return the faults of a pinned image file; `folder` stores the computed digest.

    A file that cannot be read here is no fault, because the nodes are asked whether they see it.
    """
    name, mark, pinned = cell.image.partition(_MARK)
    if not mark or not image_file(cell):
        return ()
    try:
        digest = _sha256(Path(name), folder / _KNOWN)
    except OSError:
        return ()
    if digest == pinned:
        return ()
    wrong = (
        f"image {name} has the digest sha256:{digest}, expected sha256:{pinned}: another image "
        "lies there now. Put the old one back, or name the new digest (that is another cell)"
    )
    return (wrong,)


def _sha256(path: Path, known: Path) -> str:
    stat = path.stat()
    seen = [str(path), stat.st_size, stat.st_mtime_ns]
    try:
        kept = read_json(secure_files.read_bytes(known))
    except (OSError, ValueError):
        kept = None
    if isinstance(kept, dict) and kept.get("seen") == seen and "sha256" in kept:
        return str(kept["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # another process at the same time writes the same content
    secure_files.write_json(known, {"seen": seen, "sha256": digest})
    return digest


_UNCHECKED = "the keys of the configuration were not checked"
MIN_FREE_BYTES = 1 << 30
_LEFTOVER = "TUNE_PROFILE"
_CHECK_TIMEOUT_S = 60.0


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


def together(preflights: Iterable[Preflight]) -> Preflight:
    """Return several results as one, each sentence once."""
    looks = list(preflights)
    return Preflight(
        faults=tuple(dict.fromkeys(text for preflight in looks for text in preflight.faults)),
        notes=tuple(dict.fromkeys(text for preflight in looks for text in preflight.notes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The site on which a campaign will run.

    Attributes:
        cell: the cell of the trials.
        launcher: the launcher of the trials.
        resources: what is asked of the scheduler.
        executor: the executor of the trials.
        folder: the folder of the campaign; it need not exist.
        is_first: whether no trial of the cell has run.
        is_busy: whether trials of the cell may be running.
        judges_nodes: whether a node that takes no job is an answer, and not a fault of the site.
    """

    cell: Cell
    launcher: Launcher
    resources: Resources
    executor: Executor
    folder: Path
    is_first: bool = True
    is_busy: bool = False
    judges_nodes: bool = False


def look(site: Site) -> Preflight:
    """Return everything that is wrong with a site."""
    faults = [*_folder_faults(site.folder), *_leftovers(site.launcher.env_files_of(site.cell))]
    faults += image_faults(site.cell, site.folder)
    needed = [*dict.fromkeys((*site.launcher.files(site.cell), image_file(site.cell)))]
    needed = [path for path in needed if path]
    checks = [*_caches(site.cell)]
    checks += site.launcher.checks(site.cell)
    faults += site.executor.faults(nodelist=site.cell.nodelist, resources=site.resources)
    if site.executor.is_here:
        return Preflight(faults=(*faults, *_absent(needed), *_unfit(checks)))
    nodes, partition = site.cell.nodelist, site.resources.options.get("partition", "")
    node_faults = site.executor.node_faults(nodes, partition=partition) if nodes else ()
    # only a note: as a fault, it kept sweeps from being queued over night behind other jobs
    busy = "" if site.is_busy or not nodes else site.executor.busy_note(nodes)
    notes = [busy] if busy else []
    if site.judges_nodes and node_faults:
        return Preflight(faults=(*faults, *_absent(needed)), notes=(*notes, *node_faults))
    if site.is_first and nodes and not faults and not node_faults:
        seen, unsure = _from_the_nodes(site, needed, checks)
        faults, notes = [*faults, *seen], [*notes, *unsure]
    elif site.is_first:
        # only the nodes can tell whether they see a file that is not here
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
            continue  # reported with the other files
        for number, line in enumerate(lines, start=1):
            if _LEFTOVER in line.partition("#")[0]:
                yield (
                    f"{name}:{number}: {_LEFTOVER} is left over from tuning by hand; it would be "
                    "part of every trial, the baseline included. Take it out"
                )
                break


def _absent(paths: Iterable[str]) -> list[str]:
    return [f"{path} does not exist on this machine" for path in paths if not Path(path).exists()]


def _caches(cell: Cell) -> Iterator[Check]:
    """Yield checks that a machine can create and write the folders that trials share."""
    for name in ("autotune_cache", "compile_cache"):
        if folder := getattr(cell.protocol, name):
            path = shlex.quote(folder)
            yield (
                f"mkdir -p {path} && test -w {path}",
                f"{name} {folder} cannot be made or written; name a folder that is writable there",
            )


def _unfit(checks: Iterable[Check]) -> Iterator[str]:
    """Run the checks of a launcher on this machine; yield the reasons of those that fail."""
    for command, wrong in checks:
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_TIMEOUT_S,
                check=False,
            )
            is_fit = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            is_fit = False
        if not is_fit:
            yield f"this machine: {wrong}"


def _from_the_nodes(
    site: Site, needed: Sequence[str], checks: Sequence[Check]
) -> tuple[list[str], list[str]]:
    """Return faults and notes on what the nodes see and can do, including the work directory."""
    marker = site.folder / f"preflight.{os.getpid()}"
    marker.touch()
    try:
        sight = site.executor.look(
            [str(marker), *needed],
            checks=checks,
            nodelist=site.cell.nodelist,
            options=site.resources.options,
        )
    finally:
        marker.unlink()
    if sight.why_not:
        return [], [
            (f"the nodes could not be asked what they see: {sight.why_not}"),
            *_absent(needed),
        ]
    unseen = [
        f"{', '.join(nodes)} cannot see "
        + (f"the work directory {site.folder}" if path == str(marker) else path)
        for path, nodes in sight.unseen.items()
    ]
    unfit = [f"{', '.join(nodes)}: {wrong}" for wrong, nodes in sight.unfit.items()]
    return [*unseen, *unfit], []


def look_at_shape(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, files: Sequence[DeployedFile]
) -> Preflight:
    """Return a fault if MaxText refuses the pipeline of a cell, a note if that of a profile.

    No job is submitted for such a profile: `refused_shape`.

    Args:
        launcher: a launcher that does not start MaxText is not checked.
        cell: its parallelism, overrides and model.
        profiles: the profiles, each of which may change the pipeline.
        files: the deployed files, including the trainer's configuration if it is on this machine.
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
    """Return why MaxText refuses the pipeline of a profile; "" if it accepts it, or does not run.

    `config` has the settings of the trainer's configuration; {} if it is not on this machine.
    """
    if not isinstance(launcher.inside, MaxTextLauncher | MaxTextSlurmLauncher):
        return ""
    if stages_of(cell) == 1:
        return ""
    shape = pipeline_of(cell, profile, config)
    return shape.reason if isinstance(shape, NoPipeline) and shape.is_refused else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The keys of an installation.

    Attributes:
        name: name and version, e.g. `maxtext 0.2.5`.
        base: path of the base configuration.
        known: the keys that it accepts.
        config_keys: key, file and line of each key that the cell's configuration adds.
    """

    name: str
    base: str
    known: frozenset[str]
    config_keys: tuple[tuple[str, str, int], ...] = ()


def look_at_keys(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, environ: Mapping[str, str]
) -> Preflight:
    """Return a fault for each key that the trainer's release does not know.

    Args:
        launcher: if its trainer is not MaxText but it names a YAML file, a key that the file lacks
            is only a note, because the file may be incomplete.
        cell: the cell, whose overrides, axes and protocol set most keys.
        profiles: the profiles, which may set more keys.
        environ: the environment of this process, for PATH and HOME.
    """
    inside = launcher.inside
    package = inside.package if isinstance(inside, MaxTextLauncher) else ""
    if package and isinstance(launcher, CheckoutLauncher):
        return Preflight(notes=(f"{_UNCHECKED}: each commit has its own",))
    if package and inside is not launcher:
        return Preflight(notes=(f"{_UNCHECKED}: {package} is in an image",))
    if isinstance(launcher, CommandLauncher):
        return Preflight(notes=tuple(_not_in_yml(launcher, cell, profiles)))
    if not package or not isinstance(launcher, MaxTextLauncher):
        return Preflight()
    release = ask(launcher, cell, environ=environ)
    if isinstance(release, str):
        return Preflight(notes=(f"{_UNCHECKED}: {release}",))
    faults = [
        _fault(release, key, f"{file}:{line}")
        for key, file, line in release.config_keys
        if key not in release.known and key != BASE_KEY
    ]
    common = launcher.keys(_trial(BASELINE, cell), cell)
    faults += [
        _fault(release, key, f"cell {cell.label!r}, {key}={common[key]}")
        for key in _unknown(common, release)
    ]
    for profile in profiles:
        keys = launcher.keys(_trial(profile, cell), cell)
        faults += [
            _fault(release, key, f"profile {profile.id!r}, {key}={keys[key]}")
            for key in _unknown(keys, release)
            if key not in common
        ]
    return Preflight(faults=tuple(faults))


# a key of a YAML file at any depth:   remat_policy: full    - name: adam
_YML_KEY = re.compile(r"^[ \t-]*([A-Za-z_][\w-]*)[ \t]*:", re.MULTILINE)


def _not_in_yml(
    launcher: CommandLauncher, cell: Cell, profiles: Iterable[Profile]
) -> Iterator[str]:
    """Yield each key that the YAML files on the trainer's command line lack."""
    ymls = [
        path
        for word in launcher.argv
        if word.endswith((".yml", ".yaml"))
        for path in [Path(launcher.cwd, word.partition("=")[2] or word)]
        if path.is_absolute() and path.is_file()
    ]
    if not ymls:
        return
    known: set[str] = set()
    for path in ymls:
        with suppress(OSError):
            known.update(_YML_KEY.findall(path.read_text(encoding="utf-8", errors="replace")))
    asked = [(f"cell {cell.label!r}", cell.overrides)]
    asked += [(f"profile {profile.id!r}", profile.overrides) for profile in profiles]
    release = Release(
        name=", ".join(path.name for path in ymls), base=str(ymls[0]), known=frozenset(known)
    )
    for where, keys in asked:
        for key, value in keys.items():
            # a field of a nested group is written:  lora.rank=8
            if not known.issuperset(key.split(".")):
                yield _fault(release, key, f"{where}, {key}={value}")


def ask(launcher: MaxTextLauncher, cell: Cell, *, environ: Mapping[str, str]) -> Release | str:
    """Return what the trainer's installation says about its keys, or why it cannot be asked."""
    python = shutil.which(launcher.interpreter, path=environ.get("PATH"))
    if python is None:
        return f"{launcher.interpreter} is not on this machine"
    cwd = launcher.cwd or None
    if cwd is not None and not Path(cwd).is_dir():
        return f"{cwd} is not on this machine"
    worker = _KEYS_WORKER.read_text(encoding="utf-8")
    kept = {name: environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in environ}
    try:
        done = subprocess.run(
            [python, "-c", worker, launcher.package, launcher.config_of(cell)],
            env=kept,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHECK_TIMEOUT_S,
            check=True,
        )
        answer = read_json(done.stdout)
    except subprocess.CalledProcessError as error:
        return f"{python} said {error.stderr.strip()[-200:]!r}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{python}: {error}"
    if not answer["base"]:
        return f"{python} has no package {launcher.package} with a configs/base.yml"
    config_keys = tuple((str(key), str(file), int(line)) for key, file, line in answer["said"])
    known = frozenset(answer["known"])
    if not answer["strict"]:
        # such a release accepts the keys that a configuration declares
        known |= {key for key, _, _ in config_keys}
    return Release(
        name=f"{launcher.package} {answer['version']}".strip(),
        base=answer["base"],
        known=known,
        config_keys=config_keys,
    )


def _trial(profile: Profile, cell: Cell) -> Trial:
    return Trial(
        cell_digest=cell.digest,
        profile=profile,
        protocol=cell.protocol,
        study="keys",
        stage="keys",
    )


def _unknown(keys: Iterable[str], release: Release) -> list[str]:
    # a field of a nested group is written:  lora.rank=8
    return [key for key in keys if key.partition(".")[0] not in release.known]


def _fault(release: Release, key: str, where: str) -> str:
    hint = str(ConfigError.unknown("key", key, valid=release.known, where=where))
    return f"{hint.partition(' Known:')[0]} ({release.name} does not have it: {release.base})"
