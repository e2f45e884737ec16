"""Ask every node whether it sees the files that trials need: one short srun on the pinned nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.executors.hostlist import compress
from pytest_xlatune.executors.slurm import site_options
from pytest_xlatune.executors.slurm_commands import Run, run_command
from pytest_xlatune.executors.slurm_text import SEPARATOR

# how long srun may wait for the nodes: they were idle a moment ago
_PATIENCE_S = 15
_SCRIPT = f"""\
for each do [ -e "$each" ] || echo "$SLURMD_NODENAME{SEPARATOR}$each"; done
echo "$SLURMD_NODENAME"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the nodes see.

    Attributes:
        unseen: path -> the nodes that do not see it.
        why_not: why nobody could look, "" where they did.
    """

    unseen: Mapping[str, tuple[str, ...]]
    why_not: str = ""


def look(
    paths: Sequence[str],
    *,
    nodelist: Sequence[str],
    options: Mapping[str, str],
    run: Run = run_command,
) -> Sight:
    """Return which of the paths do not exist on which node.

    Args:
        paths: absolute.
        nodelist: expanded, not empty.
        options: of `Resources`, so that the look runs where the trials will.
        run: runs a command of Slurm's.
    """
    sbatch, _ = site_options(options)
    site = [f"--{key}" if value is True else f"--{key}={value}" for key, value in sbatch.items()]
    answer = run(
        ["srun", f"--nodelist={compress(nodelist)}", f"--nodes={len(nodelist)}",
         "--ntasks-per-node=1", f"--immediate={_PATIENCE_S}", "--time=1", "--export=NONE",
         "--chdir=/", "--job-name=xlt-preflight", "--quiet", *site,
         "/bin/sh", "-c", _SCRIPT, "sh", *paths]
    )  # fmt: skip
    lines = [line.split(SEPARATOR) for line in answer.out.splitlines()]
    heard = {line[0] for line in lines if len(line) == 1}
    if answer.code or set(nodelist) - heard:
        silent = ", ".join(sorted(set(nodelist) - heard))
        return Sight(unseen={}, why_not=answer.error or f"no answer from {silent}")
    unseen: dict[str, tuple[str, ...]] = {}
    # the nodes answer in any order
    for node, path in sorted(line for line in lines if len(line) != 1):
        unseen[path] = (*unseen.get(path, ()), node)
    return Sight(unseen=unseen)
