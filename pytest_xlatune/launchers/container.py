"""Any launcher's trainer in a container: docker or podman on the node, or pyxis with srun.

    ContainerLauncher(inner=MaxTextLauncher(...), runtime="podman", mounts=("/data",))

Each rank has one container. The payload starts it on the node, below Slurm's srun, or on this
machine. With pyxis, each payload asks srun for a step in a container, which Slurm manages. The cell
names the image of docker and podman with its digest, because a tag may be moved between two trials,
and the figures of two images would then be compared; pyxis gets the path of a file. Paths of the
inner launcher are paths in the container; only the attempt's folder has the same path in the
container and outside.

The environment is passed in a file that only the container reads, so that no value is in a command
line. Of the node's variables, the container gets those that the inner launcher inherits, except
those that describe the node itself. This module only renders texts and starts nothing.

Three files in an attempt's folder start the container:

    container.sh         on the node: writes the node's variables to a file, starts the container
    container.entry.sh   in the container: sets the environment, runs or supervises the trainer
    container.env.sh     the environment of the cell and the trial, byte for byte

With docker and podman, the container is no child of the process that starts it, so it would survive
a SIGKILL of that process. Therefore the container reads from a pipe that only `container.sh` keeps
open: when that process ends, in whatever way, the entry script ends the trainer. With pyxis the
trainer is a child of srun, so this is not needed.

Sources: the manuals of docker run and podman run; pyxis' README for srun's options.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

import msgspec

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import ProgramLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

HOST_FILE = "container.sh"
ENTRY_FILE = "container.entry.sh"
ENV_FILE = "container.env.sh"
FOLDER_WORD = "{xlatune.folder}"  # replaced by the payload, see `executors.payload`
RANK_WORD = "{xlatune.rank}"

# the words before a command that start it in a container
_START_COMMAND = ("bash", "--norc", "--noprofile", HOST_FILE, FOLDER_WORD, RANK_WORD)
_PYXIS = "pyxis"
# runtime -> the command that shows the digest of an image, for a message; pyxis reads a file
_SHOW_DIGEST = {
    "docker": "docker image inspect --format '{{.Id}} {{.RepoDigests}}' NAME",
    "podman": "podman image inspect --format '{{.Digest}}' NAME",
}
_AMD = ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video")
# (runtime, vendor of GPUs) -> the options for its GPUs
_GPU_OPTIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("docker", "nvidia"): ("--gpus=all",),
    ("podman", "nvidia"): ("--device=nvidia.com/gpu=all",),
    ("docker", "amd"): _AMD,
    ("podman", "amd"): _AMD,
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

# The second part of `container.sh` for docker and podman. The container's name identifies the
# attempt, so that people understand `docker ps` on a node.
_DETACHED_START = """\
run=${{folder%/*}}
name=xlt-${{run##*/}}-${{folder##*/}}-$rank
name=${{name//[^a-zA-Z0-9_.-]/-}}
exec 4>&1
# Only this script holds the other end of the container's standard input, so that the container
# notices when this script is killed. The client has its own session: if it forwarded a second
# signal to a container that has just ended, it would kill itself and lose the last lines.
coproc CLIENT {{ exec setsid {command} >&4 2>&1 4>&-; }}
client=$!
# 3 s are less than the payload waits before SIGKILL, so the runtime can still record the end
trap 'signalled=1; {program} stop -t 3 "$name" >/dev/null 2>&1 &' TERM INT HUP
trap '{program} rm --force "$name" >/dev/null 2>&1' EXIT
# a signal interrupts `wait`, which is then repeated
signalled=1
while [ -n "$signalled" ]; do signalled=; wait "$client"; status=$?; done
exit "$status"
"""

# the second part of `container.sh` for pyxis
_CHILD_START = """\
# the node's libraries are for the node
export -n LD_LIBRARY_PATH
exec {command}
"""

# The first part of the script in the container. The file with the node's variables is removed when
# it has been read, because a site may have passed on a secret.
_ENTRY = """\
# In the container: `bash container.entry.sh FOLDER RANK COMMAND...`
xlatune_folder=$1 xlatune_rank=$2
shift 2
. "$xlatune_folder/container.node.$xlatune_rank.sh" || exit 78
rm -f -- "$xlatune_folder/container.node.$xlatune_rank.sh"
. "$xlatune_folder/container.env.sh" || exit 78
"""
# the second part for pyxis
_ENTRY_EXEC = 'exec "$@"\n'
# The second part for docker and podman: it ends the trainer when `container.sh` is gone. bash gives
# a background command /dev/null as input, so the pipe is moved to descriptor 3.
_ENTRY_SUPERVISE = """\
exec 3<&0 </dev/null
"$@" 3<&- &
trainer=$!
trap 'signalled=1; kill -TERM "$trainer" 2>/dev/null' TERM INT HUP
{ while read -r -u 3 _; do :; done; kill -KILL "$trainer"; } 2>/dev/null &
signalled=1
while [ -n "$signalled" ]; do signalled=; wait "$trainer"; status=$?; done
exit "$status"
"""


def _exports(env: Mapping[str, str]) -> str:
    """Return `container.env.sh`, which sets the variables, byte for byte."""
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    # the single quotes are closed before each variable and opened after it, so that bash expands it
    for word, name in ((FOLDER_WORD, "xlatune_folder"), (RANK_WORD, "xlatune_rank")):
        text = text.replace(word, f"'\"${name}\"'")
    return text


# variables that describe the node and are not passed on, because the image sets its own
_NODE_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
)
# variables of the node that the runtime's command may need, besides a PATH
_RUNTIME_VARIABLES = (
    *("PATH", "HOME", "USER", "XDG_RUNTIME_DIR", "SLURMD_NODENAME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"),
)
# an image with its digest:  rocm/jax:26.4@sha256:0f...   sha256:0f...
_PINNED = re.compile(r"(?:\S+@)?sha256:[0-9a-f]{64}")


@written("container launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLauncher(Launcher):
    """Start the command of another launcher in a container of the cell's image.

    Attributes:
        inner: the launcher of the trainer; its paths are paths in the container.
        runtime: "docker", "podman" or "pyxis".
        mounts: `/path`, `/path:/inside` or `/path:/inside:ro`; the attempt's folder is always
            mounted.
        gpus: "nvidia" or "amd"; "" if there are no GPUs.
        program: command of the runtime, e.g. "sudo -n docker"; "" means its usual name.
        args: further options of the runtime, e.g. --ulimit=memlock=-1 or --device=/dev/infiniband.
    """

    inner: Launcher
    runtime: str = "docker"
    mounts: tuple[str, ...] = ()
    gpus: str = ""
    program: str = ""
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, valid in (("runtime", (*_SHOW_DIGEST, _PYXIS)), ("gpus", _DEVICES)):
            value = getattr(self, name)
            if value not in valid:
                shown = filter(None, valid)
                raise ConfigError.unknown(name, value, valid=shown, where="container")
        try:
            shlex.split(self.program)
        except ValueError as error:
            raise ConfigError(f"container: program {self.program!r:.80}: {error}") from None
        for mount in self.mounts:
            _parse_mount(mount)
        if isinstance(self.inner, ContainerLauncher):
            raise ConfigError("container: its inner launcher is a container too; use only one")
        if isinstance(self.inner, ProgramLauncher):
            # the image may set XLA_FLAGS, and only a shell in the container can append to them
            object.__setattr__(self, "inner", dataclasses.replace(self.inner, in_shell=True))

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
        """Return the deployed shell files: on the node if they are mounted, else in the image."""
        return tuple(
            outside
            for path in self.inner.env_files_of(cell)
            for outside in self._outside((path,)) or (path,)
        )

    @property
    def interpreter(self) -> str:
        """Return "", because no interpreter on the node knows the flags of the image's XLA."""
        return ""

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that the node must have: mounts, files in them, devices.

        Raises:
            ConfigError: the cell's image has no digest.
        """
        image = self._image(cell)
        paths = (
            *(source for source, _, _ in map(_parse_mount, self.mounts)),
            *self._outside(self.inner.files(cell)),
            *_DEVICES[self.gpus],
            *([] if self._is_detached else [image]),
        )
        return tuple(dict.fromkeys(paths))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with its command in a container.

        Raises:
            ConfigError: the image has no digest, the inner launcher raises it, or the folder of a
                cache is not mounted.
        """
        spec = self.inner.launch(trial, cell)
        folders = self._outside(spec.folders)
        if len(folders) < len(spec.folders):
            raise ConfigError(
                f"container: autotune_cache {trial.autotune_folder} is in no mount, so its files "
                "would be lost with the container of the trial; mount the folder above it"
            )
        variables = [
            # bash lists the names that match
            f'"${{!{variable[:-1]}@}}"' if variable.endswith("*") else variable
            for variable in spec.inherit
            if variable not in _NODE_VARIABLES
        ]
        start, end = _CHILD_START, _ENTRY_EXEC
        if self._is_detached:
            start, end = _DETACHED_START, _ENTRY_SUPERVISE
        quoted_cwd = shlex.quote(spec.cwd) if spec.cwd else '"$folder"'
        command = [
            *self._start_words(self._image(cell), quoted_cwd),
            f'bash --norc --noprofile "$folder/{ENTRY_FILE}" "$folder" "$rank" "$@"',
        ]
        host_script = (_HEAD + start).format(
            runtime=self.runtime,
            variables=" ".join(variables),
            # on several lines, so that people can read and change it
            command=" \\\n  ".join(command),
            program=shlex.join(self._program),
        )
        scripts = {HOST_FILE: host_script, ENTRY_FILE: _ENTRY + end, ENV_FILE: _exports(spec.env)}
        return msgspec.structs.replace(
            spec,
            argv=(*_START_COMMAND, *spec.argv),
            probe=(*_START_COMMAND, *spec.probe) if spec.probe else (),
            is_probe_dear=True,
            paths=self._outside(spec.paths),
            folders=folders,
            env={},
            inherit=tuple(dict.fromkeys((*_RUNTIME_VARIABLES, *spec.inherit))),
            files={**spec.files, **scripts},
            cwd="",
        )

    @property
    def _is_detached(self) -> bool:
        """Whether something else than the process that starts the container is its parent."""
        return self.runtime != _PYXIS

    @property
    def _program(self) -> list[str]:
        usual_program = self.runtime if self._is_detached else "srun"
        return shlex.split(self.program) or [usual_program]

    def _start_words(self, image: str, quoted_cwd: str) -> list[str]:
        """Return the words that start a trial's container, quoted for bash."""
        mounts = [
            f"{source}:{target}{':ro' if mode == 'ro' else ''}"
            for source, target, mode in map(_parse_mount, self.mounts)
        ]
        if self._is_detached:
            has_shm = any(word.startswith("--shm-size") for word in self.args)
            site_options = (
                "--pull=never",  # a trial does not wait for a download; `args` may replace this
                "--network=host",
                *([] if has_shm else ["--ipc=host"]),
                # the address of a proxy may contain a password
                *(["--http-proxy=false"] if self.runtime == "podman" else []),
                *_GPU_OPTIONS.get((self.runtime, self.gpus), ()),
                *(f"--volume={mount}" for mount in mounts),
                *self.args,
            )
            return [
                shlex.join([*self._program, "run", "--rm"]),
                *("--interactive", '--name="$name"'),
                *map(shlex.quote, site_options),
                '--volume="$folder":"$folder"',
                f"--workdir={quoted_cwd}",
                shlex.quote(image),
            ]
        if self.gpus == "amd":  # not those of NVIDIA, which enroot's own hooks mount
            mounts += (f"{device}:{device}" for device in _DEVICES["amd"])
        all_mounts = "".join(f"{mount}," for mount in mounts)
        return [
            shlex.join([*self._program, "--overlap", "--nodes=1", "--ntasks=1"]),
            '--nodelist="$SLURMD_NODENAME"',
            *("--export=ALL", "--kill-on-bad-exit=1", "--quiet"),
            shlex.quote(f"--container-image={image}"),
            shlex.quote(f"--container-mounts={all_mounts}") + '"$folder":"$folder"',
            f"--container-workdir={quoted_cwd}",
            "--no-container-mount-home",
            *map(shlex.quote, self.args),
        ]

    def _outside(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return where the container's paths are on the node; leave out those in no mount."""
        # longest first, because an inner mount hides the mounts around it
        mounts = sorted(map(_parse_mount, self.mounts), key=lambda mount: -len(mount[1]))
        outer_paths = []
        for path in map(PurePosixPath, paths):
            for source, target, _ in mounts:
                if path.is_relative_to(target):
                    outer_paths.append(str(PurePosixPath(source) / path.relative_to(target)))
                    break
        return tuple(outer_paths)

    def _image(self, cell: Cell) -> str:
        """Return the image for the runtime: the path of a file, or the name with its digest."""
        image = cell.image
        if not image:
            raise ConfigError(
                "container: the cell names no image; give --xlatune-image IMAGE@sha256:…"
            )
        path = image.partition("@")[0]
        if not self._is_detached:
            if path.startswith("/"):
                return path
            raise ConfigError(
                f"container: {self.runtime} needs the absolute path of an image file, found "
                f"{image!r}"
            )
        if path.startswith("/") or not _PINNED.fullmatch(image):
            raise ConfigError(
                f"container: image {image!r} is no name with a digest. The image of a tag can "
                "change between two trials, and the numbers of two images would be compared. "
                f"Write {path}@sha256:<64 hexadecimal digits>; "
                f"`{_SHOW_DIGEST[self.runtime]}` shows the digest"
            )
        return image


def _parse_mount(text: str) -> tuple[str, str, str]:
    """Return a mount's path on the node, its path inside, and "", "rw" or "ro"."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    target = target or source
    is_valid = mode in ("", "ro", "rw") and source.startswith("/") and target.startswith("/")
    # a comma would split pyxis' list of mounts
    if not is_valid or "," in text or "\0" in text:
        raise ConfigError(
            f"container: mount {text!r}: expected /path, /path:/inside or /path:/inside:ro, "
            "absolute and without commas"
        )
    return source, target, mode


_NOT_SETTINGS = frozenset({"inner", "in_shell"})  # attributes that a site cannot set
_NO_CONTAINER = "none"  # the value of `runtime` that removes a container
# type of a launcher's attribute -> type of a setting, where they differ
_KINDS: Mapping[type, Any] = {tuple: tuple[str, ...], dict: dict[str, str]}


def configured(
    launcher: Launcher, settings: Mapping[str, Any], container: Mapping[str, Any], *, where: str
) -> Launcher:
    """Return the launcher with settings applied.

    A key is an attribute of the launcher, with - for _. A site's value replaces the sweep file's.
    Only its `env-files` come after those of the sweep file: the sweep file's say how processes find
    each other, and the site's say what users deploy.

    Args:
        launcher: the sweep file's launcher.
        settings: attribute -> value; if the launcher is in a container, for the inner launcher.
        container: attribute -> value for the container, which is made if there is none.
        where: the place that the settings come from, for messages.

    Raises:
        ConfigError: this launcher has no such attribute, or the value has a wrong type.
    """
    if isinstance(launcher, CheckoutLauncher):
        inner = configured(launcher.inner, settings, container, where=where)
        return dataclasses.replace(launcher, inner=inner)
    outer = launcher if isinstance(launcher, ContainerLauncher) else None
    inner = _with_settings(outer.inner if outer else launcher, settings, f"{where}, launcher")
    # the command line gives a list
    is_removed = container.get("runtime") in (_NO_CONTAINER, [_NO_CONTAINER])
    if is_removed or not (outer or container):
        return inner
    changed = dataclasses.replace(outer, inner=inner) if outer else ContainerLauncher(inner=inner)
    return _with_settings(changed, container, f"{where}, container")


def _with_settings(launcher: Any, settings: Mapping[str, Any], where: str) -> Launcher:
    """Return a launcher with settings applied; `where` names their place, for messages.

    A value from the command line is a list of texts, one for each time that the option was given.
    """
    fields = getattr(launcher, "__dataclass_fields__", {})
    names = {name.replace("_", "-"): name for name in fields if name not in _NOT_SETTINGS}
    values: dict[str, Any] = {}
    for key, given in settings.items():
        name, value = names.get(key.replace("_", "-")), given
        if name is None:
            raise ConfigError.unknown("setting", key, valid=names, where=where)
        before = getattr(launcher, name)
        if isinstance(before, tuple):
            value = [given] if isinstance(given, str) else given
        elif isinstance(given, list) and isinstance(before, Mapping):
            value = dict(str(pair).partition("=")[::2] for pair in given)
        elif isinstance(given, list) and given:
            value = given[-1]
        try:
            kind = _KINDS.get(type(before), type(before))
            values[name] = msgspec.convert(value, kind, strict=False)
        except (TypeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{where}: {key}: found {value!r}: {error}") from None
        if name == "env_files":
            values[name] = (*before, *values[name])
    return cast("Launcher", dataclasses.replace(launcher, **values) if values else launcher)
