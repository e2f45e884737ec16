"""A log format of another distribution: steps, and blocks of lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_xlatune import ConfigError
from pytest_xlatune.logs import LogReader, read_log
from pytest_xlatune.logs.formats import formats
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action
from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers.guests import install
from tests.helpers.how_to import whole

FORMAT, PROJECT = whole("a log format")
SHORT = """\
from pytest_xlatune.logs.formats import LogFormat


class Short(LogFormat):
    words = ("ace",)


class NoFormat:
    pass
"""
TICKS = "".join(f"tick {at} took 0.512 s, {1000 + at}.0 tokens a second\n" for at in range(12))
BLOCK = "Stuck workers: \n  n7\nend of the list\n"
MODULES = {"xlatune_ticks": FORMAT[0], "their_short": SHORT}


def brought(
    folder: Path, monkeypatch: pytest.MonkeyPatch, groups: Mapping[str, Mapping[str, str]]
) -> None:
    install(folder / "there", "their-ticks", groups, MODULES)
    monkeypatch.syspath_prepend(folder / "there")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for each in MODULES:
        sys.modules.pop(each, None)


@pytest.fixture
def ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought(tmp_path, monkeypatch, PROJECT["entry-points"])


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_its_steps_and_blocks_are_read_in_any_pieces(size: int) -> None:
    data = (TICKS + BLOCK).encode()
    reader = LogReader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.close()
    report = reader.report()
    assert [(each.step, each.tgs) for each in report.steps] == [(at, 1000 + at) for at in range(12)]
    [finding] = report.findings
    assert (finding.cls, finding.action) == (FailureClass.HANG_MID_TRAINING, Action.RETRY)
    assert (finding.line, finding.text, finding.detail) == (13, "Stuck workers:", "worker n7")
    assert reader.fatal == finding


@pytest.mark.usefixtures("ticks")
def test_steps_behind_a_block_refute_it_and_maxtexts_lines_are_read_as_before() -> None:
    assert not read_log([(BLOCK + TICKS).encode()]).steps_after_cancel
    after = LogReader()
    after.feed((TICKS[:45] + BLOCK + TICKS).encode())
    assert after.fatal is None
    line = "completed step: {}, seconds: 0.5, TFLOP/s/device: 1.5, Tokens/s/device: 9.1, loss: 7\n"
    report = read_log(["".join(line.format(at) for at in range(9)).encode()])
    assert [each.step for each in report.steps] == [*range(9)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "their_short:Short",
            r"found words \('ace',\).*must be in lower case and have 3 letters",
        ),
        ("their_short:NoFormat", "is NoFormat, expected a pytest_xlatune.logs.formats.LogFormat"),
        ("their_absence:X", "their_absence:X of their-ticks 1.2 cannot be loaded: ModuleNotFound"),
    ],
)
def test_one_that_is_none_is_refused_before_anything_runs(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(
        "from pytest_xlatune import CommandLauncher, Sweep, profile\n"
        'SWEEP = Sweep(name="small", launcher=CommandLauncher(argv=("/bin/true",)),\n'
        '              profiles=(profile("a", "--xla_a=1"),))\n'
    )
    sweep = load_sweep(file)
    brought(tmp_path, monkeypatch, {"pytest_xlatune.log_formats": {"ticks": name}})
    with pytest.raises(ConfigError, match=why):
        sweep.resolve()


def test_none_is_read_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [each for each in sys.path if "site-packages" not in each]
    monkeypatch.setattr(sys, "path", loaded)
    assert formats() == ()
    assert read_log([BLOCK.encode()]).findings == ()
