"""An attempt's folder, and payloads that do not outlive their test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.helpers.payloads import Start
from tests.helpers.waiting import LIMIT_S

RUN = (
    "import sys; from pytest_xlatune.executors import payload; "
    "payload.GRACE_S, payload._LATE_SIGNAL_S = map(float, sys.argv[3:]); "
    "payload.run(*sys.argv[1:3])"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pp8" / "cell" / "t1" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def start() -> Iterator[Start]:
    """Start payloads that do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def start(
            folder: Path,
            *,
            lock: str = "",
            environ: Mapping[str, str] | None = None,
            grace_s: float = LIMIT_S,
        ) -> subprocess.Popen[bytes]:
            started = subprocess.Popen(
                [sys.executable, "-c", RUN, str(folder), lock, str(grace_s), str(LIMIT_S)],
                env={**os.environ, **(environ or {})},
            )
            stack.enter_context(started)
            stack.callback(started.terminate)
            return started

        yield start
