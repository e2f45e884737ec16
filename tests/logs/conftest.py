"""What tests of logs share: a log as `triage --json` tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.log_lines import text_of


@pytest.fixture
def triaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, int]]:
    """Call it with lines and options: the entry of the log, and the exit status."""

    def triage(lines: Iterable[str], *more: str) -> tuple[Any, int]:
        path = tmp_path / "job.log"
        path.write_bytes(text_of(lines))
        status = main(["triage", "--json", *more, str(path)])
        (entry,) = json.loads(capsys.readouterr().out)["logs"]
        return entry, status

    return triage
