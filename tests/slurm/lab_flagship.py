"""A flagship sweep as the lab's nodes can run it: every wave, one or two profiles in each.

The sweep of `sweeps/` itself, made small: its launcher joins the processes by the same env file,
its waves derive by the same rules. The trainer is the quickstart's: real JAX over gloo, for which
the flags of a GPU do nothing. So what is deployed costs most of the speed, as in `lab_waves.py`,
and the two profiles of that sweep take it back. FLAGSHIP names the sweep, FLAGSHIP_NODES on how
many nodes its four devices are, 2 or 4. Run by `test_slurm_flagships.py`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune import Around, MaxTextLauncher, Protocol, Singles, load_sweep, standard_tests

NAME = os.environ["FLAGSHIP"]


class Small(NamedTuple):
    """How small a flagship is.

    Attributes:
        axes: the degrees over four devices.
        layers: as few as the axes let.
        length: tokens of a sequence, as many as make the work more than the collectives.
    """

    axes: str
    layers: int
    length: int


SMALL = {
    "pp8": Small("PP=4", layers=4, length=16),
    "hybrid": Small("PP=2,FSDP=2", layers=2, length=16),
    "fsdp8": Small("FSDP=4", layers=1, length=128),
    "tp8": Small("TP=4", layers=1, length=128),
}[NAME]
# its processes find each other by the flagship's env file, and FSDP has a degree of its own
NOT_OF_LAB = {"hardware", *(["ici_fsdp_parallelism"] if "FSDP" in SMALL.axes else [])}
SWEEPS = Path(__file__).parents[2] / "sweeps"
WHOLE = load_sweep(SWEEPS / f"test_{NAME}.py")
LAB = load_sweep(Path(__file__).with_name("lab_waves.py"))
assert isinstance(WHOLE.launcher, MaxTextLauncher)
assert isinstance(LAB.launcher, MaxTextLauncher)
(LADDERS,) = (rule.ladders for rule in LAB.derived if isinstance(rule, Around))

FIRST = {each.wave: each for each in reversed(WHOLE.profiles)}  # of each wave the first
if "remat_policy" in FIRST["wave5"].overrides:  # this trainer has other words for it
    FIRST["wave5"] = replace(FIRST["wave5"], overrides={"remat_policy": "full"})

SWEEP = replace(
    WHOLE,
    cell=replace(
        WHOLE.cell,
        model_tag="quickstart",
        parallelism=SMALL.axes,
        devices=LAB.cell.devices,
        per_device_batch_size=LAB.cell.per_device_batch_size,
        max_target_length=SMALL.length,
        deployed=LAB.cell.deployed,
        overrides={
            **WHOLE.cell.overrides,
            **{key: LAB.cell.overrides[key] for key in LAB.cell.overrides.keys() - NOT_OF_LAB},
            "base_num_decoder_layers": str(SMALL.layers),
        },
        protocol=Protocol(
            steps=12,
            first_step=3,
            min_steps=6,
            skip_first_steps=4,
            profiler_steps=3,
            deadline_s=240,
        ),
    ),
    launcher=dataclasses.replace(
        WHOLE.launcher,
        python=LAB.launcher.python,
        module=LAB.launcher.module,
        config=LAB.launcher.config,
        cwd="",
    ),
    profiles=(*(each for each in LAB.profiles if each.wave == "wave2"), *FIRST.values()),
    no_env=LAB.no_env,
    derived=tuple(
        replace(rule, slots=1, ladders=LADDERS)
        if isinstance(rule, Around)
        else replace(rule, slots=1)
        for rule in WHOLE.derived
        if not (isinstance(rule, Singles) and rule.wave == "wave5")  # keys of MaxText alone
    ),
    config_tags=LAB.config_tags,
    site=LAB.site,
    design=replace(LAB.design, budget=30),
)

tests = standard_tests(SWEEP, evidence=True)
