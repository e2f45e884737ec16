"""Clusters with one injected fault: what their hosts report to the aggregator, and what is true.

A case is {"fault", "reports", "truth"}. The truth is what was injected, in terms of the reports:
which cores stand where. What libtpu concludes from it is libtpu's, and read out of its digest.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

Case = dict[str, Any]

FAULTS = (
    *("alike", "two-groups", "bad-chip", "fingerprint", "unrecoverable", "module", "link"),
    *("star", "not-queued", "order", "cancelled", "silent"),
)
JOBS = ("train", "llama3-405b-slice", "ns.maxtext-job-0", "worker_7")
HOSTS = (
    "gke-tpu-{:08x}-{:04x}",  # GKE
    "t1v-n-{:08x}-w-{}",  # TPU VM
    "host-{:02d}{}.c.project-x.internal",
)
HLOS = ("all-reduce.5", "fusion.193", "recv-done.12", "while.3", "copy-start", "all-gather-done.2")


def draw(number: int) -> Case:
    """Draw the case of this number; the same number gives the same case."""
    rng = random.Random(number)
    fault = FAULTS[number % len(FAULTS)]
    return Draw(rng, fault).case()


class Draw:
    """One cluster: slices of hosts of chips, all of them in the same program at first."""

    def __init__(self, rng: random.Random, fault: str) -> None:
        self.rng, self.fault = rng, fault
        self.job = rng.choice(JOBS)
        self.slices = rng.randint(2, 3)
        per_slice = rng.randint(2, 4)
        self.chips = rng.choice((1, 2, 4))
        self.launch = rng.randint(1, 20000)
        self.module = rng.choice(("jit_train_step", "jit_loss_and_grad", "reduce.31"))
        self.fingerprint = f"{rng.getrandbits(128):032x}"
        self.tag, self.pc = rng.randint(1, 40), rng.randint(50, 4000)
        self.hlo = rng.choice(HLOS)
        self.computation = rng.choice(("", "", "while_body.17"))
        has_location = rng.random() < 0.7
        style = rng.choice(HOSTS)
        names: set[str] = set()
        while len(names) < self.slices * per_slice:
            names.add(style.format(rng.getrandbits(16), rng.randrange(99)))
        self.time_ms = 1_760_000_000_000 + rng.randrange(10**9)
        self.reports: list[Case] = [
            {
                "host": name, "job": self.job, "task": at % per_slice, "slice": at // per_slice,
                "type": 1, "hang": 1, "message": "Timed out waiting for 4 graphs",
                "launch": self.launch, "time_ms": self.time_ms + rng.randrange(5000),
                "slices": self.slices,
                "cores": [self.core(name, chip, at, has_location) for chip in range(self.chips)],
            }
            for at, name in enumerate(sorted(names))
        ]  # fmt: skip
        for at, each in enumerate(self.reports):
            each["task"] = at  # unique over slices: a worker is job/task:host
        self.injected: list[int] = []

    def core(self, host: str, chip: int, at: int, has_location: bool) -> Case:
        place = {"location": f"({chip % 2},{chip // 2},{at})"} if has_location else {}
        return {
            "chip": chip, "module": self.module, "fingerprint": self.fingerprint,
            "launch": self.launch, "tag": self.tag, "pc": self.pc, "hlo": self.hlo,
            "computation": self.computation, "host": host, **place,
        }  # fmt: skip

    def some(self, most: int = 1) -> list[Case]:
        """Choose the hosts that the fault is on: fewer than half."""
        least = min(most, (len(self.reports) - 1) // 2)
        self.injected = self.rng.sample(range(len(self.reports)), max(1, least))
        return [self.reports[at] for at in self.injected]

    def case(self) -> Case:
        getattr(self, "_" + self.fault.replace("-", "_"))()
        for each in self.reports:
            each["cores"] = [one for one in each["cores"] if one]
        order = list(self.reports)
        self.rng.shuffle(order)
        hosts = [self.reports[at] for at in sorted(self.injected)]
        return {
            "fault": self.fault,
            "reports": order,
            "truth": [[each["job"], each["task"], each["host"]] for each in hosts],
        }

    def _alike(self) -> None:
        pass

    def _two_groups(self) -> None:
        half = len(self.reports) // 2
        for each in self.reports[:half]:
            for one in each["cores"]:
                one.update(hlo="recv-done.9", pc=self.pc + 9)
        del self.reports[2 * half :]

    def _bad_chip(self) -> None:
        for each in self.some():
            each["cores"][0].update(pc=self.rng.choice((0, self.pc + 5)), hlo="fusion.7")

    def _fingerprint(self) -> None:
        other = f"{self.rng.getrandbits(128):032x}"
        for each in self.some():
            for one in each["cores"]:
                one["fingerprint"] = other

    def _unrecoverable(self) -> None:
        texts = (
            "INTERNAL: boom 0, with: colon\nsecond line: of it\n  third, Potential words",
            "UNAVAILABLE: Socket closed",
            "FAILED_PRECONDITION: the device is halted: TPU:0 (core halted)",
        )
        for each in self.some(self.rng.randint(1, 2)):
            each.update(type=2, unrecoverable=0, message=self.rng.choice(texts))

    def _module(self) -> None:
        for each in self.some():
            for one in each["cores"]:
                one.update(module="jit_optimizer_apply", fingerprint="f00d", hlo="fusion.2")
                one["pc"] = self.pc + 11

    def _edges(self, pairs: list[tuple[int, int]]) -> None:
        for number, (sender, receiver) in enumerate(pairs):
            key = f"key_{number}"
            target = self.reports[receiver]
            self.reports[sender].setdefault("graphs", []).append(
                {"kind": "send", "key": key, "slice": target["slice"], "device": 0,
                 "launch": self.launch}
            )  # fmt: skip
            target.setdefault("graphs", []).append(
                {"kind": "receive", "key": key, "launch": self.launch}
            )

    def _link(self) -> None:
        ends = [0, len(self.reports) - 1]
        self.rng.shuffle(ends)
        self.injected = ends
        self._edges([(ends[0], ends[1])])

    def _star(self) -> None:
        centre = 0
        self.injected = [centre]
        away = [at for at, each in enumerate(self.reports) if each["slice"] != 0][:3]
        self._edges([(centre, at) for at in away])

    def _not_queued(self) -> None:
        for each in self.some():
            for one in each["cores"]:
                one.update(active=0)

    def _order(self) -> None:
        odd = self.some()
        for each in self.reports:
            names = ("jit_b", "jit_a") if each in odd else ("jit_a", "jit_b")
            for one in each["cores"]:
                one["recent"] = [
                    {"run": 10 + at, "launch": 100 + "ab".index(name[-1]), "name": name,
                     "fingerprint": name[-1] * 8}
                    for at, name in enumerate(names)
                ]  # fmt: skip

    def _cancelled(self) -> None:
        self.reports[0].update(type=3)
        self.reports = [self.reports[0]]

    def _silent(self) -> None:
        for each in self.reports:
            each["cores"] = []
            each["has_state"] = False


# what libtpu calls each fault; where its versions differ, by the layout
_SAME = {
    "alike": "UNKNOWN_CAUSE",
    "two-groups": "UNKNOWN_CAUSE",
    "bad-chip": "BAD_TPU_CHIP",
    "fingerprint": "FINGERPRINT_MISMATCH",
    "unrecoverable": "UNRECOVERABLE_ERROR",
    "module": "DIFFERENT_MODULE",
    "link": "NETWORKING_ISSUE",
    "star": "NETWORKING_ISSUE",
    "not-queued": "PROGRAM_NOT_QUEUED",
    "cancelled": "UNKNOWN_CAUSE",
    "silent": "UNKNOWN_CAUSE",
}
VERDICTS: dict[str, dict[str, str]] = {
    **{fault: dict.fromkeys(("0.0.40", "0.0.52"), cause) for fault, cause in _SAME.items()},
    "order": {"0.0.40": "UNKNOWN_CAUSE", "0.0.52": "LAUNCHES_ORDER_INCONSISTENT"},
}


def states(case: Case) -> dict[tuple[Any, ...], tuple[int, set[str]]]:
    """Return place -> cores and hosts, by the reports: what the table must say."""
    found: dict[tuple[Any, ...], tuple[int, set[str]]] = {}
    if case["fault"] == "cancelled":
        return found
    for each in case["reports"]:
        for one in each["cores"]:
            if one.get("active", 1):
                op = (one["hlo"], one["computation"] or None)
                place = (one["launch"], one["tag"], one["pc"], *op)
            else:
                place = (None, 0, 0, "(program completed)", None)
            count, hosts = found.get(place, (0, set()))
            found[place] = (count + 1, hosts | {each["host"]})
    return found


def links(case: Case) -> set[tuple[str, str]]:
    sent = {
        graph["key"]: name(each)
        for each in case["reports"]
        for graph in each.get("graphs", ())
        if graph["kind"] == "send"
    }
    return {
        (sent[graph["key"]], name(each))
        for each in case["reports"]
        for graph in each.get("graphs", ())
        if graph["kind"] == "receive"
    }


def messages(case: Case) -> dict[str, str]:
    return {name(each): each["message"] for each in case["reports"] if each["type"] == 2}


def name(of: Case) -> str:
    """Return a worker as libtpu writes it."""
    return f"{of['job']}/{of['task']}:{of['host']}"


def first_error(case: Case) -> tuple[str, str]:
    """Return type and time of the earliest report."""
    first = min(case["reports"], key=lambda each: int(each["time_ms"]))
    at = datetime.fromtimestamp(first["time_ms"] // 1000, tz=UTC)
    time = f"{at:%Y-%m-%dT%H:%M:%S}.{first['time_ms'] % 1000:03d}".rstrip("0").rstrip(".")
    return ("HANG_DETECTED", "UNRECOVERABLE_ERROR")[first["type"] - 1], f"{time}+00:00"
