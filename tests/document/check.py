"""Holds a tuning document, or a leaderboard, against its ledger: line by line, figure by figure.

    complaints = unaccounted(text, Books(ledger))

Whatever has a digit in it and does not follow from the ledger is a complaint: a cell of a table, a
number in a sentence, a literal between backticks, a line of a patch. So is a table or a sentence
with figures that nobody here knows how to compute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pytest_xlatune.profiles import Profile
from tests.document.code import CodeCheck
from tests.document.complaints import Complaints
from tests.document.evidence import evidence_of
from tests.document.figures import BASELINE, Books, Job, Row
from tests.document.lines import ABSENT, blocks, in_line, lines_of, split
from tests.document.pipeline import SHAPING, Shape, shape_of
from tests.document.prose import Prose

SCREENED = "Screened once: ranks, proves nothing"
# in the order in which a header counts them
KINDS = ("FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE", "SCREENED", "INVALID")
_DELTA = f"delta % vs {BASELINE}"
RECIPES = ("Cell", "Best recipe", "Flags", "TGS", f"{BASELINE} TGS", "delta %", "95 %", "n", "jobs")
BOARD = ("Profile", "Flags", "TGS", "step (s)", _DELTA, "95 %", "n", "verdict")
INVALID = ("Profile", "Flags", "reason", "evidence", "jobs")
FIGURES = ("Figure", "Value")
SETTINGS = ("Setting", "Value")
JOBS = ("Job", "Profile", "Stage", "Attempt", "State", "TGS", "Remark")
EVIDENCE = ("Evidence", "From baseline-deployed to the winner", "Artifacts")
ARTIFACTS = ("Artifact", "Path", "Job")
BUBBLES = (
    *("Profile", "S", "M", "V", "bubble", "predicted delta %", "measured delta %", "verdict"),
)


def unaccounted(text: str, books: Books) -> list[str]:
    """Return a complaint for each figure of the document that does not follow from the ledger."""
    check = _Check(books)
    check.document(text)
    return check.found.all


class _Check:
    def __init__(self, books: Books) -> None:
        self.books = books
        self.found = Complaints()
        self.shown: set[str] = set()  # profiles of the leaderboard
        model, cell = books.cell["model_tag"], books.cell
        axes = ",".join(f"{axis}={degree}" for axis, degree in cell["parallelism"]["axes"])
        batch = cell["per_device_batch_size"]
        load = "" if batch is None else f"pdbs={batch:g}"
        self.axes = axes
        self.label = " ".join(filter(None, (axes, cell["config_tag"], load)))
        winner = books.winner
        self.code = CodeCheck(books, label=self.label)
        self.evidence = evidence_of(books)
        self.known_titles = {
            f"{model}: XLA tuning, {axes}",
            f"{model} {self.label}: leaderboard",
            f"Effect of `{model}.env.sh` on {axes}",
            f"Evidence: `{BASELINE}` to `{winner}`",
        }
        literals = {
            *books.profiles,
            *map(self.settings, books.profiles),
            f"{model} {self.label}",
            f"configs/{model}.env.sh",
            *(file["path"] for file in books.files),
            *self.gates(),
        }
        self.prose = Prose(books, self.found, evidence=self.evidence, literals=literals)
        self.tables: Mapping[tuple[str, ...], Callable[[Sequence[list[str]]], None]] = {
            RECIPES: self.recipes,
            BOARD: self.board,
            INVALID: self.invalid,
            FIGURES: self.figures,
            SETTINGS: self.listed,
            JOBS: self.appendix,
            EVIDENCE: self.evidence_rows,
            ARTIFACTS: self.artifacts,
            BUBBLES: self.bubbles,
        }

    # -- reading ---------------------------------------------------------------------------------

    def document(self, text: str) -> None:
        for kind, lines in blocks(text):
            if kind == "code":
                for each in self.code.complaints(lines[0], lines[1:], section=self.found.titles[1]):
                    self.found.wrong(each)
            elif kind == "table":
                self.table([split(line) for line in lines])
            elif kind == "title":
                self.title(lines[0])
            elif not self.found.titles[1]:
                self.header([line.removeprefix("* ") for line in lines])
            else:
                for line in lines:
                    self.prose.check(line.removeprefix("* "))
        missing = self.books.profiles.keys() - self.shown
        if len(missing) != self.prose.left_out:
            self.found.wrong(
                f"the leaderboard lacks {sorted(missing)}, {self.prose.left_out} are said to be"
            )

    def title(self, line: str) -> None:
        hashes, _, text = line.partition(" ")
        level = len(hashes) - 1
        self.found.titles[level:] = [text, *[""] * (3 - level)]
        if re.search("[0-9]", text) and text not in self.known_titles:
            self.found.wrong(f"a title that does not follow: {text}")

    def table(self, rows: Sequence[list[str]]) -> None:
        check = self.tables.get(tuple(rows[0]))
        if check is None:
            self.found.wrong(f"a table that nobody computes: {rows[0]}")
        else:
            check(rows[2:])

    def header(self, bullets: Sequence[str]) -> None:
        expected = list(self.expected_header())
        for bullet in bullets:
            if bullet not in expected:
                self.found.wrong(f"{bullet!r} does not follow from the ledger")
        nodes = {tuple(e.result["outcome"]["nodes"]) for e in self.books.jobs if e.score}
        declared = tuple(self.books.cell["nodelist"])
        if declared and nodes != {declared}:
            self.found.wrong(f"the jobs ran on {nodes}, not on {declared}")

    def expected_header(self) -> Iterator[str]:
        books, cell = self.books, self.books.cell
        protocol = cell["protocol"]
        nodes = ", ".join(f"`{node}`" for node in cell["nodelist"])
        batch, length, devices = (
            cell[key] for key in ("per_device_batch_size", "max_target_length", "devices")
        )
        load = "the model's own batch size"
        if batch is not None:
            load = f"{batch:g} sequences per device and step"
        if length is not None:
            load += f", {length} tokens each"
        first = books.window.first_step if books.window.is_moved else protocol["first_step"]
        over = sum(e.result["status"] != "running" for e in books.jobs)
        jobs = sum(len(e.ids) for e in books.jobs)
        configs = [file["path"] for file in books.files if not file["path"].endswith(".sh")]
        counts = Counter(row.kind for row in books.verdicts.values())
        tally = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        trials = len(books.planned)
        yield f"Written: {datetime.fromtimestamp(books.written_s, UTC):%Y-%m-%d %H:%M} UTC"
        yield f"Model: `{cell['model_tag']}`"
        on = f" on {devices} devices" if devices else ""
        yield f"Parallelism: `{self.axes}`{on}"
        yield f"Configuration: `{cell['config_tag']}`"
        yield f"Nodes: {nodes or 'this machine'}"
        yield f"Image: `{cell['image']}`"
        yield f"Launcher: `{cell['launcher']}`"
        yield f"Load: {load}, {protocol['dataset_type']} data"
        yield (
            f"Steady state: tokens over time of steps {first} to {protocol['steps'] - 1} of "
            f"{protocol['steps']}, in Tokens/s/device (TGS); at least {protocol['min_steps']} "
            "usable steps or no score"
        )
        yield f"Cell: `{next(iter(books.planned.values()))['cell_digest']}`"
        for state in ("complete", "preliminary"):
            for own, its in ((trials, jobs), self.without_evidence()):
                said = min(over, own)
                yield f"State: {state}: {said} of {own} trials over, {its} jobs; {tally}"
        yield f"Base configuration: {', '.join(f'`{path}`' for path in configs)}"
        versions = ", ".join(f"{name} {text}" for name, text in sorted(books.versions.items()))
        yield f"Software of the sweep: {versions}"

    def without_evidence(self) -> tuple[int, int]:
        """Trials and jobs as a leaderboard counts them."""
        own = [e for e in self.books.jobs if e.stage != "evidence"]
        return len(own), sum(len(e.ids) for e in own)

    def gates(self) -> Iterator[str]:
        """The configurations that wave 6 went to, and its reports: each has a ledger of its own."""
        sweep = self.books.folder.parent
        for each in sweep.parent.glob(f"{sweep.name}-*/*/ledger.jsonl"):
            name = each.parent.parent.name
            yield name.removeprefix(f"{sweep.name}-")
            yield f"{name}/gate.md"

    # -- tables ----------------------------------------------------------------------------------

    def recipes(self, rows: Sequence[list[str]]) -> None:
        books, (row,) = self.books, rows
        best = books.rows[books.winner or BASELINE]
        name = f"★ `{books.winner}`" if books.winner else "as deployed"
        text = f"`{self.settings(books.winner)}`" if books.winner else ABSENT
        self.found.texts(
            row, {0: self.label, 1: name, 2: text, 7: str(best.n), 8: ", ".join(best.jobs)}
        )
        self.found.number(row[3], best.tgs)
        self.found.number(row[4], books.rows[BASELINE].tgs)
        self.found.change(row[5], best.delta)
        self.found.interval(row[6], best.ci95)

    def board(self, rows: Sequence[list[str]]) -> None:
        table = self.found.titles[2]
        for row in rows:
            name = re.sub("[★ `]", "", row[0])
            figures = self.books.rows.get(name)
            if figures is None:
                self.found.wrong(f"{row[0]} is in no line of the ledger")
                continue
            is_baseline = name == BASELINE
            if "leaderboard" in self.found.titles[1].lower():
                self.shown |= {name} - {BASELINE}
                is_star = row[0].startswith("★")
                if is_star != (name == self.books.winner):
                    self.found.wrong(f"{row[0]}, but the winner is {self.books.winner!r}")
            text = "as deployed" if is_baseline else f"`{self.settings(name)}`"
            self.found.texts(row, {1: text, 6: str(figures.n)})
            self.found.number(row[2], figures.tgs)
            self.found.number(row[3], figures.step_s)
            self.found.change(row[4], figures.delta)
            self.found.interval(row[5], figures.ci95)
            self.verdict(row[7], figures)
            if not is_baseline and (figures.kind == "SCREENED") != (table == SCREENED):
                self.found.wrong(f"{name} is {figures.kind}, and stands in {table!r}")

    def verdict(self, shown: str, figures: Row) -> None:
        if figures.kind == "SCREENED":
            rest = self.found.said(
                shown, "screened {delta} % (n={n})", delta=figures.delta, n=figures.n, percent=True
            )
        elif figures.kind == "INCONCLUSIVE" and figures.mde80 is not None:
            rest = self.found.said(
                shown, "inconclusive (80 % power at {at} %)", at=figures.mde80, percent=True
            )
        else:
            rest = shown.removeprefix(figures.kind)
        if rest:
            self.found.wrong(f"verdict {shown!r}, but it is {figures}")

    def invalid(self, rows: Sequence[list[str]]) -> None:
        for row in rows:
            name = row[0].strip("`")
            figures = self.books.rows.get(name)
            if figures is None or figures.kind != "INVALID":
                self.found.wrong(f"{row[0]} is said to be invalid, and is {figures}")
                continue
            if "leaderboard" in self.found.titles[1].lower():
                self.shown.add(name)
            findings = [f for e in self.books.of(name) for f in e.result["findings"] if f["text"]]
            dropping = [f for f in findings if f["action"] == "drop"] or findings
            text = f"`{in_line(dropping[0]['text'])}`" if dropping else ABSENT
            own = f"`{self.settings(name)}`"
            self.found.texts(row, {1: own, 3: text, 4: ", ".join(figures.jobs) or ABSENT})
            if not figures.can_run:
                self.found.texts(row, {2: figures.reason})

    def figures(self, rows: Sequence[list[str]]) -> None:
        books = self.books
        for name, value in rows:
            if name.startswith("M:"):
                self.found.texts([name], {0: "M: no profile beats the baseline by more, at 95 %"})
                self.found.change(value.removesuffix(" %"), books.bound)
            elif name.startswith("MDE80:"):
                self.found.texts([name], {0: "MDE80: the smallest effect found with 80 % power"})
                self.found.change(value.removesuffix(" %"), books.mde80)
            elif name.startswith("Sigma:"):
                self.found.change(value.removesuffix(" %"), books.sigma)
            else:
                self.prose.check(f"{name}: {value}." if name != "Note" else value)

    def listed(self, rows: Sequence[list[str]]) -> None:
        """Settings: of the cell below their titles, else of a file that was read."""
        of_table = {
            "Deployed environment": self.books.cell["deployed"],
            "Configuration of the cell": self.books.cell["overrides"],
        }
        known = of_table.get(self.found.titles[2] or self.found.titles[3])
        lines = {line.split("#")[0].strip() for f in self.books.files for line in lines_of(f)}
        for name, value in rows:
            key, text = (each[1:-1] for each in (name, value))
            is_known = known is not None and known.get(key) == text
            if not is_known and f"{key}: {text}".strip() not in lines:
                self.found.wrong(f"{name} = {value} is neither the cell's nor in its files")

    def appendix(self, rows: Sequence[list[str]]) -> None:
        expected = {row[0]: row for each in self.books.jobs for row in self.job_rows(each)}
        if [row[0] for row in rows] != sorted(expected, key=_numbers):
            self.found.wrong("the jobs of the appendix are not those of the ledger, in their order")
        for row in rows:
            wanted = expected.get(row[0], [ABSENT] * len(row))
            self.found.texts(row, {at: wanted[at] for at in (1, 2, 3, 4, 6)})
            self.found.number(row[5], float(wanted[5]) if wanted[5] != ABSENT else None)

    def job_rows(self, job: Job) -> Iterator[list[str]]:
        result, outcome = job.result, job.result["outcome"] or {}
        for attempt, job_id in enumerate(job.ids, start=1):
            is_last = attempt == len(job.ids)
            state = outcome.get("state", result["status"])
            if outcome.get("signal") is not None:
                state += f", signal {outcome['signal']}"
            elif state == "failed" and outcome.get("exit_code") is not None:
                state += f", exit {outcome['exit_code']}"
            yield [
                job_id,
                f"`{job.name}`",
                f"{job.stage} {job.block or ''}".strip(),
                str(attempt),
                state if is_last else "retried",
                str(job.score.tgs) if job.score and is_last else ABSENT,
                in_line(self.remark(job, job_id, is_last=is_last)) or ABSENT,
            ]

    def remark(self, job: Job, job_id: str, *, is_last: bool) -> str:
        """Why a job has no score: what its trial ended for, else what was decided on it."""
        if is_last and (job.score or job.result["reason"]):
            return str(job.result["reason"])
        return self.books.remarks.get(job_id, "")

    def evidence_rows(self, rows: Sequence[list[str]]) -> None:
        for row in rows:
            for each in self.evidence.complaints(row):
                self.found.wrong(each)

    def artifacts(self, rows: Sequence[list[str]]) -> None:
        for each in self.evidence.artifacts(rows):
            self.found.wrong(each)

    def bubbles(self, rows: Sequence[list[str]]) -> None:
        declared = [each["id"] for each in self.books.declared["profiles"]]
        names = [*declared, *(self.books.profiles.keys() - {*declared})]
        shaped = [n for n in names if SHAPING & {*self.books.profiles[n]["overrides"]}]
        if [row[0].strip("`") for row in rows] != [BASELINE, *shaped]:
            self.found.wrong(f"the pipelines are those of {[BASELINE, *shaped]}")
            return
        before = self.pipeline(BASELINE)
        for row, name in zip(rows, (BASELINE, *shaped), strict=True):
            own, figures = self.pipeline(name), self.books.rows[name]
            is_base, gain = name == BASELINE, None
            if isinstance(own, Shape):
                self.found.texts(row, {1: str(own.stages), 2: str(own.micro), 3: str(own.repeats)})
                self.found.change(row[4].removesuffix(" %"), own.bubble)
                if isinstance(before, Shape) and not is_base:
                    gain = (1 - own.bubble) / (1 - before.bubble) - 1
            else:
                self.found.texts(row, dict.fromkeys((1, 2, 3, 4), ABSENT))
                self.prose.known.add(f"{name}: {own}.")
            self.found.change(row[5], gain)
            self.found.change(row[6], None if is_base else figures.delta)
            if not is_base:
                self.verdict(row[7], figures)

    def pipeline(self, name: str) -> Shape | str:
        """As the trainer's file has it, the cell on top of that, the profile on top of both."""
        degrees = {axis: int(degree) for axis, degree in self.books.cell["parallelism"]["axes"]}
        own = {} if name == BASELINE else self.books.profiles[name]["overrides"]
        said = {**self.books.configured, **self.books.cell["overrides"], **own}
        return shape_of(said, stages=degrees["PP"])

    def settings(self, name: str) -> str:
        return Profile.from_json(dict(self.books.profiles[name])).shown_text


def _numbers(job_id: str) -> tuple[int, ...]:
    """A job's id by its numbers, as a table of jobs is sorted: `9990.1309` before `10475.13`."""
    return tuple(map(int, job_id.split(".")))
