"""Any launcher's trainer in a container: docker or podman on the node, or pyxis with srun.

    ContainerLauncher(inner=MaxTextLauncher(...), runtime="podman", mounts=("/data",))

Each rank has one container, started on the node by the payload below Slurm's srun (or on this
machine). With pyxis, each payload asks srun for a step in a container, which Slurm manages. The
image is the cell's and is given with its digest, because a tag may be moved between two trials,
whose figures would then be compared. Paths of the inner launcher are paths inside; the attempt's
folder has the same path inside and outside.

The environment is passed in a file that only the container reads, so that no value is in a command
line. Of the node's variables, the container gets those that the inner launcher inherits, except
those that describe the node itself. This module only renders texts and starts nothing.

Three files in an attempt's folder, whose path is the same in the container:

    container.sh         on the node: writes the node's variables to a file, starts the container
    container.entry.sh   in the container: sets the environment, runs or supervises the trainer
    container.env.sh     the environment of the cell and the trial, byte for byte

With docker and podman, the container is no child of the process that starts it, so that it survives
SIGKILL of that process. Therefore the container reads from a pipe that only `container.sh` keeps
open: when that process ends, in whatever way, the entry script ends the trainer. srun starts the
trainer as its own child, so it does not need this.

Sources: the manuals of docker run and podman run; pyxis' README for srun's options.

`configured` applies a site's settings to a sweep file's launcher. Settings of a container put the
launcher into one or change its container; the runtime `none` removes it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

import msgspec

from pytest_xlatune.launchers import Check, Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.program import ProgramLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

HOST_FILE = "container.sh"
ENTRY_FILE = "container.entry.sh"
ENV_FILE = "container.env.sh"
FOLDER_WORD = "{xlatune.folder}"  # replaced by the payload, see `executors.payload`
RANK_WORD = "{xlatune.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    """The commands and options of one runtime.

    Attributes:
        show: the command that shows the digest of an image.
        check: a shell command that fails if the runtime does not work, and the reason to show.
        run: the words that start a container; always: options for every container.
        gpus: vendor -> the options for its GPUs.
        cwd: the option for the working directory.
    """

    show: str
    check: Check
    run: tuple[str, ...] = ("run", "--rm")
    always: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    cwd: str = "--workdir="


_AMD = ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video")
_INFO = ("{program} info >/dev/null 2>&1", "{program} does not run (try `{program} info`)")
_START = ("bash", "--norc", "--noprofile", HOST_FILE, FOLDER_WORD, RANK_WORD)
_PYXIS = "pyxis"
_RUNTIMES: Mapping[str, _Runtime] = {
    "docker": _Runtime(
        show="docker image inspect --format '{{.Id}} {{.RepoDigests}}' NAME",
        check=_INFO,
        gpus={"nvidia": ("--gpus=all",), "amd": _AMD},
    ),
    "podman": _Runtime(
        show="podman image inspect --format '{{.Digest}}' NAME",
        check=_INFO,
        always=("--http-proxy=false",),  # the address of a proxy may contain a password
        gpus={"nvidia": ("--device=nvidia.com/gpu=all",), "amd": _AMD},
    ),
    _PYXIS: _Runtime(
        show="sha256sum FILE",
        check=(
            "{program} --help | grep -q -e --container-image",
            "{program} has no --container-image: the pyxis plugin of Slurm is not installed",
        ),
        run=("--overlap", "--nodes=1", "--ntasks=1"),
        cwd="--container-workdir=",
    ),
}
# vendor of GPUs -> the device files of a node with them
_DEVICES = {"": (), "nvidia": ("/dev/nvidiactl",), "amd": ("/dev/kfd", "/dev/dri")}


_HEAD = """\
# One rank's trainer in a container, by {runtime}: `bash container.sh FOLDER RANK COMMAND...`
folder=$1 rank=$2
shift 2
(
  umask 077
  for variable in {variables}; do
    [ -n "${{!variable+set}}" ] && printf 'export %s=%q\\n' "$variable" "${{!variable}}"
  done > "$folder/container.node.$rank.sh"
)
"""

# the name identifies the attempt, so that `docker ps` on a node can be understood
_APART = """\
run=${{folder%/*}}
name=xlt-${{run##*/}}-${{folder##*/}}-$rank
name=${{name//[^a-zA-Z0-9_.-]/-}}
exec 4>&1
# we alone hold the other end of its standard input: when we are killed, the container hears it.
# In a session of its own: a client that forwards a second signal to a container that has just
# ended kills itself, and the trainer's last lines are lost
coproc CLIENT {{ exec setsid {command} >&4 2>&1 4>&-; }}
client=$!
# less than the payload's patience, so that the records of the runtime are right too
trap 'asked=1; {program} stop -t 3 "$name" >/dev/null 2>&1 &' TERM INT HUP
trap '{program} rm --force "$name" >/dev/null 2>&1' EXIT
asked=1
while [ -n "$asked" ]; do asked=; wait "$client"; status=$?; done
exit "$status"
"""

_BELOW = """\
# the node's libraries are for the node
export -n LD_LIBRARY_PATH
exec {command}
"""

# read once and removed, because a site may have passed on a secret
_ENTRY = """\
# In the container: `bash container.entry.sh FOLDER RANK COMMAND...`
xlatune_folder=$1 xlatune_rank=$2
shift 2
. "$xlatune_folder/container.node.$xlatune_rank.sh" || exit 78
rm -f -- "$xlatune_folder/container.node.$xlatune_rank.sh"
. "$xlatune_folder/container.env.sh" || exit 78
"""
_ENTRY_BECOME = """\
exec "$@"
"""
# bash gives a background command /dev/null as input, so the pipe needs another descriptor
_ENTRY_MIND = """\
exec 3<&0 </dev/null
"$@" 3<&- &
trainer=$!
trap 'asked=1; kill -TERM "$trainer" 2>/dev/null' TERM INT HUP
{ while read -r -u 3 _; do :; done; kill -KILL "$trainer"; } 2>/dev/null &
asked=1
while [ -n "$asked" ]; do asked=; wait "$trainer"; status=$?; done
exit "$status"
"""


def _env_script(env: Mapping[str, str], unset: Sequence[str]) -> str:
    """Return `container.env.sh`: variables for bash, byte for byte; the payload fills its words."""
    lines = [f"export {name}={_filled(value)}\n" for name, value in env.items()]
    return "".join([*lines, *(f"unset {shlex.quote(name)}\n" for name in unset)])


def _filled(value: str) -> str:
    quoted = shlex.quote(value)
    # the words contain braces, so they are outside of the single quotes: close, expand, open again
    for word, name in ((FOLDER_WORD, "xlatune_folder"), (RANK_WORD, "xlatune_rank")):
        quoted = quoted.replace(word, f"'\"${name}\"'")
    return quoted


# variables that describe the node; the image has its own
_OF_THE_NODE = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
)
# variables of the node that the runtime's command may need, besides a PATH
_FOR_THE_RUNTIME = (
    *("PATH", "HOME", "USER", "XDG_RUNTIME_DIR", "SLURMD_NODENAME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"),
)
# an image with its digest:  rocm/jax:26.4@sha256:0f...   sha256:0f...
# /shared/jax.sif@sha256:0f...
_PINNED = re.compile(r"(?:(?P<name>\S+)@)?(?P<digest>sha256:[0-9a-f]{64})")
# options that users may not pass -> where the harness takes their values from
_REFUSED = {
    **dict.fromkeys(("-e", "--env"), "the cell's `deployed` or an env file"),
    "--env-file": "an env file of the inner launcher",
    "--env-host": "the inner launcher's `inherit`",
    "--name": "nothing: it is the attempt's",
    "--rm": "nothing: it is always so",
    **dict.fromkeys(("-d", "--detach"), "nothing: a trial is waited for"),
    **dict.fromkeys(("-t", "--tty"), "nothing: a trial has no terminal"),
    "--restart": "the retry policy",
    "--container-image": "the cell's image",
    "--export": "the inner launcher's `inherit`",
}


@written("container launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLauncher(Launcher):
    """Start in the cell's image what another launcher starts.

    Attributes:
        inner: the launcher that starts the trainer inside.
        runtime: "docker", "podman" or "pyxis".
        mounts: `/path`, `/path:/inside` or `/path:/inside:ro`; the attempt's folder always is.
        gpus: "nvidia" or "amd"; "" for none.
        devices: further device files, e.g. /dev/infiniband; not for pyxis.
        shm_size: size of a separate /dev/shm, e.g. "256g"; "" shares the node's; not for pyxis.
        as_me: whether it runs as the submitting user, not as the image's; not for pyxis.
        pull: whether the first trial on a node may pull the image.
        program: command of the runtime if it is not its name, e.g. "sudo -n docker"; "" for that.
        args: further options of the runtime, e.g. --ulimit=memlock=-1.
    """

    inner: Launcher
    runtime: str = "docker"
    mounts: tuple[str, ...] = ()
    gpus: str = ""
    devices: tuple[str, ...] = ()
    shm_size: str = ""
    as_me: bool = False
    pull: bool = False
    program: str = ""
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, chosen, known in (
            ("runtime", self.runtime, _RUNTIMES),
            ("gpus", self.gpus, _DEVICES),
        ):
            if chosen not in known:
                valid = filter(None, known)
                raise ConfigError.unknown(name, chosen, valid=valid, where="container")
        try:
            shlex.split(self.program)
        except ValueError as error:
            raise ConfigError(f"container: program {self.program!r:.80}: {error}") from None
        for mount in self.mounts:
            _mount(mount)
        if isinstance(self.inner, ContainerLauncher):
            raise ConfigError("container: its inner launcher is a container too; use only one")
        for name in () if self._is_apart else ("devices", "shm_size", "as_me"):
            if getattr(self, name):
                raise ConfigError(
                    f"container: {name} means nothing to {self.runtime}, which shares the node's "
                    "devices, /dev/shm and user; leave it out"
                )
        for word in self.args:
            if (name := word.partition("=")[0]) in _REFUSED:
                raise ConfigError(
                    f"container: args has {name}, which is set by {_REFUSED[name]}; take it out"
                )
        if isinstance(self.inner, ProgramLauncher):
            # the image's XLA_FLAGS are deployed too, and only a shell inside can append to them
            object.__setattr__(self, "inner", dataclasses.replace(self.inner, in_shell=True))

    @property
    def inside(self) -> Launcher:
        """The inner launcher."""
        return self.inner

    def describe(self) -> str:
        """Return the runtime with everything that is not default, then the inner launcher."""
        parts = [f"container {self.runtime}"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("inner", "runtime") or value == field.default:
                continue
            text = shlex.join(value) if isinstance(value, tuple) else shlex.quote(str(value))
            parts.append(f"{field.name}={text}")
        return f"{' '.join(parts)} around {self.inner.describe()}"

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the deployed shell files: the node's if they are in a mount, else the image's."""
        files = self.inner.env_files_of(cell)
        return tuple((self._outside((path,)) or (path,))[0] for path in files)

    @property
    def interpreter(self) -> str:
        """Return "", because no interpreter outside knows the flags of the image's XLA."""
        return ""

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that the node must have: mounts, files in them, devices.

        Raises:
            ConfigError: the cell's image has no digest.
        """
        image = self._image(cell)
        paths = (
            *(source for source, _, _ in map(_mount, self.mounts)),
            *self._outside(self.inner.files(cell)),
            *_DEVICES[self.gpus],
            *self.devices,
            *([] if self._is_apart else [image]),
        )
        return tuple(dict.fromkeys(paths))

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return (shell command, reason if it fails) for every node of the cell.

        The last one starts a container like a trial's and checks paths that the image or a mount
        must have. It is left out with pyxis, or if the image may be pulled, because it would fetch
        the image first.

        Raises:
            ConfigError: the cell's image has no digest.
        """
        image, inside = self._image(cell), self.inner.files(cell)
        program = shlex.join(self._program)
        command, why = (text.format(program=program) for text in self._kind.check)
        if not self._is_apart or self.pull:
            return ((command, why),)
        has_image = (
            f"{program} image inspect {shlex.quote(image)} >/dev/null 2>&1",
            f"{program} has no image {image}; pull or load it there, or allow `pull`",
        )
        looked = ["bash", "-c", 'for each do [ -e "$each" ] || exit 1; done', "bash", *inside]
        started = (
            shlex.join([*self._program, *self._kind.run, *self._options(), image, *looked]),
            f"a container of {image} does not start, or lacks a part of bash"
            + "".join(f", {path}" for path in inside)
            + ": mount what the image has not",
        )
        return ((command, why), has_image, started)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with its command in a container.

        Raises:
            ConfigError: the image has no digest, the inner launcher raises it, or the folder of the
                autotuning cache is not mounted.
        """
        spec = self.inner.launch(trial, cell)
        folders = self._outside(spec.folders)
        if len(folders) < len(spec.folders):
            lost = next(folder for folder in spec.folders if not self._outside((folder,)))
            name = "autotune_cache" if lost == trial.autotune_folder else "compile_cache"
            raise ConfigError(
                f"container: {name} {lost} is in no mount, so its files would be lost with the "
                "container of the trial; mount the folder above it"
            )
        is_apart = self._is_apart
        form = _HEAD + (_APART if is_apart else _BELOW)
        command = [
            shlex.join([*self._program, *self._kind.run]),
            *self._words(self._image(cell), spec.cwd),
            f'bash --norc --noprofile "$folder/{ENTRY_FILE}" "$folder" "$rank" "$@"',
        ]
        host_script = form.format(
            runtime=self.runtime,
            variables=" ".join(
                f'"${{!{variable[:-1]}@}}"' if variable.endswith("*") else variable
                for variable in spec.inherit
                if variable not in _OF_THE_NODE
            ),
            # over several lines, so that people can read and change it
            command=" \\\n  ".join(command),
            program=shlex.join(self._program),
        )
        files = {
            HOST_FILE: host_script,
            ENTRY_FILE: _ENTRY + (_ENTRY_MIND if is_apart else _ENTRY_BECOME),
            ENV_FILE: _env_script(spec.env, spec.unset),
        }
        return msgspec.structs.replace(
            spec,
            argv=(*_START, *spec.argv),
            probe=(*_START, *spec.probe) if spec.probe else (),
            is_probe_dear=True,
            paths=self._outside(spec.paths),
            folders=folders,
            env={},
            unset=(),
            inherit=tuple(dict.fromkeys((*_FOR_THE_RUNTIME, *spec.inherit))),
            files={**spec.files, **files},
            cwd="",
        )

    @property
    def _is_apart(self) -> bool:
        """Whether the container is no child of the process that starts it.

        Such runtimes take an image by name instead of a file.
        """
        return self.runtime != _PYXIS

    @property
    def _kind(self) -> _Runtime:
        return _RUNTIMES[self.runtime]

    @property
    def _program(self) -> list[str]:
        usual = self.runtime if self._is_apart else "srun"
        return shlex.split(self.program) or [usual]

    def _options(self) -> list[str]:
        """Return the options that are the same for all containers of a site, except for pyxis."""
        return [
            f"--pull={'missing' if self.pull else 'never'}",
            "--network=host",
            f"--shm-size={self.shm_size}" if self.shm_size else "--ipc=host",
            *self._kind.always,
            *self._kind.gpus.get(self.gpus, ()),
            *(f"--device={device}" for device in self.devices),
            *(f"--volume={_mounted(mount)}" for mount in self.mounts),
            *self.args,
        ]

    def _words(self, image: str, cwd: str) -> list[str]:
        """Return the options for a trial's container and the image, quoted for bash."""
        start = shlex.quote(f"{self._kind.cwd}{cwd}") if cwd else f'{self._kind.cwd}"$folder"'
        if not self._is_apart:
            # enroot's own hooks mount NVIDIA's devices
            amd = [f"{device}:{device}" for device in _DEVICES["amd"]] if self.gpus == "amd" else []
            mounts = "".join(f"{mount}," for mount in [*map(_mounted, self.mounts), *amd])
            return [
                '--nodelist="$SLURMD_NODENAME"',
                *("--export=ALL", "--kill-on-bad-exit=1", "--quiet"),
                shlex.quote(f"--container-image={image}"),
                shlex.quote(f"--container-mounts={mounts}") + '"$folder":"$folder"',
                start,
                "--no-container-mount-home",
                *map(shlex.quote, self.args),
            ]
        return [
            *("--interactive", '--name="$name"'),
            *map(shlex.quote, self._options()),
            *(['--user="$UID":"$GROUPS"'] if self.as_me else []),
            '--volume="$folder":"$folder"',
            start,
            shlex.quote(image),
        ]

    def _outside(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the node's paths for paths inside of mounts; others are in the image."""
        # the innermost mount hides those around it
        mounts = sorted(map(_mount, self.mounts), key=lambda mount: len(mount[1]), reverse=True)
        outer_paths = []
        for path in map(PurePosixPath, paths):
            for source, target, _ in mounts:
                if path.is_relative_to(target):
                    outer_paths.append(str(PurePosixPath(source) / path.relative_to(target)))
                    break
        return tuple(outer_paths)

    def _image(self, cell: Cell) -> str:
        """Return the image for the runtime: the path of a file, or the name with its digest."""
        image, match = cell.image, _PINNED.fullmatch(cell.image)
        if not image:
            raise ConfigError(
                "container: the cell names no image; give --xlatune-image IMAGE@sha256:…"
            )
        if match is None:
            raise ConfigError(
                f"container: image {image!r} is not pinned. What a tag or a file name stands for "
                "can change between two trials, and the numbers of two images would be compared. "
                f"Write {image.partition('@')[0]}@sha256:<64 hexadecimal digits>; "
                f"`{self._kind.show}` shows the digest"
            )
        name = match["name"] or ""
        is_named = not name.startswith("/")
        if is_named != self._is_apart:
            wanted = "the absolute path of an image file" if is_named else "an image by name"
            raise ConfigError(f"container: {self.runtime} needs {wanted}, found {image!r}")
        return image if is_named else name


def _mount(text: str) -> tuple[str, str, str]:
    """Return a mount's path on the node, its path inside, and "", "rw" or "ro"."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    target = target or source
    is_good = mode in ("", "ro", "rw") and source.startswith("/") and target.startswith("/")
    # a comma would split pyxis' list of mounts
    if not is_good or "," in text or "\0" in text:
        raise ConfigError(
            f"container: mount {text!r}: expected /path, /path:/inside or /path:/inside:ro, "
            "absolute and without commas"
        )
    return source, target, mode


def _mounted(text: str) -> str:
    source, target, mode = _mount(text)
    return f"{source}:{target}" + (":ro" if mode == "ro" else "")


_ADDED = "env_files"
_NOT_SETTINGS = frozenset({"inner", "in_shell"})
_NO_CONTAINER = "none"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# type of a launcher's attribute -> type of a setting for msgspec, and its name in messages
_KINDS: Mapping[type, tuple[Any, str]] = {
    tuple: (tuple[str, ...], "a list of text"),
    dict: (dict[str, str], "a table of text"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}


def configured(
    launcher: Launcher, settings: Mapping[str, Any], container: Mapping[str, Any], *, where: str
) -> Launcher:
    """Return the launcher with settings applied; the same object if there are none.

    A key is an attribute of the launcher, with - for _. A site's value replaces the sweep file's,
    except for `env-files`, which are added after the sweep file's: those say how processes find
    each other, the site's what users deploy.

    Args:
        launcher: the sweep file's launcher.
        settings: attribute -> value; for the launcher inside if it is in a container.
        container: attribute -> value for the container.
        where: where they were given, for messages.

    Raises:
        ConfigError: this launcher has no such attribute, or the value has a wrong type.
    """
    if isinstance(launcher, CheckoutLauncher):
        within = configured(launcher.inner, settings, container, where=where)
        return launcher if within is launcher.inner else dataclasses.replace(launcher, inner=within)
    outer = launcher if isinstance(launcher, ContainerLauncher) else None
    inner = outer.inner if outer else launcher
    changed: Launcher = _with(inner, settings, f"{where}, launcher")
    if container.get("runtime") in (_NO_CONTAINER, [_NO_CONTAINER]) or not (outer or container):
        return changed
    if outer is None:
        outer = ContainerLauncher(inner=changed)
    elif changed is not inner:
        outer = dataclasses.replace(outer, inner=changed)
    return cast("Launcher", _with(outer, container, f"{where}, container"))


def _with(launcher: Any, settings: Mapping[str, Any], where: str) -> Any:
    if not settings:
        return launcher
    if not dataclasses.is_dataclass(launcher) or isinstance(launcher, type):
        raise ConfigError(
            f"{where}: {type(launcher).__name__} is no dataclass, so that it has no settings; "
            "take them out, or give them in the sweep file"
        )
    known = {
        field.name.replace("_", "-"): field.name
        for field in dataclasses.fields(launcher)
        if field.name not in _NOT_SETTINGS
    }
    values = {}
    for key, value in settings.items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            raise ConfigError.unknown("setting", key, valid=known, where=where)
        before = getattr(launcher, name)
        converted = _like(before, value, f"{where}: {key}")
        values[name] = (*before, *converted) if name == _ADDED else converted
    return dataclasses.replace(launcher, **values)


def _like(before: object, value: Any, what: str) -> Any:
    """Return a value of the attribute's type; on a command line all are lists of texts."""
    kind, expected = next(
        (kind for type_, kind in _KINDS.items() if isinstance(before, type_)),
        (None, "no such setting"),
    )
    given = value
    if isinstance(before, Mapping) and isinstance(given, list | tuple):
        pairs = [str(pair).partition("=") for pair in given]
        given = {name: text for name, equals, text in pairs if equals}
        given = value if len(given) < len(pairs) else given
    elif isinstance(before, tuple):
        given = [given] if isinstance(given, str) else given
    elif isinstance(given, list | tuple) and given:
        given = given[-1]  # given twice on a command line: the last one counts
    if isinstance(before, bool) and isinstance(given, str):
        given = _TRUTH.get(given.lower(), given)
    try:
        if kind is not None:
            return msgspec.convert(given, kind)
    except msgspec.ValidationError:
        pass
    raise ConfigError(f"{what}: found {given!r}, expected {expected}")
