"""`xlatune hlo`, `drill`: kept dumps and made captures, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.helpers.captures import node
from tests.helpers.hlo_programs import write_dump


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
