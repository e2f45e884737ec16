"""What trials ran on: node, packages, devices, code and repositories, and what changed in it.

Texts by name, as the program on the node tells them. A fact that is absent was not found, or not
asked for: devices and, in a container, packages are asked for once a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_xlatune.model.record import Record

_COMMIT = 40  # characters of a full hash


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment(Record):
    """What a trial ran on, on one node.

    Attributes:
        name: of the node.
        node: kernel, CPU, driver, GPUs.
        packages: python, jax, jaxlib, plugins, CUDA or ROCm, NCCL, libtpu ... -> version.
        devices: kind and number of what one process sees, and the runtime's own version.
        code: folder of the trainer's program -> digest of the Python files in it.
        repositories: folder of a git repository -> commit, and whether files of it are changed.
        problems: what could not be asked, one sentence each.
    """

    name: str
    node: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    repositories: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def after(self, earlier: NodeEnvironment | None) -> NodeEnvironment:
        """Return this with what was not asked for now, but before."""
        if earlier is None:
            return self
        parts = {part: getattr(self, part) or getattr(earlier, part) for part in _PARTS}
        return replace(self, **parts)


_PARTS = ("node", "packages", "devices", "code", "repositories")


def changes(before: NodeEnvironment, now: NodeEnvironment) -> tuple[str, ...]:
    """Return all that is no longer as it was on a node, one phrase each: `jaxlib 0.9.0 -> 0.10.2`.

    A commit alone is no change: it may be of a report, or of the sweep file. Where the trainer's
    own files are not known, it has to stand for them.
    """
    found = [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for part in ("node", "packages", "devices")
        if (old := getattr(before, part)) and (new := getattr(now, part))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    found += [
        f"the trainer's Python files in {folder}"
        for folder, said in now.code.items()
        if before.code.get(folder, said) != said
    ]
    if not (before.code and now.code):
        found += [
            f"the commit of {top} {_commit(before.repositories[top])} -> {_commit(said)}"
            for top, said in now.repositories.items()
            if top in before.repositories and _commit(before.repositories[top]) != _commit(said)
        ]
    return tuple(found)


def _commit(said: str) -> str:
    return said.partition(",")[0][:12]


def differing(nodes: Sequence[NodeEnvironment]) -> tuple[str, ...]:
    """Return in what the nodes of one trial differ, one phrase each; () where they are alike."""
    found = []
    for part in ("node", "packages", "devices"):
        tables: dict[str, dict[str, str]] = {each.name: getattr(each, part) for each in nodes}
        for name in dict.fromkeys(key for table in tables.values() for key in table):
            values = {node: table.get(name, "absent") for node, table in tables.items() if table}
            if len(set(values.values())) > 1:
                said = ", ".join(f"{value} on {', '.join(on)}" for value, on in _by(values))
                found.append(f"{name}: {said}")
    return tuple(found)


def _by(values: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for node, value in values.items():
        found.setdefault(value, []).append(node)
    return found.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Record):
    """What the figures of a cell rest on, besides its settings.

    Attributes:
        nodes: the environment of each node, the last that is known.
        changes: what changed between two trials; each began an epoch.
        differing: in what the nodes differ from each other.
        image: with its digest; "" is none.
        commands: the command line of each session, oldest first, each once.
        seed: of the random order of the trials; None where the study draws none.
        started_s, ended_s: of the first and the last attempt, seconds since the epoch.
        node_hours: of all attempts; None where none has ended.
        autotuning: whether XLA's choice of GPU kernels was kept the same; "" where there is no GPU.
        two_speeds: the arms whose runs fall in two groups, one sentence each.
    """

    nodes: tuple[NodeEnvironment, ...] = ()
    changes: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    image: str = ""
    commands: tuple[str, ...] = ()
    seed: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    node_hours: float | None = None
    autotuning: str = ""
    two_speeds: tuple[str, ...] = ()

    def facts(self, part: str) -> dict[str, str]:
        """Return a part of the environment on the first node that knows it."""
        return next((found for each in self.nodes if (found := getattr(each, part))), {})
