"""What an ended attempt is worth: log, metrics file, outcome and playbook together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.assess import STATUS, Assessment
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Finding, Outcome, State, TrialStatus
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess
from tests.helpers.scripted import log
from tests.helpers.tables import rows

STEPS = 15
DEPLOYED = "XLA_FLAGS=--xla_gpu_autotune_level=4\n"
BOTH = "XLA_FLAGS=--xla_gpu_autotune_level=4 --xla_gpu_knob=1\n"
CELL = Cell(
    model_tag="m",
    parallelism=Parallelism.parse("FSDP=8"),
    per_device_batch_size=2,
    max_target_length=256,
    protocol=Protocol(steps=STEPS),
    deployed={"XLA_FLAGS": "--xla_gpu_autotune_level=4"},
)
ONE = profile("one", "--xla_gpu_knob=1")
OK = Outcome(state=State.COMPLETED, exit_code=0)
FAILED = Outcome(state=State.FAILED, exit_code=1)
WHOLE = BOTH + log(1024.0, steps=STEPS)
REFUSED = log(steps=2, last="F0112 07:08:09.1 77 a.cc:2] Unknown flag in XLA_FLAGS: --xla_gpu_no=1")
MISSING = "ModuleNotFoundError: No module named 'grain'\n"


def trial_of(cell: Cell, of: Profile) -> Trial:
    return Trial(
        cell_digest=cell.digest, profile=of, protocol=cell.protocol, study="tuning", stage="wave1"
    )


def assessed(
    text: str, outcome: Outcome = OK, *, of: Profile = ONE, file: str = "", **facts: Any
) -> Assessment:
    report, metrics = read_log([text.encode()]), parse_metrics(file)
    facts = {"reference": BASELINE_ID, "metrics": metrics, **facts}
    return assess(trial_of(CELL, of), CELL, outcome, report, **facts)


def tgs(found: Assessment) -> float:
    assert STATUS[found.decision.next] is TrialStatus.MEASURED
    assert found.score is not None
    assert found.score.tgs is not None
    return found.score.tgs


def test_a_metrics_file_counts_where_it_tells_as_much_as_the_log() -> None:
    """Its figures are not rounded; but its writer may have died before the log's."""

    def metrics(speed: float, steps: int = STEPS) -> str:
        figures = {"learning/loss": 7.1, "perf/step_time_seconds": 512 / speed}
        figures["perf/per_device_tokens_per_sec"] = speed
        return "".join(json.dumps({"step": float(n), **figures}) + "\n" for n in range(steps))

    text = BOTH + log(1000.0, steps=STEPS)
    assert tgs(assessed(text)) == pytest.approx(1000.0)
    assert tgs(assessed(text, file=metrics(1000.0004))) == pytest.approx(1000.0004, abs=1e-6)
    for hostile in ("[" * 100_000, '{"step": 1%s}' % ("0" * 400), '{"step": 1%s}' % ("0" * 5000)):
        assert tgs(assessed(text, file=hostile)) == pytest.approx(1000.0)
    cut = assessed(text, file=metrics(900.0, steps=12))
    assert tgs(cut) == pytest.approx(1000.0)
    assert cut.score is not None
    assert (cut.score.window, cut.score.flags) == ((5, 14), ())


@rows(
    "speeds",
    {
        "a hundredth of the others'": [10.0] * STEPS,
        "slower from step to step": [1000.0 / (1 + step) for step in range(STEPS)],
    },
)
def test_no_figure_of_a_run_to_its_end_makes_it_run_again(speeds: list[float]) -> None:
    """To run again what came out slow, or unsteady, would make winners of noise."""
    quiet = assessed(WHOLE)
    lines = [log(speed, steps=STEPS).splitlines()[step] for step, speed in enumerate(speeds)]
    for earlier in ((), ("killed",)):
        found = assessed(BOTH + "\n".join(lines), earlier=earlier)
        assert found.decision == quiet.decision
        assert tgs(found) != tgs(quiet)


NO_FIGURES = WHOLE.replace("Tokens/s/device", "words").replace("seconds", "beats")
ONCE = {"earlier": ("no-score",)}
RAISED = {"reference_runs": False, "earlier": ("python-exception",)}


@rows(
    "text, outcome, of, facts, expected",
    {
        "what is deployed is not in effect": (
            WHOLE.replace("--xla_gpu_autotune_level=4 ", ""), OK, ONE, {},
            "drop flags-not-effective"),
        "no score twice": (NO_FIGURES, OK, ONE, ONCE, "give-up no-score"),
        "no score, and another cause before": (
            NO_FIGURES, OK, ONE, {"earlier": ("killed",)}, "retry no-score"),
        "no score of a baseline twice, nor of anything beside it": (
            NO_FIGURES.replace(BOTH, DEPLOYED), OK, BASELINE, ONCE, "stop no-score"),
        "the baseline fails of what no profile escapes": (
            REFUSED, FAILED, BASELINE, {}, "stop unknown-flag"),
        "without a reference every arm is for itself": (
            REFUSED, FAILED, BASELINE, {"reference": ""}, "drop unknown-flag"),
        "any arm may be the reference": (
            REFUSED, FAILED, ONE, {"reference": "one"}, "stop unknown-flag"),
        "and twice": (MISSING, FAILED, BASELINE, RAISED, "stop python-exception"),
    },
)  # fmt: skip
def test_what_an_attempt_comes_to(
    text: str, outcome: Outcome, of: Profile, facts: dict[str, Any], expected: str
) -> None:
    found = assessed(text, outcome, of=of, **facts)
    assert f"{found.decision.next} {found.decision.cls}" == expected
    assert found.score is None
    assert found.findings[0].cls == found.decision.cls
    is_about_all = "the reference one cannot run" in sentence(found.decision.why)
    assert is_about_all is (facts.get("reference") == "one" and of is ONE)


def test_the_line_for_which_it_was_ended_is_the_cause_while_it_asks_for_something() -> None:
    """Two things go wrong; the run was ended for the second, which another rule would rank last."""
    both = (
        "mlx5_0: IBV_WC_RETRY_EXC_ERR(12) vendor_err=129\n"
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB"
    )
    text = BOTH + log(steps=3, last=both)
    killed = Outcome(state=State.FAILED, signal=15)
    plain = assessed(text, killed)
    other = next(each for each in plain.findings if each.cls != plain.decision.cls)
    told = assessed(text, killed, fatal=replace(other, line=0))
    assert told.decision.cls == told.findings[0].cls == other.cls
    # every step is there: the line asks for nothing any more
    whole = assessed(BOTH + log(steps=STEPS, last=both), killed, fatal=other)
    assert (whole.decision.next, whole.decision.cls) == (Next.ACCEPT, "soft-success")
    stranger = Finding(cls="gpu-hardware", action=Action.STOP, text="Xid 79")
    assert assessed(text, killed, fatal=stranger).decision == plain.decision


# the layout of nccl-tests 2.13:  all_reduce_perf -b 8G -e 8G -f 2 -g 8
TABLE = (Path(__file__).parents[1] / "data" / "nccl_tests.txt").read_text(encoding="utf-8")


@rows(
    "text, next_, detail",
    {
        "a whole test": (TABLE, Next.ACCEPT, ""),
        "wrong": (TABLE.replace("0    41619", "9    41619"), Next.RETRY, "corrupt"),
        "no result": ("", Next.RETRY, "# Avg bus bandwidth"),
    },
)
def test_a_test_of_collectives_is_a_trial_without_a_step(
    text: str, next_: Next, detail: str
) -> None:
    protocol = Protocol(metric="busbw", steps=1)
    protocol.check_window()
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("DP=8"), protocol=protocol)
    logged = read_figures(text.encode().splitlines(keepends=True), protocol.scored_by)
    report = read_log([text.encode()])
    found = assess(trial_of(cell, BASELINE), cell, OK, report, logged=logged)
    assert found.decision.next is next_
    assert detail in sentence(found.decision.why)
    if next_ is Next.ACCEPT:
        assert found.score is not None
        assert found.score.value == pytest.approx(math.log(360.97))
        assert found.score.figure is not None
        assert found.score.figure.words == "bus bandwidth 361.0 GB/s"
