"""What an ended attempt is worth: log, metrics file, outcome and playbook together."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.assess import STATUS, Assessment
from pytest_xlatune.campaign.playbook import decide
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.triage import diagnose, primary
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Finding, Outcome, State, TrialStatus
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess

STEPS = 15
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
BOTH = "XLA_FLAGS=--xla_gpu_autotune_level=4 --xla_gpu_knob=1\n"
REFUSED = "F0112 07:08:09.1 77 a.cc:2] Unknown flag in XLA_FLAGS: --xla_gpu_no_such=1"


def log(tgs: float = 1024.0, *, steps: int = STEPS, first: str = BOTH, last: str = "") -> str:
    lines = [
        f"completed step: {step}, seconds: {512 / tgs:.3f}, TFLOP/s/device: 0.1, "
        f"Tokens/s/device: {tgs:.3f}, total_weights: 512, loss: 7.1"
        for step in range(steps)
    ]
    return first + "\n".join([*lines, last, ""])


def metrics(tgs: float, *, steps: int = STEPS) -> str:
    return "".join(
        json.dumps(
            {
                "step": float(step),
                "learning/loss": 7.1,
                "perf/step_time_seconds": 512 / tgs,
                "perf/per_device_tokens_per_sec": tgs,
            }
        )
        + "\n"
        for step in range(steps)
    )


def assessed(
    text: str,
    outcome: Outcome = OK,
    *,
    of: Profile = ONE,
    cell: Cell = CELL,
    file: str = "",
    earlier: Sequence[str] = (),
    **said: Any,
) -> Assessment:
    trial = Trial(
        cell_digest=cell.digest,
        profile=of,
        protocol=cell.protocol,
        study="tuning",
        stage="wave1",
    )
    report = read_log([text.encode()])
    return assess(
        trial,
        cell,
        outcome,
        report,
        metrics=parse_metrics(file),
        earlier=earlier,
        **{"reference": BASELINE_ID, **said},
    )


def tgs(found: Assessment) -> float:
    assert STATUS[found.decision.next] is TrialStatus.MEASURED
    assert found.score is not None
    assert found.score.tgs is not None
    return found.score.tgs


def test_a_metrics_file_counts_where_it_tells_as_much_as_the_log() -> None:
    """Its figures are not rounded; but its writer may have died before the log's."""
    assert tgs(assessed(log(1000.0))) == pytest.approx(1000.0)
    assert tgs(assessed(log(1000.0), file=metrics(1000.0004))) == pytest.approx(1000.0004, abs=1e-6)
    cut = assessed(log(1000.0), file=metrics(900.0, steps=12))
    assert tgs(cut) == pytest.approx(1000.0)
    assert cut.score is not None
    assert (cut.score.window, cut.score.flags) == ((5, 14), ())


def test_no_figure_of_a_run_to_its_end_makes_it_run_again() -> None:
    """To run again what came out slow, or unsteady, would make winners of noise."""
    quiet = assessed(log())
    lines = log().splitlines(keepends=True)
    for speeds in (
        [10.0] * STEPS,  # a hundredth of the others'
        [1000.0 + 400 * (step % 2) for step in range(STEPS)],
        [1000.0 / (1 + step) for step in range(STEPS)],  # slower from step to step
        [*[1000.0] * (STEPS - 3), *[100.0] * 3],
    ):
        text = lines[0] + "".join(
            log(speed).splitlines(keepends=True)[1 + step] for step, speed in enumerate(speeds)
        )
        for earlier in ((), ("killed",)):
            found = assessed(text, earlier=earlier)
            assert found.decision == quiet.decision
            assert found.score is not None
            assert quiet.score is not None
            assert found.score.tgs != quiet.score.tgs


def test_seconds_alone_are_scored_by_the_tokens_that_the_cell_declares() -> None:
    text = log(1024.0).replace("Tokens/s/device: 1024.000, ", "")
    assert tgs(assessed(text)) == pytest.approx(1024.0)


def test_a_trial_without_what_is_deployed_is_dropped() -> None:
    found = assessed(log(first="XLA_FLAGS=--xla_gpu_knob=1\n"))
    assert (found.decision.next, found.decision.cls) == (Next.DROP, "flags-not-effective")
    assert STATUS[found.decision.next] is TrialStatus.DROPPED
    assert found.score is None


NO_FIGURES = log().replace("Tokens/s/device", "words").replace("seconds", "beats")


@pytest.mark.parametrize(
    ("of", "earlier", "expected"),
    [
        pytest.param(ONE, (), Next.RETRY, id="once more"),
        pytest.param(ONE, ("no-score",), Next.GIVE_UP, id="then it is not measured"),
        pytest.param(ONE, ("killed",), Next.RETRY, id="another cause before does not count"),
        pytest.param(BASELINE, ("no-score",), Next.STOP, id="nor is anything beside a baseline"),
    ],
)
def test_a_run_to_the_end_without_a_score_is_tried_twice(
    of: Profile, earlier: tuple[str, ...], expected: Next
) -> None:
    first = "XLA_FLAGS=--xla_gpu_autotune_level=4\n" if of.is_baseline else BOTH
    found = assessed(NO_FIGURES.replace(BOTH, first), of=of, earlier=earlier)
    assert (found.decision.next, found.decision.cls) == (expected, "no-score")
    assert found.findings[0].cls == "no-score"


@pytest.mark.parametrize(
    ("text", "earlier", "expected"),
    [
        pytest.param(REFUSED, (), Next.STOP, id="of the baseline no profile escapes that"),
        pytest.param("Killed", (), Next.RETRY, id="what may pass is tried again"),
    ],
)
def test_a_baseline_that_fails_stops_the_sweep_where_it_always_will(
    text: str, earlier: tuple[str, ...], expected: Next
) -> None:
    found = assessed(log(steps=2, last=text), FAILED, of=BASELINE, earlier=earlier)
    assert found.decision.next is expected


@pytest.mark.parametrize(
    ("reference", "of", "expected"),
    [
        pytest.param("", BASELINE, Next.DROP, id="without a reference every arm is for itself"),
        pytest.param("one", BASELINE, Next.DROP, id="the name of the baseline decides nothing"),
        pytest.param("one", ONE, Next.STOP, id="any arm may be the reference"),
    ],
)
def test_what_stops_the_sweep_is_the_reference_of_the_study(
    reference: str, of: Profile, expected: Next
) -> None:
    found = assessed(log(steps=2, last=REFUSED), FAILED, of=of, reference=reference)
    assert found.decision.next is expected
    is_told = "the reference one cannot run" in sentence(found.decision.why)
    assert is_told is (expected is Next.STOP)


def test_the_line_for_which_it_was_ended_is_the_cause_while_it_asks_for_something() -> None:
    """Two things go wrong; the run was ended for the second, which another rule would rank last."""
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB"
    nic = "mlx5_0: IBV_WC_RETRY_EXC_ERR(12) vendor_err=129"
    text = log(steps=3, last=f"{nic}\n{oom}")
    killed = Outcome(state=State.FAILED, signal=15)
    plain = assessed(text, killed)
    seen = {each.cls: each for each in plain.findings}
    other = next(each for name, each in seen.items() if name != plain.decision.cls)
    told = assessed(text, killed, fatal=replace(other, line=0))
    assert told.decision.cls == other.cls != plain.decision.cls
    assert told.findings[0].cls == other.cls
    # every step is there: the line asks for nothing any more
    whole = assessed(log(last=f"{nic}\n{oom}"), killed, fatal=other)
    assert (whole.decision.next, whole.decision.cls) == (Next.ACCEPT, "soft-success")
    stranger = Finding(cls="gpu-hardware", action=Action.STOP, text="Xid 79")
    assert assessed(text, killed, fatal=stranger).decision == plain.decision


# the layout of nccl-tests 2.13:  all_reduce_perf -b 8G -e 8G -f 2 -g 8
TABLE = (Path(__file__).parents[1] / "data" / "nccl_tests.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "next_", "detail"),
    [
        pytest.param(TABLE, Next.ACCEPT, "", id="a whole test"),
        pytest.param(TABLE.replace("0    41619", "9    41619"), Next.RETRY, "corrupt", id="wrong"),
        pytest.param("", Next.RETRY, "# Avg bus bandwidth", id="no result"),
    ],
)
def test_a_test_of_collectives_is_a_trial_without_a_step(
    text: str, next_: Next, detail: str
) -> None:
    protocol = Protocol(metric="busbw", steps=1)
    protocol.check_window()
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("DP=8"), protocol=protocol)
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=protocol, study="toy", stage="round"
    )
    outcome = Outcome(state=State.COMPLETED, exit_code=0)
    logged = read_figures(text.encode().splitlines(keepends=True), protocol.scored_by)
    found = assess(trial, cell, outcome, read_log([text.encode()]), logged=logged)
    assert found.decision.next is next_
    assert detail in sentence(found.decision.why)
    if next_ is Next.ACCEPT:
        assert found.score is not None
        assert found.score.value == pytest.approx(math.log(360.97))
        assert found.score.figure is not None
        assert found.score.figure.words == "bus bandwidth 361.0 GB/s"


def test_what_is_lost_is_told_with_the_reason_and_no_word_twice() -> None:
    why = "no part of Slurm knew the job in 20 rounds"
    lost = Outcome(state=State.LOST, reason=why)
    decision = decide(
        lost, primary(diagnose(read_log([log(steps=7).encode()]), lost, CELL.protocol))
    )
    assert sentence(decision.why) == f"lost ({why}): retried on the same nodes"
    gone = Outcome(state=State.NODE_FAIL)
    decision = decide(
        gone, primary(diagnose(read_log([log(steps=7).encode()]), gone, CELL.protocol))
    )
    assert sentence(decision.why).startswith("node-fail: ")
