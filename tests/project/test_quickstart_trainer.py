"""The quickstart trainer does what its log says: real JAX on forced host devices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.launchers import command
from pytest_xlatune.launchers.command import FOLDER
from tests.helpers import quick_compile

pytestmark = pytest.mark.jax

TRAINER = Path(__file__).parents[2] / "sweeps" / "quickstart" / "train.py"
TINY = (
    "log_config=false",
    "steps=3",
    "max_target_length=16",
    "base_emb_dim=32",
    "base_num_decoder_layers=2",
    "base_mlp_dim=64",
    "head_dim=8",
    "vocab_size=64",
)
# I1120 11:15:48.493462 140681341782912 train.py:604] completed step: 0, seconds: 0.004, ...
STEP = re.compile(
    r"(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ train\.py:\d+\] "
    r"completed step: (?P<step>\d+), seconds: \d+\.\d{3}, TFLOP/s/device: \d+\.\d{3}, "
    r"Tokens/s/device: (?P<tgs>\d+\.\d{3}), total_weights: (?P<weights>\d+), loss: (?P<loss>\S+)$"
)


def train(*args: str, flags: str, variables: dict[str, str]) -> tuple[str, str]:
    """Train on four devices, without what would change the trainer; return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "M_", "COV"))}
    forced = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, str(TRAINER), *args],
        env=kept | {"XLA_FLAGS": f"{forced} {quick_compile.flags()} {flags}"} | variables,
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_run_with_everything_on_shows_no_secret_and_what_its_metrics_file_rounds(
    tmp_path: Path,
) -> None:
    """With metrics, profiler, dump, and a full cache to defeat it."""
    args = (
        *TINY, "steps=6", "ici_fsdp_parallelism=4", "per_device_batch_size=2", "run_name=seen",
        f"base_output_directory={tmp_path}", f"metrics_file={tmp_path}/metrics.jsonl",
        "profiler=xplane", "skip_first_n_steps_for_profiler=2", "profiler_steps=2",
        f"jax_cache_dir={tmp_path}/cache",
    )  # fmt: skip
    # as a scored trial asks for XLA's options, which must not keep the step from the cache
    flags = command._DUMP_OPTIONS_FLAGS
    asked = " ".join(str(each).replace(FOLDER, str(tmp_path)) for each in flags)
    _, err = train(*args, "profiler=", flags=asked, variables={"JAX_LOG_COMPILES": "1"})
    # Finished XLA compilation of jit(train_step) in 1.234 sec
    compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", err)
    # a small program, beside which every XLA writes its options
    (named,) = (each.value for each in flags if each.name.endswith("module_re"))
    assert [name for name in compiled if re.search(str(named), f"jit_{name}")]
    assert compiled[-1] == "train_step"
    assert any("train_step" in path.name for path in tmp_path.glob("cache/*"))

    dump = f"--xla_dump_to={tmp_path}/dump --xla_dump_hlo_as_text"
    secret = {"JAX_TOKEN": "hush", "NCCL_DEBUG": "WARN", "AWS_SECRET_ACCESS_KEY": "hush"}
    out, err = train(*args, flags=dump, variables=secret)
    lines = list(STEP.finditer(err))
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    assert [int(line["step"]) for line in lines] == list(range(6))
    for line, record in zip(lines, records, strict=True):
        assert (record["step"], record["run_name"]) == (int(line["step"]), "seen")
        assert record["learning/total_weights"] == int(line["weights"]) == 2 * 4 * 16
        assert f"{record['learning/loss']:.3f}" == line["loss"]
        assert f"{record['perf/per_device_tokens_per_sec']:.3f}" == line["tgs"]
        # tokens per second times seconds is the batch of a device
        tokens = record["perf/step_time_seconds"] * record["perf/per_device_tokens_per_sec"]
        assert tokens == pytest.approx(2 * 16)
    shown = out.partition("Per train step:")[0].splitlines()
    assert (shown[0], shown[1:]) == ("Show all environment variables:", sorted(shown[1:]))
    assert "NCCL_DEBUG=WARN" in shown
    assert "hush" not in out + err
