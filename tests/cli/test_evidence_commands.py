"""`xlatune hlo`, `drill`: kept dumps and made captures, bad files; those of our trainer last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.helpers.captures import node
from tests.helpers.hlo_programs import write_dump

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart"
TINY = (
    "steps=9", "max_target_length=16", "base_emb_dim=32", "base_num_decoder_layers=2",
    "base_mlp_dim=64", "head_dim=8", "vocab_size=64", "per_device_batch_size=2",
    "ici_fsdp_parallelism=4", "profiler=xplane", "skip_first_n_steps_for_profiler=3",
    "profiler_steps=3",
)  # fmt: skip


def captured(folder: Path, unit: int) -> Path:
    """A folder with the capture of a node with four devices, steps 5, 6 and 7."""
    folder.mkdir()
    (folder / "n1.xplane.pb").write_bytes(node(gpus=4, unit=unit).data())
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return captured(tmp_path / "base", 10**6)


# --- hlo ------------------------------------------------------------------------------------------


def test_dumps_of_a_gpu_are_read_with_the_files_beside_them_and_compared(
    run: Run, tmp_path: Path
) -> None:
    code, out, err = run("hlo", write_dump(tmp_path / "dump", "fsdp-ov"))
    assert (code, err) == (0, "")
    assert "4 x all-gather: 32 MiB, asynchronous" in out
    assert "option xla_gpu_enable_latency_hiding_scheduler=true" in out
    dumps = [write_dump(tmp_path / name, name) for name in ("fsdp", "fsdp-ag")]
    code, out, _ = run("hlo", *dumps)
    assert code == 0
    assert "all-gathers in the loop: 4 of 32 MiB -> 2 of 64 MiB" in out
    code, out, _ = run("hlo", *dumps, "--json")
    document = json.loads(out)
    assert (code, document["difference"]["change"]) == (0, "other program")


@pytest.mark.parametrize("bad", ["/dev", "/dev/zero"], ids=["no dump", "a device"])
def test_a_bad_dump_is_one_message_and_the_other_is_still_read(
    run: Run, tmp_path: Path, bad: str
) -> None:
    good = write_dump(tmp_path / "good", "fsdp-ov")
    for argv in ((bad,), (good, bad)):
        code, out, err = run("hlo", *argv)
        assert (code, err.count("\n")) == (2, 1)
        assert f"{bad}: no " in err
        assert ("jit_train_step for sm_9.0" in out) is (good in argv)


# --- drill ----------------------------------------------------------------------------------------


def reconciles(document: dict[str, Any], steps: list[int], gpus: int) -> None:
    (drill,) = document["variants"]
    assert drill["steps"] == steps
    assert len(drill["gpus"]) == gpus
    total = sum(step["sum_ps"] for gpu in drill["gpus"] for step in gpu["steps"])
    assert sum(row["sum_ps"] for row in drill["families"]) == total
    assert sum(row["sum_ps"] for row in drill["kernels"]) == total


def test_a_trace_reconciles_and_two_variants_are_compared(
    run: Run, base: Path, tmp_path: Path
) -> None:
    code, out, err = run("drill", base, "--json", "--steps", 3)
    assert (code, err) == (0, "")
    reconciles(json.loads(out), [5, 6, 7], 4)
    faster = captured(tmp_path / "faster", 9 * 10**5)
    argv = ["--steps", 3, base, "--", faster, "--step-time", 0.5, "--step-time", 0.4]
    code, out, err = run("drill", *argv)
    assert (code, err) == (0, "")
    assert "step - total kernel" in out
    assert json.loads(run("drill", *argv, "--json")[1])["sentences"]


def test_what_does_not_agree_is_refused(run: Run, base: Path) -> None:
    for options, message in (
        (("--gpus", 16), "4 devices with kernels in 1 capture, 16 expected"),
        (("--step-time", 1, "--step-time", 2), "2 times for 1 variant;"),
        (("--families", "/nope.json"), "/nope.json: no JSON file"),
    ):
        code, out, err = run("drill", base, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


@pytest.mark.parametrize("name", ["n2.xplane.pb", "n2.trace.json.gz"], ids=["cut", "foreign"])
def test_a_bad_capture_is_named_and_the_others_are_still_read(
    run: Run, base: Path, name: str
) -> None:
    good = base / "n1.xplane.pb"
    data = good.read_bytes()
    (base / name).write_bytes(data[: len(data) // 2] if "xplane" in name else b"no gzip at all")
    for argv in ((base,), ("/gone", base), (base, "--", "/gone")):
        code, out, err = run("drill", *argv)
        assert code == 2
        assert f"{name}: " in err
        assert ("/gone: no such file" in err) is ("/gone" in argv)
        assert "no capture among" not in err
        assert "steps 5, 6, 7" in out
    good.unlink()
    code, out, err = run("drill", base)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name}: " in err
    assert run("drill", base, "--gpus", "0")[0] == 2


# --- a real JAX -----------------------------------------------------------------------------------


def record(folder: Path, flags: str) -> None:
    """Train a few steps; leave `dump` and `output` in the folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "M_", "COV"))}
    xla = (
        "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
        f"{flags} --xla_dump_to={folder}/dump --xla_dump_hlo_as_text"
    )
    subprocess.run(
        [sys.executable, QUICKSTART / "train.py", *TINY, f"base_output_directory={folder}/output"],
        env=kept | {"XLA_FLAGS": xla},
        capture_output=True,
        check=True,
        timeout=300,
    )


@pytest.mark.jax
@pytest.mark.part("programs")
def test_real_dumps_and_traces_of_the_cpu_are_compared(run: Run, tmp_path: Path) -> None:
    trained, unfused = tmp_path / "trained", tmp_path / "unfused"
    record(trained, "")
    record(unfused, "--xla_disable_hlo_passes=fusion")
    code, out, _ = run("hlo", trained / "dump", "--json")
    program = json.loads(out)["program"]
    assert (code, program["module"], program["target"]) == (0, "jit_train_step", "cpu")
    assert {each["kind"] for each in program["collectives"]} >= {"all-gather", "all-reduce"}
    assert [loop["trips"] for loop in program["loops"]] == [2, 2]
    assert program["memory_bytes"] > 0
    code, out, _ = run("hlo", trained / "dump", unfused / "dump")
    assert "xla_disable_hlo_passes acted: the program changed" in out
    # its traces reconcile, and are compared
    code, out, err = run("drill", trained / "output", "--json", "--steps", 3)
    assert (code, err) == (0, "")
    reconciles(json.loads(out), [3, 4, 5], 4)
    code, out, _ = run("drill", trained / "output", "--program", trained / "dump", "--json")
    (talking,) = json.loads(out)["collectives"]
    joined = [row for row in talking["rows"] if row["size_bytes"]]
    assert {row["kind"] for row in joined} >= {"all-gather", "all-reduce"}
    assert {row["ranks"] for row in joined} == {4}
