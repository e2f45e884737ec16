"""Training jobs that are played tick by tick: devices, streams, a host, collectives that wait.

What a setting does is played too, by another program of the same job, so that its true gain is
known. A kernel that computes beside a collective is slowed, and a collective beside one that
computes. Nothing here is shared with the code that reads the captures.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.helpers.captures import Space

TICK_PS = 1_000_000
FULL = 4  # of work that a kernel does in a tick when nothing slows it
NAMES = {"compute": "nvjet_gemm", "communication": "ncclDevKernel_AllReduce", "copies": "MemcpyD2D"}
STREAMS = {"compute": 0, "communication": 1, "copies": 2}


@dataclass(frozen=True)
class Op:
    """A kernel of a step: its work on each device and step, and which ops it waits for."""

    name: str
    kind: str
    work: tuple[tuple[int, ...], ...]  # of each device: of each step
    needs: tuple[str, ...] = ()
    lane: int = 0  # of the streams of its kind
    label: str = ""  # the operation, where several kernels are of one

    @property
    def stream(self) -> int:
        return STREAMS[self.kind] + len(STREAMS) * self.lane


@dataclass(frozen=True)
class Job:
    """A job: the ops of a step in the order of their launches, and what the host costs."""

    ops: tuple[Op, ...]
    devices: int
    steps: int
    launch: int = 0  # ticks of the host for each kernel
    python: int = 0  # ticks of the host before each step
    latency: int = 0  # ticks from all that a kernel needs to its start
    compute_slowed: int = FULL  # work in a tick with a collective beside it
    talk_slowed: int = FULL
    copy_slows: int = FULL  # work in a tick with a copy beside it
    shared: int = FULL  # work in a tick with another kernel of its kind beside it
    waits_for_device: bool = False  # the host, before each step


Played = dict[tuple[int, int, str], tuple[int, int, int]]  # device, step, op: launch, start, end


def play(job: Job) -> Played:
    """Return when each kernel was launched, started and ended, in ticks."""
    return _Player(job).play()


class _Player:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.order = [(step, op) for step in range(job.steps) for op in job.ops]
        self.queues = {
            (device, stream): [(step, op) for step, op in self.order if op.stream == stream]
            for device in range(job.devices)
            for stream in {each.stream for each in job.ops}
        }
        self.launched: dict[tuple[int, int, str], int] = {}
        # of each device: the place in the order, and when that is launched
        self.hosts = [(0, job.python)] * job.devices
        # of each stream what runs: step, op, start, work that is left
        self.running: dict[tuple[int, int], tuple[int, Op, int, int]] = {}
        self.done: Played = {}
        self.now = 0

    def play(self) -> Played:
        while len(self.done) < len(self.order) * self.job.devices:
            for device in range(self.job.devices):
                self._launch(device)
                for at in [each for each in self.queues if each[0] == device]:
                    self._start(at)
            self._tick()
            self.now += 1
            assert self.now < 100_000, "the job hangs"
        return self.done

    def _launch(self, device: int) -> None:
        job = self.job
        place, when = self.hosts[device]
        while place < len(self.order) and when <= self.now:
            step, op = self.order[place]
            if op is job.ops[0] and step and job.waits_for_device:
                before = [(device, step - 1, each.name) for each in job.ops]
                if not all(each in self.done for each in before):
                    return
                ended = max(self.done[each][2] for each in before)
                if when < ended + job.python:
                    self.hosts[device] = place, ended + job.python
                    return
            self.launched[device, step, op.name] = when
            place += 1
            when += job.launch
            if place < len(self.order) and self.order[place][1] is job.ops[0]:
                when += job.python
            self.hosts[device] = place, when

    def _start(self, at: tuple[int, int]) -> None:
        queue, device = self.queues[at], at[0]
        if at in self.running or not queue:
            return
        step, op = queue[0]
        if self.launched.get((device, step, op.name), self.now + 1) > self.now:
            return
        wanted = [(device, step, each) for each in op.needs]
        if step and (op.kind != "copies" or op.needs):  # input may be copied before its step
            wanted += [(device, step - 1, each.name) for each in self.job.ops]
        ended = [self.done.get(each, (0, 0, self.now + 1))[2] for each in wanted]
        if any(each + self.job.latency > self.now for each in ended):
            return
        queue.pop(0)
        # a collective has the work of one device, and ends on all at once
        of = 0 if op.kind == "communication" else device
        self.running[at] = step, op, self.now, op.work[of][step]

    def _tick(self) -> None:
        job = self.job
        rates = {}
        for (device, stream), (step, op, _, _) in self.running.items():
            kind, others = op.kind, [each for each in self.running if each[0] == device]
            beside = {self.running[each][1].kind for each in others if each[1] != stream}
            rate = job.shared if kind in beside else FULL
            if kind == "communication":
                there = (self.running.get((each, stream)) for each in range(job.devices))
                is_whole = all(each is not None and each[:2] == (step, op) for each in there)
                rate = (min(rate, job.talk_slowed) if "compute" in beside else rate) * is_whole
            elif kind == "compute" and "communication" in beside:
                rate = min(rate, job.compute_slowed)
            is_slowed = "copies" in beside and kind != "copies"
            rates[device, stream] = min(rate, job.copy_slows) if is_slowed else rate
        for key, (step, op, start, work) in list(self.running.items()):
            # a collective is as fast as on the device where it is slowest
            rate = rates[key]
            if op.kind == "communication":
                rate = min(rates.get((each, key[1]), 0) for each in range(job.devices))
            self.running[key] = step, op, start, (left := work - rate)
            if left <= 0:
                del self.running[key]
                name = key[0], step, op.name
                self.done[name] = self.launched[name], start, self.now + 1


def captures(job: Job, played: Played, *, knows_launches: bool = True) -> list[Space]:
    """Return the captures of a played job, one of each device, which is a host of its own."""
    return [_capture(job, played, device, knows_launches) for device in range(job.devices)]


def _capture(job: Job, played: Played, device: int, knows_launches: bool) -> Space:
    space = Space()
    ops = {each.name: each for each in job.ops}
    order = [(step, op.name) for step in range(job.steps) for op in job.ops]
    # launches of one tick come one after the other
    launched = [played[device, *each][0] * TICK_PS + place for place, each in enumerate(order)]
    for step in range(job.steps):
        begin = launched[step * len(job.ops)]
        after = [*launched, launched[-1] + TICK_PS][(step + 1) * len(job.ops)]
        space.host("train", begin, after - begin - 1 or 1, "step_num", step)
    for place, (step, name) in enumerate(order):
        (_, start, end), op = played[device, step, name], ops[name]
        space.kernel(
            device, f"Stream #{op.stream}", NAMES[op.kind], start * TICK_PS,
            (end - start) * TICK_PS, op=op.label or name, correlation=place + 1,
        )  # fmt: skip
        if knows_launches:
            space.host("cuLaunchKernel", launched[place], 1, "correlation_id", place + 1)
    return space


def period(job: Job, played: Played) -> float:
    """Return the ticks of a step of the slowest device, from start to start."""
    name = job.ops[0].name
    last = job.steps - 1
    return max(
        (played[device, last, name][1] - played[device, 0, name][1]) / last
        for device in range(job.devices)
    )


def some_job(number: int) -> Job:
    """Draw a job by its number: streams, waits, slowness, a host that may be too slow."""
    draw = random.Random(number)
    devices, steps = draw.choice([1, 2, 2, 3]), draw.choice([3, 4])

    def op(place: int) -> Op:
        weights = (0, 6, 4, 2) if place else (0, 1, 0, 0)
        kind = draw.choices(["", *STREAMS], weights)[0]
        usual = draw.randint(1, 40) if kind == "compute" else draw.randint(1, 30)
        jitter = draw.choice([0, 0, 12])
        of_device = [draw.randint(0, jitter) for _ in range(devices)]
        needs = draw.sample(range(place), min(place, draw.choice([0, 1, 1, 2])))
        return Op(
            f"{kind}.{place}",
            kind,
            tuple(
                tuple(
                    usual + (draw.randint(0, jitter) if kind == "communication" else slow)
                    for _ in range(steps)
                )
                for slow in of_device
            ),
            tuple(f"#{each}" for each in needs),
        )

    drawn = [op(place) for place in range(draw.randint(3, 14))]
    ops = tuple(
        replace(each, needs=tuple(drawn[int(need[1:])].name for need in each.needs))
        for each in drawn
    )
    lanes = draw.choice([1, 2, 3])
    ops = tuple(replace(each, lane=draw.randrange(lanes)) for each in ops)
    return Job(
        ops=ops,
        devices=devices,
        steps=steps,
        launch=draw.choice([0, 0, 1, 3]),
        python=draw.choice([0, 0, 5, 25]),
        latency=draw.choice([0, 1, 2]),
        compute_slowed=draw.choice([FULL, 3, 2]),
        talk_slowed=draw.choice([FULL, 3]),
        copy_slows=draw.choice([FULL, FULL, 3]),
        waits_for_device=draw.random() < 0.3,
        shared=draw.choice([FULL, 2]),
    )


def without(kind: str) -> Callable[[Job], Job]:
    """Return a setting that takes all kernels of a kind away."""

    def act(job: Job) -> Job:
        freed = _not_waiting_for(kind, job)
        return replace(freed, ops=tuple(each for each in freed.ops if each.kind != kind))

    return act


def _not_waiting_for(kind: str, job: Job) -> Job:
    """Let each kernel wait for what those of a kind wait for, in their place."""
    through: dict[str, tuple[str, ...]] = {}
    ops = []
    for each in job.ops:
        needs = {one for need in each.needs for one in through.get(need, (need,))}
        if each.kind == kind:
            through[each.name] = tuple(sorted(needs))
            ops.append(each)
        else:
            ops.append(replace(each, needs=tuple(sorted(needs))))
    return replace(job, ops=tuple(ops))


def scaled(kind: str, by: float) -> Callable[[Job], Job]:
    """Return a setting that makes the kernels of a kind take so much of their work."""

    def act(job: Job) -> Job:
        return replace(
            job,
            ops=tuple(
                replace(
                    each,
                    work=tuple(tuple(max(1, round(one * by)) for one in row) for row in each.work),
                )
                if each.kind == kind
                else each
                for each in job.ops
            ),
        )

    return act


def hidden(job: Job) -> Job:
    """Let nothing wait for a collective: they run beside whatever there is."""
    return _not_waiting_for("communication", job)


def undisturbed(job: Job) -> Job:
    """Let collectives slow nothing, and nothing slow them."""
    return replace(job, compute_slowed=FULL, talk_slowed=FULL)


def quick_host(job: Job) -> Job:
    """Let the host and the launches cost nothing."""
    return replace(job, launch=0, python=0, latency=0)


SETTINGS: dict[str, tuple[str, Callable[[Job], Job]]] = {
    "no collective": ("communication", without("communication")),
    "collectives of a third": ("communication", scaled("communication", 0.33)),
    "hidden collectives": ("communication", hidden),
    "undisturbed collectives": ("communication", undisturbed),
    "no copy": ("copies", without("copies")),
    "copies of a third": ("copies", scaled("copies", 0.33)),
    "a quick host": ("idle", quick_host),
    "compute at its roofline": ("compute", scaled("compute", 0.5)),
    "compute of three quarters": ("compute", scaled("compute", 0.75)),
}
