"""A MaxText cell on a host of eight TPU chips: which flags of libtpu help it.

    pytest sweeps/test_tpu.py --xlatune-model llama2-7b --xlatune-launcher python=/opt/bin/python

The candidates are the catalog's for this parallelism and device. Each is appended to the deployed
flags: flags of libtpu in LIBTPU_INIT_ARGS, flags of XLA in XLA_FLAGS. Most candidates are options
of a compilation and take turns in one job. See docs/how-to/tpu.md.
"""

from __future__ import annotations

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    SiteSettings,
    Stacks,
    Sweep,
    profiles_for,
    standard_tests,
)

DEPLOYED = "--xla_tpu_scoped_vmem_limit_kib=65536"
SWEEP = Sweep(
    name="tpu",
    launcher=MaxTextLauncher(
        module="maxtext.trainers.pre_train.train",
        config="/opt/maxtext/configs/{model_tag}.yml",
        axis_prefix={"FSDP": "ici"},  # inside a slice
    ),
    cell=CellSettings(
        parallelism="FSDP=8",
        devices=8,
        deployed={"LIBTPU_INIT_ARGS": DEPLOYED},
        protocol=Protocol(steps=15),
    ),
    site=SiteSettings(executor="local"),
    profiles=(
        # this leaves out what is deployed, and candidates for other devices
        *profiles_for("FSDP", device="v5e", deployed=DEPLOYED),
        # bundles of MaxText's own
        *profiles_for("FSDP", device="v5e", deployed=DEPLOYED, wave="wave3"),
    ),
    derived=(Stacks(wave="wave4", slots=4),),
    design=DesignSettings(budget=72),
)

tests = standard_tests(SWEEP)
