"""When a running attempt is ended: a phase's patience, a fatal line's, and what refutes a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign._follow import Follower
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReader
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Submission
from tests.helpers.turned import line

JOB = Submission(trial_id="one", attempt=1, executor="slurm", job_id="7", folder="one.1")
PATIENCE = Patience(before_memstats_s=600, compiling_s=1800, training_s=500, after_fatal_s=60)
MEMSTATS = "Memstats: After params initialized:"
HANG = "HW Exception by GPU node-5 (Agent handle: 0x55) reason :GPU Hang"
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)"
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
TRIED = "W0112 07:08:09.2 77 autotuner.cc:9] RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"
RAISED = "jax.errors.JaxRuntimeError: INTERNAL: Failed to compile jit_train_step"
PTXAS = "ptxas exited with non-zero error code 2"
BEAT = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
DYING = "F0112 07:08:09.2 77 client.h:80] UNAVAILABLE: stopped sending heartbeats"
CAUGHT = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'grain'")

GLOO = "jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection reset by peer"
OWN = ("Traceback (most recent call last):", "KeyError: 'batch'")


def steps(first: int, end: int, step_s: float = 0.5) -> list[str]:
    return [f"completed step: {n}, seconds: {step_s:.3f}, loss: 7.100" for n in range(first, end)]


class Case:
    def __init__(self, root: Path, patience: Patience = PATIENCE) -> None:
        self.folder = root / JOB.folder
        self.folder.mkdir()
        self.follower = Follower(root, patience=patience)

    def say(self, *lines: str, rank: int = 0) -> None:
        with (self.folder / f"log.{rank}.txt").open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in lines)

    def look(self, at_s: float, *, rotates: bool = False) -> AttemptCutShort | None:
        return self.follower.reason_to_end(JOB, Protocol(), ticks_s=at_s, rotates=rotates)


def still(still_s: float) -> AttemptCutShort:
    return AttemptCutShort(trial_id=JOB.trial_id, attempt=JOB.attempt, still_s=still_s)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize(
    ("lines", "limit_s"),
    [
        pytest.param([], 600, id="before Memstats, without a log"),
        pytest.param([MEMSTATS], 1800, id="compiling"),
        pytest.param([MEMSTATS, *steps(0, 2)], 500, id="training"),
    ],
)
def test_a_hang_is_no_step_for_longer_than_the_phase_allows(
    case: Case, lines: list[str], limit_s: float
) -> None:
    case.say(*lines)
    assert case.look(1000.0) is None
    case.say("NCCL INFO Channel 00/02 : 0 1", "still busy")
    assert case.look(1000.0 + limit_s) is None
    assert case.look(1001.0 + limit_s) == still(still_s=1 + limit_s)


@pytest.mark.parametrize(
    ("event", "limit_s"),
    [
        pytest.param("compile", 1800, id="while its journal says that a program compiles"),
        pytest.param("turn", 500, id="in a turn"),
    ],
)
def test_a_rotation_that_compiles_between_its_steps_has_the_patience_of_that(
    case: Case, event: str, limit_s: float
) -> None:
    case.say(MEMSTATS, *steps(0, 3))
    said = line(event, program="fast", first_call=3)
    (case.folder / "rotation.0.jsonl").write_text(line("found", name="f") + said, encoding="utf-8")
    assert case.look(0, rotates=True) is None
    assert case.look(limit_s, rotates=True) is None
    assert case.look(1 + limit_s, rotates=True) == still(still_s=1 + limit_s)


@pytest.mark.parametrize("line", [HANG, CHECK, OOM, RAISED, DYING])
@pytest.mark.parametrize("phase", [[], [MEMSTATS], [MEMSTATS, *steps(0, 9)]], ids=len)
def test_a_fatal_line_ends_a_trial_that_stands_still_after_it(
    case: Case, line: str, phase: list[str]
) -> None:
    case.say(*phase)
    case.look(0)
    case.say(line, "and words that mean nothing")
    assert case.look(400) is None, "the grace begins with the line"
    case.say("more words")
    assert case.look(460) is None
    standstill = case.look(461)
    assert standstill is not None
    assert standstill.fatal is not None
    assert standstill.fatal.text == line
    assert standstill.fatal.line == len(phase) + 1


@pytest.mark.parametrize("lines", [[TRIED], [PTXAS], [BEAT], [*CAUGHT], [f"cuInit {OOM}"]])
def test_what_a_program_may_survive_ends_nothing_before_the_phases_limit(
    case: Case, lines: list[str]
) -> None:
    case.say(MEMSTATS, *lines)
    case.look(0)
    assert case.look(1800) is None
    standstill = case.look(1801)
    assert standstill is not None
    assert standstill.fatal is None


def test_steps_that_go_on_refute_a_fatal_line(case: Case) -> None:
    case.say(MEMSTATS, *steps(0, 5), OOM)
    case.look(0)
    for step in range(5, 8):
        case.say(*steps(step, step + 1))
        assert case.look(50.0 * step) is None
    assert case.look(700) is None, "a later pause is measured as any other"
    assert case.look(851) == still(still_s=501)


def test_steps_that_were_under_way_do_not_refute_it(case: Case) -> None:
    case.say(MEMSTATS, *steps(0, 5), OOM)
    case.look(0)
    case.say(*steps(5, 7))
    assert case.look(30) is None
    assert case.look(90) is None, "the grace begins anew with each step"
    standstill = case.look(91)
    assert standstill is not None
    assert standstill.fatal is not None


def test_a_further_phase_or_start_refutes_it(case: Case) -> None:
    case.say(OOM, MEMSTATS)
    case.look(0)
    assert case.look(1700) is None
    case.say(*steps(0, 6), OOM, MEMSTATS)
    case.look(1701)
    assert case.look(3400) is None


def test_a_step_may_be_longer_than_the_grace(case: Case) -> None:
    case.say(MEMSTATS, *steps(0, 6, step_s=100), HANG)
    case.look(0)
    assert case.look(300) is None
    assert case.look(301) is not None


def test_the_sites_own_patience_counts(tmp_path: Path) -> None:
    case = Case(tmp_path, Patience(before_memstats_s=2, after_fatal_s=1))
    case.look(0)
    assert case.look(2) is None
    assert case.look(2.1) is not None


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_patience_at_all_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"patience: after_fatal_s is .*expected at least 1"):
        Patience(after_fatal_s=seconds)


def test_a_fatal_line_may_be_another_ranks(case: Case) -> None:
    case.say(MEMSTATS, *steps(0, 5))
    case.say(MEMSTATS, *steps(0, 5), HANG, rank=3)
    case.look(0)
    assert case.look(60) is None
    standstill = case.look(61)
    assert standstill is not None
    assert standstill.fatal is not None
    assert (standstill.fatal.cls, standstill.fatal.source) == ("gpu-hardware", "log.3.txt")
    case.say(*steps(5, 8))
    assert case.look(62) is None
    assert case.look(560) is None, "rank 0 went on for three steps"


def test_what_another_rank_says_is_a_finding_with_its_source(case: Case) -> None:
    case.say(MEMSTATS, OOM)
    case.say(MEMSTATS, OOM, rank=1)
    case.say(MEMSTATS, HANG, "ModuleNotFoundError: No module named 'grain'", rank=2)
    found = case.follower.finish(JOB, Protocol()).report.findings
    assert [(each.cls, each.source) for each in found] == [
        ("oom-gpu", ""),
        ("gpu-hardware", "log.2.txt"),
        ("python-exception", "log.2.txt"),
    ]


@pytest.mark.parametrize(
    ("ranks", "cls", "source"),
    [
        pytest.param([(GLOO,), OWN], "python-exception", "log.1.txt", id="one that raised"),
        pytest.param([(GLOO,), (GLOO,), OWN, (GLOO,)], "python-exception", "log.2.txt",
                     id="one of four that raised"),
        pytest.param([OWN, (GLOO,)], "python-exception", "", id="rank 0 raised"),
        pytest.param([(GLOO,), (GLOO, *OWN)], "peer-lost", "", id="one that raised for that"),
        pytest.param([(GLOO,), (*OWN, GLOO)], "peer-lost", "", id="one whose handler told it"),
        pytest.param([(GLOO,), ("RuntimeError: collective 7 failed",)], "peer-lost", "",
                     id="an error that a lost peer raises as well"),
        pytest.param([(GLOO,), ("KeyboardInterrupt",)], "peer-lost", "", id="one told to end"),
        pytest.param([(GLOO,), OWN, (OOM,)], "oom-gpu", "log.2.txt", id="a cause is a cause"),
    ],
)  # fmt: skip
def test_the_rank_that_failed_by_itself_names_the_failure(
    case: Case, ranks: list[tuple[str, ...]], cls: str, source: str
) -> None:
    for rank, lines in enumerate(ranks):
        case.say(MEMSTATS, *lines, rank=rank)
    cause = primary(case.follower.finish(JOB, Protocol()).report.findings)
    assert cause is not None
    assert (cause.cls, cause.source) == (cls, source)


def test_a_look_begins_no_log_twice(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LogReader] = []
    new = LogReader.__init__

    def count(reader: LogReader, pattern: StepPattern | None = None) -> None:
        made.append(reader)
        new(reader, pattern)

    monkeypatch.setattr(LogReader, "__init__", count)
    for at_s in range(5):
        for rank in range(8):
            case.say(f"line {at_s}", rank=rank)
        case.look(at_s)
    assert len(made) == 8


def test_steps_are_of_rank_0(case: Case) -> None:
    case.say(*steps(0, 3))
    case.say(*steps(0, 9), rank=1)
    assert case.follower.finish(JOB, Protocol()).report.last_step == 2
