"""Train a small decoder-only transformer on synthetic tokens, in the manner of MaxText.

    python train.py [config.yml] key=value ...

Real JAX, real XLA flags, real traces and dumps, on forced host devices of a CPU or on GPUs, in one
process or several. What a harness sees is MaxText's: its arguments, its log, its metrics file,
its profiler folder. An argument that would not be honoured is an error. Run with
`log_config=true` to see every key and its value.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from configuration import AXES, FIELDS, Config, ConfigError, load_config
from jax.sharding import Mesh
from model import Model, Tree

log = logging.getLogger("train")


class NanLossError(Exception):
    """The loss went NaN, and `abort_on_nan_loss` is set."""


# --- what the log says before the first step ------------------------------------------------------

# Only what changes speed; a log is read by many, so nothing else of the environment goes in.
# TF_CPP_, but not the TF_VAR_ of another tool
SHOWN = re.compile(
    r"(XLA|LIBTPU|NCCL|RCCL|JAX|HSA|HIP|ROCR|GPU|CUDA|OMP|NVTE|UCX|MKL|TF_(CPP|XLA|GPU|CUDNN))_.*|NPROC"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|API_?KEY")


def environment_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """List the variables that change speed as sorted NAME=VALUE lines, one line each."""
    for name, value in sorted(environ.items()):
        if SHOWN.fullmatch(name) and not SECRET.search(name):
            yield f"{name}={' '.join(value.splitlines())}"


class AbslFormatter(logging.Formatter):
    """The prefix of absl's log: `I1120 08:58:31.510559 139728751639424 train.py:265] `."""

    def format(self, record: logging.LogRecord) -> str:
        """Put the prefix before the message."""
        when = dt.datetime.fromtimestamp(record.created).astimezone()
        letter = "F" if record.levelno == logging.CRITICAL else record.levelname[0]
        return (
            f"{letter}{when:%m%d %H:%M:%S.%f} {threading.get_ident()} "
            f"{record.filename}:{record.lineno}] {record.getMessage()}"
        )


def log_memory(label: str) -> None:
    log.info("")
    log.info("Memstats: %s:", label)
    for device in jax.local_devices():
        stats = device.memory_stats()
        if not stats or "bytes_limit" not in stats:
            log.info("\tMemstats unavailable, error: %s reports none", device)
            continue
        used, limit = stats["bytes_in_use"] / 2**30, stats["bytes_limit"] / 2**30
        log.info("\tUsing (GB) %.2f / %.2f (%f%%) on %s", used, limit, 100 * used / limit, device)


def log_compiled_memory(compiled: Any) -> None:
    stats = compiled.memory_analysis()
    if stats is None:
        return
    sizes = {
        "Output": stats.output_size_in_bytes,
        "Temp": stats.temp_size_in_bytes,
        "Argument": stats.argument_size_in_bytes,
        "Host temp": stats.host_temp_size_in_bytes,
    }
    total = sum(sizes.values()) - stats.alias_size_in_bytes
    parts = ", ".join(f"{name} size: {size / 2**30:.3f} GB" for name, size in sizes.items())
    log.info("Total memory size: %.3f GB, %s", total / 2**30, parts)


# --- devices and processes ------------------------------------------------------------------------


KEPT_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # what compiles faster is not kept


def dumps_step(flags: str) -> bool:
    """Tell whether XLA is asked to dump the step, and not other modules alone."""
    named = re.findall(r"--xla_dump_hlo_module_re=(\S+)", flags)
    is_named = not named or re.search(named[-1], "jit_train_step") is not None
    return "--xla_dump_to" in flags and is_named


def start_jax(config: Config, environ: Mapping[str, str]) -> None:
    """Choose the platform and the compile cache, and join the other processes if there are any."""
    if config.hardware == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if config.jax_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.jax_cache_dir)
        if KEPT_FROM not in environ:
            jax.config.update(KEPT_FROM.lower(), 0.0)
    if dumps_step(environ.get("XLA_FLAGS", "")):
        # a module that comes out of the cache is not compiled, and so not dumped
        jax.config.update("jax_enable_compilation_cache", val=False)
    if config.skip_jax_distributed_system:
        return
    if config.hardware == "gpu_multiprocess":
        jax.distributed.initialize(**heartbeat(config))  # finds Slurm by itself
        return
    for contract in CONTRACTS:
        if contract[1] in environ:
            join(contract, environ, heartbeat(config))
            return


# who sets them: JAX's own names, and those of Slurm scripts. Address, count, index, port
CONTRACTS = (
    ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_COUNT", "JAX_PROCESS_ID"),
    ("JAX_COORDINATOR_IP", "NNODES", "NODE_RANK", "JAX_COORDINATOR_PORT"),
)


def heartbeat(config: Config) -> dict[str, int]:
    """Return how long the other processes may be silent, as JAX takes it, if a user says so.

    Raises:
        ConfigError: this JAX cannot be told.
    """
    limit_s = config.jax_distributed_heartbeat_timeout_seconds
    if limit_s == FIELDS["jax_distributed_heartbeat_timeout_seconds"].default:
        return {}
    if "heartbeat_timeout_seconds" not in inspect.signature(jax.distributed.initialize).parameters:
        raise ConfigError(
            f"jax_distributed_heartbeat_timeout_seconds={limit_s}: JAX {jax.__version__} takes none"
        )
    return {"heartbeat_timeout_seconds": limit_s}


def join(contract: Sequence[str], environ: Mapping[str, str], options: Mapping[str, int]) -> None:
    """Join the processes that the variables of a contract name; one process needs no joining.

    Raises:
        ConfigError: a variable of the contract is missing, or is no number.
    """
    if environ[contract[1]] == "1":
        return
    try:
        address, count, index, *port = (environ[name] for name in contract)
        numbers = int(count), int(index)
    except KeyError as missing:
        raise ConfigError(f"{contract[1]} is set, but {missing} is not") from None
    except ValueError as error:
        raise ConfigError(f"{contract[1]} or {contract[2]}: {error}") from None
    jax.distributed.initialize(":".join([address, *port]), *numbers, **options)


def build_mesh(config: Config) -> Mesh:
    """Lay the devices out by the axes; degrees between slices vary slowest.

    Raises:
        ConfigError: the degrees do not multiply to the devices.
    """
    devices = jax.devices()
    degrees = [config.degree(axis, fabric) for fabric in ("dcn", "ici") for axis in AXES]
    known = math.prod(degree for degree in degrees if degree != -1)
    if degrees.count(-1) == 1 and known > 0 and len(devices) % known == 0:
        degrees[degrees.index(-1)] = len(devices) // known
    if any(degree < 1 for degree in degrees) or math.prod(degrees) != len(devices):
        named = ", ".join(
            f"{fabric}_{axis}={config.degree(axis, fabric)}"
            for fabric in ("dcn", "ici")
            for axis in AXES
            if config.degree(axis, fabric) != 1
        )
        raise ConfigError(
            f"Number of devices {len(devices)} does not match the product of the DCN and ICI "
            f"parallelism {known} ({named or 'every axis is 1'}; one axis may be -1)"
        )
    half = len(AXES)
    interleaved = [axis + fabric for axis in range(half) for fabric in (0, half)]
    sizes = [degrees[axis] * degrees[half + axis] for axis in range(half)]
    return Mesh(np.array(devices).reshape(degrees).transpose(interleaved).reshape(sizes), AXES)


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Writes a step's line and metrics, one step late: reading a loss waits for its step."""

    config: Config
    model: Model
    metrics: TextIO | None

    def write(self, step: int, seconds: float, loss: float) -> None:
        """Write one step; `seconds` is the host's time since the dispatch of the step before.

        Raises:
            NanLossError: after the line and the metrics of the step.
        """
        config, model = self.config, self.model
        tgs = config.per_device_batch_size * config.max_target_length / seconds
        tflops = sum(model.step_tflops) / seconds
        if config.hide_profiler_step_metric and step in profiler_boundary(config):
            head = f"completed profiler activation/deactivation step: {step}"
        else:
            head = (
                f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, "
                f"Tokens/s/device: {tgs:.3f}"
            )
        log.info("%s, total_weights: %d, loss: %.3f", head, model.tokens, loss)
        if self.metrics:
            record = {
                "step": step,
                "run_name": config.run_name,
                "learning/loss": loss,
                "learning/total_weights": model.tokens,
                "perf/step_time_seconds": seconds,
                "perf/per_device_tokens_per_sec": tgs,
                "perf/per_device_tflops_per_sec": tflops,
            }
            print(json.dumps(record), file=self.metrics, flush=True)
        if config.abort_on_nan_loss and math.isnan(loss):
            raise NanLossError("Aborting training due to NaN loss.")


def profiler_boundary(config: Config) -> set[int]:
    """Return the steps whose time holds the start or the stop of the profiler (MaxText's set)."""
    if not config.profiler:
        return set()
    first, end = config.skip_first_n_steps_for_profiler, config.profile_end
    return {first, first + 1, end, end + 1}


def train(config: Config, model: Model, metrics: TextIO | None) -> None:
    """Compile the step, then run it, one step ahead of the log."""
    state, batch = model.initial_state(), model.synthetic_batch()
    # As most trainers do, compile a small program before the step: who asks XLA for its options
    # gets them beside it, and need not dump the step.
    jnp.zeros(()).block_until_ready()
    log_memory("After params initialized")

    def train_step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        return model.train_step(state, batch)

    step_fn = jax.jit(
        train_step, donate_argnums=0, out_shardings=(model.state_shardings(), model.sharding())
    )
    compiled = step_fn.lower(state, batch).compile()
    log_compiled_memory(compiled)

    report = StepReport(config=config, model=model, metrics=metrics)
    traced = bool(config.profiler) and (
        config.upload_all_profiler_results or jax.process_index() == 0
    )
    folder = Path(config.base_output_directory, config.run_name, "tensorboard")
    # Two steps at once on a CPU fight for the cores, and the time between dispatches says nothing.
    one_at_a_time = jax.default_backend() == "cpu"
    pending: tuple[int, float, jax.Array] | None = None
    dispatched = time.perf_counter()
    for step in range(config.steps):
        if pending and one_at_a_time:
            jax.block_until_ready(pending[2])
        if traced and step == config.skip_first_n_steps_for_profiler:
            jax.profiler.start_trace(str(folder))
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            state, loss = compiled(state, batch)
        before, dispatched = dispatched, time.perf_counter()
        if pending:
            report.write(pending[0], pending[1], float(pending[2]))
        pending = (step, dispatched - before, loss)
        if traced and step == config.profile_end - 1:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
    if pending:
        report.write(pending[0], pending[1], float(pending[2]))


def run(args: Sequence[str]) -> None:
    """Do what the arguments say."""
    config = load_config(args, os.environ)
    print("Show all environment variables:", *environment_lines(os.environ), sep="\n", flush=True)
    start_jax(config, os.environ)
    mesh = build_mesh(config)
    model = Model.build(config, mesh)
    log.info("System Information: Jax Version: %s", jax.__version__)
    log.info("System Information: Jax Backend: %s", jax.default_backend())
    log.info("System Information: Devices: %s", jax.devices())
    log.info("Num_devices: %d, shape %s", mesh.size, mesh.devices.shape)
    if config.log_config:
        for key in sorted(FIELDS):
            log.info("Config param %s: %s", key, getattr(config, key))
    log.info("number parameters: %.3f billion", model.parameters / 1e9)
    weights, attention = model.step_tflops
    total = weights + attention
    print(
        f"Per train step:\n Total TFLOPs: {total:.6f} \n split as {100 * weights / total:.2f}% "
        f"learnable weight flops and {100 * attention / total:.2f}% attention flops",
        flush=True,
    )
    if not config.metrics_file:
        train(config, model, None)
        return
    path = Path(config.metrics_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as metrics:
        train(config, model, metrics)


def main() -> int:
    """Run, and turn the two troubles that have a name into one line and exit code 1."""
    handler = logging.StreamHandler()
    handler.setFormatter(AbslFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        run(sys.argv[1:])
    except ConfigError as error:
        log.critical("CONFIG ERROR: %s", error)
        return 1
    except NanLossError as error:
        log.critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
