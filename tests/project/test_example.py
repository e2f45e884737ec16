"""The checkout after `make sweep`, and a project beside it: pytest starts, no file is changed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from pytest_xlatune.model.text import ABSENT
from tests.helpers.pages import read

ROOT = Path(__file__).parents[2]
SWEEP = "sweeps/test_quickstart.py"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python finds no hypothesis, as that of `make sweep`."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as machinery\n"
        "found = machinery.PathFinder.find_spec\n"
        "class Finder:  # no function: pytest makes it an attribute of a class\n"
        "    def __call__(self, name, *args, **named):\n"
        "        return None if name == 'hypothesis' else found(name, *args, **named)\n"
        "machinery.PathFinder.find_spec = Finder()\n",
        encoding="utf-8",
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


programs = pytest.mark.part("programs")


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        pytest.param(("--help",), 0, "--xlatune-model", id="its help", marks=programs),
        pytest.param(("--markers",), 0, "@pytest.mark.wave1_5", id="its markers", marks=programs),
        pytest.param((), 5, "hypothesis is not installed here", id="without a word"),
        pytest.param(("--collect-only", "-q", SWEEP), 0, "opt-level-1", id="a sweep"),
    ],
)  # fmt: skip
def test_pytest_starts_in_the_checkout_with_what_a_sweep_needs(
    bare: dict[str, str], argv: tuple[str, ...], status: int, said: str
) -> None:
    no = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *no, *argv],
        cwd=ROOT, env=bare, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert "Traceback (most" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param((), "1 passed", id="without a word", marks=programs),
        pytest.param(("--help",), "--xlatune-model", id="its help", marks=programs),
        pytest.param(("--markers",), "@pytest.mark.wave1_5", id="its markers", marks=programs),
        pytest.param(("-n", "2"), "1 passed", id="with workers"),
        pytest.param(("-p", "no:xlatune"), "1 passed", id="without the plugin"),
    ],
)
def test_a_project_that_merely_has_the_plugin_notices_nothing(
    tmp_path: Path, argv: tuple[str, ...], said: str
) -> None:
    """Its warnings are errors, and its markers strict; what a sweep left lies about."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    )
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n", encoding="utf-8")
    (tmp_path / ".xlatune" / "own" / "cell").mkdir(parents=True)
    (tmp_path / ".xlatune" / "own" / "cell" / "ledger.jsonl").write_text("{}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *argv],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    assert "Traceback (most" not in done.stdout + done.stderr


def test_what_a_sweep_writes_into_the_checkout_is_ignored_by_git() -> None:
    # tox writes a file .venv where there is no folder of that name
    files = [*(f"{each}/quickstart/x" for each in ("reports", ".xlatune")), ".venv", ".tox/x"]
    done = subprocess.run(
        ["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("no checkout of git")
    assert done.stdout.split() == files
    listed = subprocess.run(
        ["git", "ls-files", "reports"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(each.startswith("reports/example/") for each in listed.stdout.split())
    assert "reports/example/quickstart/leaderboard.md" in listed.stdout


def test_documents_pages_readme_tutorial_and_picture_show_the_committed_example() -> None:
    """As the code of today writes them from the run's JSON, headers included."""
    example = script()
    made = example.made()
    assert [path.name for path in made].count("leaderboard.html") == 2
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: say `make example`"


def test_the_committed_json_has_what_the_code_of_today_concludes_of_its_trials() -> None:
    concluding = script("concluded")
    found = concluding.written()
    assert len(found) == 8
    for path, text in found.items():
        # processors differ in the last digits of a product of matrices
        wanted = json.loads(text, parse_float=lambda each: pytest.approx(float(each), rel=1e-9))
        told = json.loads(path.read_text(encoding="utf-8"))
        assert told == wanted, f"{path.name}: say `python sweeps/quickstart/concluded.py`"


@pytest.mark.parametrize("name", ["batch", "commits", "nodes", "network"])
def test_a_study_has_a_page_with_the_figures_of_its_committed_json(name: str) -> None:
    """A page that is committed is the one of today; none is needed to make one."""
    made = {path.suffix: (path, text) for path, text in script().of_study(name)}
    path, text = made[".html"]
    if path.exists():
        assert path.read_text(encoding="utf-8") == text, "say `python sweeps/quickstart/example.py`"
        path, document = made[".md"]
        assert path.read_text(encoding="utf-8") == document
    told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    page = read(text)
    changes = {
        each["arm"]: each["delta"]
        for each in told["conclusion"]["verdicts"]
        if each["delta"] is not None and each["kind"] != "INVALID"
    }
    if name == "network":  # its verdict on the whole is shown under the name of the link
        changes["-".join(told["conclusion"]["record"]["link"])] = changes.pop("conclusion")
    shown = {name.partition(" ")[0]: cells for name, cells in page.forest.items()}
    assert shown.keys() == changes.keys()
    for arm, cells in shown.items():
        assert float(cells["delta"]) == pytest.approx(100 * changes[arm], abs=0.05)
    jobs = {job for each in told["trials"] for job in each["job_ids"]}
    listed = next(rows for rows in page.tables if rows[0][:3] == ["Job", "Profile", "Stage"])
    assert {row[0] for row in listed[1:]} == jobs
    if name in ("batch", "commits"):  # the others name the cell of all nodes together
        assert f"Cell: {told['cell_digest']}" in page.text


def test_an_index_that_a_process_makes_first_of_all_reads_every_kind_of_study() -> None:
    made = (
        "from pathlib import Path; from pytest_xlatune.report.page import html; "
        "from pytest_xlatune.tasks.report_index import report_index; "
        "print(html(report_index(Path('reports/example'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "cannot be read" not in done.stdout
    assert "4 nodes: slower: node003" in done.stdout


def test_the_picture_has_every_figure_of_the_committed_example() -> None:
    example = script()
    told = json.loads((ROOT / "reports/example/quickstart/leaderboard.json").read_text("utf-8"))
    picture = ET.fromstring(example.PICTURE.read_text(encoding="utf-8"))
    shown = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    measured = [each for each in told["conclusion"]["verdicts"] if each["delta"] is not None]
    assert len(measured) > 5
    for each in measured:
        at = next(
            i for i, text in enumerate(shown) if (text or "").removeprefix("★ ") == each["arm"]
        )
        ends = each["ci95"] and "[{:+.1f}, {:+.1f}]".format(*(100 * end for end in each["ci95"]))
        assert shown[at + 1 : at + 5] == [
            f"{100 * each['delta']:+.1f}",
            ends or ABSENT,
            str(each["n"]),
            each["kind"],
        ]
    # dots stand in the order of their figures
    dots = [float(each.attrib["cx"]) for each in picture.iter("{http://www.w3.org/2000/svg}circle")]
    assert sorted(dots, reverse=True)[: len(measured)] == [
        dot for _, dot in sorted(zip((-each["delta"] for each in measured), dots, strict=True))
    ]


def script(name: str = "example") -> ModuleType:
    path = ROOT / "sweeps" / "quickstart" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks there
    spec.loader.exec_module(module)
    return module
