"""When a running attempt is ended: a phase's patience, a fatal line's, and what refutes a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign._follow import Follower
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Submission
from tests.helpers.tables import rows
from tests.helpers.turned import line

JOB = Submission(trial_id="one", attempt=1, executor="slurm", job_id="7", folder="one.1")
PATIENCE = Patience(before_memstats_s=600, compiling_s=1800, training_s=500, after_fatal_s=60)
MEMSTATS = "Memstats: After params initialized:"
HANG = "HW Exception by GPU node-5 (Agent handle: 0x55) reason :GPU Hang"
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)"
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
RAISED = "jax.errors.JaxRuntimeError: INTERNAL: Failed to compile jit_train_step"
DYING = "F0112 07:08:09.2 77 client.h:80] UNAVAILABLE: stopped sending heartbeats"
NO_GRAIN = "ModuleNotFoundError: No module named 'grain'"
GLOO = "jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection reset by peer"
OWN = "Traceback (most recent call last):\nKeyError: 'batch'"


def steps(first: int, end: int, step_s: float = 0.5) -> list[str]:
    return [f"completed step: {n}, seconds: {step_s:.3f}, loss: 7.100" for n in range(first, end)]


class Case:
    def __init__(self, root: Path) -> None:
        self.folder = root / JOB.folder
        self.folder.mkdir()
        self.follower = Follower(root, patience=PATIENCE)

    def say(self, *lines: str, rank: int = 0) -> None:
        with (self.folder / f"log.{rank}.txt").open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in lines)

    def look(self, at_s: float, *, rotates: bool = False) -> AttemptCutShort | None:
        return self.follower.reason_to_end(JOB, Protocol(), ticks_s=at_s, rotates=rotates)

    def ends_between(self, patient_s: float, late_s: float) -> AttemptCutShort:
        """Look twice; the attempt is ended at the second look."""
        assert self.look(patient_s) is None
        found = self.look(late_s)
        assert found is not None
        return found


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@rows(
    "lines, limit_s",
    {
        "before Memstats, without a log": ([], 600),
        "compiling": ([MEMSTATS], 1800),
        "training": ([MEMSTATS, *steps(0, 2)], 500),
        # what a program may survive: a line by which nothing is ended sooner
        "a failed try": (
            [MEMSTATS, "W0112 07:08:09.2 77 autotuner.cc:9] RESOURCE_EXHAUSTED: 9 bytes"],
            1800),
        "a lost heartbeat": (
            [MEMSTATS, "UNAVAILABLE: The following tasks are unhealthy (stopped sending"], 1800),
        "an exception": ([MEMSTATS, "Traceback (most recent call last):", NO_GRAIN], 1800),
    },
)  # fmt: skip
def test_a_hang_is_no_step_for_longer_than_the_phase_allows(
    case: Case, lines: list[str], limit_s: float
) -> None:
    case.say(*lines)
    assert case.look(1000.0) is None
    case.say("NCCL INFO Channel 00/02 : 0 1", "still busy")
    found = case.ends_between(1000.0 + limit_s, 1001.0 + limit_s)
    assert found == AttemptCutShort(trial_id="one", attempt=1, still_s=1 + limit_s)


@rows("event, limit_s", {"compiling": ("compile", 1800), "in a turn": ("turn", 500)})
def test_a_rotation_has_the_patience_of_what_its_journal_says(
    case: Case, event: str, limit_s: float
) -> None:
    case.say(MEMSTATS, *steps(0, 3))
    said = line("found", name="f") + line(event, program="fast", first_call=3)
    (case.folder / "rotation.0.jsonl").write_text(said, encoding="utf-8")
    looks = [case.look(at_s, rotates=True) for at_s in (0, limit_s, limit_s + 1)]
    assert [each is not None for each in looks] == [False, False, True]


@pytest.mark.parametrize("fatal", [HANG, CHECK, OOM, RAISED, DYING])
@pytest.mark.parametrize("phase", [[], [MEMSTATS], [MEMSTATS, *steps(0, 9)]], ids=len)
def test_a_fatal_line_ends_a_trial_that_stands_still_after_it(
    case: Case, fatal: str, phase: list[str]
) -> None:
    case.say(*phase)
    case.look(0)
    case.say(fatal, "and words that mean nothing")
    assert case.look(400) is None, "the grace begins with the line"
    case.say("more words")
    found = case.ends_between(460, 461)
    assert found.fatal is not None
    assert (found.fatal.text, found.fatal.line) == (fatal, len(phase) + 1)


@rows("more, is_refuted", {"steps that go on": (1, True), "two that were under way": (0, False)})
def test_steps_that_go_on_refute_a_fatal_line(case: Case, more: int, *, is_refuted: bool) -> None:
    case.say(MEMSTATS, *steps(0, 5), OOM)
    case.look(0)
    case.say(*steps(5, 7))
    assert case.look(30) is None
    case.say(*steps(7, 7 + more))
    if is_refuted:
        assert case.look(90) is None, "the grace begins anew with each step"
        assert case.ends_between(590, 591).fatal is None, "a later pause is as any other"
        return
    assert case.ends_between(90, 91).fatal is not None


def test_a_further_phase_or_start_refutes_it(case: Case) -> None:
    case.say(OOM, MEMSTATS)
    case.look(0)
    assert case.look(1700) is None
    case.say(*steps(0, 6), OOM, MEMSTATS)
    case.look(1701)
    assert case.look(3400) is None


def test_a_fatal_line_may_be_another_ranks(case: Case) -> None:
    case.say(MEMSTATS, *steps(0, 5))
    case.say(MEMSTATS, *steps(0, 9), HANG, rank=3)
    case.look(0)
    found = case.ends_between(60, 61)
    assert found.fatal is not None
    assert (found.fatal.cls, found.fatal.source) == ("gpu-hardware", "log.3.txt")
    case.say(*steps(5, 8))
    assert case.look(62) is None
    assert case.look(560) is None, "rank 0 went on for three steps"
    assert case.follower.finish(JOB, Protocol()).report.last_step == 7, "steps are of rank 0"


@rows(
    "ranks, named",
    {
        "one that raised": ([GLOO, OWN], "python-exception log.1.txt"),
        "rank 0 raised": ([OWN, GLOO], "python-exception "),
        "one that raised for that": ([GLOO, f"{GLOO}\n{OWN}"], "peer-lost "),
        "an error that a lost peer raises as well": (
            [GLOO, "RuntimeError: collective 7 failed"], "peer-lost "),
        "a cause is a cause": ([GLOO, OWN, OOM], "oom-gpu log.2.txt"),
    },
)  # fmt: skip
def test_the_rank_that_failed_by_itself_names_the_failure(
    case: Case, ranks: list[str], named: str
) -> None:
    for rank, text in enumerate(ranks):
        case.say(MEMSTATS, text, rank=rank)
    cause = primary(case.follower.finish(JOB, Protocol()).report.findings)
    assert cause is not None
    assert f"{cause.cls} {cause.source}" == named
