"""Trouble of the site drops no profile; an unknown failure does only while the reference runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign.playbook import CLASS_RULES, Facts, Reference, decide, rule_for
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs._signatures import table
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.failure import Blame, FailureClass, blamed_on
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.resources import Next, RetryPolicy
from pytest_xlatune.model.result import Action, Finding, Outcome, State, TrialStatus
from tests.campaign.test_assessed import assessed
from tests.helpers.scripted import FAILED, FakeExecutor, campaign, failing, run

LINES = {
    "ConnectionResetError: [Errno 104] Connection reset by peer": "network",
    "BrokenPipeError: [Errno 32] Broken pipe": "network",
    "TimeoutError": "network",
    "asyncio.exceptions.TimeoutError": "network",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443)": "network",
    "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x')": "network",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x')": "network",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution": "network",
    "ray.exceptions.RpcError: Timed out while waiting for GCS to become available.": "ray-actor",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly": "ray-actor",
    "ray.exceptions.RayActorError: The actor died unexpectedly": "ray-actor",
    "ray.exceptions.OutOfMemoryError: Task was killed": "oom-host",
    "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: x": "hub",
    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: x": "hub",
    "google.api_core.exceptions.ServiceUnavailable: 503 failed to connect": "hub",
    "OSError: We couldn't connect to 'https://huggingface.co' to load this file": "hub",
    "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max "
    "retries exceeded with url: /graphql": "hub",
    "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access": "job-setup",
    "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices": "driver",
    "RuntimeError: Unable to initialize backend 'rocm': No visible GPU devices.": "no-gpu",
    "Failed to initialize NVML: Driver/library version mismatch": "driver",
    "jax.errors.JaxRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: x": "gpu-ecc",
    "== ECC check FAILED (exit=1, 12s) ==": "gpu-ecc",
    "OSError: [Errno 5] Input/output error: '/shared/x'": "filesystem",
    "cat: /shared/x: Stale file handle": "filesystem",
    "[ 99.1] amdgpu 0000:29:00.0: amdgpu: GPU reset begin!": "gpu-hardware",
    ("n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4711> with status=12 "
     "opcode=0 len=0 vendor err 129 (Recv)"): "nic-fault",
    "ionic_0: comp cqe error, status 12": "nic-fault",
    "docker: Error response from daemon: manifest unknown: manifest unknown.": "container-fail",
    "pyxis: failed to import docker image": "container-fail",
    "toomanyrequests: You have reached your pull rate limit.": "pull-timeout",
    "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification":
        "job-setup",
    "slurmstepd: error: execve(): python3: No such file or directory": "not-started",
    "slurmstepd: error: Exceeded job memory limit": "oom-host",
    "NODE_EXIT host=n7 exit=137": "killed",
    "NODE_EXIT host=n7 exit=1": "node-exit",
    "Bus error (core dumped)": "signal-kill",
    "Aborted (core dumped)": "signal-kill",
    "F0112 07:08:09.5 77 foo.cc:12] the sky is falling": "fatal-line",
    "2026-01-12 07:08:09.1: F external/xla/xla/foo.cc:12] the sky is falling": "fatal-line",
    ("F0112 07:08:09.5 77 rendezvous.cc:127] Termination timeout for `all-reduce` of 40 seconds "
     "exceeded. Exiting to ensure a consistent program state."): "nccl-error",
    "ValueError: a shape": "python-exception",
}  # fmt: skip


@pytest.mark.parametrize(("line", "cls"), LINES.items(), ids=list(LINES))
def test_a_line_is_named(line: str, cls: str) -> None:
    for prefix in ("", "3: ", "(Actor pid=8, ip=10.0.0.9) "):
        report = read_log([f"{prefix}{line}\n".encode()])
        cause = primary(report.findings)
        assert cause is not None
        assert cause.cls == cls
    assert FailureClass(cls)


@pytest.mark.parametrize(
    "line",
    [
        'raise ValueError(f"Key {k} was passed at the command line but isn\'t in config.")',
        "raise RuntimeError(f\"Unable to initialize backend '{name}'\")",
    ],
)
def test_a_line_of_source_in_a_traceback_names_nothing(line: str) -> None:
    assert read_log([f"    {line}\n".encode()]).findings == ()


def test_what_jax_says_of_other_backends_is_no_trouble() -> None:
    line = "I0112 07:08:09.5 77 xla_bridge.py:925] Unable to initialize backend 'rocm': NOT_FOUND"
    assert read_log([f"{line}\n".encode()]).findings == ()


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
    cause = Finding(cls=cls, action=Action.RETRY, line=1, text="ValueError: a shape")
    ended = Outcome(state=State.FAILED, exit_code=1)
    assert decide(ended, cause).next is Next.RETRY
    assert decide(ended, cause, Facts(earlier=(cls,))).next is Next.DROP
    alone = decide(ended, cause, Facts(earlier=(cls,), reference=Reference.UNKNOWN))
    assert alone.next is Next.GIVE_UP
    # a third attempt that failed in another way is no second time
    mixed = decide(ended, cause, Facts(earlier=("killed", "lost", "killed")))
    assert mixed.next is Next.GIVE_UP


def test_a_broken_sweep_is_told_by_the_reference() -> None:
    """Every trial dies of one unknown exception: the reference stops it, no profile is dropped."""
    text = "ModuleNotFoundError: No module named 'grain'\n"
    first = assessed(text, FAILED, of=BASELINE, reference_runs=False)
    assert first.decision.next is Next.RETRY
    again = assessed(text, FAILED, of=BASELINE, reference_runs=False, earlier=("python-exception",))
    assert again.decision.next is Next.STOP
    assert "the cell as deployed cannot run" in sentence(again.decision.why)


def test_a_profile_that_raises_the_same_twice_is_dropped_while_the_reference_runs(
    tmp_path: Path,
) -> None:
    executor = FakeExecutor(failing("fast", "ValueError: a shape\n", FAILED))
    made = campaign(tmp_path, executor)
    run(made)
    results = [each.result for each in made.view().state.trials.values()]
    fast = [each for each in results if each.trial.arm == "fast"]
    assert {each.status for each in results if each.trial.arm == "same"} == {TrialStatus.MEASURED}
    assert {(each.status, len(each.job_ids)) for each in fast} == {(TrialStatus.DROPPED, 2)}
