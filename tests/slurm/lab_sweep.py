"""The quickstart trainer over the lab's four nodes: FSDP=4, one process per node over gloo.

The same sweep as a cluster's, small: the node slot and everything else about the site come from
options. It is no test of this project by itself (its name keeps it from being collected):
`test_slurm_sweeps.py` runs it with pytest, and so may you:

    eval "$(python tests/slurm/lab.py env)"
    pytest tests/slurm/lab_sweep.py -n 2 --xlatune-nodelist 'node[001-004]'
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    profile,
    standard_tests,
)
from tests.helpers import quick_compile

HERE = Path(__file__).parents[2] / "sweeps" / "quickstart"
TINY = {
    "hardware": "gpu_multiprocess",  # JAX finds its peers through Slurm
    "log_config": "false",
    "base_emb_dim": "32",
    "base_mlp_dim": "64",
    "base_num_decoder_layers": "2",
    "head_dim": "8",
    "vocab_size": "64",
}
LAUNCHER = MaxTextLauncher(
    python=sys.executable,
    module=str(HERE / "train.py"),
    config=str(HERE / "configs" / "quickstart.yml"),
)

SWEEP = Sweep(
    name="lab",
    cell=CellSettings(
        model_tag="quickstart",
        parallelism="FSDP=4",
        devices=4,
        per_device_batch_size=2,
        max_target_length=16,
        deployed={
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_backend_optimization_level=0 {quick_compile.flags()}",
        },
        overrides=TINY,
        protocol=Protocol(steps=30, deadline_s=240),
    ),
    launcher=LAUNCHER,
    profiles=(
        profile("opt-level-1", "--xla_backend_optimization_level=1"),
        profile("warp-drive", "--xla_cpu_enable_warp_drive=true", note="no such flag"),
    ),
    site=SiteSettings(resources=Resources(time_limit_s=300)),
    design=DesignSettings(screen_baselines=2, finalists=1, blocks=4, block_baselines=1, budget=20),
)
tests = standard_tests(SWEEP)


@pytest.mark.wave1
def test_baseline(preflight: Any, pinned_nodes: tuple[str, ...], baseline_deployed: Any) -> None:
    """In place of the standard test of this name: here the site and its faults are known."""
    assert any("warp-drive" in note for note in preflight.notes)
    assert len(pinned_nodes) == 4
    assert baseline_deployed.n == 2
