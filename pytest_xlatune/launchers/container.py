"""Any launcher's trainer in a container: docker, podman or apptainer on the node, or pyxis' srun.

    ContainerLauncher(inner=MaxTextLauncher(...), runtime="podman", mounts=("/data",))

One container a rank, started by the payload that Slurm's srun (or this machine) runs on the node:
srun around the container. With pyxis each payload asks srun for a step in a container, and the
container is Slurm's own. The image is the cell's, and is named with its digest: a tag can be moved
between two trials, and their numbers would be compared. Paths of the inner launcher are those
inside; the attempt's folder has one name inside and outside.

The environment goes by a file that only the container reads; no value stands in a command line, and
of the node's variables the container gets those that the inner launcher inherits, less those that
belong to the node itself. This module renders and starts nothing.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TypeVar

from pytest_xlatune.cells import Cell, LaunchSpec, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import Program
from pytest_xlatune.launchers.runtimes import (
    ENTRY_FILE,
    ENV_FILE,
    FOLDER_WORD,
    HOST_FILE,
    RANK_WORD,
    Container,
    Gpus,
    Mount,
    Runtime,
    checks,
    entry_script,
    env_script,
    host_script,
)

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
_SHOW = {
    Runtime.DOCKER: "docker image inspect --format '{{.Id}} {{.RepoDigests}}' NAME",
    Runtime.PODMAN: "podman image inspect --format '{{.Digest}}' NAME",
    Runtime.APPTAINER: "sha256sum FILE",
    Runtime.PYXIS: "sha256sum FILE",
}
# What the harness says itself: who is who, what is seen, and no value in a command line.
_REFUSED = {
    "-e": "the cell's `deployed` or an env file",
    "--env": "the cell's `deployed` or an env file",
    "--env-file": "an env file of the inner launcher",
    "--env-host": "the inner launcher's `inherit`",
    "--name": "nothing: it is the attempt's",
    "--rm": "nothing: it is always so",
    "-d": "nothing: a trial is waited for",
    "--detach": "nothing: a trial is waited for",
    "-t": "nothing: a trial has no terminal",
    "--tty": "nothing: a trial has no terminal",
    "--restart": "the retry policy",
    "--container-image": "the cell's image",
    "--export": "the inner launcher's `inherit`",
}
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLauncher:
    """Start what another launcher starts, in the cell's image.

    Attributes:
        inner: how the trainer is started inside.
        runtime: "docker", "podman", "apptainer" or "pyxis".
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
        runtime = _member(Runtime, self.runtime, "runtime")
        _member(Gpus, self.gpus, "gpus")
        for mount in self.mounts:
            _mount(mount)
        if isinstance(self.inner, ContainerLauncher):
            raise ConfigError("container: its inner launcher is a container as well; name one")
        for name in () if runtime.is_apart else ("devices", "shm_size", "as_me"):
            if getattr(self, name):
                raise ConfigError(
                    f"container: {name} means nothing to {runtime}, which shares the node's "
                    "devices, /dev/shm and user; leave it out"
                )
        for word in self.args:
            if (name := word.partition("=")[0]) in _REFUSED:
                raise ConfigError(
                    f"container: args has {name}, which is set by {_REFUSED[name]}; take it out"
                )
        if isinstance(self.inner, Program):
            # the image's own XLA_FLAGS are deployed too; only a shell inside can append to them
            object.__setattr__(self, "inner", dataclasses.replace(self.inner, in_shell=True))

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
        """Return the absolute paths that the node must have: mounts, what is below them, devices.

        Raises:
            ConfigError: the cell's image is not pinned.
        """
        asked = self._asked(cell)
        own = {Gpus.AMD: ("/dev/kfd", "/dev/dri"), Gpus.NVIDIA: ("/dev/nvidiactl",)}
        return tuple(
            dict.fromkeys(
                (
                    *(each.source for each in asked.mounts),
                    *self._outside(self.inner.files(cell)),
                    *own.get(asked.gpus, ()),
                    *asked.devices,
                    *([asked.image] if asked.image.startswith("/") else []),
                )
            )
        )

    def checks(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        """Return (shell command, what is wrong where it fails) for every node of the cell.

        Raises:
            ConfigError: the cell's image is not pinned.
        """
        return checks(self._asked(cell), self.inner.files(cell))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with a container around its command.

        Raises:
            ConfigError: the cell's image is not pinned, or the inner launcher cannot say it.
        """
        spec = self.inner.launch(trial, cell)
        passed = tuple(each for each in spec.inherit if each not in _OF_THE_NODE)
        asked = dataclasses.replace(self._asked(cell), variables=passed, cwd=spec.cwd)
        files = {
            HOST_FILE: host_script(asked),
            ENTRY_FILE: entry_script(asked.runtime),
            ENV_FILE: env_script(spec.env, spec.unset),
        }
        return dataclasses.replace(
            spec,
            argv=("bash", "--norc", "--noprofile", HOST_FILE, FOLDER_WORD, RANK_WORD, *spec.argv),
            env={},
            unset=(),
            inherit=tuple(dict.fromkeys((*_FOR_THE_RUNTIME, *spec.inherit))),
            files={**spec.files, **files},
            cwd="",
        )

    def _asked(self, cell: Cell) -> Container:
        runtime = Runtime(self.runtime)
        return Container(
            runtime=runtime,
            program=tuple(shlex.split(self.program)) or (runtime.program,),
            image=_image(cell.image, runtime),
            mounts=tuple(map(_mount, self.mounts)),
            gpus=Gpus(self.gpus),
            devices=self.devices,
            shm_size=self.shm_size,
            as_me=self.as_me,
            pull=self.pull,
            args=self.args,
        )

    def _outside(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names on the node of what lies below a mount; the rest is the image's."""
        # the innermost mount hides those around it
        mounts = sorted(map(_mount, self.mounts), key=lambda each: len(each.target), reverse=True)
        found = []
        for path in map(PurePosixPath, paths):
            for mount in mounts:
                if path.is_relative_to(mount.target):
                    found.append(str(PurePosixPath(mount.source) / path.relative_to(mount.target)))
                    break
        return tuple(found)


def _image(image: str, runtime: Runtime) -> str:
    """Return what the runtime is told of a pinned image: a file by its path, else all of it."""
    match = _PINNED.fullmatch(image)
    name = (match["name"] or "") if match else image
    if not image:
        raise ConfigError("container: the cell names no image; give --xlatune-image IMAGE@sha256:…")
    if match is None:
        raise ConfigError(
            f"container: image {image!r} is not pinned. What a tag or a file name stands for can "
            "change between two trials, and the numbers of two images would be compared. Write "
            f"{image.partition('@')[0]}@sha256:<64 hexadecimal digits>; "
            f"`{_SHOW[runtime]}` shows the digest"
        )
    is_file = name.startswith("/")
    if is_file == runtime.is_apart or (runtime is Runtime.APPTAINER and not is_file):
        wanted = "an image by name" if runtime.is_apart else "the absolute path of an image file"
        raise ConfigError(f"container: {runtime} needs {wanted}, found {image!r}")
    return name if is_file else image


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    paths = [source, target or source]
    is_good = mode in ("", "ro", "rw") and all(PurePosixPath(each).is_absolute() for each in paths)
    # a comma would part pyxis' list of mounts
    if not is_good or "," in text or "\0" in text:
        raise ConfigError(
            f"container: mount {text!r}: expected /path, /path:/inside or /path:/inside:ro, "
            "absolute and without commas"
        )
    return Mount(source=source, target=target or source, is_read_only=mode == "ro")


def _member(kind: type[E], value: str, name: str) -> E:
    try:
        return kind(value)
    except ValueError:
        valid = [str(each) for each in kind if each]
        raise ConfigError.unknown(name, value, valid=valid, where="container") from None
