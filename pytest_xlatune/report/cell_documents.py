"""The documents of the studies whose arms are cells: nodes, network, batch size, commits.

All four have one shape: the answer and how often it is wrong, a row of figures for each verdict,
what the study can tell, the jobs. Nothing is computed here but the means of what the scores carry.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.pairs import CONCLUSION, NetworkRecord
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, counted, interval, percent, points, significant
from pytest_xlatune.report import DeviceUse, Subject
from pytest_xlatune.report.document import (
    Code,
    Document,
    Section,
    Table,
    Text,
    bullets,
    columns,
    drawn,
    literal,
    literals,
    plain,
    section,
)
from pytest_xlatune.report.language import joined, plainly
from pytest_xlatune.report.leaderboard import can_tell, header, jobs
from pytest_xlatune.report.lines import figure, speed, words, words_beside
from pytest_xlatune.report.study_plots import (
    batch_curve,
    commit_series,
    node_strip,
    pair_matrix,
    values_in,
)
from pytest_xlatune.studies.batch_size import BatchRecord, SizeCeiling
from pytest_xlatune.studies.commit_check import CommitsRecord

# tests/report/test_error_rates.py holds the figures of *_RATES to the measured table of the page
# that they name, and says what to write here once that is measured anew
NETWORK_RATES = (
    "In simulated checks of 4 to 128 nodes an innocent node or link was accused in at most 1.0 "
    "% of the checks of a kind, and a slow one called healthy in at most 1.7 %; a node 5 % "
    "slower was named in 99.2 to 100.0 %, a link 5 % slower in 96.6 to 100.0 %, by the noise of "
    "a job (docs/reference/error_rates.md)."
)
_NETWORK_WAY = (
    "A pair's single run proves nothing: a node or link is accused by fresh runs beside others "
    "alone. "
)
NODE_RATES = (
    "In simulated checks of 4 to 128 nodes a healthy node was accused in at most 0.1 % of the "
    "checks of a kind; a node 5 % slower was found in 90.6 to 100.0 %, one 3 % slower in 30.8 to "
    "99.9 %, by the noise of a job (docs/reference/error_rates.md)."
)
_NODE_WAY = "Single runs prove nothing, so a node is accused by fresh runs beside controls alone. "
COMMIT_RATES = (
    "In simulated searches at most 0.3 % named a wrong commit, and at most 0.0 % named one where "
    "nothing changed; a loss of 3 % was found in 85.0 to 99.9 %, by the noise of a job. At most "
    "0.3 % of simulated tables accused a load falsely (docs/reference/error_rates.md)."
)
_COMMIT_WAY = (
    "Single runs prove nothing: a commit is accused by fresh pairs with the one before it alone. "
)
BATCH_RATES = (
    "In simulated studies of random curves the recommended size lost 0.02 % of TGS on average, and "
    "more than 1 % in 0.0 % of them, and the best size was recommended or in the set in 99.5 % "
    "(a job's noise 0.6 %); with noise of 1.0 % and bad jobs 0.07 %, 1.6 % and 97.0 % "
    "(docs/reference/error_rates.md)."
)
_PAIR_RATES = "How often a study of pairs is wrong: docs/reference/error_rates.md, Pairs."
_BATCH_WAY = "A first run only chooses the sizes that are run again; blocks decide. "
_AGAINST_BEST = (
    "Arms that ran in blocks are compared with the best in the same blocks, the others with its "
    "first run. TGS of the best is the mean of its runs in blocks; of another arm it is that times "
    "its change."
)
_MOST_PAIRS = 40  # in the table: the slowest

# the head of a further column, and what it says of a verdict
_Column = tuple[str, Callable[[Verdict], str]]
_AGAINST: _Column = (
    "~against",
    lambda each: ABSENT if each.delta is None else plainly(each.against) or ABSENT,
)


def network(subject: Subject) -> Document:
    """Return the check of a network: the answer, every node, the slowest pairs, the jobs."""
    found = subject.conclusion.found(NetworkRecord)
    ordered = sorted(found.pairs, key=lambda each: each.change or 0.0)
    pairs = tuple(
        (
            literal("-".join(each.nodes)),
            points(each.change),
            "its first run" if each.fresh is None else "fresh runs",
            str(each.runs),
        )
        for each in ordered[:_MOST_PAIRS]
    )
    about_pairs = section(
        "Pairs",
        Text(
            text=f"The slowest {len(pairs)} of {counted(len(found.pairs), 'pair')}; "
            "network.json has all. A first run is held against the median of its round; fresh "
            "runs against the median of all first runs, those of the slowest pair against the "
            "runs beside them."
        ),
        Table(columns=columns("~Pair", ">change %", "~by", ">runs"), rows=pairs),
    )
    rows = verdict_table(
        subject,
        [each for each in subject.conclusion.verdicts if each.arm != CONCLUSION],
        head="~Node",
        change=">change %",
        further=_use_columns(subject),
        has_jobs=False,
    )
    return _document(
        subject,
        title=f"{subject.cell.label}: network",
        noun="check",
        plot=(
            "Every pair",
            pair_matrix(found.pairs, nodes=found.nodes, first=(*found.accused, *found.link)),
        ),
        nodes=found.nodes,
        headline=_of_network(subject.conclusion, found),
        said=(*map(sentence, found.summary), _NETWORK_WAY + NETWORK_RATES),
        middle=(section("Nodes", rows), about_pairs),
    )


def nodes(subject: Subject) -> Document:
    """Return the check of nodes: the answer, every node, the list to deploy, the jobs."""
    conclusion = subject.conclusion
    facts, median = conclusion.facts, conclusion.reference
    listed = [Code(text=text.strip()) for text in facts.files.values()]
    recommended = section(
        "Recommended nodes",
        Text(text="A sweep takes them with `--xlatune-nodelist=@healthy`."),
        *listed,
    )
    rows = verdict_table(
        subject,
        head="~Node",
        change=">against the median %",
        further=_use_columns(subject),
    )
    return _document(
        subject,
        title=f"{subject.cell.label}: nodes",
        noun="check",
        plot=("Every node", node_strip(subject)),
        nodes=_all_nodes(subject),
        headline=_of_nodes(conclusion),
        said=(
            *map(sentence, facts.summary),
            *([f"The median node: {speed(median)}"] if median is not None else []),
            _NODE_WAY + NODE_RATES,
        ),
        middle=(
            section("Nodes", rows),
            *([recommended] if listed and conclusion.complete else []),
        ),
    )


def commits(subject: Subject) -> Document:
    """Return a study of commits: the answer, the commits of each load, the jobs."""
    conclusion = subject.conclusion
    record = conclusion.found(CommitsRecord)
    lines = (*((conclusion.reference,) if conclusion.reference else ()), *conclusion.verdicts)
    by_load: dict[str, list[Verdict]] = {}
    if len(lines) == len(subject.cells) and conclusion.reference is None:
        for cell, verdict in zip(subject.cells, lines, strict=True):
            count = f", {counted(len(cell.nodelist), 'node')}" if cell.nodelist else ""
            on = f" ({', '.join(cell.nodelist)})" if cell.nodelist else ""
            by_load.setdefault(f"{cell.label}{count}{on}", []).append(verdict)
    else:
        by_load["Commits that were measured"] = list(lines)
    subjects = {short: said for short, _, said in (e.partition(" ") for e in record.commits)}

    def commit(verdict: Verdict) -> str:
        short = verdict.arm.rpartition("-")[2]
        return f"{literal(short)} {plain(subjects.get(short, ''))}".strip()

    uses = _use_columns(subject)
    return _document(
        subject,
        title=f"{subject.cell.label}: commits" if len(by_load) == 1 else "models on commits",
        noun="study",
        plot=(
            "From commit to commit",
            commit_series(
                subject,
                commits=tuple(subjects),
                named={record.first, record.last} - {""},
                chances=record.chances,
            ),
        ),
        nodes=_all_nodes(subject),
        headline=_of_commits(conclusion, record, subjects),
        said=(*map(sentence, record.summary), _COMMIT_WAY + COMMIT_RATES),
        middle=[
            section(
                title,
                verdict_table(
                    subject,
                    own,
                    head="~Commit",
                    name=commit,
                    change=">change %",
                    further=[_AGAINST, *uses],
                ),
            )
            for title, own in by_load.items()
        ],
    )


def batch(subject: Subject) -> Document:
    """Return the document of a conclusion on batch sizes, or on the values of another key."""
    conclusion = subject.conclusion
    record = conclusion.found(BatchRecord)
    step: _Column = (">step (s)", lambda each: significant(each.step_s))
    rows = verdict_table(
        subject,
        head="~Arm",
        change=">change %",
        further=[_AGAINST, step, *_use_columns(subject)],
    )
    return _document(
        subject,
        title=f"{subject.cell.model_tag} {subject.cell.parallelism}: batch size"
        + (f" and {record.by}" if record.by else ""),
        noun="study",
        plot=(
            "The curve",
            batch_curve(
                subject,
                key=record.key,
                best=record.arm,
                unfit=record.unfit,
                second=record.by,
            ),
        ),
        headline=_of_batch(conclusion, record),
        said=(
            *map(sentence, record.summary),
            _BATCH_WAY + (_PAIR_RATES if record.by else BATCH_RATES),
        ),
        middle=(
            *_pairs(subject, record),
            section("Sizes", rows, Text(text=_AGAINST_BEST)),
            *_setting(subject),
        ),
    )


def _pairs(subject: Subject, record: BatchRecord) -> tuple[Section, ...]:
    """Return the grid of all pairs that were tried, a column for each value of the second key."""
    if not record.ceilings:
        return ()
    size_of, with_of = (values_in(subject, key) for key in (record.key, record.by))
    told = {
        (size_of[each.arm], with_of[each.arm]): each
        for each in subject.conclusion.verdicts
        if each.arm in size_of
    }
    ends = {each.compiled for each in record.ceilings if each.compiled not in ("", "0")}
    sizes = sorted({*(size for size, _ in told), *ends}, key=float)

    def entry(size: str, of: SizeCeiling) -> str:
        found = told.get((size, of.by_value))
        if found is not None:
            return f"{figure(found)} {words(found)}" if found.tgs else words(found)
        is_above = of.compiled and float(size) > float(of.compiled)
        return "too large" if is_above else "not run"

    grid = Table(
        columns=columns(
            f">{record.key}", *(f"~{plain(each.by_value)}" for each in record.ceilings)
        ),
        rows=tuple((size, *(entry(size, of) for of in record.ceilings)) for size in sizes),
    )
    how = (
        f"Across: {plain(record.by)}. Too large: compiled memory says so, and no job was "
        "spent. Not run: it fits, and the search had no use of it."
    )
    return (section("Pairs", grid, Text(text=how)),)


def _document(
    subject: Subject,
    *,
    title: str,
    noun: str,
    headline: str,
    said: Sequence[str],
    middle: Sequence[Section],
    plot: tuple[str, object | None],
    nodes: tuple[str, ...] | None = None,
) -> Document:
    """Return the document that all four studies have.

    `plot` is what a page draws, with its title. `headline` is the answer in a sentence, "" before
    there is one; `said` are its figures, and the last line says how often it is wrong. `nodes` are
    those of all cells together; None leaves the first cell's.
    """
    unfinished = f"The {noun} is not over: this report is preliminary."
    whole = subject
    if nodes is not None:
        whole = dataclasses.replace(subject, cells=(replace(subject.cell, nodelist=nodes),))
    return Document(
        title=title,
        header=header(whole),
        sections=(
            section(
                "Answer",
                *([Text(text=headline)] if headline and subject.conclusion.complete else []),
                bullets(
                    *([] if subject.conclusion.complete else [unfinished]),
                    *([f"Stopped: {plain(subject.stopped)}"] if subject.stopped else []),
                    *map(plain, said),
                ),
            ),
            *middle,
            can_tell(subject.conclusion, noun),
            jobs(subject),
        ),
        drawn=drawn(*plot),
    )


_NO_FAULT, _HEALTHY = "NO FAULT", "HEALTHY"  # words of the studies
_MOST_NAMED = 6  # in a headline: the table has all


def _of_network(conclusion: Conclusion, found: NetworkRecord) -> str:
    """Return the sentence of one fault or of none; of several the list below says it."""
    whole = conclusion.verdict(CONCLUSION)
    if whole is None:
        return ""
    if whole.word.startswith(_NO_FAULT):
        return "No node and no link is shown to be slow."
    if whole.delta is not None and found.accused:
        return f"{literals(found.accused)} slows the network: {_changed(whole)}."
    if whole.delta is not None and found.link:
        return f"The link {literal('-'.join(found.link))} is slow: {_changed(whole)}."
    only = len(found.unhealthy) == 1 and not (found.accused or found.link)
    return f"{literals(found.unhealthy)} cannot communicate." if only else ""


def _of_nodes(conclusion: Conclusion) -> str:
    count = counted(len(conclusion.verdicts), "node")
    slow = [each for each in conclusion.verdicts if each.kind is VerdictKind.SLOWER]
    named = ", ".join(f"{literal(e.arm)} ({percent(e.delta)})" for e in slow[:_MOST_NAMED])
    more = f" and {len(slow) - _MOST_NAMED} more" if len(slow) > _MOST_NAMED else ""
    verb = "is" if len(slow) == 1 else "are"
    said = f"{len(slow)} of {count} {verb} slower than the median node: {named}{more}."
    if not slow:
        said = f"None of {count} is shown to be slow."
    others = Counter(
        words(each)
        for each in conclusion.verdicts
        if each.kind is not VerdictKind.SLOWER and each.word != _HEALTHY
    )
    return " ".join((said, *(f"{number} {word}." for word, number in others.items())))


def _of_commits(conclusion: Conclusion, record: CommitsRecord, subjects: Mapping[str, str]) -> str:
    first, last = record.first, record.last
    if not first:
        return ""
    if first != last:
        after = f"after {literal(first)}, up to {literal(last)}"
        return f"The commit that changed it is one of those {after}."
    way = "faster" if record.is_faster else "slower"
    own = next((e for e in conclusion.verdicts if e.arm.rpartition("-")[2] == first), None)
    about = f" ({plain(subjects[first])})" if subjects.get(first) else ""
    lost = f": {_changed(own)}" if own is not None else ""
    return f"Commit {literal(first)}{about} is the first that is {way}{lost}."


def _of_batch(conclusion: Conclusion, record: BatchRecord) -> str:
    own = conclusion.verdict(record.arm)
    if not record.setting or own is None:
        return ""
    others = [each for each in record.same if each != record.value]
    also = f" The runs cannot tell it from {', '.join(others)}." if others else ""
    return f"Deploy {literal(record.setting)}: {figure(own)} {conclusion.metric.head}.{also}"


def _changed(verdict: Verdict) -> str:
    """Return a change with its interval."""
    ends = f" (95 % interval {interval(verdict.ci95)})" if verdict.ci95 else ""
    return f"{percent(verdict.delta)}{ends}"


def _all_nodes(subject: Subject) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in subject.cells for name in each.nodelist))


def verdict_table(
    subject: Subject,
    verdicts: Sequence[Verdict] | None = None,
    *,
    head: str,
    change: str,
    name: Callable[[Verdict], str] = lambda each: literal(each.arm),
    further: Sequence[_Column] = (),
    has_jobs: bool = True,
) -> Table:
    """Return a row of figures for each verdict.

    Args:
        subject: what the document is about.
        verdicts: None is all of the conclusion.
        head: of the first column, which `name` fills.
        change: the head of the column of changes.
        name: says whose verdict it is.
        further: columns behind the interval.
        has_jobs: whether the last column lists the jobs' ids.
    """
    conclusion = subject.conclusion
    titles = columns(
        *(head, "verdict", f">{conclusion.metric.head}", change, "95 % interval"),
        *(title for title, _ in further),
        *(">runs", "~why"),
        *(["~jobs"] if has_jobs else []),
    )
    rows = tuple(
        (
            name(each),
            words_beside(each),
            figure(each),
            points(each.delta),
            interval(each.ci95) if each.ci95 else ABSENT,
            *(value(each) for _, value in further),
            str(each.n),
            joined(each.reasons) or ABSENT,
            *([", ".join(each.job_ids) or ABSENT] if has_jobs else []),
        )
        for each in (conclusion.verdicts if verdicts is None else verdicts)
    )
    return Table(columns=titles, rows=rows)


def _use_columns(subject: Subject) -> list[_Column]:
    """Return the columns of what arms take of a device, each where any log tells it."""
    uses = subject.uses

    def column(head: str, of: Callable[[DeviceUse], float | None]) -> list[_Column]:
        found = {arm: value for arm, use in uses.items() if (value := of(use)) is not None}
        return [(head, lambda each: significant(found.get(each.arm)))] if found else []

    return [
        *column(">TFLOP/s", lambda use: use.tflops),
        *column(">MFU %", lambda use: use.mfu),
        *column(">compiled memory (GB)", lambda use: use.memory_gb),
    ]


def _setting(subject: Subject) -> tuple[Section, ...]:
    if not subject.conclusion.complete:
        return ()
    codes: list[Code | Text] = [
        Code(text=text.strip()) for text in subject.conclusion.facts.files.values()
    ]
    if subject.patch:
        codes += [
            Text(text="The same as a patch, `batch.patch` beside this report, for `git apply`:"),
            Code(text=subject.patch.rstrip("\n"), language="diff"),
        ]
    return (section("Setting to deploy", *codes),) if codes else ()
