"""What became of each trial and of each of its jobs, from the lines of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_xlatune.ledger import Decided
from pytest_xlatune.model.trial import Trial

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
            "reason": "",
            "findings": [],
            "epoch": 0,
            "job_ids": [job for job, _ in own],
            "outcome": None if None in outcomes else outcomes[-1],
        }
    return results


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
    return Decided.from_json(fields).reason


def _is_open(result: Mapping[str, Any]) -> bool:
    is_needless = result["status"] == "dropped" and not result["job_ids"]
    return is_needless or result["status"] == "unmeasured"
