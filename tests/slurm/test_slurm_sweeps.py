"""What a node of the lab learns from the env files of the sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_every_node_learns_its_coordinator(trials: Any) -> None:
    """`sweeps/maxtext/coordinator.env.sh` is what MaxText's hardware=gpu joins its processes by."""
    file = Path(__file__).parents[2] / "sweeps" / "maxtext" / "coordinator.env.sh"
    names = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")
    shown = " ".join(f"${name}" for name in names)
    nodes = ("node004", "node002", "node003")
    done = trials.submit(
        "join", f". {file}; echo {shown}", nodes, spec={"inherit": ("PATH", "SLURM_*")}
    )
    assert trials.end(done).state == "completed"
    port = 61440 + int(done.job_id) % 4096
    said = [trials.log(done, rank).split() for rank in range(3)]
    assert said == [["node002", str(port), "3", str(rank)] for rank in range(3)]
