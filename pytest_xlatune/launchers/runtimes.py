"""How each container runtime is spelled: the shell that a node runs around the trainer of a rank.

Three files of an attempt's folder, which the container sees under its own name:

    container.sh         on the node: writes down the node's variables, starts the container
    container.entry.sh   in the container: sets the environment, becomes or minds the trainer
    container.env.sh     the environment of the cell and the trial, byte for byte

docker and podman keep the container apart from whoever asked for it, so that SIGKILL of the asking
process leaves it running. Here the container reads from a pipe that only `container.sh` holds: when
that is gone, however it went, the entry script ends the trainer. apptainer and srun start the
trainer below themselves and need nothing of the kind.

Sources: the manuals of docker run, podman run and apptainer exec; pyxis' README for srun's options.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

HOST_FILE = "container.sh"
ENTRY_FILE = "container.entry.sh"
ENV_FILE = "container.env.sh"
FOLDER_WORD = "{xlatune.folder}"  # the payload's own words, see `executors.payload`
RANK_WORD = "{xlatune.rank}"


class Runtime(StrEnum):
    """What runs the container."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"
    PYXIS = "pyxis"

    @property
    def is_apart(self) -> bool:
        """Whether the container is no descendant of the process that asks for it."""
        return self in (Runtime.DOCKER, Runtime.PODMAN)

    @property
    def program(self) -> str:
        """The command, where none is named."""
        return "srun" if self is Runtime.PYXIS else str(self)


class Gpus(StrEnum):
    """Whose GPUs the container gets."""

    NONE = ""
    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory or file of the node, and where the container sees it."""

    source: str
    target: str
    is_read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.is_read_only else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a runtime is asked for.

    Attributes:
        runtime: which one; program: its command as words.
        image: what the runtime is told, pinned.
        mounts: besides the attempt's folder.
        gpus: whose; devices: further device files.
        shm_size: of a /dev/shm of its own; "" shares the node's.
        as_me: as the user who submitted, not as the image's.
        pull: whether an image that is missing may be pulled.
        args: further words for the runtime.
        variables: names of the node's variables that it gets; a trailing * means all that begin so.
        cwd: where the trainer starts; "" is the attempt's folder.
    """

    runtime: Runtime
    program: tuple[str, ...]
    image: str
    mounts: tuple[Mount, ...] = ()
    gpus: Gpus = Gpus.NONE
    devices: tuple[str, ...] = ()
    shm_size: str = ""
    as_me: bool = False
    pull: bool = False
    args: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    cwd: str = ""


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
# we alone hold the other end of its standard input: when we are killed, the container hears it
coproc CLIENT {{ exec {command} >&4 2>&1 4>&-; }}
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


def host_script(asked: Container) -> str:
    """Return `container.sh`: what the node runs for a rank."""
    form = _HEAD + (_APART if asked.runtime.is_apart else _BELOW)
    return form.format(
        runtime=asked.runtime,
        variables=" ".join(map(_variable, asked.variables)),
        command=_broken(_WORDS[asked.runtime](asked)),
        program=shlex.join(asked.program),
    )


def entry_script(runtime: Runtime) -> str:
    """Return `container.entry.sh`: what the container runs for a rank."""
    return _ENTRY + (_ENTRY_MIND if runtime.is_apart else _ENTRY_BECOME)


def env_script(env: Mapping[str, str], unset: Sequence[str]) -> str:
    """Return `container.env.sh`: variables for bash, byte for byte; the payload's words filled."""
    lines = [f"export {name}={_filled(value)}\n" for name, value in env.items()]
    return "".join([*lines, *(f"unset {shlex.quote(name)}\n" for name in unset)])


def _var(name: str) -> str:
    """Return what `_quoted` makes a variable of; no word of a user's can hold a NUL."""
    return f"\0{name}\0"


_FOLDER = _var("folder")


def checks(asked: Container, inside: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (shell command, what is wrong where it fails) for every node.

    The last of them starts a container as a trial's is and looks for `inside`: paths that the
    image or a mount must have. With pyxis that would import the image first, and is not done.
    """
    program, image = shlex.join(asked.program), shlex.quote(asked.image)
    looked = ["bash", "-c", 'for each do [ -e "$each" ] || exit 1; done', "bash", *inside]
    started = (
        shlex.join([*asked.program, *_SITE_WORDS[asked.runtime](asked), asked.image, *looked]),
        f"a container of {asked.image} does not start, or has not all of bash"
        + "".join(f", {path}" for path in inside)
        + ": mount what the image has not",
    )
    if asked.runtime is Runtime.PYXIS:
        said = f"{program} has no --container-image: the pyxis plugin of Slurm is not installed"
        return ((f"{program} --help | grep -q -e --container-image", said),)
    if asked.runtime is Runtime.APPTAINER:
        runs = (f"{program} --version >/dev/null 2>&1", f"{program} does not run")
        return runs, started
    found = [(f"{program} info >/dev/null 2>&1", f"{program} does not run (try `{program} info`)")]
    if not asked.pull:
        found.append(
            (
                f"{program} image inspect {image} >/dev/null 2>&1",
                f"{program} has no image {asked.image}; pull or load it there, or allow `pull`",
            )
        )
        found.append(started)
    return tuple(found)


def _engine_site(asked: Container) -> list[str]:
    """Return the words of docker and podman that every container of a site has."""
    is_podman = asked.runtime is Runtime.PODMAN
    words = [
        "run", "--rm", f"--pull={'missing' if asked.pull else 'never'}", "--network=host",
        f"--shm-size={asked.shm_size}" if asked.shm_size else "--ipc=host",
    ]  # fmt: skip
    if is_podman:
        words.append("--http-proxy=false")  # a proxy's password is in its address
    if asked.gpus is Gpus.NVIDIA:
        words.append("--device=nvidia.com/gpu=all" if is_podman else "--gpus=all")
    elif asked.gpus is Gpus.AMD:
        words += ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"]
    words += [f"--device={each}" for each in asked.devices]
    return [*words, *(f"--volume={each}" for each in asked.mounts), *asked.args]


def _engine(asked: Container) -> list[str]:
    """Return the command of docker and podman, quoted for the shell."""
    run, rm, *site = _engine_site(asked)
    words = ["--interactive", f"--name={_var('name')}", *site]
    if asked.as_me:
        words.append(f"--user={_var('UID')}:{_var('GROUPS')}")
    words += [f"--volume={_FOLDER}:{_FOLDER}", f"--workdir={asked.cwd or _FOLDER}"]
    return [shlex.join([*asked.program, run, rm]), *map(_quoted, words), *_trainer(asked)]


def _apptainer_site(asked: Container) -> list[str]:
    words = ["exec", "--cleanenv", "--no-home"]
    words += {Gpus.NVIDIA: ["--nv"], Gpus.AMD: ["--rocm"], Gpus.NONE: []}[asked.gpus]
    return [*words, *(f"--bind={each}" for each in asked.mounts), *asked.args]


def _apptainer(asked: Container) -> list[str]:
    run, *site = _apptainer_site(asked)
    words = [*site, f"--bind={_FOLDER}", f"--pwd={asked.cwd or _FOLDER}"]
    return [shlex.join([*asked.program, run]), *map(_quoted, words), *_trainer(asked)]


def _pyxis(asked: Container) -> list[str]:
    # enroot's own hooks bring NVIDIA's devices in
    amd = [Mount(source=each, target=each) for each in ("/dev/kfd", "/dev/dri")]
    mounts = [*map(str, [*asked.mounts, *(amd if asked.gpus is Gpus.AMD else [])])]
    words = [
        f"--nodelist={_var('SLURMD_NODENAME')}", "--export=ALL", "--kill-on-bad-exit=1", "--quiet",
        f"--container-image={asked.image}",
        f"--container-mounts={','.join([*mounts, f'{_FOLDER}:{_FOLDER}'])}",
        f"--container-workdir={asked.cwd or _FOLDER}", "--no-container-mount-home", *asked.args,
    ]  # fmt: skip
    step = [*asked.program, "--overlap", "--nodes=1", "--ntasks=1"]
    return [shlex.join(step), *map(_quoted, words), *_trainer(asked)]


def _trainer(asked: Container) -> list[str]:
    image = [] if asked.runtime is Runtime.PYXIS else [shlex.quote(asked.image)]
    return [*image, f'bash --norc --noprofile "$folder/{ENTRY_FILE}" "$folder" "$rank" "$@"']


_SITE_WORDS: Mapping[Runtime, Callable[[Container], list[str]]] = {
    Runtime.DOCKER: _engine_site,
    Runtime.PODMAN: _engine_site,
    Runtime.APPTAINER: _apptainer_site,
    Runtime.PYXIS: lambda _: [],
}
_WORDS = {
    Runtime.DOCKER: _engine,
    Runtime.PODMAN: _engine,
    Runtime.APPTAINER: _apptainer,
    Runtime.PYXIS: _pyxis,
}


def _quoted(word: str) -> str:
    """Quote a word for bash; what `_var` wrote stays a variable."""
    parts = word.split("\0")
    return "".join(
        f'"${part}"' if index % 2 else shlex.quote(part) if part or len(parts) == 1 else ""
        for index, part in enumerate(parts)
    )


def _filled(value: str) -> str:
    quoted = shlex.quote(value)
    # the words hold braces, so they stand inside single quotes: close, expand, open again
    for word, name in ((FOLDER_WORD, "xlatune_folder"), (RANK_WORD, "xlatune_rank")):
        quoted = quoted.replace(word, f"'\"${name}\"'")
    return quoted


def _variable(name: str) -> str:
    return f'"${{!{name[:-1]}@}}"' if name.endswith("*") else name


def _broken(words: Sequence[str]) -> str:
    """Write a command over several lines, so that a person can read and change it."""
    return " \\\n  ".join(words)
