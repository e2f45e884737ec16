"""Failure signatures of what a job runs on: GPUs, network, nodes, scheduler, containers.

Data only; order matters, the first row that matches a line names it. `GENERIC` rows say that
something failed and not what: they come after everything else.
"""

from __future__ import annotations

import re

from pytest_xlatune.logs.row import Row, Tier
from pytest_xlatune.results import Action

CLUSTER = (
    Row(
        cls="gpu-hardware",
        phase="train",
        words=("hsa_status_error", "rocdevice.cpp", "hw exception", "gpu hang", "nvrm: xid"),
        pattern=re.compile(
            r"(?P<detail>HSA_STATUS_ERROR\w*)|rocdevice\.cpp.*Aborting|HW Exception by GPU"
            r"|GPU Hang\b|NVRM: Xid"
        ),
        action=Action.WAIT,
        is_fatal=True,
        sample="rocdevice.cpp:2900: Aborting with error : HSA_STATUS_ERROR_EXCEPTION: code 0x1016",
    ),
    Row(
        cls="nic-fault",
        phase="init",
        words=("ibv_", "cqe with error", "queue catastrophic"),
        pattern=re.compile(
            r"(?P<detail>IBV_WC_\w+ERR\w*|ibv_modify_qp failed with \d+[^,]*(?:, on dev \S+?:\d+)?"
            r"|\w+ cqe with error|local work queue catastrophic error)"
        ),
        action=Action.HOOK,
        is_fatal=True,
        sample="n3:812:901 [2] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed "
        "out, on dev mlx5_4:1, curr state INIT",
    ),
    Row(
        cls="nccl-nic-fail",
        phase="init",
        words=("auto-detect nccl_socket",),
        pattern=re.compile(r"Failed to auto-detect NCCL_SOCKET_IFNAME"),
        action=Action.STOP,
        is_fatal=True,
        sample="NCCL FATAL: Failed to auto-detect NCCL_SOCKET_IFNAME; ABORTING",
    ),
    Row(
        cls="node-fail",
        phase="cluster",
        words=("node failure", "node_fail"),
        pattern=re.compile(r"DUE TO NODE FAILURE|Node failure on (?P<detail>[\w.-]+)|NODE_FAIL\b"),
        action=Action.RESUME_NODE,
        is_fatal=True,
        sample="srun: error: Node failure on gpu017",
    ),
    Row(
        cls="prolog-kill",
        phase="cluster",
        words=("died in prolog", "raisedsignal"),
        pattern=re.compile(r"died in prolog|RaisedSignal:53|[Pp]rolog (?:error|failed)"),
        action=Action.RETRY,
        sample="[ERROR] Job 5151 died in prolog before writing any log",
    ),
    Row(
        cls="slurm-controller-down",
        phase="cluster",
        words=("slurm_load", "slurm controller"),
        pattern=re.compile(
            r"slurm_load_\w+ error: (?P<detail>.*)|Unable to contact slurm controller"
        ),
        action=Action.WAIT,
        sample="slurm_load_jobs error: Connection refused",
    ),
    Row(
        cls="github-5xx",
        phase="start",
        words=("internal server error", "rpc failed", "unable to access"),
        pattern=re.compile(
            r"remote: Internal Server Error|RPC failed; HTTP (?P<detail>5\d\d)"
            r"|fatal: unable to access '?https?://"
        ),
        action=Action.WAIT,
        sample="error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502",
    ),
    Row(
        cls="pull-timeout",
        phase="container",
        words=("pull timeout",),
        pattern=re.compile(r"== Docker pull TIMEOUT(?: \((?P<detail>[^)]*)\))?"),
        action=Action.RETRY,
        sample="== Docker pull TIMEOUT (901s/900s) ==",
    ),
    Row(
        cls="stage-timeout",
        phase="stage",
        words=("preflight timeout", "check timeout"),
        pattern=re.compile(r"== (?P<detail>Preflight|ECC check) TIMEOUT"),
        action=Action.RETRY,
        sample="== Preflight TIMEOUT (900s/900s) ==",
    ),
    Row(
        cls="train-timeout",
        phase="stage",
        words=("training timeout",),
        pattern=re.compile(r"== Training TIMEOUT"),
        action=Action.NONE,
        tier=Tier.CONSEQUENCE,
        sample="== Training TIMEOUT (2700s/2700s) ==",
    ),
    Row(
        cls="container-fail",
        phase="container",
        words=("pull failed", "docker load output", "login to"),
        pattern=re.compile(
            r"\[ERROR\] (?:Pull|Authenticated pull) failed for (?P<detail>\S+)"
            r"|\[ERROR\] Login to .* failed|\[ERROR\] Unable to determine image"
        ),
        action=Action.STOP,
        sample="[ERROR] Pull failed for registry.example/jax:v1",
    ),
    Row(
        cls="job-setup",
        phase="start",
        words=("unknown model", "name resolution failed", "failed to check out"),
        pattern=re.compile(
            r"!!! Unknown model: *(?P<detail>\S*)|!!! Model name resolution failed"
            r"|\[FAIL\] Failed to check out"
        ),
        action=Action.STOP,
        is_fatal=True,
        sample="!!! Unknown model: llama9-7b",
    ),
    Row(
        cls="port-fail",
        phase="start",
        words=("find a free port",),
        pattern=re.compile(r"Could not find a free port for (?P<detail>JAX coordinator|Ray)"),
        action=Action.RETRY,
        is_fatal=True,
        sample="FATAL: Could not find a free port for JAX coordinator",
    ),
    Row(
        cls="no-gpu",
        phase="container",
        words=("no gpu devices", "no visible gpu"),
        pattern=re.compile(r"WARNING: No GPU devices detected|No visible GPU devices"),
        action=Action.STOP,
        sample="WARNING: No GPU devices detected",
    ),
    Row(
        cls="filesystem",
        phase="any",
        words=("no space left", "quota exceeded", "stale file handle", "ocdbt.__lock"),
        pattern=re.compile(
            r"(?P<detail>No space left on device|[Qq]uota exceeded|Stale file handle"
            r"|manifest\.ocdbt\.__lock)"
        ),
        action=Action.STOP,
        sample="OSError: [Errno 28] No space left on device: '/scratch/run7'",
    ),
    Row(
        cls="jax-coord-timeout",
        phase="train",
        words=("deadline_exceeded", "coordination timeout", "barrier timed out", "getkeyvalue"),
        pattern=re.compile(
            r"(?P<detail>GetKeyValue)\(\) timed out|DEADLINE_EXCEEDED|Coordination timeout"
            r"|Barrier timed out"
        ),
        action=Action.RETRY,
        tier=Tier.CONSEQUENCE,
        sample="DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cuda:0 and duration: 2m",
    ),
    Row(
        cls="heartbeat-timeout",
        phase="train",
        words=("heartbeat", "coordination service", "distributed service"),
        pattern=re.compile(
            r"stopped sending heartbeats|[Hh]eartbeat (?:request )?time(?:out|d out)"
            r"|distributed service detected fatal errors|CoordinationServiceError"
        ),
        action=Action.RETRY,
        tier=Tier.CONSEQUENCE,
        sample="UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
    ),
    Row(
        cls="peer-lost",
        phase="train",
        words=("connection reset by peer", "connection closed by peer", "connection refused"),
        pattern=re.compile(
            r"(?P<detail>Gloo [\w-]+) failed.*Connection (?:reset|closed) by|"
            r"(?:[Gg]loo|NCCL WARN).*Connection (?:reset|closed|refused)"
        ),
        action=Action.RETRY,
        tier=Tier.CONSEQUENCE,
        sample="jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: [pair.cc:560] Read "
        "error [10.0.0.2]:7000: Connection reset by peer",
    ),
    Row(
        cls="nccl-error",
        phase="train",
        words=(
            "nccl warn timeout",
            "nccl error",
            "ccl operation",
            "timeout waiting for",
            "ncclsystemerror",
            "ncclinternalerror",
            "ncclremoteerror",
            "ncclunhandled",
        ),
        pattern=re.compile(
            r"NCCL WARN Timeout|N?CCL error|(?P<detail>[NR]CCL operation \w+)|Timeout waiting for"
            r"|nccl(?:System|Internal|Remote|UnhandledCuda)Error"
        ),
        action=Action.RETRY,
        tier=Tier.CONSEQUENCE,
        sample="n1:812:901 [0] NCCL WARN Timeout waiting for connection from rank 7",
    ),
    Row(
        cls="ray-downstream",
        phase="start",
        words=("actorunschedulable",),
        pattern=re.compile(r"ActorUnschedulableError"),
        action=Action.RETRY,
        tier=Tier.CONSEQUENCE,
        sample="ray.exceptions.ActorUnschedulableError: The actor is not schedulable",
    ),
    Row(
        cls="preempted",
        phase="cluster",
        words=("due to preemption",),
        pattern=re.compile(r"DUE TO PREEMPTION"),
        action=Action.RETRY,
        sample="slurmstepd: error: *** STEP 88.0 ON n1 CANCELLED AT 2026-01-12T07:08:09 DUE TO "
        "PREEMPTION ***",
    ),
    Row(
        cls="time-limit",
        phase="cluster",
        words=("due to time limit",),
        pattern=re.compile(r"DUE TO TIME LIMIT"),
        action=Action.NONE,
        tier=Tier.CONSEQUENCE,
        sample="slurmstepd: error: *** JOB 88 ON n1 CANCELLED AT 2026-01-12T07:08:09 DUE TO TIME "
        "LIMIT ***",
    ),
    Row(
        cls="cancelled",
        phase="cluster",
        words=("cancelled at", "cancelled (scancel"),
        pattern=re.compile(
            r"\*\*\* (?:JOB|STEP) (?P<detail>\S+) ON \S+ CANCELLED AT|CANCELLED \(scancel"
        ),
        action=Action.NONE,
        tier=Tier.GENERIC,
        sample="slurmstepd: error: *** JOB 88 ON n1 CANCELLED AT 2026-01-12T07:08:09 ***",
    ),
    Row(
        cls="preemption-notice",
        phase="train",
        words=("sigterm caught", "preemption notice"),
        pattern=re.compile(r"SIGTERM caught|[Rr]eceived preemption notice"),
        action=Action.NONE,
        tier=Tier.SYMPTOM,
        sample="W0112 07:08:09.4 80 preemption_notifier.cc:89] SIGTERM caught at 2026-01-12",
    ),
)

GENERIC = (
    Row(
        cls="killed",
        phase="any",
        words=("killed",),
        pattern=re.compile(r"(?:^|: |\d )Killed(?: {2,}.*)?$|Training subprocess killed by"),
        action=Action.RETRY,
        tier=Tier.GENERIC,
        sample="srun: error: n2: task 1: Killed",
    ),
    Row(
        cls="stage-fail",
        phase="stage",
        words=("failed (exit",),
        pattern=re.compile(r"== (?P<detail>[\w ]+?) FAILED \(exit=\d+"),
        action=Action.RETRY,
        tier=Tier.SYMPTOM,
        sample="== Training FAILED (exit=1, 84s) ==",
    ),
    Row(
        cls="python-exception",
        phase="any",
        words=("error", "exception", "interrupt"),
        pattern=re.compile(
            r"^(?P<detail>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)"
            r"(?::.{0,200}|$))"
        ),
        action=Action.DROP,
        tier=Tier.GENERIC,
        sample="ModuleNotFoundError: No module named 'grain'",
    ),
    Row(
        cls="python-traceback",
        phase="any",
        words=("traceback (most recent",),
        pattern=re.compile(r"^Traceback \(most recent call last\):"),
        action=Action.DROP,
        tier=Tier.SYMPTOM,
        sample="Traceback (most recent call last):",
    ),
)
