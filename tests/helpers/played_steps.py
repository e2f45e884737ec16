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
    waits_for_device: bool = False  # the host, before each step


Played = dict[tuple[int, int, str], tuple[int, int, int]]  # device, step, op: launch, start, end


def play(job: Job) -> Played:
    """Return when each kernel was launched, started and ended, in ticks."""
    done: Played = {}
    order = [(step, op) for step in range(job.steps) for op in job.ops]
    queues = {
        (device, kind): [(step, op) for step, op in order if op.kind == kind]
        for device in range(job.devices)
        for kind in STREAMS
    }
    launched: dict[tuple[int, int, str], int] = {}
    hosts = [(0, job.python)] * job.devices  # place in the order, and when it is launched
    running: dict[tuple[int, str], tuple[int, Op, int, int]] = {}  # step, op, start, work left
    now = 0
    while len(done) < len(order) * job.devices:
        for device in range(job.devices):
            _host(job, order, hosts, launched, done, device, now)
            for kind in STREAMS:
                _start(job, (device, kind), queues, running, launched, done, now)
        _tick(job, running, launched, done, now)
        now += 1
        assert now < 100_000, "the job hangs"
    return done


def _host(job, order, hosts, launched, done, device, now) -> None:  # type: ignore[no-untyped-def]
    place, when = hosts[device]
    while place < len(order) and when <= now:
        step, op = order[place]
        first = op is job.ops[0]
        if first and step and job.waits_for_device and when >= 0:
            before = [(device, step - 1, each.name) for each in job.ops]
            if not all(each in done for each in before):
                return
            ended = max(done[each][2] for each in before)
            if when < ended + job.python:
                hosts[device] = place, ended + job.python
                return
        launched[device, step, op.name] = when
        place += 1
        when += job.launch
        if place < len(order) and order[place][1] is job.ops[0]:
            when += job.python
        hosts[device] = place, when


def _start(job, key, queues, running, launched, done, now) -> None:  # type: ignore[no-untyped-def]
    device, _ = key
    if key in running or not queues[key]:
        return
    step, op = queues[key][0]
    if launched.get((device, step, op.name), now + 1) > now:
        return
    wanted = [(device, step, each) for each in op.needs]
    if step and (op.kind != "copies" or op.needs):  # input for a step may be copied before it
        wanted += [(device, step - 1, each.name) for each in job.ops]
    if any(each not in done or done[each][2] + job.latency > now for each in wanted):
        return
    queues[key].pop(0)
    # the last of a collective's devices ends it for all
    of = 0 if op.kind == "communication" else device
    running[key] = step, op, now, op.work[of][step]


def _tick(job, running, launched, done, now) -> None:  # type: ignore[no-untyped-def]
    rates = {}
    for (device, kind), (step, op, _, _) in running.items():
        beside = {other for at, other in running if at == device} - {kind}
        rate = FULL
        if kind == "communication":
            all_there = all(
                (each, kind) in running and running[each, kind][:2] == (step, op)
                for each in range(job.devices)
            )
            rate = 0 if not all_there else job.talk_slowed if "compute" in beside else FULL
        elif kind == "compute" and "communication" in beside:
            rate = job.compute_slowed
        rates[device, kind] = min(rate, job.copy_slows) if "copies" in beside else rate
    slowest = min((rates[key] for key in rates if key[1] == "communication"), default=FULL)
    for key, (step, op, start, left) in list(running.items()):
        left -= slowest if key[1] == "communication" else rates[key]
        running[key] = step, op, start, left
        if left <= 0:
            del running[key]
            name = key[0], step, op.name
            done[name] = launched[name], start, now + 1


def captures(job: Job, played: Played, *, knows_launches: bool = True) -> list[Space]:
    """Return the captures of a played job, one of each device, which is a host of its own."""
    return [_capture(job, played, device, knows_launches) for device in range(job.devices)]


def _capture(job: Job, played: Played, device: int, knows_launches: bool) -> Space:
    space = Space()
    kinds = {each.name: each.kind for each in job.ops}
    order = [(step, op.name) for step in range(job.steps) for op in job.ops]
    # launches of one tick come one after the other
    launched = [played[device, *each][0] * TICK_PS + place for place, each in enumerate(order)]
    for step in range(job.steps):
        begin = launched[step * len(job.ops)]
        after = [*launched, launched[-1] + TICK_PS][(step + 1) * len(job.ops)]
        space.host("train", begin, after - begin - 1 or 1, "step_num", step)
    for place, (step, name) in enumerate(order):
        _, start, end = played[device, step, name]
        space.kernel(
            device, f"Stream #{STREAMS[kinds[name]]}", NAMES[kinds[name]], start * TICK_PS,
            (end - start) * TICK_PS, op=name, correlation=place + 1,
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
                tuple(usual + draw.randint(0, jitter) for _ in range(steps)) for _ in range(devices)
            ),
            tuple(f"#{each}" for each in needs),
        )

    drawn = [op(place) for place in range(draw.randint(3, 14))]
    ops = tuple(
        replace(each, needs=tuple(drawn[int(need[1:])].name for need in each.needs))
        for each in drawn
    )
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
