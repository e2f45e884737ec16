"""The page of a drill has the figures of its JSON document, as bars and as tables."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.captures import node
from tests.helpers.pages import read

MS = 10**7  # picoseconds: a step of a made capture takes some ms


@pytest.fixture
def captures(tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "before.xplane.pb", tmp_path / "after.xplane.pb")
    paths[0].write_bytes(node(unit=MS).data())
    faster = node(unit=MS * 8 // 10)
    paths[1].write_bytes(faster.data())
    return paths


def written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *argv: object
) -> tuple[str, dict[str, Any], str]:
    """Return the page, the JSON document and the text of one drill."""
    path = tmp_path / "pages" / "drill.html"
    said = ["drill", *map(str, argv)]
    assert main([*said, "--html", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.endswith(f"\nwritten: {path}\n")
    page = path.read_text(encoding="utf-8")
    assert main([*said, "--json", "--html", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert path.read_text(encoding="utf-8") == page
    return page, told, text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_drill_is_drawn_as_the_json_has_it(
    captures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    named: list[object] = [captures[0], "--", captures[1], "--", captures[0]]
    page, told, text = written(capsys, tmp_path, *named[: 2 * count - 1], "--collectives")
    drills = told.get("variants") or [
        told[key] for key in ("drill", "before", "after") if key in told
    ]
    drawn = re.findall(r'class="bar [a-z]+" x="[\d.]+%"[^>]*><title>(.*?)</title>', page)
    expected = []
    for drill in drills:
        steps = [step for gpu in drill["gpus"] for step in gpu["steps"]]
        sums = {
            name: sum(step[f"{name.replace(' ', '_')}_ps"] for step in steps)
            for name in ("compute", "exposed communication", "exposed memory")
        }
        idle = sum(step["span_ps"] - step["busy_ps"] for step in steps)
        for name, ps in (sums | {"idle": idle}).items():
            expected.append(f"{name}: {ps / len(steps) / 1e9:.3f} ms")
    assert drawn == expected
    tables = {rows[0][0]: rows for rows in read(page).tables}
    ceiling = {"ceiling"} if count == 1 else set()
    assert tables.keys() == {"composition", "family", "kernel", "collective"} | ceiling
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    for rows in tables.values():  # the command's own tables
        assert all(row in lines for row in rows), rows
    assert "traces." in read(page).text


def test_what_cannot_be_written_is_said_before_a_capture_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no.xplane.pb"
    assert main(["drill", str(missing), "--html", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"--html {tmp_path} is a folder; name a file in it" in said
    assert str(missing) not in said
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: None if name == "jinja2" else found(name, *of),
    )
    assert main(["drill", str(missing), "--html", str(tmp_path / "a.html")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "jinja2 is not installed here; install pytest-xlatune[page]" in said


def test_a_file_in_the_way_is_one_message_and_the_figures_are_shown(
    captures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "drill.html"
    assert main(["drill", str(captures[0]), "--html", str(path)]) == 2
    said = capsys.readouterr()
    assert "composition" in said.out
    assert f"{path}: the page cannot be written" in said.err


def test_a_name_of_a_kernel_cannot_break_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = "<script>alert(1)</script>`x`"
    space = node(unit=MS)
    space.host("cuLaunchKernel", MS, 1, "correlation_id", 99)
    space.kernel(0, "Stream #1(Compute)", planted, 800 * MS, 50 * MS, op=planted, correlation=99)
    (tmp_path / "a.xplane.pb").write_bytes(space.data())
    page, _, _ = written(capsys, tmp_path, tmp_path / "a.xplane.pb", "--full-names")
    (kernels,) = (rows for rows in read(page).tables if rows[0][0] == "kernel")
    assert "<script>alert(1)</script>'x'" in [row[0] for row in kernels]
    assert "<script>alert" not in page
