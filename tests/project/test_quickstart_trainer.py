"""The quickstart trainer does what its log says: real JAX on forced host devices.

`make test` tries one layout, `make test-all` the others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_xlatune.launchers import command as program
from pytest_xlatune.launchers.command import FOLDER
from tests.helpers import quick_compile
from tests.helpers.tables import rows

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


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def losses(self) -> list[float]:
        return [float(match["loss"]) for match in STEP.finditer(self.err)]


def environment(devices: int, flags: str, variables: dict[str, str]) -> dict[str, str]:
    """The test's own environment without what would change the trainer."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "M_", "COV"))}
    forced = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return kept | {"XLA_FLAGS": f"{forced} {quick_compile.flags()} {flags}".strip()} | variables


def train(
    *args: str, devices: int = 1, flags: str = "", variables: dict[str, str] | None = None
) -> Ended:
    done = subprocess.run(
        [sys.executable, str(TRAINER), *args], env=environment(devices, flags, variables or {}),
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


REFUSED = {
    "an unknown key is named beside the nearest": (
        "per_device_batchsize=2", {},
        "Key per_device_batchsize (argument) is no key of this trainer; the nearest is per_dev",
    ),
    "axes that multiply to another number than the devices": (
        "ici_fsdp_parallelism=3", {},
        "2 does not match the product of the DCN and ICI parallelism 3 (ici_fsdp=3;"),
    "a key by both variable and argument": (
        "steps=3", {"M_STEPS": "4"}, "steps is given by both the variable M_STEPS and 'steps=3'"),
}  # fmt: skip


@rows("argument, variables, message", REFUSED)
def test_what_is_not_honoured_is_refused(
    argument: str, variables: dict[str, str], message: str
) -> None:
    ended = train(argument, "log_config=false", devices=2, variables=variables)
    assert ended.code == 1
    assert message in ended.err
    assert "CONFIG ERROR" in ended.err


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
    flags = program._DUMP_OPTIONS_FLAGS
    asked = " ".join(str(each).replace(FOLDER, str(tmp_path)) for each in flags)
    first = train(*args, "profiler=", devices=4, flags=asked, variables={"JAX_LOG_COMPILES": "1"})
    # Finished XLA compilation of jit(train_step) in 1.234 sec
    compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", first.err)
    # a small program, beside which every XLA writes its options
    (named,) = (each.value for each in flags if each.name.endswith("module_re"))
    assert [name for name in compiled if re.search(str(named), f"jit_{name}")]
    assert compiled[-1] == "train_step"
    assert any("train_step" in path.name for path in tmp_path.glob("cache/*"))

    dump = f"--xla_dump_to={tmp_path}/dump --xla_dump_hlo_as_text"
    secret = {"JAX_TOKEN": "hush", "NCCL_DEBUG": "WARN", "AWS_SECRET_ACCESS_KEY": "hush"}
    ended = train(*args, devices=4, flags=dump, variables=secret)
    assert ended.code == 0, ended.err
    lines = list(STEP.finditer(ended.err))
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
    shown = ended.out.partition("Per train step:")[0].splitlines()
    assert (shown[0], shown[1:]) == ("Show all environment variables:", sorted(shown[1:]))
    assert "NCCL_DEBUG=WARN" in shown
    assert "hush" not in ended.out + ended.err


LAYOUTS = {
    "fully sharded": ("ici_fsdp_parallelism=4",),
    "tensor parallel by two, sharded by two": (
        "ici_tensor_parallelism=2", "ici_fsdp_parallelism=2"),
    "a pipeline of two, sharded by two, in four microbatches": (
        "ici_pipeline_parallelism=2", "ici_fsdp_parallelism=2", "num_pipeline_microbatches=4"),
    "layers recomputed and unrolled": ("remat_policy=full", "scan_layers=false"),
}  # fmt: skip


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([*LAYOUTS][:1], id="one"),
        pytest.param([*LAYOUTS][1:], id="others", marks=pytest.mark.part("programs")),
    ],
)
def test_the_same_global_batch_gives_the_same_losses_as_on_one_device(layouts: list[str]) -> None:
    alone = train(*TINY, "per_device_batch_size=8")
    for layout in layouts:
        ended = train(*TINY, "per_device_batch_size=2", *LAYOUTS[layout], devices=4)
        assert ended.code == 0, (layout, ended.err)
        assert len(ended.losses) == 3, layout
        assert ended.losses == pytest.approx(alone.losses, abs=2e-3), layout
        assert ended.losses[2] < ended.losses[0], layout
