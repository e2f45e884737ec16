"""What the flagship sweeps share: a MaxText cell, its launcher, the waves that are the same.

`test_pp8.py`, `test_fsdp8.py`, `test_tp8.py` and `test_hybrid.py` take this sweep and add what
their parallelism asks for. The model and the nodes are asked of the user. The rest of the site
(where MaxText is on the nodes, its interpreter, the model's config, the env files that are
deployed, a container) has defaults here and is said in `xlatune.toml` or by options, see
docs/how-to/site.md:

    [launcher]
    python = "/opt/venv/bin/python"
    cwd = "/opt/maxtext"
    config = "configs/{model_tag}.gpu.yml"
    env-files = ["/opt/train_env.sh", "/opt/configs/{model_tag}.env.sh"]

Every key here is one of stock MaxText. The candidates are those of the field as measured on today's
compilers: what has become a no-op or can abort says so in its note. A profile that cannot run is
dropped and named, not an error.
"""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    MaxTextLauncher,
    NoEnv,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    profile,
)

PROFILES = (
    profile(
        "double-buffering",
        "--xla_gpu_enable_while_loop_double_buffering=true",
        note="unrolls the loop over layers by two; needs scan_layers, costs memory",
    ),
    profile(
        "async-priority-off",
        "--xla_gpu_enable_highest_priority_async_stream=false",
        note="`=true` is the default of every version, so only `=false` is a change",
    ),
    profile(
        "command-buffer-off",
        "--xla_gpu_enable_command_buffer=''",
        wave="wave4",
        note="launches one by one; no change where that is deployed",
    ),
    profile(
        "mem-95",
        env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"},
        wave="wave4",
        note="a larger pool; where XLA_CLIENT_MEM_FRACTION is deployed JAX refuses both",
    ),
    profile(
        "remat-minimal",
        overrides={"remat_policy": "minimal"},
        wave="wave5",
        note="fewer activations computed again, more of them kept; out of memory where they do not "
        "fit. MaxText's default is full",
    ),
)

SWEEP = Sweep(
    name="flagship",
    cell=CellSettings(
        overrides={"model_name": "{model_tag}", "hardware": "gpu"},
        protocol=Protocol(steps=15, first_step=5, deadline_s=2700),
    ),
    launcher=MaxTextLauncher(
        cwd="/workspace/maxtext",
        config="src/MaxText/configs/base.yml",
        env_files=(str(Path(__file__).with_name("coordinator.env.sh")),),
    ),
    profiles=PROFILES,
    # with the target's jaxlib here the compiler's defaults are known: NoEnv(jaxlib="0.7.2")
    no_env=NoEnv(),
    # wave 6: another configuration of any model; name those that you deploy
    config_tags={"bf16-weights": {"weight_dtype": "bfloat16"}},
    site=SiteSettings(resources=Resources(time_limit_s=2760)),
)
