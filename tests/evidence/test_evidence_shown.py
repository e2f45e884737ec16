"""What people and programs see of evidence: golden files, JSON, comparisons."""

from __future__ import annotations

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, drill
from pytest_xlatune.evidence.trace.comparison import compare_windows
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.drill import NAME, TOP, drill_document, drill_json
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers import golden
from tests.helpers.captures import Space
from tests.helpers.hlo_programs import DATA, program

US = 1_000_000  # picoseconds


def hlo_lines(*programs: Program) -> list[str]:
    return terminal(program_document(*programs))


def drill_lines(*drills: Drill, top: int = TOP, width: int | None = NAME) -> list[str]:
    return terminal(drill_document(drills, top=top, width=width))


def drilled(scatter_us: int = 4000, *, devices: int = 2) -> Drill:
    """Make a drill of two steps, with a scatter that blocks."""
    space = Space()
    period_us = 8500 + scatter_us
    for step in (5, 6):
        at = step * period_us
        space.host("train", at * US, 8000 * US, "step_num", step)
        for gpu in range(devices):
            for stream, name, begin_us, size_us in (
                ("Stream #13(Compute)", "nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", 0, 6000),
                ("Stream #14(Compute)", "ncclDevKernel_AllGather_RING_LL", 4000, 3000),
                ("Stream #13(Compute)", "input_scatter_fusion_2.kd", 7500, scatter_us),
            ):
                space.kernel(
                    gpu, stream, name, (at + begin_us) * US, size_us * US, op=name, correlation=at
                )
        space.host("cuLaunchKernel", at * US, 1, "correlation_id", at)
    return drill([space.trace("node001.xplane.pb")], CaptureWindow(step_s=0.0125))


PROGRAMS = {
    "hlo.txt": ("0.10.2", ["fsdp-ov"]),
    "hlo-difference.txt": ("0.12.0", ["fsdp", "fsdp-ag"]),
    "hlo-schedule.txt": ("0.12.0", ["fsdp", "fsdp-ov"]),
    "hlo-identical.txt": ("0.6.2", ["fsdp", "fsdp-noasync"]),
}
DRILLS = {"drill.txt": [4000], "drill-comparison.txt": [4000, 40]}


@pytest.mark.parametrize("name", [*PROGRAMS, *DRILLS])
def test_rendered_evidence_equals_its_golden_file(name: str) -> None:
    if name in DRILLS:
        lines = drill_lines(*map(drilled, DRILLS[name]))
    else:
        version, programs = PROGRAMS[name]
        lines = hlo_lines(*(program(version, each) for each in programs))
    golden.check(DATA / "golden" / name, "\n".join(lines) + "\n")


def test_flags_are_judged_where_both_option_files_are_known() -> None:
    two = program("0.12.0", "fsdp-ov")
    limit = "xla_gpu_experimental_parallel_collective_overlap_limit"
    options = {name: value for name, value in (two.options or {}).items() if name != limit}
    one = msgspec.structs.replace(program("0.12.0", "fsdp"), options=options)
    assert hlo_lines(one, two)[-1].endswith(f"{limit} acted: collectives in flight changed")
    one = msgspec.structs.replace(one, options=options | {"xla_new": "1"})
    proofs = programs_json(one, two)["difference"]["proofs"]
    assert [each["values"]["flag"] for each in proofs] == [limit, "xla_new"]
    assert hlo_lines(one, msgspec.structs.replace(two, options=None))[-1].count("acted") == 0


def test_three_variants_are_columns_with_their_change_against_the_first() -> None:
    lines = drill_lines(drilled(), drilled(40), drilled(8000), top=1)
    assert lines[3].startswith("variant 2: a step takes 3.960 ms less")
    (row,) = (line.split() for line in lines if line.startswith("compute "))
    assert row == ["compute", "10.000", "6.040", "-3.960", "14.000", "+4.000"]
    kernels = lines[[line.split()[:1] for line in lines].index(["kernel"]) + 1 :]
    assert [line.split()[0] for line in kernels] == ["input_scatter_fusion_2.kd"]
    document = drill_json(drilled(), drilled(1), drilled(2))
    assert [len(document[each]) for each in ("variants", "sentences")] == [3, 2]


def test_names_are_cut_in_the_middle_unless_they_are_asked_for_in_full() -> None:
    made = drilled()
    ends = ["M64_N64_kd", "M64_N128_kd"]
    rows = [msgspec.structs.replace(made.kernels[0], name="Cijk_" + "A" * 99 + end) for end in ends]
    made = msgspec.structs.replace(made, kernels=tuple(rows))
    cut, full = (drill_lines(made, width=width) for width in (56, None))
    assert sum(line.startswith("Cijk_A") and "M64_N" in line for line in cut) == 2
    assert not any(rows[0].name in line for line in cut)
    assert any(line.startswith(rows[0].name) for line in full)


def test_variants_of_different_yardsticks_are_refused() -> None:
    with pytest.raises(ConfigError, match="launcher is one process per node, 2"):
        compare_windows(drilled(), drilled(devices=4))
