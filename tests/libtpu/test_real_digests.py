"""Drawn clusters, reported to libtpu's own aggregator; what it logs is read back. `tox -e libtpu`.

XLATUNE_LIBTPU names folders into which `libtpu` was installed, by version:
0.0.40=/a/folder:0.0.52=/another. Nothing of it is loaded into this process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.digests import DRESSES, read, wrong
from tests.libtpu.clusters import draw

GIVEN = os.environ.get("XLATUNE_LIBTPU", "")
FOLDERS = dict(each.split("=", 1) for each in GIVEN.split(":") if each)
CASES = int(os.environ.get("XLATUNE_LIBTPU_CASES", "600"))

pytestmark = pytest.mark.skipif(not FOLDERS, reason="tox -e libtpu gives it libtpu itself")


def logged(folder: str, cases: list[dict[str, Any]]) -> list[str]:
    program = Path(__file__).with_name("aggregator.py")
    library = next(Path(folder).rglob("libtpu.so"))
    done = subprocess.run(
        [sys.executable, str(program), str(library)],
        input="".join(f"{json.dumps(each)}\n" for each in cases),
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("version", FOLDERS or ["0.0.40"])
def test_what_libtpu_logs_is_read_as_it_was_reported(version: str) -> None:
    cases = [draw(number) for number in range(CASES)]
    texts = logged(FOLDERS[version], cases)
    problems = []
    for number, (case, text) in enumerate(zip(cases, texts, strict=True)):
        for dress, dressed in DRESSES.items():
            lines = dressed(text.splitlines(), random.Random(number))
            digests = read("\n".join(lines) + "\n").digests
            told = [wrong({**case, "version": version}, each, dress=dress) for each in digests]
            if told != [[]]:
                problems.append((number, case["fault"], dress, told))
    assert problems == []
