"""Links of our pages lead somewhere, tables say what the code says, and marked code blocks run.

A comment stands in the line before the block, fenced or indented:

    <!-- runnable -->                   as it is: bash, python, or toml as the settings of a sweep
    <!-- runnable: exit status 1 -->    and each of its lines ends so
    <!-- runnable: as a plan -->        pytest shows what it would run, and submits nothing

`make test` leaves those that start pytest or ask an XLA to `make test-all`. The folder holds what a
page takes for granted: `sweeps/` of this repository, with the sweep file of how-to/trainer.md as
`sweeps/test_mine.py`, a `train.py`, and the log of a job, `slurm-4711.out`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_xlatune.cli import commands, main
from pytest_xlatune.sweep.groups import OPTIONS, SWITCHES
from tests.helpers import scripted
from tests.helpers.benchmarks import load
from tests.helpers.pages import read
from tests.helpers.tell_options import TELL_OPTIONS

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(*DOCS, *sorted((ROOT / "sweeps").rglob("*.md"))),
]
OPTIONS_AND_SWITCHES = {*(each.flag for each in OPTIONS), *(f"--{name}" for name in SWITCHES)}
generate, pages = load("generate", ROOT / "docs"), load("pages")


def anchors(page: Path) -> set[str]:
    # as GitHub makes them:  ## One run  ->  one-run
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        base = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        numbered = (f"{base}-{at}" if at else base for at in range(len(names) + 1))
        names.add(next(each for each in numbered if each not in names))
    return names


def dead_links(page: Path) -> Iterator[str]:
    """Yield each link that leads nowhere; addresses of other sites are not looked at."""
    code = re.compile(r"```.*?```|(?m:^    [^\n]*$)|`[^`\n]*`", re.DOTALL)
    text = code.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"{page.name}: {target}: there is no such file"
        elif anchor and anchor not in anchors(there):
            yield f"{page.name}: {target}: {there.name} has no such heading"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [dead for page in PAGES for dead in dead_links(page)] == []


def test_every_page_is_on_the_list_of_pages_and_on_the_site() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = {str(page.relative_to(ROOT / "docs")) for page in DOCS}
    assert {name for name in names if f"]({name})" not in listed} == {"README.md"}
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # the navigation:      - Settings: reference/settings.md
    placed = re.findall(r"(?m)^ +- .*?([\w./-]+\.md)$", site)
    assert sorted(placed) == sorted(names)


@pytest.mark.parametrize("name", generate.PARTS)
def test_a_table_is_what_the_code_says(name: str) -> None:
    page = ROOT / "docs" / generate.PARTS[name][0]
    assert pages.part(page, name).strip("\n") == generate.text_of(name), "run `make reference`"


def test_the_options_and_commands_that_a_page_names_exist() -> None:
    for page in [ROOT / "README.md", *DOCS]:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"--(?:no-)?xlatune(?:-[a-z]+)*\b(?!-)", text))
        assert named - {"--xlatune"} <= OPTIONS_AND_SWITCHES, page
        # in code alone:  `xlatune plan FILE`      or a line of a block that begins with it
        code = re.findall(r"(?m)`xlatune ([a-z][a-z-]*)|^(?:    |\$ )xlatune ([a-z][a-z-]*)", text)
        assert {one or other for one, other in code} <= {*commands()}, page


class Block(NamedTuple):
    page: str
    line: int
    asked: str
    language: str
    code: str


def blocks(path: Path) -> list[Block]:
    """Return the marked blocks of a page; a mark without a block after it fails."""
    text = path.read_text(encoding="utf-8")
    found = []
    for mark in re.finditer(r"(?m)^<!-- runnable(?:: (.*?))? -->\n+", text):
        rest = text[mark.end() :]
        fenced = re.match(r"```(\w+)\n(.*?)```", rest, re.DOTALL)
        line = text.count("\n", 0, mark.end()) + 1
        indented = fenced or re.match(r"(?:    .*\n|\n)+", rest)
        assert indented, f"{path.name}:{line}: no block follows the mark"
        language, code = fenced.groups() if fenced else ("bash", textwrap.dedent(indented[0]))
        found.append(Block(path.name, line, mark[1] or "", language, code))
    return found


MARKED = [each for path in PAGES for each in blocks(path)]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "sweeps", tmp_path / "sweeps", ignore=shutil.ignore_patterns("__pycache__")
    )
    page = (ROOT / "docs" / "how-to" / "trainer.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "sweeps" / "test_mine.py").write_text(code, encoding="utf-8")
    for folder in (tmp_path, tmp_path / "sweeps"):
        (folder / "train.py").write_text("", encoding="utf-8")
    (tmp_path / "slurm-4711.out").write_text(scripted.log(1000.0), encoding="utf-8")
    (tmp_path / "job.env.sh").write_text("export NCCL_DEBUG=WARN\n", encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    return tmp_path


Ended = tuple[int, str, str]  # status, output, errors


@pytest.fixture
def run(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Block], Ended]:
    def call(block: Block) -> Ended:
        if block.language == "bash":
            return in_bash(block, prepared)
        if block.language == "python":
            name, words = "test_block.py", "test_block.py --parallelism FSDP=8"
            words += " --nodelist node[001-008]"
            if "rotate=" in block.code:
                monkeypatch.delenv("XLATUNE_ROTATE", raising=False)
        else:
            assert block.language == "toml", f"a block of {block.language} cannot be run"
            name, words = "xlatune.toml", "sweeps/test_fsdp8.py"
        (prepared / name).write_text(block.code, encoding="utf-8")
        monkeypatch.chdir(prepared)
        monkeypatch.setenv("TEAM_APPRISE_URL", "json://localhost")
        status = main(["plan", *words.split(), "--model", "m"])
        return status, *capsys.readouterr()

    return call


def in_bash(block: Block, folder: Path) -> Ended:
    kept = ("HOME", "LANG", "TMPDIR")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ["XLATUNE_MACHINE_LOCK"] = str(folder / "lock")
    if "as a plan" in block.asked:
        environ["PYTEST_ADDOPTS"] = "--xlatune-plan"
    done = subprocess.run(
        ["bash", "-euc", block.code],
        cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def case(block: Block) -> Any:
    is_dear = re.search(r"^ *(pytest|xlatune flags lint) ", block.code, re.MULTILINE)
    marks = [pytest.mark.part("programs")] if is_dear else []
    return pytest.param(block, id=f"{block.page}:{block.line}", marks=marks)


@pytest.mark.parametrize("block", [case(each) for each in MARKED])
def test_a_block_that_is_marked_runs(block: Block, run: Callable[[Block], Ended]) -> None:
    wanted = re.search(r"exit status (\d+)", block.asked)
    for code in block.code.splitlines() if wanted else [block.code]:
        status, out, err = run(block._replace(code=code))
        said = f"{block.page}:{block.line}\n{code}\n{out[-3000:]}\n{err[-3000:]}"
        assert status == int(wanted[1] if wanted else 0), said
        assert "Traceback" not in err, said


# prints the line that the tutorial asks for, faster without optimisation, with a noise of 0.1 %
PRETENDS = f"""\
import os, sys
flags = os.environ.get("XLA_FLAGS", "")
{TELL_OPTIONS}
with open(TRIALS, "a") as file:
    file.write(".")
speed = 1100.0 if "optimization_level=0" in flags else 1000.0
speed *= 1 + 0.001 * (os.path.getsize(TRIALS) * 5 % 7 / 7 - 0.5)
for step in range(int(sys.argv[1].partition("=")[2])):
    print(f"completed step: {{step}}, seconds: {{512 / speed:.6f}}, "
          f"Tokens/s/device: {{speed:.3f}}, loss: 7.0", flush=True)
"""


@pytest.mark.part("programs")
def test_the_tutorials_commands_lead_from_a_trainer_to_its_page(prepared: Path) -> None:
    (block,) = (each for each in MARKED if "xlatune init test_mine.py" in each.code)
    shutil.rmtree(prepared / "sweeps")
    text = PRETENDS.replace("TRIALS", repr(str(prepared / "trials")))
    (prepared / "train.py").write_text(text, encoding="utf-8")
    code = block.code.replace("/opt/venv/bin/python", sys.executable)
    # the order of trials follows the path of the interpreter, and in one order of twenty the
    # pretended noise calls the other profile slower
    code = f"export XLATUNE_BUDGET=12 XLATUNE_NEGATIVE=xfail\n{code}"
    status, out, err = in_bash(block._replace(code=code, asked=""), prepared)
    assert status == 0, out[-3000:] + err[-3000:]
    page = read((prepared / "reports/mine/leaderboard.html").read_text(encoding="utf-8"))
    winner, other = page.forest
    assert (winner, other) == ("backend-optimization-level-0", "multi-thread-eigen-false")
    assert "FASTER" in page.forest[winner].values()
