"""Ask every node whether it has what trials need: one short srun on the pinned nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_xlatune.executors import OWN_JOBS
from pytest_xlatune.executors.hostlist import compress
from pytest_xlatune.executors.slurm import site_options
from pytest_xlatune.executors.slurm_commands import Run, run_command
from pytest_xlatune.executors.slurm_text import SEPARATOR

# how long srun may wait for the nodes: they were idle a moment ago
_PATIENCE_S = 15
# the paths, an empty word, then commands; a check is named by its place among them
_SCRIPT = f"""\
while [ -n "$1" ]; do [ -e "$1" ] || echo "$SLURMD_NODENAME{SEPARATOR}$1"; shift; done
number=0
while shift; [ $# -gt 0 ]; do
  sh -c "$1" </dev/null >/dev/null 2>&1 || echo "$SLURMD_NODENAME{SEPARATOR}$number{SEPARATOR}"
  number=$((number + 1))
done
echo "$SLURMD_NODENAME"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the nodes see.

    Attributes:
        unseen: path -> the nodes that do not see it.
        unfit: what is wrong -> the nodes where a check failed.
        why_not: why nobody could look, "" where they did.
    """

    unseen: Mapping[str, tuple[str, ...]]
    unfit: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    why_not: str = ""


def look(
    paths: Sequence[str],
    *,
    checks: Sequence[tuple[str, str]] = (),
    nodelist: Sequence[str],
    options: Mapping[str, str],
    run: Run = run_command,
) -> Sight:
    """Return which of the paths do not exist and which checks fail on which node.

    Args:
        paths: absolute.
        checks: shell commands, each with what is wrong where it fails.
        nodelist: expanded, not empty.
        options: of `Resources`, so that the look runs where the trials will.
        run: runs a command of Slurm's.
    """
    sbatch, _ = site_options(options)
    site = [f"--{key}" if value is True else f"--{key}={value}" for key, value in sbatch.items()]
    answer = run(
        ["srun", f"--nodelist={compress(nodelist)}", f"--nodes={len(nodelist)}",
         "--ntasks-per-node=1", f"--immediate={_PATIENCE_S}", "--time=1", "--export=NONE",
         "--chdir=/", f"--job-name={OWN_JOBS}preflight", "--quiet", *site,
         "/bin/sh", "-c", _SCRIPT, "sh", *paths, "", *(command for command, _ in checks)]
    )  # fmt: skip
    lines = [line.split(SEPARATOR) for line in answer.out.splitlines()]
    heard = {line[0] for line in lines if len(line) == 1}
    if answer.code or set(nodelist) - heard:
        silent = ", ".join(sorted(set(nodelist) - heard))
        return Sight(unseen={}, why_not=answer.error or f"no answer from {silent}")
    unseen: dict[str, tuple[str, ...]] = {}
    # the nodes answer in any order
    for node, path in sorted(line for line in lines if len(line) == 2):  # noqa: PLR2004
        unseen[path] = (*unseen.get(path, ()), node)
    unfit: dict[str, tuple[str, ...]] = {}
    for node, number, _ in sorted(line for line in lines if len(line) == 3):  # noqa: PLR2004
        wrong = checks[int(number)][1]
        unfit[wrong] = (*unfit.get(wrong, ()), node)
    return Sight(unseen=unseen, unfit=unfit)
