"""What the flagship sweeps share where a checkout of maxtext-slurm submits the jobs.

The files beside this one take a sweep of `sweeps/` and this launcher. They run on the login node:
the checkout's `submit.sh` makes the jobs, and a process here follows each of them. Say where the
checkout is and which nodes it gets, for all of them, in `xlatune.toml`:

    model = "deepseek3-671b"                  # configs/deepseek3-671b.gpu.yml, by its whole name

    [launcher]
    checkout = "/shared/maxtext-slurm"
    sbatch = ["-N", "8", "-w", "node[001-008]"]

The model's configuration in the checkout names the model and what it needs; nothing here is a key
that stock MaxText refuses. (AMD's fork also takes `jax_distributed_heartbeat_timeout_seconds`: a
site that wants it says so below `[overrides]`.)
"""

from __future__ import annotations

from pytest_xlatune import (
    CellSettings,
    MaxTextSlurmLauncher,
    NoEnv,
    Patience,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
)

SWEEP = Sweep(
    name="maxtext-slurm",
    cell=CellSettings(protocol=Protocol(steps=15, first_step=5, deadline_s=2700)),
    launcher=MaxTextSlurmLauncher(
        checkout="/shared/maxtext-slurm",
        sbatch=("-N", "8", "-w", "node[001-008]"),
        is_ray=True,
    ),
    no_env=NoEnv(),
    site=SiteSettings(
        executor="local",  # the jobs are the checkout's; a trial is the process that follows one
        resources=Resources(patience=Patience(before_memstats_s=6 * 3600)),  # the queue included
    ),
)
