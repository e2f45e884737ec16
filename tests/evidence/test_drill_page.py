"""The page of a drill has the figures of its JSON document, as bars and as tables."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.captures import node
from tests.helpers.pages import read

MS = 10**7  # picoseconds: a step of a made capture takes some ms


def bars(text: str, title: str) -> list[tuple[str, str, list[tuple[str, float, float]], str]]:
    """Name, variant, parts (words, place, width) and figure of each bar under a title."""
    part = re.findall(rf">{title}</h2>(.*?)</section>", text, re.DOTALL)[0]
    found = []
    for row in re.findall(r'class="bars-row[^"]*" role="listitem">(.*?)</div>', part, re.DOTALL):
        name = re.findall(r"<code>(.*?)</code>", row)
        what = re.findall(r'class="job">(.*?)<', row)
        parts = re.findall(
            r'class="bar [a-z]+" x="([\d.]+)%" width="([\d.]+)%"[^>]*><title>(.*?)</title>', row
        )
        shown = [(unescape(said), float(x), float(width)) for x, width, said in parts]
        (figure,) = re.findall(r'class="figure">(.*?)<', row)
        found.append((*(unescape("".join(each)) for each in (name, what)), shown, figure))
    return found


@pytest.fixture
def captures(tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "before.xplane.pb", tmp_path / "after.xplane.pb")
    paths[0].write_bytes(node(unit=MS).data())
    faster = node(unit=MS * 9 // 10)
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


def in_ms(found: Mapping[str, Any]) -> dict[str, float]:
    """Family -> ms per device per step, of the JSON of a drill."""
    count = len(found["gpus"]) * found["divided_by"]
    return {each["name"]: each["sum_ps"] / count / 1e9 for each in found["families"]}


PARTS = ("compute", "exposed communication", "exposed memory", "idle")


def test_a_drill_is_drawn_as_the_json_has_it(
    captures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, told, text = written(capsys, tmp_path, captures[0], "--collectives", "--by-path")
    ((_, _, parts, figure),) = bars(page, "A step of a device")
    spans = {name: 1e3 * told["per_gpu_step_s"][name] for name in PARTS}
    whole = sum(spans.values())
    assert figure == f"{whole:.3f} ms"
    at = 0.0
    for (said, place, width), (name, value) in zip(parts, spans.items(), strict=True):
        assert said == f"{name}: {value:.3f} ms"
        assert (place, width) == pytest.approx((100 * at / whole, 100 * value / whole), abs=0.011)
        at += value
    families = in_ms(told["drill"])
    drawn = bars(page, "Families of kernels, as bars")
    assert {name: figure for name, _, _, figure in drawn} == {
        name: f"{value:.3f} ms" for name, value in families.items()
    }
    longest = max(families.values())
    for name, _, parts, _ in drawn:
        assert parts[0][2] == pytest.approx(100 * families[name] / longest, abs=0.011)
    steps = bars(page, "Steps of each device")
    for (_, what, parts, _), gpu in zip(steps, told["drill"]["gpus"], strict=True):
        assert what == f"{gpu['source']} {gpu['name']}"
        ends = gpu["begins_ps"][-1] - gpu["begins_ps"][0] + gpu["steps"][-1]["span_ps"]
        for (said, place, width), number, begin, step in zip(
            parts, told["drill"]["steps"], gpu["begins_ps"], gpu["steps"], strict=True
        ):
            assert said == f"step {number}: {step['span_ps'] / 1e9:.3f} ms"
            assert place == pytest.approx(100 * (begin - gpu["begins_ps"][0]) / ends, abs=0.02)
            assert width == pytest.approx(100 * step["span_ps"] / ends, abs=0.02)
    tables = {rows[0][0]: rows for rows in read(page).tables}
    assert tables.keys() == {"composition", "ceiling", "family", "kernel", "collective", "path"}
    (collective,) = told["collectives"][0]["rows"]
    assert tables["collective"][1][5] == f"{1e3 * collective['duration_s']:.3f}"
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    for rows in tables.values():  # the command's own tables
        assert all(row in lines for row in rows), rows
    assert "traces." in read(page).text


@pytest.mark.parametrize("count", [2, 3])
def test_variants_stand_below_each_other(
    captures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    named: list[object] = [captures[0], "--", captures[1], "--", captures[0]]
    page, told, _ = written(capsys, tmp_path, *named[: 2 * count - 1])
    drills = told["variants"] if count > 2 else [told["before"], told["after"]]
    of_each = [in_ms(each) for each in drills]
    variants = ["variant 1", "variant 2", "variant 3"] if count > 2 else ["before", "after"]
    found: dict[tuple[str, str], str] = {}
    family = ""
    for name, what, _, figure in bars(page, "Families of kernels, as bars"):
        family = name or family
        found[family, what] = figure
    assert found == {
        (name, variant): f"{value:.3f} ms"
        for variant, each in zip(variants, of_each, strict=True)
        for name, value in each.items()
    }
    assert found["gemm", variants[0]] != found["gemm", variants[1]]
    assert [what for _, what, _, _ in bars(page, "A step of a device")] == variants
    comparison = told["comparison"] if count == 2 else told["against_the_first"][0]
    assert comparison["sentence"] in read(page).text


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
