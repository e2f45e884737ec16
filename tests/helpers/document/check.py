"""Compares the tables and figures of a tuning document, or of a leaderboard, with its ledger.

    complaints = unaccounted(text, Books(ledger))

A complaint is each cell of a table, figure of the header, literal or line of a patch that does not
follow from the ledger, and each table that this module cannot compute. Sentences are not read, but
for their percentages and intervals: each must be a figure of the ledger.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from weakref import WeakKeyDictionary

from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.reason import Reason
from pytest_xlatune.report.words import sentence
from tests.helpers.document.attempts import first_steps_of, seconds_of
from tests.helpers.document.code import CodeCheck
from tests.helpers.document.complaints import Complaints
from tests.helpers.document.estimates import ALPHA
from tests.helpers.document.evidence import evidence_of
from tests.helpers.document.figures import ALIAS, BASELINE, BOUNDED, STOP_LEAST, Books, Job, Row
from tests.helpers.document.lines import ABSENT, NUMBER, blocks, in_line, lines_of, rounds_to, split
from tests.helpers.document.pipeline import SHAPING, Shape, shape_of
from tests.helpers.document.recipes import BEYOND, PROMISE, promised_at
from tests.helpers.document.slots import complaints_of, nodes_of
from tests.helpers.words import in_words

SCREENED = "Screened: ranks, proves nothing"
SHOWN_OF_THE_SCREEN = 8 + 5
# +11.6 %    [+10.6, +12.6]
PERCENT = re.compile(rf"({NUMBER}) %|\[({NUMBER}), ({NUMBER})\]")
# what a bullet of the header has to say:  14    `node001`    FASTER
TOKEN = re.compile(r"`[^`]*`|\b[A-Z]{5,}\b|[0-9]+(?:[.:-][0-9]+)*")
FROM_START = "Smallest gain of one profile that the whole sweep finds with 80 % power"
OF_NAMES = {"M": ["95"], "MDE80": ["80", "80"], FROM_START: ["80"]}
# in the order in which a header counts them
KINDS = ("FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE", "SCREENED", "INVALID")
_DELTA = f"delta % vs {BASELINE}"
RECIPES = ("Cell", "Best recipe", "Flags", "TGS", f"{BASELINE} TGS", "delta %", "95 %", "n", "jobs")
BOARD = ("Profile", "Flags", "TGS", "step (s)", _DELTA, "95 %", "n", "verdict")
BOARD_SEEN = (*BOARD, "settings")  # of a ledger that says whether they were in effect
INVALID = ("Profile", "Flags", "reason", "evidence", "jobs")
FIGURES = ("Figure", "Value")
SETTINGS = ("Setting", "Value")
RECIPE = ("Settings", "deployed", "verdict", "gain %", "against", "blocks")
JOBS = ("Job", "Profile", "Stage", "Attempt", "State", "TGS", "Remark")
JOBS_ON_SLOTS = ("Job", "Slot", *JOBS[1:])
EVIDENCE = ("Evidence", "From baseline-deployed to the winner", "Artifacts")
ARTIFACTS = ("Artifact", "Path", "Job")
LOST = ("Profile", "runs lost", "to", "hangs", "retries")
BUBBLES = (
    *("Profile", "S", "M", "V", "bubble", "predicted delta %", "measured delta %", "verdict"),
)

# of each ledger what its header has: the same for every document that is compared with it
_HEADERS: WeakKeyDictionary[Books, dict[str, list[list[str]]]] = WeakKeyDictionary()


def _hours(hours: float) -> str:
    if hours == 0:
        return "0"
    return f"{hours:#.4g}" if hours >= 0.001 else "below 0.001"


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
            *([f"Recipe: `{winner}`"] if winner else []),
        }
        self.literals = {
            *books.profiles,
            *map(self.settings, books.profiles),
            f"{model} {self.label}",
            f"configs/{model}.env.sh",
            *(file["path"] for file in books.files),
            *self.gates(),
        }
        self.tables: Mapping[tuple[str, ...], Callable[[Sequence[list[str]]], None]] = {
            RECIPES: self.recipes,
            RECIPE: self.recipe,
            BOARD: self.board,
            BOARD_SEEN: self.board,
            INVALID: self.invalid,
            FIGURES: self.figures,
            SETTINGS: self.listed,
            JOBS_ON_SLOTS if books.slots else JOBS: self.appendix,
            EVIDENCE: self.evidence_rows,
            ARTIFACTS: self.artifacts,
            BUBBLES: self.bubbles,
            LOST: self.lost,
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
                self.sentences(" ".join(lines))
        books = self.books
        for each in (*books.misplaced, *complaints_of(text, books)):
            self.found.wrong(each)
        missing = self.books.profiles.keys() - self.shown
        said = re.search(r"^([0-9]+) more profiles? between these", text, re.MULTILINE)
        left_out = int(said[1]) if said else 0
        screened = sum(each.kind == "SCREENED" for each in self.books.verdicts.values())
        if len(missing) != left_out or (said and left_out != screened - SHOWN_OF_THE_SCREEN):
            self.found.wrong(f"the leaderboard lacks {sorted(missing)}, {left_out} are left out")

    def sentences(self, text: str) -> None:
        """Complain of a percentage, an interval or a literal that is not of the ledger."""
        if text.startswith("★"):
            self.headline(text)
        if (plan := self.books.outlook) and "this plan (" in text:
            shown = [one for one, _, _ in PERCENT.findall(text)]
            wanted = (plan.sigma, plan.from_start, 0.80, plan.mde80)
            for own, value in zip(shown, wanted, strict=True):
                self.found.change(own, value)
            text = text.partition("this plan (")[0]
        if text.startswith("The noise of a job is "):
            text = self.promise(text)
        for shown in filter(None, itertools.chain(*PERCENT.findall(text))):
            if not any(rounds_to(100 * each, shown) for each in self.fractions):
                self.found.wrong(f"{shown} % is no figure of the ledger: {text!r}")
        for each in re.findall("`([^`]*)`", text):
            if re.search("[0-9]", each) and each not in self.literals:
                self.found.wrong(f"`{each}` is in no line of the ledger")

    def promise(self, text: str) -> str:
        """Compare what recipes were measured to be at this noise with the page that has it."""
        sigma = 100 * (self.books.sigma or math.nan)
        told, is_beyond = promised_at(sigma)
        if (BEYOND in text) != is_beyond:
            self.found.wrong(f"{sigma} % is {'more' if is_beyond else 'no more'} than was measured")
        figures = {name: getattr(told, name) for name in told.__slots__}
        return self.found.said(text, PROMISE, sigma=sigma, **figures)

    def headline(self, text: str) -> None:
        """Compare the first figures of the summary, in order: the winner's, then M."""
        best, bound = self.books.rows[self.books.winner or BASELINE], self.books.bound
        shown = re.findall(NUMBER, re.sub("`[^`]*`", "", text))
        wanted = [best.delta, 0.95, *(best.ci95 or ()), best.n / 100]
        wanted += [] if bound is None else [bound]  # there is none beside a winner
        if best.likely is not None:
            wanted += [best.likely[0], 0.95, *best.likely[1:]]
        for own, value in zip(shown, wanted, strict=False):
            self.found.change(own, value)

    @cached_property
    def fractions(self) -> list[float]:
        """Every fraction that a sentence may state as a percentage."""
        books, fit = self.books, self.books.fit
        found: list[float | None] = [0.95, 0.80, BOUNDED, books.bound, books.mde80, books.sigma]
        for row in books.rows.values():
            found += [row.delta, row.mde80, *(row.ci95 or ()), *(row.likely or ())]
        found += [math.expm1(each.value) for each in books.screened.values()]
        found += self.evidence.fractions
        found += books.shares
        found += [-change for change in books.slower_slots.values()]
        if books.outlook is not None:
            found += [books.outlook.sigma, books.outlook.mde80]
        if fit is not None:
            found += [STOP_LEAST] if books.stopping else []
            found += map(math.expm1, fit.interval(ALIAS) if ALIAS in fit.kept else ())
        return [each for each in found if each is not None]

    def title(self, line: str) -> None:
        hashes, _, text = line.partition(" ")
        level = len(hashes) - 1
        self.found.titles[level:] = [text, *[""] * (3 - level)]
        if re.search("[0-9]", text) and text not in self.known_titles:
            self.found.wrong(f"a title that does not follow: {text}")

    def table(self, rows: Sequence[list[str]]) -> None:
        check = self.tables.get(tuple(rows[0]))
        if check is None:
            self.found.wrong(f"a table that this module cannot compute: {rows[0]}")
        else:
            check(rows[2:])

    def header(self, bullets: Sequence[str]) -> None:
        """Compare figures, literals and verdicts of each bullet, in order; words are not read."""
        if (expected := _HEADERS.get(self.books)) is None:
            expected = _HEADERS[self.books] = {}
            for label, text in self.expected_header():
                expected.setdefault(label, []).append(TOKEN.findall(text))
        for bullet in bullets:
            label, _, text = bullet.partition(": ")
            if label in ("Two speeds", "Node slots"):  # tests/stats/test_two_groups.py; below
                continue
            if TOKEN.findall(text) not in expected.get(label, []):
                self.found.wrong(f"{bullet!r}: the ledger says {expected.get(label)}")
        books = self.books
        for each in (e for e in books.every_job if e.score):
            nodes = list(each.result["outcome"]["nodes"])
            declared = books.slots.get(each.slot, list(books.cell["nodelist"]))
            if declared and nodes != declared:
                self.found.wrong(f"job {each.ids} ran on {nodes}, not on {declared}")
        self.on_slots(dict(bullet.partition(": ")[::2] for bullet in bullets))

    def on_slots(self, bullets: Mapping[str, str]) -> None:
        """Compare the nodes of each slot; trials lie as the rules of slots say."""
        slots = [*self.books.slots.values()]
        shown = bullets.get("Node slots", "")
        told = [each.partition(": ")[::2] for each in shown.split("; ")] if shown else []
        if [(number, nodes_of(nodes)) for number, nodes in told] != [
            (str(number), nodes) for number, nodes in enumerate(slots, 1)
        ] or (slots and "Nodes" in bullets):
            self.found.wrong(f"node slots {shown!r}, but they are {slots}")

    def expected_header(self) -> Iterator[tuple[str, str]]:
        """Label and figures of each bullet that may be there."""
        books, cell = self.books, self.books.cell
        protocol = cell["protocol"]
        batch, length = cell["per_device_batch_size"], cell["max_target_length"]
        load = ["" if batch is None else f"{batch:g}", "" if length is None else str(length)]
        first = books.window.first_step if books.window.is_moved else protocol["first_step"]
        over = sum(e.result["status"] != "running" for e in books.every_job)
        jobs = sum(len(e.ids) for e in books.every_job)
        configs = [file["path"] for file in books.files if not file["path"].endswith(".sh")]
        counts = Counter(row.kind for row in books.verdicts.values())
        tally = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        yield "Written", f"{datetime.fromtimestamp(books.written_s, UTC):%Y-%m-%d %H:%M}"
        yield "Model", f"`{cell['model_tag']}`"
        yield "Parallelism", f"`{self.axes}` {cell['devices'] or ''}"
        yield "Configuration", f"`{cell['config_tag']}`"
        yield "Nodes", ", ".join(f"`{node}`" for node in cell["nodelist"])
        yield "Image", f"`{cell['image']}`"
        yield "Launcher", f"`{cell['launcher']}`"
        yield "Load", " ".join(load)
        yield (
            "Steady state",
            f"{first} {protocol['steps'] - 1} {protocol['steps']} {protocol['min_steps']}",
        )
        first = next(iter(books.slots), next(iter(books.planned.values()))["cell_digest"])
        yield "Cell", f"`{first}`"
        for own, its in ((len(books.planned), jobs), self.without_evidence()):
            yield "State", f"{min(over, own)} {own} {its} {tally}"
        yield "Base configuration", ", ".join(f"`{path}`" for path in configs)
        yield from self.recorded()
        versions = (f"{name} {text}" for name, text in sorted(books.versions.items()))
        yield "Software of the sweep", ", ".join(versions)

    def recorded(self) -> Iterator[tuple[str, str]]:
        """What the trials ran on, from the events of the ledger."""
        books = self.books
        seen = [each["nodes"] for each in books.lines if each["event"] == "environment-seen"]
        labels = {
            "packages": "Software of the trainer",
            "devices": "Devices of a process",
            "node": "Machine",
            "code": "Files of the trainer",
            "repositories": "Repositories",
        }
        for part, label in labels.items():
            known = [each[part] for each in (seen[-1] if seen else ()) if each[part]]
            marks = "`" if part in ("code", "repositories") else ""
            facts = known[0].items() if known else ()
            yield label, "; ".join(f"{marks}{name}{marks} {said}" for name, said in facts)
        began = [each for each in books.lines if each["event"] == "epoch-began"]
        changed = [each for each in began if each["cause"] == "changed"]
        for each in changed:
            phrases = "; ".join(sentence(Reason.from_json(what)) for what in each["changes"])
            yield "Changed on the way", f"on {', '.join(each['nodes'])} changed: {phrases}"
        opened = [each for each in books.lines if each["event"] == "campaign-opened"]
        commands = dict.fromkeys(each.get("command", "") for each in opened)
        yield "Command", ", ".join(f"`{each}`" for each in commands if each)
        yield "Random seed of the order", str(books.declared.get("seed", ""))
        ended = [e["outcome"] for e in books.lines if e["event"] == "attempt-ended"]
        timed = [e for e in ended if e["start_s"] is not None and e["end_s"] is not None]
        if timed:
            ends = (min(e["start_s"] for e in timed), max(e["end_s"] for e in timed))
            when = " ".join(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in ends)
            spent = sum((e["end_s"] - e["start_s"]) * max(len(e["nodes"]), 1) for e in timed)
            hours = spent / 3600
            yield "Measured", f"{when} {_hours(hours)}"
            spent_s = seconds_of(books.lines)
            yield "Hours of the jobs", " ".join(_hours(each / 3600) for each in spent_s)
        yield "Compilation", " ".join(first_steps_of(books.lines, books.cell["protocol"]))
        yield "Not recorded", ""

    def without_evidence(self) -> tuple[int, int]:
        """Trials and jobs as a leaderboard counts them."""
        own = [e for e in self.books.every_job if e.stage != "evidence"]
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

    def recipe(self, rows: Sequence[list[str]]) -> None:
        """What of the recommended settings is needed, and what was left out."""
        found = self.books.recipe
        wanted = found.parts(BASELINE) if found and found.arm else []
        if len(rows) != len(wanted):
            self.found.wrong(f"the recipe has {len(rows)} rows, expected {wanted}")
        for row, part in zip(rows, wanted, strict=False):
            deployed, against = "yes" if part.is_deployed else "no", f"`{part.without}`"
            self.found.texts(
                row, {1: deployed, 2: part.need, 4: against if part.without else ABSENT}
            )
            self.found.change(row[3], part.gain)
            self.found.number(row[5], part.blocks or None)
            if sorted(row[0].split(", ")) != sorted(f"`{each}`" for each in part.names):
                self.found.wrong(f"{row[0]} are not the settings {part.names}")

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

    def lost(self, rows: Sequence[list[str]]) -> None:
        """The arms that lost runs, hung or were tried again, all of them."""
        wanted = {}
        for name in self.books.profiles:
            own = self.books.of(name)
            retries = sum(max(len(each.ids) - 1, 0) for each in own)
            found = [f["cls"] for each in own for f in each.result["findings"]]
            hangs = sum(each.startswith("hang-") for each in found)
            missing = self.books.rows[name].lost
            if missing or hangs or retries:
                text = f"{missing[0]} of {missing[1]}" if missing else ABSENT
                wanted[f"`{name}`"] = [text, str(hangs), str(retries)]
        shown = {row[0]: [row[1], row[3], row[4]] for row in rows}
        if shown != wanted:
            self.found.wrong(f"lost runs {shown}, but they are {wanted}")

    def verdict(self, shown: str, figures: Row) -> None:
        shown, _, lost = shown.partition(", ")
        if lost.startswith("very likely slower"):
            lost = lost.partition(", ")[2]
            if not (figures.delta or 0.0) < 0:
                self.found.wrong(f"{shown} is called likely slower, and is {figures}")
        told = re.match(r"([0-9]+) of ([0-9]+) runs lost", lost)
        if (tuple(map(int, told.groups())) if told else ()) != figures.lost:
            self.found.wrong(f"verdict {lost!r}, but {figures.lost} were lost")
        if figures.kind == "SCREENED":
            rest = shown.removeprefix("screened")
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
        known = {
            "M": books.bound,
            "MDE80": books.mde80,
            FROM_START: books.from_start80,
            "sigma": books.sigma,
        }
        for name, value in rows:
            term = re.search(r"\((\w+)\)$", name)
            label = term[1] if term else name.partition(":")[0]
            if re.findall("[0-9]+", name) != OF_NAMES.get(label, []):
                self.found.wrong(f"the figures of {name!r}")
            if label in known:
                self.found.change(value.removesuffix(" %"), known[label])
            elif label == "Likely":
                likely = self.books.rows[books.winner].likely or ()
                shown = re.findall(NUMBER, value)
                for own, wanted in zip(shown, (*likely[:1], 0.95, *likely[1:]), strict=True):
                    self.found.change(own, wanted)
            elif label == "alpha":
                spent, _, whole = value.partition(" of ")
                self.found.number(spent, books.alpha_spent)
                self.found.number(whole, ALPHA)
            elif label == "method":
                methods = books.fit.methods.values() if books.fit else ()
                told = "|".join(re.escape(each) for each in methods)
                if re.search("[0-9]", re.sub(told, "", value) if told else value):
                    self.found.wrong(f"method {value!r}, but it is {books.fit}")
            elif name == "Note":
                self.sentences(value)
            else:
                self.found.wrong(f"a figure that this module cannot compute: {name}")

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
        expected = {row[0]: row for each in self.books.every_job for row in self.job_rows(each)}
        if [row[0] for row in rows] != sorted(expected, key=_numbers):
            self.found.wrong("the jobs of the appendix are not those of the ledger, in their order")
        for row in rows:
            wanted = expected.get(row[0], [ABSENT] * 8)
            shown = row if not self.books.slots else [row[0], *row[2:], row[1]]
            known = [*((7,) if self.books.slots else ()), 1, 2, 3, 4, 6]
            self.found.texts(shown, {at: wanted[at] for at in known})
            self.found.number(shown[5], float(wanted[5]) if wanted[5] != ABSENT else None)

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
                f"{'confirm' if job.stage == 'spare' else job.stage} {job.block or ''}".strip(),
                str(attempt),
                state if is_last else "retried",
                str(job.score.tgs) if job.score and is_last else ABSENT,
                in_line(self.remark(job, job_id, is_last=is_last)) or ABSENT,
                str([*self.books.slots, job.slot].index(job.slot) + 1),
            ]

    def remark(self, job: Job, job_id: str, *, is_last: bool) -> str:
        """Why a job has no score: what its trial ended for, else what was decided on it."""
        if is_last and (job.score or job.result["reason"]):
            return in_words(job.result["reason"])
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
            self.found.change(row[5], gain)
            self.found.change(row[6], None if is_base else figures.delta)
            if not is_base:
                self.verdict(row[7], figures)

    def pipeline(self, name: str) -> Shape | None:
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
