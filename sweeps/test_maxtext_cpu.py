"""MaxText itself on this machine: the package of the index, a tiny model, real XLA flags.

    make maxtext-sweep      or      pytest sweeps/test_maxtext_cpu.py -n 1

MaxText lives in an environment of its own, `.maxtext`, which `make maxtext` makes, and is started
as a process; `--xlatune-launcher python=PATH` names the interpreter of another. The cell is FSDP=2
over two forced CPU devices, and what is deployed carries a leftover that costs most of the speed.
A trial takes 20 to 40 seconds on two cores with little else to do, most of it importing and
compiling.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune import Protocol, Sweep, deployed_env, profile
from pytest_xlatune.launchers.maxtext import MaxTextLauncher

HERE = Path(__file__).parent / "maxtext" / "configs"
PYTHON = Path(__file__).parents[1] / ".maxtext" / "bin" / "python"

RESTORED = "--xla_backend_optimization_level=3"

PROFILES = (
    profile(
        "opt-level-3",
        RESTORED,
        note="the compiler's default level, where the deployed leftover is taken back",
    ),
    profile(
        "fusion-off",
        "--xla_disable_hlo_passes=fusion",
        note="every elementwise operation by itself: more memory traffic, longer to compile",
    ),
    profile(
        "gpu-threshold",
        "--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
        note="a GPU's flag: nothing here reads it, so it shows the noise",
    ),
    profile(
        "warp-drive",
        "--xla_cpu_enable_warp_drive=true",
        note="no such flag: XLA says so, and the profile is dropped",
    ),
    profile(
        "restored-minimal-remat",
        RESTORED,
        overrides={"remat_policy": "minimal"},
        wave="wave3",
        note="the default level, and fewer activations computed again",
    ),
)

SWEEP = Sweep(
    name="maxtext-cpu",
    model_tag="tiny-cpu",
    parallelism="FSDP=2",
    devices=2,
    per_device_batch_size=4,
    max_target_length=128,
    launcher=MaxTextLauncher(
        python=str(PYTHON),
        module="maxtext.trainers.pre_train.train",
        config=str(HERE / "{model_tag}.gpu.yml"),
        axis_prefix={"FSDP": "ici", "PP": "ici"},  # a CPU has no slices
    ),
    deployed=deployed_env(HERE / "tiny-cpu.env.sh", parallelism="FSDP=2"),
    env_file=str(HERE / "tiny-cpu.env.sh"),
    profiles=PROFILES,
    protocol=Protocol(steps=30, first_step=8, deadline_s=600),
    executor="local",
    screen_baselines=2,
    finalists=1,
    blocks=4,
    block_baselines=1,
    budget=24,
)


@pytest.mark.wave1
def test_baseline(preflight, baseline_deployed):
    """The cell as deployed trains, and this MaxText knows every key."""
    assert not [note for note in preflight.notes if "keys were not checked" in note]
    assert baseline_deployed.n >= 2


@pytest.mark.wave1_5
def test_evidence(evidence):
    """Profiler and dump of the cell as deployed, in a run of its own that has no score."""
    recorded = evidence("baseline-deployed")
    assert recorded.dump, recorded.problems
    assert recorded.captures, recorded.problems


@pytest.mark.wave2
def test_single_flag(measure, profile):
    """Each flag by itself, measured once: it ranks, and proves nothing."""
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave3
def test_stack(measure, profile):
    """What led, stacked."""
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_finalist(measure, finalist):
    """The best of the screen, again in fresh blocks: only this decides."""
    measured = measure(finalist)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_why_the_winner_wins(evidence, winner):
    """The same of what the blocks prove fastest: the tuning document compares both."""
    recorded = evidence(winner)
    assert recorded.dump, recorded.problems
    assert recorded.captures, recorded.problems
