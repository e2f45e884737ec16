"""What became of each trial and of each of its jobs, from the lines of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import median
from typing import Any

from pytest_xlatune.ledger import Decided
from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.words import sentence

LET_GO = "let go: no session waits for it"
AFTER_STOP = "ended after the stop of the sweep; runs again in the next session"


def results_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By trial its result; of one that has jobs and no result yet what its attempts say."""
    trials: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    attempts: dict[str, dict[int, Any]] = {}
    sessions = set()
    for line in lines:
        kind = line["event"]
        if kind == "campaign-opened" and line["session"] not in sessions:
            sessions.add(line["session"])
            # tried again: unmeasured trials, and profiles that compiling decided
            results = {name: each for name, each in results.items() if not _is_open(each)}
        elif kind == "trial-planned":
            trials.setdefault(Trial.from_json(line["trial"]).id, line["trial"])
        elif kind == "attempt-submitted":
            of = line["submission"]
            attempts.setdefault(of["trial_id"], {})[of["attempt"]] = [of["job_id"], None]
        elif kind == "attempt-ended" and line["attempt"] in attempts.get(line["trial_id"], {}):
            attempts[line["trial_id"]][line["attempt"]][1] = line["outcome"]
        elif kind == "trial-ended":
            results[Trial.from_json(line["result"]["trial"]).id] = line["result"]
    for name in attempts.keys() - results.keys():
        own = attempts[name].values()
        outcomes = [outcome for _, outcome in own]
        results[name] = {
            "trial": trials[name],
            "status": "running",
            "score": None,
            "reason": None,
            "findings": [],
            "epoch": 0,
            "job_ids": [job for job, _ in own],
            "outcome": None if None in outcomes else outcomes[-1],
        }
    return results


def seconds_of(lines: Iterable[Mapping[str, Any]]) -> tuple[float, float, float, float, float]:
    """Seconds of all jobs: queue, outside of steps, first steps beyond a usual one, steps, lost."""
    asked: dict[Any, float] = {}
    ran: dict[str, dict[int, float]] = {}
    timings: dict[str, list[float]] = {}
    queue_s = outside_s = first_s = steps_s = unscored_s = 0.0
    for line in lines:
        if line["event"] == "attempt-submitted":
            of = line["submission"]
            asked[of["trial_id"], of["attempt"]] = line["at"]
        elif line["event"] == "attempt-ended":
            start_s, end_s = line["outcome"]["start_s"], line["outcome"]["end_s"]
            if start_s is not None and end_s is not None:
                submitted_s = asked.get((line["trial_id"], line["attempt"]), start_s)
                queue_s += max(start_s - submitted_s, 0.0)
                ran.setdefault(line["trial_id"], {})[line["attempt"]] = end_s - start_s
        elif line["event"] == "trial-ended" and line["result"]["score"]:
            name = Trial.from_json(line["result"]["trial"]).id
            timings[name] = [took for _, took in line["result"]["score"]["timings"]]
    for name, by_number in ran.items():
        for number, seconds in by_number.items():
            took = timings.get(name) if number == max(by_number) else None
            if not took:
                unscored_s += seconds
                continue
            more_s = max(took[0] - median(took[1:] or took), 0.0)
            first_s += more_s
            steps_s += sum(took) - more_s
            outside_s += max(seconds - sum(took), 0.0)
    return queue_s, outside_s, first_s, steps_s, unscored_s


def first_steps_of(
    lines: Iterable[Mapping[str, Any]], protocol: Mapping[str, Any]
) -> tuple[str, ...]:
    """First steps beyond a usual one, in s: first trials of an arm on its nodes, and later ones."""
    began: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in results_of(lines).values():
        score, trial = each["score"], each["trial"]
        at_s = each["outcome"]["start_s"] if each["outcome"] else None
        took = [seconds for _, seconds in score["timings"]] if score else []
        if len(took) > 1 and at_s is not None and not trial["protocol"]["dump"]:
            arm = Trial.from_json(trial).arm, trial["cell_digest"]
            began.setdefault(arm, []).append((at_s, max(took[0] - median(took[1:]), 0.0)))
    arms = [[more_s for _, more_s in sorted(each)] for each in began.values()]
    later = [more_s for each in arms for more_s in each[1:]]
    if not later:
        return ()
    told = ((median(each[0] for each in arms), len(arms)), (median(later), len(later)))
    figures = [f"{seconds:.1f} {many}" for seconds, many in told]
    return (*figures, protocol.get("compile_cache") or "")


def remarks_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By job what was decided on it, or that it was let go."""
    jobs: dict[Any, str] = {}
    said: dict[str, str] = {}
    stopped = ""  # the session that was
    session = ""
    for line in lines:
        kind, job = line["event"], jobs.get((line.get("trial_id"), line.get("attempt")), "")
        if kind == "campaign-opened":
            session = line["session"]
        elif kind == "attempt-submitted":
            of = line["submission"]
            jobs[of["trial_id"], of["attempt"]] = of["job_id"]
        elif kind == "attempt-let-go":
            said[job] = LET_GO
        elif kind == "attempt-ended" and said.get(job) == LET_GO:
            del said[job]
        elif kind == "decided":
            is_after = line["next"] == "interrupted" and stopped == session != ""
            said[job] = AFTER_STOP if is_after else _reason(line)
            stopped = session if line["next"] == "stop" else stopped
    return said


def _reason(line: Mapping[str, Any]) -> str:
    """The sentence of a decision: the ledger holds its fields."""
    fields = {name: each for name, each in line.items() if name not in ("schema", "at", "event")}
    return sentence(Decided.from_json(fields).why)


def _is_open(result: Mapping[str, Any]) -> bool:
    is_needless = result["status"] == "dropped" and not result["job_ids"]
    return is_needless or result["status"] == "unmeasured"


def shares_of(lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the parts of a step by every evidence run, as fractions, and what they add up to.

    A setting may act on several parts: on several collectives, or on several of the others.
    """
    found: list[float] = []
    for line in lines:
        if line["event"] != "evidence-recorded" or not line.get("shares"):
            continue
        told = line["shares"]["of_step"]
        kinds = [share for part, share in told.items() if part in COLLECTIVES]
        wide = [share for part, share in told.items() if part not in COLLECTIVES]
        for some in (kinds, wide):
            for number in range(1, len(some) + 1):
                found += [sum(each) for each in combinations(some, number)]
    return found


def ran_in_of(jobs: Sequence[Any]) -> list[Any]:
    """The block of each trial: where it began after most of a later one, that beside it."""
    own = [e for e in jobs if e.study == "tuning" and e.block and e.score and _start(e) is not None]
    at = {id(e): float(_start(e)) for e in own}
    middles = {b: median(at[id(e)] for e in own if e.block == b) for b in {e.block for e in own}}
    late = [e for e in own if any(b > e.block and m < at[id(e)] for b, m in middles.items())]
    found: dict[int, Any] = {id(e): e.block for e in jobs}
    if not late:
        return list(found.values())
    ordered = sorted(at.values())
    reach = 2 * median(after - before for before, after in pairwise(ordered))
    for each in late:
        start = at[id(each)]
        others = {b: [at[id(e)] for e in own if e.block == b and e not in late] for b in middles}
        near = [
            b
            for b, times in others.items()
            if times and b > each.block and min(times) - reach <= start <= max(times) + reach
        ]
        nearest = sorted(near, key=lambda b: abs(middles[b] - start))
        found[id(each)] = nearest[0] if nearest else ("alone", id(each))
    return list(found.values())


def _start(job: Any) -> Any:
    return (job.result["outcome"] or {}).get("start_s")
