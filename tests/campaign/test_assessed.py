"""What an ended attempt comes to: score, class, and what follows; and so for a rotation."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import assess as campaign_assess
from pytest_xlatune.campaign._follow import EndedAttempt, Leftovers, options_of_dump
from pytest_xlatune.campaign.assess import MOST_BLAMED, STATUS, Assessed, settings_events
from pytest_xlatune.campaign.playbook import (
    CLASS_RULES,
    Facts,
    Ruling,
    decide,
    rule_for,
)
from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import read_outcomes, read_spec, write_spec
from pytest_xlatune.launchers.command import SPEC_FILE, CommandLauncher
from pytest_xlatune.ledger import AttemptCutShort, Decided
from pytest_xlatune.ledger.state import LedgerState, TrialProgress
from pytest_xlatune.logs import LogReport, read_log
from pytest_xlatune.logs._signatures import table
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.failure import Blame, FailureClass, blamed_on
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, OPTIONS_FOLDER, Profile, profile
from pytest_xlatune.model.resources import Next, RetryPolicy, RetryRule
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    BlamedAt,
    Effect,
    Finding,
    Outcome,
    RotationResult,
    SettingKind,
    State,
    TrialResult,
    TrialSetting,
    TrialStatus,
)
from pytest_xlatune.model.rotation import RotationSpec
from pytest_xlatune.model.trial import LaunchSpec, Trial
from tests.helpers import scripted
from tests.helpers.history import measured
from tests.helpers.scripted import (
    COPY,
    KILLED,
    FakeExecutor,
    RotationsStudy,
    at_call,
    journal,
    line,
    log,
    spec_of,
)
from tests.helpers.tables import rows
from tests.helpers.tell_options import TELL_OPTIONS

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


def trial_of(cell: Cell, of: Profile) -> Trial:
    return Trial(
        cell_digest=cell.digest, profile=of, protocol=cell.protocol, study="tuning", stage="wave1"
    )


def assess(
    trial: Trial,
    cell: Cell,
    outcome: Outcome,
    report: LogReport,
    *,
    earlier: Sequence[str] = (),
    reference: str = "",
    fatal: Finding | None = None,
    dumps_options: bool = False,
    ran_on: Mapping[str, Mapping[str, str]] | None = None,
    **left: Any,
) -> Assessed:
    """Assess an attempt from a few of its facts, with what the others mostly are."""
    cut = None
    if fatal is not None:
        cut = AttemptCutShort(trial_id=trial.id, attempt=1, still_s=60, fatal=fatal)
    return campaign_assess.assess(
        EndedAttempt(
            trial=trial,
            cell=cell,
            outcome=outcome,
            left=Leftovers(report=report, **left),
            cut=cut,
            dumps_options=dumps_options,
            ran_on=ran_on or {},
            facts=Facts(
                earlier=earlier,
                is_reference=trial.arm == reference,
            ),
        )
    )


def assessed(
    text: str, outcome: Outcome = OK, *, of: Profile = ONE, file: str = "", **facts: Any
) -> Assessed:
    report, metrics = read_log([text.encode()]), parse_metrics(file)
    facts = {"reference": BASELINE_ID, "metrics": metrics, **facts}
    return assess(trial_of(CELL, of), CELL, outcome, report, **facts)


def tgs(found: Assessed) -> float:
    assert STATUS[found.decision.next] is TrialStatus.MEASURED
    assert found.result.score is not None
    assert found.result.score.tgs is not None
    return found.result.score.tgs


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
    assert cut.result.score is not None
    assert (cut.result.score.window, cut.result.score.flags) == ((5, 14), ())


@rows(
    "head, devices",
    {
        "GPUs": ("Devices: [CudaDevice(id=0), CudaDevice(id=1)]", {"log:Devices": "cuda"}),
        "a CPU": ("System Information: Jax Backend: cpu", {"log:Jax Backend": "cpu"}),
        "a plugin": (
            "System Information: Jax Backend: PJRT C API\nrocm 60300",
            {"log:Jax Backend": "an accelerator"}),
        "a CPU beside GPUs": ("Devices: [CpuDevice(id=0)]", {"log:Devices": "cpu"}),
    },
)  # fmt: skip
def test_a_log_alone_tells_the_devices_of_jax(head: str, devices: dict[str, str]) -> None:
    found = assessed(f"{head}\n{WHOLE}", ran_on={BASELINE_ID: {"log:Devices": "cuda"}})
    assert found.result.devices == devices
    is_refused = devices == {"log:Devices": "cpu"}
    assert (found.result.score is None) is is_refused
    if is_refused:
        said = f"it ran on cpu and {BASELINE_ID} on cuda, as log:Devices shows"
        assert said in sentence(found.result.reason)


def test_no_figure_of_a_run_to_its_end_makes_it_run_again() -> None:
    """To run again what came out slow, or unsteady, would make winners of noise."""
    quiet = assessed(WHOLE)
    lines = [log(1000.0 / (1 + step), steps=STEPS).splitlines()[step] for step in range(STEPS)]
    for text in (log(10.0, steps=STEPS), "\n".join(lines)):
        found = assessed(BOTH + text, earlier=("killed",))
        assert found.decision == quiet.decision
        assert tgs(found) != tgs(quiet)


NO_FIGURES = WHOLE.replace("Tokens/s/device", "words").replace("seconds", "beats")
ONCE = {"earlier": ("no-score",)}


@rows(
    "text, outcome, of, facts, expected",
    {
        "what is deployed is not in effect": (
            WHOLE.replace("--xla_gpu_autotune_level=4 ", ""), OK, ONE, {},
            "drop flags-not-effective"),
        "an outcome that cannot be read": (
            WHOLE, Outcome(state=State.FAILED, is_unreadable=True), ONE, {},
            "retry outcome-unreadable"),
        "no score twice": (NO_FIGURES, OK, ONE, ONCE, "give-up no-score"),
        "no score of a baseline twice, nor of anything beside it": (
            NO_FIGURES.replace(BOTH, DEPLOYED), OK, BASELINE, ONCE, "stop no-score"),
        "the baseline fails of what no profile escapes": (
            REFUSED, FAILED, BASELINE, {}, "stop unknown-flag"),
        "any arm may be the reference": (
            REFUSED, FAILED, ONE, {"reference": "one"}, "stop unknown-flag"),
    },
)  # fmt: skip
def test_what_an_attempt_comes_to(
    text: str, outcome: Outcome, of: Profile, facts: dict[str, Any], expected: str
) -> None:
    found = assessed(text, outcome, of=of, **facts)
    assert f"{found.decision.next} {found.decision.cls}" == expected
    assert found.result.score is None
    assert found.result.findings[0].cls == found.decision.cls
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
    other = next(each for each in plain.result.findings if each.cls != plain.decision.cls)
    told = assessed(text, killed, fatal=replace(other, line=0))
    assert told.decision.cls == told.result.findings[0].cls == other.cls
    # every step is there: the line asks for nothing any more
    whole = assessed(BOTH + log(steps=STEPS, last=both), killed, fatal=other)
    assert (whole.decision.next, whole.decision.cls) == (Next.ACCEPT, "soft-success")


NODE, LATE = (Outcome(state=state) for state in (State.NODE_FAIL, State.TIMEOUT))
BLAMED = Blamed(program="fast", at=BlamedAt.TURN, cls="killed", attempt=1)
FIRST = Facts(is_first_rotation=True)
NEVER_RAN = Facts(is_reference=True, reference_runs=False)
ENOUGH = Facts(has_enough_turns=True)
NODES_END = Facts(ends_with_nodes=True)
SITE = RetryPolicy(
    rules={"nic-fault": RetryRule(retries=0, then=Next.STOP), "oom-gpu": RetryRule(retries=9)}
)
NOTHING = Facts()


def finding(cls: str, text: str = "the line") -> Finding | None:
    """Return what a class and an action name: the action is to try again where it names none."""
    name, _, action = cls.partition(" ")
    return Finding(cls=name, action=Action(action or "retry"), text=text) if cls else None


@rows(
    "outcome, cause, earlier, facts, expected",
    {
        "a clean end is scored": (OK, "", (), NOTHING, "accept"),
        "a third drops the profile": (FAILED, "hang-init", ("hang-init",) * 2, NOTHING, "drop"),
        "a second one of a reference that never ran stops": (
            FAILED, "hang-init", ("hang-init",), NEVER_RAN, "stop"),
        "an outage is waited out, however long": (
            FAILED, "github-5xx wait", ("github-5xx",) * 40, NOTHING, "retry"),
        "and takes no attempt from other trouble": (
            FAILED, "killed", ("github-5xx",) * 9, NOTHING, "retry"),
        "a second coordinator timeout in a row stops": (
            FAILED, "jax-coord-timeout", ("jax-coord-timeout",), NOTHING, "stop"),
        "one that is not in a row does not": (
            FAILED, "jax-coord-timeout", ("jax-coord-timeout", "killed"), NOTHING, "retry"),
        "a dead node is resumed": (NODE, "", (), NOTHING, "retry"),
        "a node that dies three times stops": (NODE, "", ("node-fail",) * 2, NOTHING, "stop"),
        "and then not": (FAILED, "", ("exit-code",), NOTHING, "give-up"),
        "a time limit": (LATE, "", (), NOTHING, "give-up"),
        "a deadline at which we sent the signal": (
            Outcome(state=State.TIMEOUT, signal=15), "", (), NOTHING, "give-up"),
        "four attempts are enough": (
            FAILED, "killed", ("exit-code", "lost", "killed"), NOTHING, "give-up"),
        "whatever the playbook says of its class": (FAILED, "killed stop", (), NOTHING, "stop"),
        "a rule of the site comes first": (FAILED, "nic-fault", (), Facts(policy=SITE), "stop"),
        "but never softens a drop": (FAILED, "oom-gpu drop", (), Facts(policy=SITE), "drop"),
        "a rotation goes on without what it died of": (
            FAILED, "xla-check-fail drop", (), Facts(blamed=BLAMED), "retry"),
        "a rotation that the limit ended counts with enough turns": (
            LATE, "", (), ENOUGH, "accept"),
        "one that ended by itself does not": (FAILED, "", ("exit-code",), ENOUGH, "give-up"),
        "a first rotation that was ended from outside": (LATE, "", (), FIRST, "stop"),
        "one that ends by itself again": (FAILED, "", ("exit-code",), FIRST, "drop"),
        "a study that goes on without a node": (
            NODE, "", ("node-fail",) * 2, NODES_END, "give-up"),
        "which no other trouble is": (FAILED, "hub wait", ("hub",) * 3, NODES_END, "stop"),
    },
)  # fmt: skip
def test_what_follows(
    outcome: Outcome, cause: str, earlier: tuple[str, ...], facts: Facts, expected: str
) -> None:
    decision = decide(outcome, finding(cause), dataclasses.replace(facts, earlier=earlier))
    assert decision.next == expected
    assert Ruling.from_json(decision.to_json()) == decision
    if expected != "accept":
        assert decision.cls
        assert decision.cls in sentence(decision.why)


def test_a_retry_says_what_comes_first_and_how_long_it_waits() -> None:
    def ruled(cls: str, times: int) -> Ruling:
        cause = finding(cls)
        return decide(FAILED, cause, Facts(earlier=(cls.partition(" ")[0],) * times))

    assert [ruled("nic-fault hook", n).before for n in range(2)] == [Action.HOOK, Action.NONE]
    down = [ruled("slurm-controller-down wait", n) for n in (0, 3)]
    assert [(each.next, each.backoff_s) for each in down] == [("retry", 300), ("stop", 0)]
    waits_s = [ruled("github-5xx wait", n).backoff_s for n in range(3)]
    assert waits_s == [300, 3600, 3600]


@pytest.mark.parametrize("cls", sorted(blamed_on(Blame.SITE)))
def test_no_trouble_of_the_site_drops_a_profile(cls: FailureClass) -> None:
    actions = {each.action for each in table().signatures if each.cls == cls}
    if cls in table().combined and cls.action is not None:  # by a hang digest
        actions.add(cls.action)
    assert Action.DROP not in actions
    assert cls not in blamed_on(Blame.UNKNOWN)
    for action in actions or {CLASS_RULES[cls].before}:
        rule = rule_for(RetryPolicy(), Finding(cls=cls, action=action))
        assert rule.then in (Next.STOP, Next.GIVE_UP)


@pytest.mark.parametrize("cls", sorted(blamed_on(Blame.UNKNOWN)))
def test_an_unknown_failure_is_tried_once_more_and_then_judged_by_the_reference(
    cls: FailureClass,
) -> None:
    once = Facts(earlier=(cls,))
    # a third attempt that failed in another way is no second time
    mixed = Facts(earlier=("killed", "lost", "killed"))
    facts = (NOTHING, once, dataclasses.replace(once, reference_runs=False), mixed)
    ruled = [decide(FAILED, finding(cls), each).next for each in facts]
    assert ruled == [Next.RETRY, Next.DROP, Next.GIVE_UP, Next.GIVE_UP]


@rows(
    "effects, stops",
    {
        "two profiles are contradicted": (("contradicted", "contradicted"), "flags-not-effective"),
        "one of three was in effect": (("in effect", "contradicted", "contradicted"), ""),
        "one is": (("contradicted",), ""),
        "nothing shows the flags of two": (("not seen", "not seen"), "flags-unverified"),
        "a flag of another was seen": (("in effect", "not seen", "not seen"), ""),
    },
)
def test_a_sweep_whose_settings_reach_no_program_stops(
    effects: tuple[str, ...], stops: str
) -> None:
    results = []
    for number, effect in enumerate(effects):
        kind, flag = SettingKind.FLAG, f"xla_gpu_{number}"
        setting = TrialSetting(name=flag, kind=kind, asked="1", effect=Effect(effect))
        trial = trial_of(CELL, profile(f"arm{number}", f"--{flag}=1"))
        results.append(replace(measured(trial, 6.9), settings=(setting,)))
    trials = {each.trial.id: TrialProgress(trial=each.trial, ended=each) for each in results[:-1]}
    events = settings_events(LedgerState(trials=trials), results[-1])
    assert [each.cls for each in events if isinstance(each, Decided)] == [stops] * bool(stops)


# ---- ways in which a setting is lost between us and the program, by real processes: the payload,
# bash, and what tells of a flag as XLA does (of `make test-all`, XLA itself)

STEP_LINES = """
for step in range(12):
    print(f"completed step: {step}, seconds: 0.5, TFLOP/s/device: 0.1, "
          "Tokens/s/device: 1024.0, total_weights: 512, loss: 7.1")
"""
JAX = "import jax, jax.numpy as jnp\njax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))\n"
SHOWS = "import os\nprint('XLA_FLAGS=' + os.environ.get('XLA_FLAGS', ''))\n"
# what NCCL itself prints where it is loaded and asked to
NCCL = """
import os
if os.environ.get("NCCL_DEBUG") == "INFO" and "NCCL_ALGO" in os.environ:
    print("n1:7:7 [0] NCCL INFO NCCL_ALGO set by environment to " + os.environ["NCCL_ALGO"])
"""
# of a trainer that is started again: its first start
EARLY = """
import sys
if "early" in sys.argv:
    for step in range(4):
        print(f"completed step: {step}, seconds: 0.5, Tokens/s/device: 1024.0, loss: 7.1")
    sys.exit(1)
"""
SWALLOW = 'XLA_FLAGS=$(tr " " "\\n" <<<"$XLA_FLAGS" | grep -v mathh | tr "\\n" " ")'
KEY = "print('Config param remat_policy: {}')\n"
LEVEL = profile("level", "--xla_backend_optimization_level=1")
TYPO = profile("typo", "--xla_cpu_enable_fast_mathh=true")
RING = profile("ring", env={"NCCL_ALGO": "Ring"})
FULL = profile("full", overrides={"remat_policy": "full"})
TELLS = f"import os\n{TELL_OPTIONS}"
OF_PROGRAMS = (pytest.mark.jax, pytest.mark.part("programs"))
by_xla = pytest.mark.parametrize(
    "xla", [pytest.param(TELLS, id="as XLA"), pytest.param(JAX, id="XLA", marks=OF_PROGRAMS)]
)


def ran(of: Profile, folder: Path, program: str, *, wrapper: str = "") -> Assessed:
    """Run a trial of a profile as the payload does, and assess it as the campaign does."""
    (folder / "trainer.py").write_text(f"{program}{STEP_LINES}", encoding="utf-8")
    (folder / "wrapper.sh").write_text(f'{wrapper}\nexec "$@"\n', encoding="utf-8")
    argv = ("bash", str(folder / "wrapper.sh"), sys.executable, str(folder / "trainer.py"))
    inherit = ("PATH", "HOME", "JAX_PLATFORMS")
    launcher = CommandLauncher(argv=(*argv, "{overrides}"), inherit=inherit)
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=1"), protocol=Protocol(steps=12))
    trial, attempt = trial_of(cell, of), folder / "an attempt"
    write_spec(attempt, launcher.launch(trial, cell))
    command = [sys.executable, payload.__file__, str(attempt)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run(command, env=environment, check=True, timeout=240)
    report = read_log([(attempt / payload.log_name()).read_bytes()])
    spec = read_spec(attempt)
    assert spec is not None
    options = options_of_dump(attempt, cell.protocol)
    outcome = read_outcomes(attempt)[0]
    return assess(trial, cell, outcome, report, options=options, dumps_options=spec.tells_options)


def ends(found: Assessed) -> str:
    (setting,) = found.result.own_settings
    return f"{setting.effect}: {found.decision.next}"


@by_xla
@rows(
    "program, wrapper, end",
    {
        "nothing in between": (SHOWS, "", "in effect: accept"),
        "an env file that is sourced again has the last word": (
            SHOWS, 'XLA_FLAGS="$XLA_FLAGS --xla_backend_optimization_level=3"',
            "contradicted: drop"),
        "an env file that replaces everything, and no line about it": (
            "", 'export XLA_FLAGS="--xla_backend_optimization_level=3"',
            "not seen: accept"),
        "a trainer that resets the flags after it has printed them": (
            f"{SHOWS}os.environ['XLA_FLAGS'] = ''\n", "", "not seen: accept"),
        "a trainer that swallows a typo": ("", SWALLOW, "not seen: accept"),
    },
)  # fmt: skip
def test_a_flag_on_its_way_to_xla(
    xla: str, program: str, wrapper: str, end: str, tmp_path: Path
) -> None:
    found = ran(TYPO if wrapper == SWALLOW else LEVEL, tmp_path, f"{program}{xla}", wrapper=wrapper)
    assert ends(found) == end, found.result.settings
    folder = tmp_path / "an attempt" / OPTIONS_FOLDER
    left = [each for each in folder.rglob("*") if each.is_file()]
    assert len(left) <= 5, "what is not read is deleted"
    assert sum(each.stat().st_size for each in left) < 1 << 16


@by_xla
def test_options_of_a_start_that_died_are_no_proof_of_the_one_that_was_measured(
    xla: str, tmp_path: Path
) -> None:
    """A wrapper starts the trainer again, without the flags that the first start wrote down."""
    found = ran(LEVEL, tmp_path, xla + EARLY, wrapper='"$@" early; unset XLA_FLAGS')
    assert ends(found) == "asked: accept"
    assert not found.result.own_settings[0].is_proved


@rows(
    "of, program, wrapper, end",
    {
        "NCCL reads it": (RING, NCCL, "", "in effect: accept"),
        "a variable is overwritten": (RING, NCCL, "export NCCL_ALGO=Tree", "contradicted: drop"),
        "the key is used": (FULL, KEY.format("full"), "", "in effect: accept"),
        "a yml wins": (FULL, KEY.format("none"), "", "contradicted: drop"),
    },
)
def test_a_variable_or_a_key_on_its_way(
    of: Profile, program: str, wrapper: str, end: str, tmp_path: Path
) -> None:
    assert ends(ran(of, tmp_path, program, wrapper=wrapper)) == end


def test_a_user_who_dumps_is_left_alone(tmp_path: Path) -> None:
    found = ran(profile("dumps", "--xla_dump_to=/mine --xla_a=1"), tmp_path, SHOWS)
    assert [str(each.effect) for each in found.result.own_settings] == ["asked", "asked"]
    log = (tmp_path / "an attempt" / payload.log_name()).read_text(encoding="utf-8")
    assert "XLA_FLAGS=--xla_dump_to=/mine --xla_a=1\n" in log


SPEC = spec_of(
    ("fast", {"xla_fast": "1"}), ("slow", {"xla_slow": "1"}), ("odd", {"xla_odd": "1"}), rounds=4
)
LOOK = spec_of(copies=1, rounds=3)
NAMES = [SPEC.programs[index].id for index in SPEC.order]
SPEEDS = {"fast": 1050.0, "slow": 900.0}
RAISED = Outcome(state=State.FAILED, exit_code=1)
ABORTED = Outcome(state=State.FAILED, signal=6)
TIMED_OUT = Outcome(state=State.TIMEOUT, signal=9)
CANCELLED = Outcome(state=State.CANCELLED)
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)\n"
NAN = "E0112 07:09:00.3 77 train.py:410] Aborting training due to NaN loss.\n"
# the first turn of a profile, and that profile
TURN = next(at for at, index in enumerate(SPEC.order) if index > 1)
OF_TURN = NAMES[TURN]

# log, outcome and journals of an attempt
Told = tuple[str, Outcome, tuple[str, ...]]
Play = Callable[[RotationSpec, int], Told]


def step_lines(
    spec: RotationSpec, *, first: int = 0, until: int | None = None, nan_from: float = math.inf
) -> str:
    """Return MaxText's lines of a rotation whose programs have these `SPEEDS`, else 1000."""
    total = spec.first_step + len(spec.order) * spec.turn_steps
    lines = []
    for call in range(total if until is None else until):
        tgs = SPEEDS.get(at_call(spec, call), 1000.0) * (1 + 0.002 * ((call * 7) % 5 - 2))
        loss = "nan" if call >= nan_from else "7.1"
        lines.append(scripted.step_line(first + call, tgs, loss))
    return "".join(lines)


class Rotating(FakeExecutor):
    """Writes the journals beside the log, by the spec that it was handed."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play
        self.specs: list[RotationSpec] = []

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        told = RotationSpec.from_json(json.loads(spec.files[SPEC_FILE]))
        text, outcome, journals = self.play(told, int(request.folder.name.rpartition(".")[2]))
        self.script = lambda *_: (text, outcome)
        job = super().submit(spec, request)
        for rank, lines in enumerate(journals):
            (request.folder / f"rotation.{rank}.jsonl").write_text(lines, encoding="utf-8")
        self.specs.append(told)
        return job


@dataclass(frozen=True, kw_only=True)
class Ran:
    state: LedgerState
    executor: Rotating
    result: TrialResult

    @property
    def rotation(self) -> RotationResult:
        assert self.result.rotation is not None
        return self.result.rotation

    @property
    def changes(self) -> dict[str, float]:
        score = self.rotation.score
        return {each.program: round(each.change, 3) for each in score.programs} if score else {}

    @property
    def blamed(self) -> list[str]:
        return [each.program for each in self.rotation.blamed]


def run(folder: Path, play: Play, spec: RotationSpec = SPEC) -> Ran:
    executor = Rotating(play)
    study = RotationsStudy(cell=scripted.CELL, spec=spec)
    made = scripted.campaign(folder, executor, study=study)
    scripted.run(made)
    view = made.view()
    return Ran(state=view.state, executor=executor, result=view.history[-1])


def whole(spec: RotationSpec, _: int = 0) -> Told:
    return step_lines(spec), scripted.OK, (journal(spec),)


def dying(
    outcome: Outcome,
    said: str = "",
    *,
    compiling: str = "",
    turns: int = 0,
    lines: int | None = None,
    tail: str = "",
    times: int = 1,
) -> Play:
    """Die so many times: while a program compiles, or in a turn after the lines of so many calls.

    By default two calls before the end of the turn.
    """

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > times:
            return whole(spec)
        told = journal(spec, dies_compiling=compiling, turns=turns or None, is_over=False)
        until = spec.first_step + turns * spec.turn_steps - 2 if turns else 0
        text = step_lines(spec, until=until if lines is None else lines)
        return text + said, outcome, (told + tail,)

    return play


def test_a_rotation_tells_what_each_program_came_to(tmp_path: Path) -> None:
    refused = journal(SPEC, refused=("odd",))
    lines = step_lines(SPEC, first=100)  # of a trainer that resumed
    ran = run(tmp_path, lambda *_: (lines, scripted.OK, (refused,)))
    assert (ran.result.status, ran.result.score, ran.result.reason) == ("measured", None, None)
    expected = {"fast": 0.049, "slow": -0.105, COPY: 0.0}
    assert {name: ran.changes[name] for name in expected} == pytest.approx(expected, abs=0.003)
    assert "odd" not in ran.changes
    (left_out,) = (each.why for each in ran.result.findings if each.cls == "program-left-out")
    assert sentence(left_out).startswith("odd is left out")
    assert ran.rotation.score is not None
    assert len(ran.rotation.score.turns) == len(SPEC.order)


# a turn of the baseline behind one of a profile, and the last turn of a profile
OF_BASELINE = next(
    at for at, index in enumerate(SPEC.order) if at and index < 2 <= SPEC.order[at - 1]
)
BEGINS = SPEC.first_step + OF_BASELINE * SPEC.turn_steps
BEFORE_IT = NAMES[OF_BASELINE - 1]
LAST = max(at for at, index in enumerate(SPEC.order) if index > 1)
BEHIND_LAST = SPEC.first_step + (LAST + 1) * SPEC.turn_steps
THIRD = SPEC.first_step + 2 * SPEC.turn_steps


def spoiling(spec: RotationSpec, attempt: int) -> Told:
    """Spoil the loss in a turn of "fast": the step behind the turn shows it."""
    if attempt > 1:
        return whole(spec)
    turn = next(at for at, index in enumerate(spec.order) if spec.programs[index].id == "fast")
    first = spec.first_step + (turn + 1) * spec.turn_steps
    return step_lines(spec, nan_from=first), scripted.OK, (journal(spec),)


def of_two_processes(first: str, second: str, tail: str = "") -> Play:
    """Both die while they compile one of these, the second one after a line."""

    def play(spec: RotationSpec, attempt: int) -> Told:
        died, ended = (journal(spec, dies_compiling=name) for name in (first, second))
        return whole(spec) if attempt > 1 else (CHECK, ABORTED, (died, ended + tail))

    return play


CHECKED = (ABORTED, CHECK)


@rows(
    "play, blamed, status",
    {
        "a compiler that aborts": (
            dying(*CHECKED, compiling="slow"), "slow compiling xla-check-fail", "measured"),
        "a process that raises, and another that is killed for it": (
            of_two_processes("slow", "odd", line("end", calls=4)),
            "odd compiling xla-check-fail", "measured"),
        "two processes that die, of which one is behind": (
            of_two_processes("odd", "slow"), "slow compiling xla-check-fail", "measured"),
        "a kill while it compiles, which is one event": (
            dying(KILLED, compiling="slow"), "", "measured"),
        "two kills while the same program compiles": (
            dying(KILLED, compiling="slow", times=2), "slow compiling killed", "measured"),
        "a kill in a turn": (dying(KILLED, turns=TURN + 1), "", "measured"),
        "two kills in turns of the same program": (
            dying(KILLED, turns=TURN + 1, times=2), f"{OF_TURN} turn killed", "measured"),
        "a loss that a turn spoilt": (spoiling, "fast turn numerical-failure", "measured"),
        "a compiler that dies of the baseline": (
            dying(*CHECKED, compiling=BASELINE_ID, times=9), "", "dropped"),
        "at the first step of the baseline's turn": (
            dying(*CHECKED, turns=OF_BASELINE + 1, lines=BEGINS, times=9), "", "dropped"),
        "with a step of the profile before it still open": (
            dying(*CHECKED, turns=OF_BASELINE + 1, lines=BEGINS - 1),
            f"{BEFORE_IT} turn xla-check-fail", "measured"),
        "at the first step of a turn, with one of another profile still open": (
            dying(*CHECKED, turns=5, lines=SPEC.first_step + 4 * SPEC.turn_steps - 1),
            "", "measured"),
        "behind the last step of a profile's turn, as a checkpoint does": (
            dying(*CHECKED, turns=LAST + 1, lines=BEHIND_LAST, times=9), "", "measured"),
        "by an exception at the first call behind another profile's turn": (
            dying(*CHECKED, turns=3, lines=THIRD, tail=line("raised", call=THIRD)),
            "", "measured"),
    },
)  # fmt: skip
def test_who_is_blamed_for_an_end(tmp_path: Path, play: Play, blamed: str, status: str) -> None:
    ran = run(tmp_path, play)
    told = " ".join(f"{each.program} {each.at} {each.cls}" for each in ran.rotation.blamed)
    assert (told, ran.result.status) == (blamed, status)
    assert len({*ran.executor.submitted}) == 1, "it is the same trial still"
    last = ran.executor.specs[-1]
    assert len(last.order) == len(SPEC.order)
    assert not {*ran.blamed} & {*(each.id for each in last.programs), *ran.changes}


@rows("count, status", {"six of seven": (6, "measured"), "again and again": (20, "dropped")})
def test_many_programs_may_die_but_not_without_end(tmp_path: Path, count: int, status: str) -> None:
    bad = [f"bad{at}" for at in range(count)]
    spec = spec_of(*((name, {"xla_bad": "1"}) for name in bad), ("fast", {}), rounds=3)

    def play(told: RotationSpec, _: int) -> Told:
        left = next((each.id for each in told.programs if each.id in bad), "")
        return (CHECK, ABORTED, (journal(told, dies_compiling=left),)) if left else whole(told)

    ran = run(tmp_path, play, spec)
    assert ran.result.status == status
    assert ran.blamed == bad[: MOST_BLAMED[BlamedAt.COMPILING]]
    assert (ran.rotation.reason is None) is ("fast" in ran.changes) is (count == 6)


def losing(spec: RotationSpec, _: int) -> Told:
    """Lose the baseline's loss behind turns that would count."""
    told = journal(replace(spec, order=(0,) * 3), turns=3, is_over=False)
    return step_lines(spec, until=spec.first_step + 15) + NAN, RAISED, (told,)


def at_a_limit(thirds: int) -> Play:
    """Reach the time limit behind so many thirds of the turns."""

    def play(spec: RotationSpec, _: int) -> Told:
        turns = thirds * len(spec.order) // 3
        until = spec.first_step + turns * spec.turn_steps
        told = journal(spec, turns=turns, is_over=False)
        return step_lines(spec, until=until), TIMED_OUT, (told,)

    return play


@rows("spec", {"a look": replace(LOOK, order=(0, 0, 0)), "a rotation": SPEC})
@rows(
    "play, status, stops",
    {
        "a cancel": (dying(CANCELLED, compiling="slow", times=9), "unmeasured", True),
        "a node whose programs abort for it": (
            dying(Outcome(state=State.NODE_FAIL), CHECK, turns=TURN + 1, times=9),
            "unmeasured", True),
        "a full disk": (
            dying(RAISED, "OSError: [Errno 28] No space left on device\n", compiling="slow",
                  times=9), "unmeasured", True),
        "a time limit behind few turns": (at_a_limit(1), "unmeasured", True),
        "a time limit behind most turns": (at_a_limit(2), "measured", False),
        "a trainer that ends by itself": (
            dying(Outcome(state=State.FAILED, exit_code=3), times=9), "dropped", False),
        "a NaN loss of the baseline": (losing, "dropped", False),
    },
)  # fmt: skip
def test_what_ranks_stops_the_sweep_where_something_else_ended_it(
    tmp_path: Path, spec: RotationSpec, play: Play, status: str, *, stops: bool
) -> None:
    ran = run(tmp_path, play, spec)
    assert (ran.result.status, ran.state.stop is not None) == (status, stops)
    assert (ran.result.reason is None) is (status == "measured")
    attempts = [each for trial in ran.state.trials.values() for each in trial.attempts.values()]
    assert not stops or {each.blamed for each in attempts} == {None}, "no program is a suspect"
    if status == "measured":  # a look is scored as any trial, and shows that the step is found
        assert (ran.result.score is None) is (spec is SPEC)
        assert ran.rotation.is_found


@rows(
    "journals, words",
    {
        "no journal": ((), "no journal of the worker"),
        "the worker says why": (
            (line("trouble", words="the step is made by jax.pmap"),),
            "not found (the step is made by jax.pmap)"),
        "another file": (("\0\0 no journal \n[[[",), "program of the step was not"),
    },
)  # fmt: skip
def test_a_rotation_of_nothing_says_what_is_missing(
    tmp_path: Path, journals: tuple[str, ...], words: str
) -> None:
    ran = run(tmp_path, lambda spec, _: (step_lines(spec), scripted.OK, journals))
    assert ran.result.status == "measured"
    assert not ran.rotation.is_found
    assert words in sentence(ran.result.reason)


@rows(
    "every, skips, ends, is_apart",
    {
        "a line a call": (1, 0, True, False),
        "two calls a step": (2, 0, True, True),
        "nine calls before the loop": (1, 9, True, True),
        "killed": (1, 0, False, False),
        "four steps a call": (0.25, 0, True, True),
    },
)
def test_where_a_step_is_no_call_no_turn_is_read_from_the_wrong_steps(
    tmp_path: Path, every: float, skips: int, ends: bool, is_apart: bool
) -> None:
    look = replace(spec_of(copies=1, rounds=8), order=(0,) * 8)
    for spec, name in ((SPEC, "turns"), (look, "look")):
        calls = spec.first_step + len(spec.order) * spec.turn_steps
        lines = step_lines(spec, until=int((calls - skips) / every))
        told = (lines, scripted.OK, (journal(spec, is_over=ends),))
        ran = run(tmp_path / name, lambda *_, told=told: told, spec)
        assert (ran.rotation.score is None, ran.rotation.is_found) == (is_apart, not is_apart)
        said = sentence(ran.rotation.reason) if ran.rotation.reason else ""
        assert ("which program ran" in said) is is_apart
