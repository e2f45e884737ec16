"""What trials ran on: node, packages, devices, code and repositories, and what changed there.

The facts are texts by name, as the program on the node reports them. A missing fact was not found,
or not asked for: devices, and packages in a container, are asked for once in a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Record

_COMMIT = 40  # characters of a full hash


class NodeEnvironment(Record, frozen=True, kw_only=True):
    """The environment of a trial on one node.

    Attributes:
        name: name of the node.
        node: kernel, CPU, driver, GPUs.
        packages: python, jax, jaxlib, plugins, CUDA or ROCm, NCCL, libtpu ... -> version.
        devices: kind and number of the devices that one process sees, and the runtime's version.
        code: folder of the trainer's program -> digest of its Python files.
        repositories: folder of a git repository -> commit, and whether files were changed since.
        problems: what could not be found out, one sentence each.
    """

    name: str
    node: dict[str, str] = msgspec.field(default_factory=dict)
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    code: dict[str, str] = msgspec.field(default_factory=dict)
    repositories: dict[str, str] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def after(self, earlier: NodeEnvironment | None) -> NodeEnvironment:
        """Return this environment with facts of `earlier` that were not asked for now."""
        if earlier is None:
            return self
        parts = {part: getattr(self, part) or getattr(earlier, part) for part in _PARTS}
        return replace(self, **parts)


_PARTS = ("node", "packages", "devices", "code", "repositories")


_ABSENT = say("absent")


def changes(before: NodeEnvironment, now: NodeEnvironment) -> tuple[Message, ...]:
    """Return what has changed on a node, e.g. `jaxlib 0.9.0 -> 0.10.2`.

    A commit alone does not count, because it may only change a report or the sweep file. It counts
    if the trainer's own files are not known.
    """
    changed = [
        say(
            "{name} {was} -> {now}",
            name=name,
            was=old.get(name) or _ABSENT,
            now=new.get(name) or _ABSENT,
        )
        for part in ("node", "packages", "devices")
        if (old := getattr(before, part)) and (new := getattr(now, part))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    changed += [
        say("the trainer's Python files in {folder}", folder=folder)
        for folder, code in now.code.items()
        if _digest(before.code.get(folder, code)) != _digest(code)
    ]
    if not (before.code and now.code):
        pairs = ((top, before.repositories.get(top, state), state)
                 for top, state in now.repositories.items())  # fmt: skip
        changed += [
            say(
                "the commit of {folder} {was} -> {now}",
                folder=top,
                was=_commit(was),
                now=_commit(state),
            )
            for top, was, state in pairs
            if _commit(was) != _commit(state)
        ]
    return tuple(changed)


def _commit(state: str) -> str:
    return state.partition(",")[0][:12]


def _digest(code: str) -> str:
    # a digest with its count:  c4dca2df8490 of 1 Python file
    return code.partition(" ")[0]


def differing(nodes: Sequence[NodeEnvironment]) -> tuple[str, ...]:
    """Return how the nodes of one trial differ, one phrase for each fact; () if they are alike."""
    differences = []
    for part in ("node", "packages", "devices"):
        tables: dict[str, dict[str, str]] = {
            environment.name: getattr(environment, part) for environment in nodes
        }
        for name in dict.fromkeys(key for table in tables.values() for key in table):
            values = {node: table.get(name, "absent") for node, table in tables.items() if table}
            if len(set(values.values())) > 1:
                text = ", ".join(f"{value} on {', '.join(on)}" for value, on in _by(values))
                differences.append(f"{name}: {text}")
    return tuple(differences)


def _by(values: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    by_value: dict[str, list[str]] = {}
    for node, value in values.items():
        by_value.setdefault(value, []).append(node)
    return by_value.items()


class RunRecord(Record, frozen=True, kw_only=True):
    """What the figures of a study depend on besides its settings.

    Attributes:
        nodes: the latest known environment of each node; with several cells, only the code that
            they have in common.
        changes: what changed between two trials; each change began an epoch.
        differing: how the nodes differ from each other.
        image: the image of each cell with its digest; "" for none.
        commands: the command line of each session, the oldest first, without repeats.
        seed: the seed of the random order of the trials; None if the study draws none.
        started_s, ended_s: start of the first and end of the last attempt, in seconds since 1970.
        node_hours: node-hours of all attempts; None if none has ended.
        autotuning: whether XLA's choice of GPU kernels was kept the same; "" without a GPU.
        two_speeds: one sentence for each arm whose runs fall into two groups.
        is_rebuilt: whether the ledger was lost, so that this one was rebuilt from attempts' files.
    """

    nodes: tuple[NodeEnvironment, ...] = ()
    changes: tuple[Message, ...] = ()
    differing: tuple[str, ...] = ()
    image: str = ""
    commands: tuple[str, ...] = ()
    seed: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    node_hours: float | None = None
    autotuning: str = ""
    two_speeds: tuple[str, ...] = ()
    is_rebuilt: bool = False

    def facts(self, part: str) -> dict[str, str]:
        """Return a part of the environment, from the first node for which it is known."""
        return next(
            (facts for environment in self.nodes if (facts := getattr(environment, part))), {}
        )
