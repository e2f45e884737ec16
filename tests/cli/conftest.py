"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_xlatune.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `xlatune` with these words; return its exit status, stdout and stderr."""

    def call(*argv: object) -> tuple[int, str, str]:
        try:
            status = main([str(word) for word in argv])
        except SystemExit as left:
            status = int(left.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call
