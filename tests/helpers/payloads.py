"""What a payload runs and leaves behind: programs, records, outcomes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import ProcessRecord, read_outcomes, read_started
from pytest_xlatune.model.result import Outcome
from tests.helpers.waiting import until

PATH = {"PATH": os.environ["PATH"]}

Start = Callable[..., "subprocess.Popen[bytes]"]


def is_gone(pid: int) -> bool:
    return payload.start_ticks(pid) is None


def outcome(folder: Path) -> Outcome:
    return until(lambda: read_outcomes(folder).get(0))


def trainer(folder: Path) -> ProcessRecord:
    return until(lambda: read_started(folder))
