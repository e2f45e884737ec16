"""Any launcher's trainer in a container: docker or podman on the node, or pyxis' srun.

    ContainerLauncher(inner=MaxTextLauncher(...), runtime="podman", mounts=("/data",))

One container a rank, started by the payload that Slurm's srun (or this machine) runs on the node:
srun around the container. With pyxis each payload asks srun for a step in a container, and the
container is Slurm's own. The image is the cell's, and is named with its digest: a tag can be moved
between two trials, and their numbers would be compared. Paths of the inner launcher are those
inside; the attempt's folder has one name inside and outside.

The environment goes by a file that only the container reads; no value stands in a command line, and
of the node's variables the container gets those that the inner launcher inherits, less those that
belong to the node itself. This module renders and starts nothing.

Three files of an attempt's folder, which the container sees under its own name:

    container.sh         on the node: writes down the node's variables, starts the container
    container.entry.sh   in the container: sets the environment, becomes or minds the trainer
    container.env.sh     the environment of the cell and the trial, byte for byte

docker and podman keep the container apart from the process that asks for it, so that SIGKILL of
that process leaves it running. Here the container reads from a pipe that only `container.sh` holds:
when that is gone, however it went, the entry script ends the trainer. srun starts the trainer below
itself and needs nothing of the kind.

Sources: the manuals of docker run and podman run; pyxis' README for srun's options.

`configured` puts a site's settings on top of a sweep file's launcher: those of a container put it
into one, or change the one that it is in; the runtime `none` takes it out.
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
FOLDER_WORD = "{xlatune.folder}"  # the payload's own words, see `executors.payload`
RANK_WORD = "{xlatune.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    """What one runtime is told in its own words.

    Attributes:
        show: the command that shows the digest of an image.
        check: a shell command that shows whether it works, and why it fails.
        run: what makes a container; always: its options in every container.
        gpus: whose -> options for them.
        cwd: option for where it starts.
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
        always=("--http-proxy=false",),  # a proxy's password is in its address
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
# whose GPUs -> the device files that a node with them has
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

# the name says which attempt it is: `docker ps` of a node can then be read
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
# less than the payload's patience, so that the runtime's own books are right as well
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

# what the node says is read once and does not stay: a site may have named a secret
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
# bash gives a command in the background /dev/null for its input, so that the pipe needs a number
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
    """Return `container.env.sh`: variables for bash, byte for byte; the payload's words filled."""
    lines = [f"export {name}={_filled(value)}\n" for name, value in env.items()]
    return "".join([*lines, *(f"unset {shlex.quote(name)}\n" for name in unset)])


def _filled(value: str) -> str:
    quoted = shlex.quote(value)
    # the words hold braces, so they stand inside single quotes: close, expand, open again
    for word, name in ((FOLDER_WORD, "xlatune_folder"), (RANK_WORD, "xlatune_rank")):
        quoted = quoted.replace(word, f"'\"${name}\"'")
    return quoted


# They say where things are on the node; the image has its own.
_OF_THE_NODE = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
)
# What the runtime's own command may need of the node, beside a PATH.
_FOR_THE_RUNTIME = (
    *("PATH", "HOME", "USER", "XDG_RUNTIME_DIR", "SLURMD_NODENAME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"),
)
# an image and what it is:  rocm/jax:26.4@sha256:0f...   sha256:0f...   /shared/jax.sif@sha256:0f...
_PINNED = re.compile(r"(?:(?P<name>\S+)@)?(?P<digest>sha256:[0-9a-f]{64})")
# What the harness sets itself: names, devices, and no value in a command line.
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
    """Start what another launcher starts, in the cell's image.

    Attributes:
        inner: how the trainer is started inside.
        runtime: "docker", "podman" or "pyxis".
        mounts: `/path`, `/path:/inside` or `/path:/inside:ro`; the attempt's folder is always one.
        gpus: "nvidia" or "amd"; "" is no GPU.
        devices: further device files, e.g. /dev/infiniband; docker and podman only.
        shm_size: e.g. "256g" for a /dev/shm of its own; "" shares the node's. As `devices`.
        as_me: whether it runs as the submitting user instead of the image's. As `devices`.
        pull: whether the first trial on a node may pull the image.
        program: how the runtime is called, if not by its name: "sudo -n docker".
        args: further words for the runtime, e.g. --ulimit=memlock=-1.
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
            raise ConfigError("container: its inner launcher is a container as well; name one")
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
            # the image's own XLA_FLAGS are deployed too; only a shell inside can append to them
            object.__setattr__(self, "inner", dataclasses.replace(self.inner, in_shell=True))

    @property
    def inside(self) -> Launcher:
        """The inner launcher."""
        return self.inner

    def describe(self) -> str:
        """Return the runtime with all that differs from its defaults, then the inner launcher."""
        parts = [f"container {self.runtime}"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("inner", "runtime") or value == field.default:
                continue
            text = shlex.join(value) if isinstance(value, tuple) else shlex.quote(str(value))
            parts.append(f"{field.name}={text}")
        return f"{' '.join(parts)} around {self.inner.describe()}"

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the deployed shell files: by the node's names below a mount, else the image's."""
        files = self.inner.env_files_of(cell)
        return tuple((self._outside((path,)) or (path,))[0] for path in files)

    @property
    def interpreter(self) -> str:
        """Return "": no interpreter outside knows the flags of the image's XLA."""
        return ""

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that the node must have: mounts, files below them, devices.

        Raises:
            ConfigError: the cell's image is not pinned.
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
        """Return (shell command, why it fails) for every node of the cell.

        The last starts a container as a trial's is and looks for paths that the image or a mount
        must have. With pyxis, or where it may be pulled, that would bring the image first, and is
        not done.

        Raises:
            ConfigError: the cell's image is not pinned.
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
            f"a container of {image} does not start, or has not all of bash"
            + "".join(f", {path}" for path in inside)
            + ": mount what the image has not",
        )
        return ((command, why), has_image, started)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with a container around its command.

        Raises:
            ConfigError: the cell's image is not pinned, the inner launcher cannot say it, or the
                folder of autotuning is not mounted.
        """
        spec = self.inner.launch(trial, cell)
        folders = self._outside(spec.folders)
        if len(folders) < len(spec.folders):
            lost = next(folder for folder in spec.folders if not self._outside((folder,)))
            name = "autotune_cache" if lost == trial.autotune_folder else "compile_cache"
            raise ConfigError(
                f"container: {name} {lost} lies below no mount, so that what a trial left there "
                "would be gone with its container; mount the folder above it"
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
            # over several lines, so that a person can read and change it
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
        """Whether the container is no descendant of the process that asks for it.

        Its image then has a name instead of a file.
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
        """Return the options of every container of a site, but pyxis'."""
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
        """Return the options of a trial's container and its image, quoted for bash."""
        start = shlex.quote(f"{self._kind.cwd}{cwd}") if cwd else f'{self._kind.cwd}"$folder"'
        if not self._is_apart:
            # enroot's own hooks bring NVIDIA's devices in
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
        """Return the names on the node of what lies below a mount; the rest is the image's."""
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
        """Return what the runtime is told of the image: a file's path, else all of it."""
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
    """Return where a mount is on the node, where inside, and "", "rw" or "ro"."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    target = target or source
    is_good = mode in ("", "ro", "rw") and source.startswith("/") and target.startswith("/")
    # a comma would part pyxis' list of mounts
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
# the kind of a launcher's attribute -> what a setting of it must be, for msgspec and for people
_KINDS: Mapping[type, tuple[Any, str]] = {
    tuple: (tuple[str, ...], "a list of text"),
    dict: (dict[str, str], "a table of text"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}


def configured(
    launcher: Launcher, settings: Mapping[str, Any], container: Mapping[str, Any], *, where: str
) -> Launcher:
    """Return the launcher with settings on top; the very same one where there are none.

    A key is an attribute of the launcher, with - for _. A value of the site takes the place of the
    sweep file's, but for `env-files`, which come after it: the sweep file's say how processes find
    each other, the site's what users deploy.

    Args:
        launcher: the sweep file's.
        settings: by name; of the launcher inside, where it is in a container.
        container: of the container.
        where: said those, for messages.

    Raises:
        ConfigError: a name that this launcher does not have, or a value of another kind.
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
    """Return a value of the kind that the launcher has; on a command line all are lists of text."""
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
        given = given[-1]  # said twice on a command line: the last wins
    if isinstance(before, bool) and isinstance(given, str):
        given = _TRUTH.get(given.lower(), given)
    try:
        if kind is not None:
            return msgspec.convert(given, kind)
    except msgspec.ValidationError:
        pass
    raise ConfigError(f"{what}: found {given!r}, expected {expected}")
