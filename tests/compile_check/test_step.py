"""What follows from compiled profiles: which need no run, which do, what is compiled again."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Compiled
from pytest_xlatune.ledger import (
    AttemptIntended,
    CampaignOpened,
    Event,
    LedgerEntry,
    Noted,
    ProfileCompiled,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.result import NotRun, TrialResult, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.prepare import compilers as compiling
from pytest_xlatune.prepare.compile_check import Step
from pytest_xlatune.prepare.compilers import Compiler

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=1"))
SEEN = "--xla_gpu_all_gather_combine_threshold_bytes"  # acts on the program alone
LATER = "--xla_gpu_enable_highest_priority_async_stream=false"
PROGRAM = Program(
    source="a.txt",
    module="jit_train_step",
    target="sm_9.0",
    fingerprint=None,
    digest="deployed",
    unordered="deployed",
    instructions=1,
    opcodes={"add": 1},
    collectives=(),
    loops=(),
    in_flight=0,
    memory_bytes=1 << 30,
)


def spec(each: Profile) -> LaunchSpec:
    return LaunchSpec(argv=("compile",), env={"XLA_FLAGS": each.settings_text})


def compiler(tmp_path: Path, **said: object) -> Compiler:
    source = tmp_path / "step.py"
    if not source.exists():
        source.write_text("def step(): ...\n", encoding="utf-8")
    settings = {"way": spec, "python": sys.executable, "sources": (source,)}
    return Compiler(**{**settings, **said})  # type: ignore[arg-type]


def outcome(each: Profile) -> Compiled:
    """What a compiler would say, by the profile's name."""
    name = each.id.partition(".")[0]
    if name in ("refused", "failed", "killed"):
        return Compiled(
            profile=each,
            program=None,
            said=f"{name}!",
            refused=name == "refused",
            is_interrupted=name == "killed",
        )
    changed = {
        "same": PROGRAM,
        "faster": msgspec.structs.replace(PROGRAM, digest="faster", unordered="faster"),
        "huge": msgspec.structs.replace(PROGRAM, digest="huge", memory_bytes=1 << 40),
    }
    return Compiled(profile=each, program=changed[name], took_s=1.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def compiled(each: Profile, spec: LaunchSpec, root: Path) -> Compiled:
        made.append(each.id)
        return Compiled(profile=each, program=PROGRAM) if each.is_baseline else outcome(each)

    monkeypatch.setattr(compiling, "compiled", compiled)
    monkeypatch.setattr("pytest_xlatune.prepare.compilers._versions", lambda _: ("jaxlib 1",))
    return made


def trials(*profiles: Profile) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            cell_digest=CELL.digest,
            profile=each,
            protocol=CELL.protocol,
            study="tuning",
            stage="wave2",
        )
        for each in (BASELINE, *profiles)
    )


def run(
    step: Step,
    *profiles: Profile,
    selected: tuple[Profile, ...] | None = None,
    state: LedgerState | None = None,
    folder: Path,
) -> tuple[LedgerState, list[Event]]:
    """Take steps until there are none, as a campaign does."""
    seen: list[Event] = []
    state = state or LedgerState()
    for _ in range(50):
        final = {each.trial.id for each in state.trials.values() if each.ended}
        whole = tuple(each for each in trials(*profiles) if each.id not in final)
        wanted = profiles if selected is None else selected
        pending = tuple(each for each in whole if each.is_baseline or each.profile in wanted)
        events = step.next(state, pending, whole, folder=folder)
        if not events:
            return state, seen
        seen += events
        entries = [LedgerEntry(number=n, at_s=0.0, event=e) for n, e in enumerate(events)]
        state = replay(entries, onto=state)
    pytest.fail("it never comes to an end")


def dropped(state: LedgerState) -> set[str]:
    return {
        each.trial.profile.id
        for each in state.trials.values()
        if each.ended and each.ended.status is TrialStatus.DROPPED
    }


def test_what_needs_no_run_is_dropped_with_its_reason(tmp_path: Path, calls: list[str]) -> None:
    profiles = (
        profile("same.1", f"{SEEN}=1"),
        profile("same.2", f"{SEEN}=2"),
        profile("faster.1", f"{SEEN}=3"),
        profile("faster.2", f"{SEEN}=4"),
        profile("refused", "--xla_a=1"),
        profile("failed", "--xla_b=1"),
        profile("huge", f"{SEEN}=5"),
    )
    step = Step(compiler(tmp_path, memory_limit_bytes=1 << 36), profiles)
    state, events = run(step, *profiles, folder=tmp_path)
    assert calls == ["baseline-deployed", *(each.id for each in profiles)]
    assert dropped(state) == {"same.2", "faster.2", "refused", "failed", "huge"}
    ended = [each.result for each in events if isinstance(each, TrialEnded)]
    assert {each.findings[0].cls for each in ended} == {FailureClass.COMPILE_CHECK}
    needless = {each.trial.arm for each in ended if each.not_run is NotRun.NEEDLESS}
    assert needless == {"same.2", "faster.2"}
    assert {each.trial.arm for each in ended if each.not_run is NotRun.CANNOT} == {
        "refused",
        "failed",
        "huge",
    }
    reasons = {each.trial.profile.id: each.reason for each in ended}
    assert sentence(reasons["refused"]) == "compiling says: flag refused: refused!"
    assert sentence(reasons["huge"]) == ("compiling says: needs too much memory: 1 TiB of 64 GiB")
    assert sentence(reasons["same.2"]).startswith("needs no run: identical to the baseline: ")
    assert sentence(reasons["faster.2"]).startswith(
        "needs no run: the same program and settings as faster.1"
    )
    assert not list(tmp_path.glob("compiling-*")), "no dump is left lying about"


@pytest.mark.parametrize(
    "setting",
    [
        {"env": {"NCCL_ALGO": "Ring"}},
        {"flags": LATER},
        {"overrides": {"learning_rate": "1"}},
        {"flags": "--xla_that_no_table_knows=1"},
        {"flags": "--xla_gpu_enable_command_buffer="},
    ],
    ids=["variable", "stream priority", "override", "unknown to the table", "command buffers"],
)
@pytest.mark.parametrize("made", ["same", "faster", "huge"])
def test_what_may_act_at_run_time_is_always_measured(
    tmp_path: Path, calls: list[str], setting: dict[str, object], made: str
) -> None:
    settings = {"flags": "", **setting}
    twins = tuple(profile(f"{made}.{n}", **settings) for n in (1, 2))  # type: ignore[arg-type]
    step = Step(compiler(tmp_path, memory_limit_bytes=1 << 36), twins, controls=0)
    state, _ = run(step, *twins, folder=tmp_path)
    assert state.compiled[f"{made}.1"].later
    assert not dropped(state)


@pytest.mark.parametrize(("controls", "measured"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_so_many_identical_profiles_are_controls(
    tmp_path: Path, calls: list[str], controls: int, measured: int
) -> None:
    profiles = tuple(profile(f"same.{n}", f"{SEEN}={n}") for n in range(3))
    step = Step(compiler(tmp_path), profiles, controls=controls)
    state, _ = run(step, *profiles, folder=tmp_path)
    assert len(dropped(state)) == len(profiles) - measured


def test_nothing_is_compiled_twice_by_any_process(tmp_path: Path, calls: list[str]) -> None:
    profiles = tuple(profile(f"faster.{n}", f"{SEEN}={n}") for n in range(3))
    state, _ = run(Step(compiler(tmp_path), profiles), *profiles, folder=tmp_path)
    before = list(calls)
    reopened = replay([_opened("later")], onto=state)
    again, events = run(
        Step(compiler(tmp_path), profiles), *profiles, state=reopened, folder=tmp_path
    )
    assert calls == before
    assert not any(isinstance(each, ProfileCompiled) for each in events)
    assert dropped(again) == dropped(state) == {"faster.1", "faster.2"}


@pytest.mark.parametrize("change", ["source", "versions", "memory", "baseline"])
def test_what_a_program_rests_on_makes_it_compiled_again(
    tmp_path: Path, calls: list[str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = profile("faster", f"{SEEN}=1")
    state, _ = run(Step(compiler(tmp_path), (one,)), one, folder=tmp_path)
    said: dict[str, object] = {}
    if change == "source":
        (tmp_path / "step.py").write_text("def step(): return 1\n", encoding="utf-8")
    elif change == "versions":
        monkeypatch.setattr("pytest_xlatune.prepare.compilers._versions", lambda _: ("jaxlib 9",))
    elif change == "memory":
        said["memory_limit_bytes"] = 1 << 36
    else:
        said["way"] = lambda each: msgspec.structs.replace(spec(each), cwd="/elsewhere")
    run(Step(compiler(tmp_path, **said), (one,)), one, state=state, folder=tmp_path)
    assert calls.count("faster") == 2


def test_what_was_killed_is_measured_and_told(tmp_path: Path, calls: list[str]) -> None:
    killed = profile("killed", f"{SEEN}=1")
    state, events = run(Step(compiler(tmp_path), (killed,)), killed, folder=tmp_path)
    assert [type(each) for each in events] == [Noted]
    assert not dropped(state)
    assert not state.compiled


def test_a_trial_that_has_an_attempt_is_measured_to_its_end(
    tmp_path: Path, calls: list[str]
) -> None:
    refused = profile("refused", "--xla_a=1")
    (_, trial) = trials(refused)
    begun = replay(
        [
            LedgerEntry(number=1, at_s=0.0, event=TrialPlanned(trial=trial)),
            LedgerEntry(
                number=2,
                at_s=0.0,
                event=AttemptIntended(trial_id=trial.id, attempt=1, comment="c"),
            ),
        ]
    )
    state, _ = run(Step(compiler(tmp_path), (refused,)), refused, state=begun, folder=tmp_path)
    assert not dropped(state)


def test_a_new_session_decides_anew_and_keeps_the_measured_ones(tmp_path: Path) -> None:
    left_out, ran = trials(profile("a"), profile("b"))[1:]
    results = (
        TrialResult(
            trial=left_out,
            status=TrialStatus.DROPPED,
            reason=verbatim("compiled"),
            not_run=NotRun.NEEDLESS,
        ),
        TrialResult(trial=ran, status=TrialStatus.DROPPED, reason=verbatim("oom"), job_ids=("7",)),
    )
    state = replay(
        [_opened("first")]
        + [LedgerEntry(number=2, at_s=0.0, event=TrialEnded(result=each)) for each in results]
    )
    again = replay([_opened("second")], onto=state)
    assert [each.ended is None for each in again.trials.values()] == [True, False]


def test_a_baseline_that_does_not_compile_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def compiled(each: Profile, spec: LaunchSpec, root: Path) -> Compiled:
        made.append(each.id)
        return Compiled(profile=each, program=None, said="no luck")

    monkeypatch.setattr(compiling, "compiled", compiled)
    one = profile("faster", f"{SEEN}=1")
    step = Step(compiler(tmp_path), (one,))
    for _ in range(2):
        with pytest.raises(ConfigError, match="as deployed gives no program to compare: no luck"):
            run(step, one, folder=tmp_path)
    assert made == ["baseline-deployed"]


def _opened(session: str) -> LedgerEntry:
    event = CampaignOpened(cells=(CELL,), study="tuning", session=session)
    return LedgerEntry(number=1, at_s=0.0, event=event)


def test_a_profile_that_a_wave_derived_is_compiled_when_it_is_asked_for(
    tmp_path: Path, calls: list[str]
) -> None:
    declared = profile("faster.a", f"{SEEN}=1")
    derived = profile("huge.a+b", f"{SEEN}=2", wave="wave3")
    step = Step(compiler(tmp_path, memory_limit_bytes=1 << 35), [declared])
    state, _ = run(step, declared, folder=tmp_path)
    assert calls == [BASELINE.id, "faster.a"]
    state, _ = run(step, declared, derived, state=state, folder=tmp_path)
    assert calls == [BASELINE.id, "faster.a", "huge.a+b"]
    assert dropped(state) == {"huge.a+b"}
