"""Pipeline parallelism over eight slices: which XLA flags help a MaxText cell.

    pytest sweeps/test_pp8.py -n 4 --xlatune-model deepseek3-671b --xlatune-nodelist 'node[001-008]'
    pytest sweeps/test_pp8.py --xlatune-plan ...        # what would run, and with what

The model and the nodes are asked of the user. The rest of the site (where MaxText is on the nodes,
its interpreter, the model's config, the env files that are deployed, a container) has defaults here
and is said in `xlatune.toml` or by options, see docs/site.md:

    [sweeps.pp8.launcher]
    python = "/opt/venv/bin/python"
    cwd = "/opt/maxtext"
    config = "configs/{model_tag}.gpu.yml"
    env-files = ["/opt/train_env.sh", "/opt/configs/{model_tag}.env.sh"]

The candidates are those of the field as measured on today's compilers: what has become a no-op or
can abort says so in its note. A profile that cannot run is dropped and named, not an error.
"""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune import (
    Around,
    CellSettings,
    Crossed,
    DesignSettings,
    MaxTextLauncher,
    NoEnv,
    Protocol,
    Resources,
    Singles,
    SiteSettings,
    Stacks,
    Sweep,
    ladders_of,
    profile,
    profiles_for,
    standard_tests,
)

OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit"
AG = "--xla_gpu_all_gather_combine_threshold_bytes"
GIB = 1 << 30

PROFILES = (
    profile(
        "overlap-2",
        f"{OVERLAP}=2",
        note="two collectives in flight, as many as there are fabrics; needs the latency hiding "
        "scheduler (on by default on Hopper, Blackwell; on MI300/MI355 before 0.12 set it)",
    ),
    profile("overlap-4", f"{OVERLAP}=4", note="four in flight"),
    profile(
        "pp-opt-level",
        "--xla_gpu_experimental_pipeline_parallelism_opt_level=PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"
        " --xla_disable_hlo_passes=collective-permute-motion --xla_gpu_enable_command_buffer=''"
        " --xla_gpu_enable_latency_hiding_scheduler=true",
        note="JAX's recipe for pipelines; a circular pipeline's permutes stay as they are",
    ),
    profile(
        "p2p-decomposed",
        "--xla_gpu_enable_pipelined_p2p=true"
        " --xla_gpu_collective_permute_decomposer_threshold=1024",
        note="send/recv instead of permutes; each flag alone is a no-op. On a circular pipeline "
        "the compiler aborts: then the profile is dropped",
    ),
    profile(
        "double-buffering",
        "--xla_gpu_enable_while_loop_double_buffering=true",
        note="unrolls the loop by two; needs scan_layers",
    ),
    profile(
        "pipelined-ag",
        "--xla_gpu_enable_pipelined_all_gather=true",
        note="the next iteration's all-gather early; more memory. An alias since 0.11.2",
    ),
    profile(
        "pipelined-ar",
        "--xla_gpu_enable_pipelined_all_reduce=true",
        note="the last iteration's all-reduce late; an alias since 0.11.2",
    ),
    profile(
        "permute-combine-8g",
        f"--xla_gpu_collective_permute_combine_threshold_bytes={8 * GIB}",
        note="adjacent permutes as one",
    ),
    profile(
        "async-priority-off",
        "--xla_gpu_enable_highest_priority_async_stream=false",
        note="`=true` is the default of every version, so only `=false` is a change",
    ),
    profile(
        "control-decomposer",
        f"--xla_gpu_collective_permute_decomposer_threshold={GIB}",
        note="a no-op by itself since 0.6: an A/A control that shows the noise",
        is_control=True,
    ),
    profile("ag-1g", f"{AG}={GIB}", wave="wave4", note="the axis inside a stage"),
    profile(
        "channels-8",
        env={"NCCL_NCHANNELS_PER_NET_PEER": "8"},
        wave="wave4",
        note="channels to a remote peer, of send/recv and all-to-all only",
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
        "microbatches-16",
        overrides={"num_pipeline_microbatches": "16"},
        wave="wave5",
        note="bubble (S-1)/(M V + S-1) with M = 16",
    ),
    profile(
        "microbatches-32",
        overrides={"num_pipeline_microbatches": "32"},
        wave="wave5",
        note="half the bubble of 16, twice the round trips",
    ),
)

SWEEP = Sweep(
    name="pp8",
    cell=CellSettings(
        parallelism="PP=8",
        overrides={
            "model_name": "{model_tag}",
            "hardware": "gpu",
            "jax_distributed_heartbeat_timeout_seconds": "99999",
        },
        protocol=Protocol(steps=15, first_step=5, deadline_s=2700),
    ),
    launcher=MaxTextLauncher(
        cwd="/workspace/maxtext",
        config="src/MaxText/configs/base.yml",
        env_files=(str(Path(__file__).parent / "maxtext" / "coordinator.env.sh"),),
    ),
    profiles=PROFILES,
    # with the target's jaxlib here, the compiler's defaults are known: NoEnv(jaxlib="0.7.2")
    no_env=NoEnv(),
    derived=(
        # with the target's device here, its vendor's settings are among them: device="gfx942"
        Singles(wave="wave2", slots=6, candidates=profiles_for("PP")),
        Stacks(wave="wave3", slots=4),
        Around(wave="wave4", slots=2, ladders=ladders_of("PP")),
        Crossed(wave="wave5_5", slots=2),  # the best flags with the best shape
    ),
    site=SiteSettings(resources=Resources(time_limit_s=2760)),
    design=DesignSettings(budget=65),
)

tests = standard_tests(SWEEP)
