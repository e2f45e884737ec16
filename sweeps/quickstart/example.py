"""What documents show of the committed runs: `make example` calls it.

    python sweeps/quickstart/example.py

From each run's JSON alone it writes the documents of reports/example, their pages and their index
as the code of today shows them: the quickstart, MaxText on this machine, and the studies of batch
sizes, commits, nodes and a network. It puts the quickstart's finding and its table into README.md
and the whole leaderboard into docs/how-to/tutorial.md, and draws docs/quickstart.svg with the
positions of the page's own plot. A test compares all of them: a change of an example or of a page
without them does not pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from xml.sax.saxutils import escape

from msgspec.structs import replace

from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.report.document import markdown
from pytest_xlatune.report.exports import Exported, exported
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import MeasuredCell, read_cells
from pytest_xlatune.report.page import Forest, ForestRow, forest, html
from pytest_xlatune.report.study_documents import checked_alone
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.registry import kind_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "reports" / "example"
BOARD = EXAMPLE / "quickstart" / "leaderboard.md"
DATA = EXAMPLE / "quickstart-tuning.json"
MAXTEXT = EXAMPLE / "tiny-cpu-tuning.json", EXAMPLE / "maxtext-cpu" / "leaderboard.md"
STUDIES = ("batch", "commits", "nodes", "network")
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "how-to" / "tutorial.md"
PICTURE = ROOT / "docs" / "quickstart.svg"
# the part that is written:  <!-- leaderboard: from FILE --> ... <!-- end of leaderboard -->
_PART = re.compile(
    r"(?P<head><!-- leaderboard: [^>]* -->\n).*(?P<end><!-- end of leaderboard -->)", re.DOTALL
)
_SHOWN = ("What was found", "Leaderboard")
_DROPPED = {"Profile", "reason"}  # columns of the profiles that cannot run
_WIDE = {"evidence", "jobs"}  # a table with these is one of them


def part_of(board: str) -> str:
    """Return what the tutorial shows of a leaderboard: its finding and its tables."""
    sections = dict(re.findall(r"(?ms)^## (.+?)\n\n(.*?)(?=^## |\Z)", board))
    shown = "\n\n".join(sections[name].strip() for name in _SHOWN if name in sections)
    blocks = [_narrow(block) for block in shown.split("\n\n")]
    return "\n\n".join(re.sub(r"^#+ (.+)$", r"**\1**", each) for each in blocks)


def _narrow(block: str) -> str:
    """Leave out the columns of a table that are too wide for a page."""
    lines = block.splitlines()
    names = _cells(lines[0])
    if not block.startswith("| ") or not _WIDE.issubset(names):
        return block
    keep = [at for at, name in enumerate(names) if name in _DROPPED]
    return "\n".join(f"| {' | '.join(_cells(line)[at] for at in keep)} |" for line in lines)


def _cells(line: str) -> list[str]:
    return list(_split(line.strip("| \n")))


def _split(line: str) -> Iterator[str]:
    yield from (each.strip() for each in re.split(r"(?<!\\)\|", line))


def short_part_of(board: str) -> str:
    """Return what the README shows: the finding and the table of confirmed profiles."""
    finding, table, *_ = (
        block
        for block in part_of(board).split("\n\n")
        if not block.startswith("**") or "`" in block
    )
    return f"{finding}\n\n{table}"


def written(text: str, part: str) -> str:
    """Return a document with its part made again."""
    made, count = _PART.subn(lambda found: f"{found['head']}{part}\n{found['end']}", text)
    if count != 1:
        raise SystemExit("the marks around the leaderboard are not there once each")
    return made


# the picture: pixels
_NAMES, _PLOT, _ACROSS, _ROW, _TOP = 200, 360, 930, 26, 84
_VERDICT = 812  # where the verdicts begin, the longest of which is INCONCLUSIVE
_STYLE = """\
text{font:13px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1b1f24}
.paper{fill:#fff}.quiet{fill:#57606a}.head{font-size:16px;font-weight:600}.part{font-weight:600}
.best{font-weight:700}.right{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:#d0d7de}.zero{stroke:#57606a;stroke-width:1.5}
.faster{stroke:#116329;fill:#116329}.slower{stroke:#a40e26;fill:#a40e26}
.equivalent{stroke:#0550ae;fill:#0550ae}.inconclusive{stroke:#7d4e00;fill:#7d4e00}
.screened{stroke:#57606a;fill:#fff}.ends{stroke-width:3}.dot{stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.quiet{fill:#9da7b3}
.grid{stroke:#3d444d}.zero{stroke:#9da7b3}.faster{stroke:#4ac26b;fill:#4ac26b}
.slower{stroke:#ff8182;fill:#ff8182}.equivalent{stroke:#79c0ff;fill:#79c0ff}
.inconclusive{stroke:#e3b341;fill:#e3b341}.screened{stroke:#9da7b3;fill:#0d1117}}"""


def picture(plot: Forest, *, title: str) -> str:
    """Return a forest plot as an SVG file; it follows the light or dark mode of the browser."""
    lines: list[str] = []
    y = _TOP
    for title_of_part, rows in plot.parts.items():
        lines.append(_text(16, y, title_of_part, "part"))
        y += _ROW
        for row in rows:
            lines += _row(row, plot, y)
            y += _ROW
        y += 8
    axis = [_text(_x(at), y, text, "quiet middle") for at, text in plot.ticks]
    head = [
        _text(16, 30, title, "head"),
        _text(16, 52, _words(plot.caption), "quiet"),
        *(
            _text(x, _TOP - 8, words, f"quiet {looks}")
            for x, words, looks in (
                (_NAMES + _PLOT + 92, "change %", "right"),
                (_NAMES + _PLOT + 104, "95 %", ""),
                (_VERDICT - 8, "n", "right"),
            )
        ),
    ]
    high = y + 16
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_ACROSS} {high}"',
            f'width="{_ACROSS}" height="{high}" role="img" aria-labelledby="t">',
            f'<title id="t">{escape(title)}</title>',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{_ACROSS}" height="{high}"/>',
            *head,
            *lines,
            *axis,
            "</svg>\n",
        )
    )


def _row(row: ForestRow, plot: Forest, y: int) -> Iterator[str]:
    middle = y - 4
    top, bottom = middle - _ROW // 2, middle + _ROW // 2
    for looks, at in (*(("grid", at) for at, _ in plot.ticks), ("zero", plot.zero)):
        yield _tag("line", looks, x1=_x(at), x2=_x(at), y1=top, y2=bottom)
    if row.low is not None and row.high is not None:
        ends = {"x1": _x(row.low), "x2": _x(row.high), "y1": middle, "y2": middle}
        yield _tag("line", f"ends {row.looks}", **ends)
    yield _tag("circle", f"dot {row.looks}", cx=_x(row.at), cy=middle, r=5)
    name = f"★ {row.name}" if row.is_best else row.name
    yield _text(16, y, name, "best" if row.is_best else "")
    yield _text(_NAMES + _PLOT + 92, y, row.delta, "right")
    yield _text(_NAMES + _PLOT + 104, y, row.ends, "")
    yield _text(_VERDICT - 8, y, row.n, "right")
    yield _text(_VERDICT, y, row.looks.removesuffix(" hollow").upper(), "quiet")


def _x(at: float) -> float:
    return round(_NAMES + _PLOT * at / 100, 1)


def _text(x: float, y: float, words: str, looks: str) -> str:
    return f'<text class="{looks.strip()}" x="{x}" y="{y}">{escape(words)}</text>'


def _tag(name: str, looks: str, **at: float) -> str:
    said = " ".join(f'{key}="{value}"' for key, value in at.items())
    return f'<{name} class="{looks}" {said}/>'


def _words(text: str) -> str:
    return text.replace("`", "")


def documents(data: Path, board: Path) -> Iterator[tuple[Path, str]]:
    """Yield each document of a sweep as a session writes it."""
    (cell,) = cells_of(data)
    beside = [board.name, board.with_suffix(".json").name]
    page = html(leaderboard(cell), cell, files=beside)
    yield board, markdown(leaderboard(cell))
    yield board.with_suffix(".html"), page
    yield data.with_suffix(".md"), markdown(tuning([cell]))


def cells_of(data: Path) -> tuple[MeasuredCell, ...]:
    """Return the measured cells of a tuning document."""
    return read_cells(data.read_text(encoding="utf-8"), where=data.name)


def of_study(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the document and the page of a study's run."""
    board = EXAMPLE / name / f"{name}.md"
    kind, data = kind_of(name), board.with_suffix(".json")
    assert kind.cls  # loads what reads the study's record
    text = data.read_text(encoding="utf-8")
    report = exported(text, sweep=name, study=name)
    subject = _subject(report, RunRecord.from_json(json.loads(text)["record"]))
    if name == "network":  # the nodes were checked before, in the same working directory
        nodes = (EXAMPLE / "nodes" / "nodes.json").read_text(encoding="utf-8")
        before = exported(nodes, sweep="nodes", study="nodes")
        at = datetime.fromisoformat(before.written)
        alone = checked_alone(before.conclusion, sweep="nodes", written=at)
        subject = replace(subject, known=(alone,))
    document = kind.document_of(subject)
    # a committed run hides its paths, and with others its cell has another identity
    told = next(each for each in board.read_text(encoding="utf-8").splitlines() if "Cell: " in each)
    lines = (told.removeprefix("* ") if "Cell: " in each else each for each in document.provenance)
    document = replace(document, provenance=tuple(lines))
    page = html(document, subject, files=[board.name, data.name])
    yield board, markdown(document)
    yield board.with_suffix(".html"), page


def _subject(report: Exported, record: RunRecord) -> MeasuredCell:
    """Return what a study is about; the report has one cell, the trials say where others differ."""
    cells, history = {"": report.cell}, []
    for _, each in report.trials:
        nodes = each.outcome.nodes if each.outcome and report.study in ("nodes", "network") else ()
        cell = replace(report.cell, nodelist=nodes or report.cell.nodelist)
        if report.study == "batch":  # its arm pdbs-6 is a size
            size = float(each.trial.arm.partition("-")[2])
            cell = replace(cell, per_device_batch_size=size)
        cells[each.trial.cell_digest] = cell
        history.append(replace(each, trial=replace(each.trial, cell_digest=cell.digest)))
    return MeasuredCell(
        conclusion=report.conclusion,
        cells=tuple(cells.values()),
        profiles=report.profiles,
        history=tuple(history),
        written_s=datetime.fromisoformat(report.written).timestamp(),
        record=record,
    )


def made() -> Mapping[Path, str]:
    """Return what each document and the picture say of the committed sweeps."""
    (cell,) = cells_of(DATA)
    reports = dict(documents(DATA, BOARD)) | dict(documents(*MAXTEXT))
    board = reports[BOARD]
    plot = forest(cell.conclusion)
    if plot is None:
        raise SystemExit(f"{DATA}: no profile has a change to show")
    jobs = sum(len(each.job_ids) for each in cell.history)
    title = f"A sweep on this machine, {jobs} jobs: {_words(plot.title)}"
    return reports | {
        README: written(README.read_text(encoding="utf-8"), short_part_of(board)),
        TUTORIAL: written(TUTORIAL.read_text(encoding="utf-8"), part_of(board)),
        PICTURE: picture(plot, title=title),
    }


def main() -> None:
    """Write them."""
    studies = [each for name in STUDIES for each in of_study(name)]
    for path, text in (*made().items(), *studies):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
