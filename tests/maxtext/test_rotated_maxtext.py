"""A rotation below MaxText itself: eight profiles of chosen truth, all named rightly in two jobs.

Run by `tox run -e maxtext`. Four devices of a CPU train the tiny model, FSDP=4. A flag slows its
program by about half, copies do nothing, a GPU's flag does nothing here, one option is unknown, one
has a value of another kind, one makes the compiler abort, and one wants more memory than it may.
The first job ends in the abort; the second goes on without that profile and measures the others.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.rotation import RotatedProgram, RotationRead, RotationSpec, read_rotation

LAUNCHER = os.environ.get("XLATUNE_LAUNCHER", "")  # python=/path/to/python
CONFIG = Path(__file__).parents[2] / "sweeps" / "maxtext" / "configs" / "tiny-cpu.gpu.yml"
ROTATE = Path(__file__).parents[2] / "pytest_xlatune" / "workers" / "rotate.py"
TRAIN = "maxtext.trainers.pre_train.train"
TURN_STEPS, DROPPED = 5, 2

pytestmark = pytest.mark.skipif(
    not LAUNCHER.startswith("python="),
    reason="XLATUNE_LAUNCHER names no interpreter of a MaxText; `tox run -e maxtext` makes one",
)

PROGRAMS = (
    RotatedProgram(id=BASELINE_ID),
    # an option of XLA's own tests that makes every compilation here end with an F-line
    RotatedProgram(id="aborts", options={"xla_unsupported_crash_on_hlo_pass_noop_change": "true"}),
    RotatedProgram(id=f"{BASELINE_ID}~2"),
    # its instructions are not optimised: a known loss of about half (measured a job each)
    RotatedProgram(id="opt-level-0", options={"xla_backend_optimization_level": "0"}),
    RotatedProgram(
        id="gpu-threshold", options={"xla_gpu_all_gather_combine_threshold_bytes": "1073741824"}
    ),
    RotatedProgram(id="unknown", options={"xla_cpu_enable_warp_drive": "true"}),
    RotatedProgram(id="no-number", options={"xla_backend_optimization_level": "high"}),
    # equal operations stay apart, each with a result of its own: 5 % more memory
    RotatedProgram(id="hungry", options={"xla_disable_hlo_passes": "cse"}),
)
ROUNDS = ((2, 3, 0, 4, 5, 1, 6, 7), (0, 4, 3, 2, 7, 6, 1, 5))
SPEC = RotationSpec(
    programs=PROGRAMS,
    order=tuple(each for each_round in ROUNDS for each in each_round),
    turn_steps=TURN_STEPS,
    step_function="train_step",
)
STEPS = SPEC.first_step + TURN_STEPS * len(SPEC.order)
# completed step: 14, seconds: 0.189, TFLOP/s/device: 0.035, ..., total_weights: 1024, loss: 7.328
LINE = re.compile(
    r"completed step: (\d+), seconds: ([\d.]+), .*, total_weights: 1024, loss: ([\d.]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What MaxText said, and the journal of the rotation."""

    status: int
    said: str
    lines: dict[int, tuple[float, float]]  # step -> seconds, loss
    read: RotationRead


def train(folder: Path, *, steps: int, spec: RotationSpec | None = None) -> Trained:
    folder.mkdir()
    python = LAUNCHER.removeprefix("python=")
    command = [python]
    if spec is not None:
        path = folder / "rotation.json"
        path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
        command = [python, str(ROTATE), str(path), "--"]
    done = subprocess.run(
        [*command, "-m", TRAIN, str(CONFIG), f"steps={steps}", "run_name=a", "log_config=false",
         f"base_output_directory={folder}/out", "dataset_type=synthetic",
         "per_device_batch_size=2", "ici_fsdp_parallelism=4"],
        cwd=folder,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2000,
    )  # fmt: skip
    found = (LINE.search(line) for line in done.stdout.splitlines())
    lines = {int(each[1]): (float(each[2]), float(each[3])) for each in found if each}
    journal = folder / "rotation.0.jsonl"
    read = read_rotation(journal.read_text(encoding="utf-8") if journal.exists() else "")
    return Trained(status=done.returncode, said=done.stdout, lines=lines, read=read)


def test_eight_profiles_of_chosen_truth_are_named_in_two_rotations(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", steps=12)
    assert (plain.status, len(plain.lines)) == (0, 12), plain.said[-2000:]

    first = train(tmp_path / "first", steps=STEPS, spec=SPEC)
    assert first.status == -6, first.said[-2000:]
    assert first.read.found == "train_step"
    assert first.read.suspects == ("aborts",)

    baseline_bytes = first.read.compiled[0].memory_bytes
    assert baseline_bytes
    # without what ended the first, and short of memory
    left = SPEC.without(first.read.suspects)
    spec = replace(left, memory_limit_bytes=baseline_bytes * 102 // 100)
    second = train(tmp_path / "second", steps=STEPS, spec=spec)
    read = second.read
    assert (second.status, read.suspects[1:]) == (0, ()), second.said[-2000:]
    assert read.refused.keys() == {"unknown", "no-number"}
    assert "No such compile option: 'xla_cpu_enable_warp_drive'" in read.refused["unknown"]
    assert "'high' is not a valid int32 value" in read.refused["no-number"]
    assert read.left_out.keys() == {"hungry"}
    assert read.left_out["hungry"] > spec.memory_limit_bytes > baseline_bytes
    same = {each.program: each.same_as for each in read.compiled}
    assert (same[f"{BASELINE_ID}~2"], same["gpu-threshold"]) == (BASELINE_ID, BASELINE_ID)
    assert (read.calls, read.odd_calls) == (STEPS, ())

    # the trainer's own lines, each step once, and what it learns
    assert sorted(second.lines) == list(range(STEPS))
    for step, (_, loss) in plain.lines.items():
        assert second.lines[step][1] == pytest.approx(loss, rel=0.01)

    level_s = level_by_program(second)
    print({name: round(each, 4) for name, each in level_s.items()})  # noqa: T201 - shown by -rP
    baseline_s = level_s[BASELINE_ID]
    assert level_s["opt-level-0"] > 1.2 * baseline_s
    for equal in (f"{BASELINE_ID}~2", "gpu-threshold"):
        assert level_s[equal] < 0.5 * (baseline_s + level_s["opt-level-0"])


def level_by_program(trained: Trained) -> dict[str, float]:
    """Return the median seconds of a step of each program, without the first steps of a turn."""
    found: dict[str, list[float]] = defaultdict(list)
    for turn in trained.read.turns:
        # MaxText's seconds are between dispatches, and its last step of a turn waits for the next
        steps = range(turn.first_call + DROPPED, turn.first_call + turn.calls)
        found[turn.program] += [trained.lines[step][0] for step in steps]
    return {name: statistics.median(each) for name, each in found.items()}
