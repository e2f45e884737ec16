"""What trials ran on: node, packages, devices, code and repositories, and what changed there.

The facts are texts by name, as the program on the node reports them. A fact is missing if it was
not found, or not looked up: devices, and packages in a container, are looked up once in a session.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Record


class NodeEnvironment(Record, frozen=True, kw_only=True):
    """The environment of a trial on one node.

    Attributes:
        name: name of the node.
        node: kernel, CPU, driver, GPUs.
        packages: python, jax, jaxlib, plugins, CUDA or ROCm, NCCL, libtpu ... -> version.
        devices: kind and number of the devices that one process sees, and the runtime's version.
        code: folder of the trainer's program -> digest of its Python files.
        repositories: folder of a git repository -> commit, and whether files were changed since.
        problems: one sentence for each thing that could not be found out.
    """

    name: str
    node: dict[str, str] = msgspec.field(default_factory=dict)
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    code: dict[str, str] = msgspec.field(default_factory=dict)
    repositories: dict[str, str] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def after(self, earlier: NodeEnvironment | None) -> NodeEnvironment:
        """Return this environment, with its missing parts taken from `earlier`."""
        if earlier is None:
            return self
        parts = {part: getattr(self, part) or getattr(earlier, part) for part in _PARTS}
        return replace(self, **parts)


_PARTS = ("node", "packages", "devices", "code", "repositories")


_ABSENT = say("absent")


def changes(before: NodeEnvironment, now: NodeEnvironment) -> tuple[Message, ...]:
    """Return what has changed on a node, e.g. `jaxlib 0.9.0 -> 0.10.2`.

    The commit of a repository counts only if the trainer's own files are not known, because a
    commit may change just a report or the sweep file.
    """
    changed = [
        change
        for part in ("node", "packages", "devices")
        for change in _changed_facts(getattr(before, part), getattr(now, part))
    ]
    changed += [
        say("the trainer's Python files in {folder}", folder=folder)
        for folder, code in now.code.items()
        if _digest(before.code.get(folder, code)) != _digest(code)
    ]
    if not (before.code and now.code):
        states = ((folder, before.repositories.get(folder, state), state)
                  for folder, state in now.repositories.items())  # fmt: skip
        changed += [
            say(
                "the commit of {folder} {was} -> {now}",
                folder=folder,
                was=_commit(was),
                now=_commit(state),
            )
            for folder, was, state in states
            if _commit(was) != _commit(state)
        ]
    return tuple(changed)


def _changed_facts(old: Mapping[str, str], new: Mapping[str, str]) -> list[Message]:
    if not (old and new):
        return []
    return [
        say(
            "{name} {was} -> {now}",
            name=name,
            was=old.get(name) or _ABSENT,
            now=new.get(name) or _ABSENT,
        )
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _commit(state: str) -> str:
    return state.partition(",")[0][:12]


def _digest(code: str) -> str:
    # a digest with its count:  c4dca2df8490 of 1 Python file
    return code.partition(" ")[0]


class RunRecord(Record, frozen=True, kw_only=True):
    """What the figures of a study depend on besides its settings.

    Attributes:
        nodes: the latest known environment of each node; with several cells, code and
            repositories only where all agree.
        changes: what changed between two trials; each change began an epoch.
        image: the image of each cell with its digest; "" for none.
        commands: the command line of each session, the oldest first, without repeats.
        seed: the seed of the random order of the trials; None if the study draws none.
        started_s, ended_s: start of the first and end of the last attempt, in seconds since 1970.
        node_hours: node-hours of all attempts; None if none has ended.
        autotuning: whether XLA's choice of GPU kernels was kept the same; "" without a GPU.
    """

    nodes: tuple[NodeEnvironment, ...] = ()
    changes: tuple[Message, ...] = ()
    image: str = ""
    commands: tuple[str, ...] = ()
    seed: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    node_hours: float | None = None
    autotuning: str = ""

    def facts(self, part: str) -> dict[str, str]:
        """Return a part of the environment, from the first node for which it is known."""
        return next(
            (facts for environment in self.nodes if (facts := getattr(environment, part))), {}
        )
