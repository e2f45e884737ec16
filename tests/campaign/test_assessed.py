"""What an ended attempt comes to: its score, its class, and what follows by its status."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign._follow import options_of_dump
from pytest_xlatune.campaign.assess import STATUS, Assessment, settings_events
from pytest_xlatune.campaign.playbook import (
    CLASS_RULES,
    Facts,
    Ruling,
    decide,
    rule_for,
)
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import read_outcomes, read_spec, write_spec
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import Decided
from pytest_xlatune.ledger.state import LedgerState, TrialProgress
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs._signatures import table
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.triage import primary
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
    SettingKind,
    State,
    TrialSetting,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess
from tests.helpers.history import measured
from tests.helpers.scripted import log
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


NODE, LATE = (Outcome(state=state) for state in (State.NODE_FAIL, State.TIMEOUT))
BLAMED = Blamed(program="fast", at=BlamedAt.TURN, cls="killed", attempt=1)
FIRST = Facts(is_first_rotation=True)
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
        "which no other trouble is": (FAILED, "hub", ("hub",) * 3, NODES_END, "stop"),
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

    assert [ruled("nic-fault", n).before for n in range(2)] == [Action.HOOK, Action.NONE]
    down = [ruled("slurm-controller-down wait", n) for n in (0, 3)]
    assert [(each.next, each.backoff_s) for each in down] == [("retry", 300), ("stop", 0)]
    waits_s = [ruled("github-5xx wait", n).backoff_s for n in range(3)]
    assert waits_s == [300, 3600, 3600]


LINES = r"""
network: ConnectionResetError: [Errno 104] Connection reset by peer
network: BrokenPipeError: [Errno 32] Broken pipe
ray-actor: ray.exceptions.RpcError: Timed out while waiting for GCS to become available.
hub: requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: x
hub: huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: x
hub: urllib3.exceptions.MaxRetryError: P(host='api.wandb.ai'): Max retries exceeded with url: /g
job-setup: huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access
driver: Failed to initialize NVML: Driver/library version mismatch
gpu-ecc: == ECC check FAILED (exit=1, 12s) ==
filesystem: OSError: [Errno 5] Input/output error: '/shared/x'
gpu-hardware: [ 99.1] amdgpu 0000:29:00.0: amdgpu: GPU reset begin!
nic-fault: ionic_0: comp cqe error, status 12
not-started: slurmstepd: error: execve(): python3: No such file or directory
oom-host: slurmstepd: error: Exceeded job memory limit
killed: NODE_EXIT host=n7 exit=137
signal-kill: Bus error (core dumped)
fatal-line: F0112 07:08:09.5 77 foo.cc:12] the sky is falling
nccl-error: F0112 07:08:09.5 77 rendezvous.cc:127] Termination timeout for `all-reduce` of 40 s
""".strip().splitlines()


@pytest.mark.parametrize("row", LINES)
def test_a_line_is_named(row: str) -> None:
    cls, _, line = row.partition(": ")
    for prefix in ("", "3: ", "(Actor pid=8, ip=10.0.0.9) "):
        cause = primary(read_log([f"{prefix}{line}\n".encode()]).findings)
        assert cause is not None
        assert cause.cls == FailureClass(cls)


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


def ran(of: Profile, folder: Path, program: str, *, wrapper: str = "") -> Assessment:
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


def ends(found: Assessment) -> str:
    (setting,) = (each for each in found.settings if not each.is_deployed)
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
    assert ends(found) == end, found.settings
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
    assert not found.settings[0].is_proved


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
    assert [str(each.effect) for each in found.settings] == ["asked", "asked"]
    log = (tmp_path / "an attempt" / payload.log_name()).read_text(encoding="utf-8")
    assert "XLA_FLAGS=--xla_dump_to=/mine --xla_a=1\n" in log
