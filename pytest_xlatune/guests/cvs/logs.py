"""The error patterns of a CVS file, looked for in the logs of its jobs.

A line that matches is a failure of that job, told with rank, line and text; one after the last step
is a warning, for programs often complain as they end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_xlatune import owned
from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import counted

ERRORS = "error_patterns"
_LINE_CHARS = 4096  # a pattern that backtracks sees no more of a line
_SHOWN_CHARS = 160
_SHOWN = 4
# MaxText's line:  completed step: 29, seconds: 1.2
_STEP = re.compile(r"completed step: (\d+)")


def error_verdict(campaign: Campaign, patterns: Mapping[str, str]) -> Verdict:
    """Return the verdict on the jobs that are over; its reasons are its lines."""
    known = {name: re.compile(text, re.IGNORECASE) for name, text in patterns.items()}
    view, jobs, failed = campaign.view(), 0, []
    early: list[str] = []
    late: list[str] = []
    for each in view.history:
        attempts = view.state.trials[each.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if submission is None or not each.status.is_final:
            continue
        jobs, before = jobs + 1, len(early)
        for rank, path in log_files(campaign.setup.folder / submission.folder).items():
            for is_late, said in _matches(path, known, last=each.trial.protocol.last_step):
                text = hide_quoted(said, campaign.setup.hidden)
                where = f"job {submission.job_id}, rank {rank}, {text}"
                (late if is_late else early).append(where)
        failed += [submission.job_id] if len(early) > before else []
    if failed:
        head = f"fail: {len(failed)} of {counted(jobs, 'job')} have a line of an error pattern"
    else:
        head = f"pass: no error pattern in {counted(jobs, 'job')} before the last step"
    more = [f"and {len(early) - _SHOWN} more"] if len(early) > _SHOWN else []
    warned = [f"a warning, after the last step: {each}" for each in late[:_SHOWN]]
    lines = [head, *early[:_SHOWN], *more, *warned]
    return Verdict(
        arm=ERRORS,
        kind=VerdictKind.SLOWER if failed else VerdictKind.EQUIVALENT,
        n=jobs,
        job_ids=tuple(failed),
        reasons=tuple(map(verbatim, lines)),
    )


def _matches(
    path: Path, known: Mapping[str, re.Pattern[str]], *, last: int
) -> Iterator[tuple[bool, str]]:
    """Yield the first line that each pattern matches, and whether it is after the last step."""
    left, is_late = dict(known), False
    try:
        with os.fdopen(owned.open_file(path), encoding="utf-8", errors="replace") as log:
            for number, line in enumerate(log, 1):
                text = line[:_LINE_CHARS].strip()
                for name in [name for name, each in left.items() if each.search(text)]:
                    del left[name]
                    yield is_late, f"line {number}, {name}: {text[:_SHOWN_CHARS]}"
                step = _STEP.search(text)
                is_late = is_late or (step is not None and int(step[1]) >= last)
    except OSError:
        return
