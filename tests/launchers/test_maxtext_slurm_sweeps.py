"""The ready sweeps for maxtext-slurm: each runs through a pretend checkout, and plans."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers.checkout import MODEL, Site
from tests.helpers.second_looks import BESIDE_THE_LAB

SWEEPS = Path(__file__).parents[2] / "sweeps"
# name -> a profile of its own, words of its passthroughs
READY = {
    "pp8": ("overlap-2", "dcn_pipeline_parallelism_8-dcn_fsdp_parallelism_1"),
    "fsdp8": ("ag-1g", "dcn_fsdp_parallelism_8-dcn_pipeline_parallelism_1"),
    "tp8": ("windowed-einsum", "ici_tensor_parallelism_8"),
    "hybrid": ("ag-1g-overlap-2", "dcn_pipeline_parallelism_4-dcn_fsdp_parallelism_2"),
}
SETTINGS = """\
model = "{model}"

[launcher]
checkout = "{checkout}"
python = "{python}"
sbatch = ["-N", "2", "-w", "node[001-002]"]
inherit = ["PATH", "HOME", "SLURM_STANDIN"]

[overrides]
pipeline_parallel_layers = 56
"""


@pytest.fixture
def run(
    loaded: None, site: Site, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs a ready sweep by its name; returns its words."""
    text = SETTINGS.format(model=MODEL, checkout=site.checkout, python=site.python)
    (site.root / "xlatune.toml").write_text(text, encoding="utf-8")

    def call(name: str, *options: str) -> str:
        file = SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py"
        words = (str(file), "-p", "no:cacheprovider", "--xlatune-config", "xlatune.toml")
        return site.run_inside(pytester, monkeypatch, *words, *options)

    return call


@pytest.mark.parametrize(
    "name",
    ["hybrid", *(pytest.param(each, marks=BESIDE_THE_LAB) for each in READY if each != "hybrid")],
)
def test_a_ready_sweep_runs_through_a_checkout_to_its_report(
    name: str, site: Site, run: Callable[..., str]
) -> None:
    own, passed = READY[name]
    said = run(name, "-m", "wave2", "-k", f"[{own}]", "--xlatune-negative", "xfail")
    assert "1 passed" in said
    jobs = [each.name for each in site.outputs.glob("*.log")]
    assert len(jobs) >= 2
    assert all(passed in each for each in jobs)
    assert not [each for each in jobs if "model_name" in each or "heartbeat" in each]
    board = json.loads((site.root / "reports" / f"{name}-jobs" / "leaderboard.json").read_text())
    assert {each["arm"] for each in board["conclusion"]["verdicts"]} >= {own}
    # Slurm's own ids and nodes, not those of the processes that follow its jobs
    assert {job for each in board["trials"] for job in each["job_ids"]} == {
        each.partition("-")[0] for each in jobs
    }
    assert all(each["outcome"]["nodes"] == ["node001", "node002"] for each in board["trials"])
    assert board["cell"]["image"] == "rocm/jax-training:maxtext-v26.2"
    document = (site.root / "reports" / f"{MODEL}-tuning.md").read_text(encoding="utf-8")
    assert "MAXTEXT_PATCH_BRANCH=pipelines" in document
    (node,) = board["record"]["nodes"]
    assert node["node"]["kernel"] == platform.release()
    assert node["packages"]["python"]
    assert "devices: not asked" in node["problems"][0]


@pytest.mark.parametrize(("name", "bubble"), [("pp8", "8 8 7 11.1 %"), ("hybrid", "4 4 14 5.1 %")])
def test_the_bubble_is_a_number_by_the_models_name(
    name: str, bubble: str, run: Callable[..., str]
) -> None:
    said = " ".join(run(name, "--xlatune-plan").split())
    assert f"baseline-deployed {bubble}" in said


@pytest.mark.parametrize("name", READY)
def test_a_ready_sweep_asks_what_the_flagship_asks(name: str) -> None:
    ready = load_sweep(SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py")
    whole = load_sweep(SWEEPS / f"test_{name}.py")
    assert (ready.profiles, ready.derived) == (whole.profiles, whole.derived)
    assert not ready.cell.overrides, "the checkout's configuration names the model"
