"""Whether the numbers of one page agree with each other, whatever they were computed from.

    complaints = disagreements(text)

It reads any report in markdown: a sweep's, a gate's, a study's. What a row says of an arm is held
against every other row and sentence about it, a figure against the change beside it, M against the
intervals, words of equality against what they must exclude.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tests.helpers.document.lines import ABSENT, NUMBER, blocks, split

ARMS = ("Profile", "Arm", "Node", "Commit", "Pair")
CHANGES = ("delta %", "change %", "against the", "first run %", "fresh runs %")
INTERVALS = ("95 %", "95 % interval")
VERDICTS = ("verdict",)
FIGURES = ("TGS", "bus bandwidth (GB/s)")
SAME = ("EQUIVALENT", "SAME AS BEST")
EQUIVALENT = 1.0  # percent that these words exclude, unless a sweep states another
# `node002-node003` is slow: -23.1 %    ★ `ag` is faster than `baseline-deployed` by +3.4 %
_SAID = re.compile(rf"`([^`]+)`(?! is at)[^`.;]*?(?: by|:) ({NUMBER}) % ?\(95 % interval")
_SAID_OF_BASE = re.compile(
    rf"`([^`]+)` is faster than `baseline-deployed` by ({NUMBER}) % \(95 % interval (\[[^]]*\])"
)
_BOUND = re.compile(rf"gains more than ({NUMBER}) %")


def disagreements(text: str) -> list[str]:
    """Return a complaint for each pair of numbers of a page that cannot both be right."""
    rows = list(_rows(text))
    prose = " ".join(" ".join(lines) for kind, lines in blocks(text) if kind == "prose")
    return [
        *_of_one_arm(rows, prose),
        *(each for row in rows for each in _of_row(row)),
        *_of_levels(rows),
        *_of_bound(rows, prose),
    ]


Row = Mapping[str, str]


def _rows(text: str) -> Iterator[Row]:
    """Yield the rows about arms, by the parts that are read here."""
    titles = ["", "", "", "", ""]
    has_cells = re.search("^#### ", text, re.MULTILINE) is not None
    for kind, lines in blocks(text):
        if kind == "title":
            hashes, _, title = lines[0].partition(" ")
            titles[len(hashes) - 1 :] = [title, *[""] * (5 - len(hashes))]
        if kind != "table" or len(lines) < 3:
            continue
        head, _, *own = map(split, lines)
        names = {
            "arm": _named(head, ARMS),
            "ends": _named(head, INTERVALS),
            "figure": _named(head, FIGURES),
            "verdict": _named(head, VERDICTS),
            "against": head.index("against") if "against" in head else None,
        }
        changes = [at for at, title in enumerate(head) if title.startswith(CHANGES)]
        if names["arm"] is None or not (changes or names["figure"]):
            continue
        for cells in own:
            found = {key: cells[at] for key, at in names.items() if at is not None}
            found["arm"] = re.sub("[★`]", "", found["arm"]).strip()
            # the rows of several cells stand below titles of their own
            found["cell"] = titles[2] if has_cells else ""
            found["part"] = " / ".join(filter(None, titles[1:]))
            for at in changes or (None,):
                yield found if at is None else {**found, "change": cells[at]}


def _named(head: Sequence[str], names: Sequence[str]) -> int | None:
    found = (at for at, title in enumerate(head) if title.startswith(tuple(names)))
    return next(found, None)


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(NUMBER, text) else None


def _ends(text: str | None) -> tuple[float, float] | None:
    match = re.fullmatch(rf"\[({NUMBER}), ({NUMBER})\]", text or "")
    return (float(match[1]), float(match[2])) if match else None


def _of_one_arm(rows: Sequence[Row], prose: str) -> Iterator[str]:
    """An arm has one change, one interval and one figure in every table and sentence."""
    known: dict[tuple[str, str, str], str] = {}
    cells = {row["cell"] for row in rows}
    for row in rows:
        for key in ("change", "ends", "figure"):
            shown = row.get(key, ABSENT)
            if shown == ABSENT or "appendix" in row["part"].lower() or "Jobs" in row["part"]:
                continue
            before = known.setdefault((row["cell"], row["arm"], key), shown)
            if shown != before:
                yield f"{row['part']}: {row['arm']} has the {key} {shown}, and elsewhere {before}"
    changes = {arm: shown for (_, arm, key), shown in known.items() if key == "change"}
    ends = {arm: shown for (_, arm, key), shown in known.items() if key == "ends"}
    if len(cells) > 1:  # a sentence does not say of which cell an arm's row is
        return
    for arm, change in _SAID.findall(prose):
        if changes.get(arm, change) != change:
            yield f"{arm}: {change} % is said, its row has {changes[arm]}"
    for arm, change, interval in _SAID_OF_BASE.findall(prose):
        if changes.get(arm, change) != change or ends.get(arm, interval) != interval:
            yield f"{arm}: {change} % {interval} is said, its row has {changes[arm]} {ends[arm]}"


def _of_row(row: Row) -> Iterator[str]:
    """A change lies in its interval; a word of equality excludes 1 %; FASTER has a change."""
    change, ends = _number(row.get("change")), _ends(row.get("ends"))
    word = re.sub(r"[,(].*", "", row.get("verdict", "")).strip()
    where = f"{row['part']}: {row['arm']}"
    if change is not None and ends is not None and not ends[0] <= change <= ends[1]:
        yield f"{where}: {change} % lies outside of {ends}"
    if word in SAME and ends is not None and not -EQUIVALENT * 1.5 <= ends[0] <= ends[1] <= 1.5:
        yield f"{where}: {word}, and its interval is {ends}"
    if word in ("FASTER", "SLOWER", "EQUIVALENT") and "change" in row and change is None:
        yield f"{where}: {word} without a change"
    if word == "FASTER" and ends is not None and ends[0] < 0:
        yield f"{where}: FASTER, and its interval is {ends}"


def _of_levels(rows: Sequence[Row]) -> Iterator[str]:
    """A figure beside a change is that of the row it is held against, times the change."""
    by_part: dict[str, list[Row]] = {}
    for row in rows:
        by_part.setdefault(row["cell"], []).append(row)
    for own in by_part.values():
        base = next((r for r in own if r.get("verdict") in ("baseline", "BEST")), None)
        level = _number(base.get("figure")) if base else None
        for row in own:
            change, figure = _number(row.get("change")), _number(row.get("figure"))
            is_of_base = row.get("against", "the best") in ("the best", "", ABSENT)
            if None in (change, figure, level) or not is_of_base or row is base:
                continue
            expected = (level or 0.0) * (1 + (change or 0.0) / 100)
            # the change is rounded to a tenth of a percent
            if abs((figure or 0.0) - expected) > 0.0006 * (level or 0.0) + 0.1:
                yield f"{row['part']}: {row['arm']} at {figure} beside {change} % of {level}"


def _of_bound(rows: Sequence[Row], prose: str) -> Iterator[str]:
    """M excludes nothing that an interval on the page allows."""
    bounds = [float(each) for each in _BOUND.findall(prose)]
    cells = {row["cell"] for row in rows}
    if not bounds or len(cells) > 1:
        return
    for row in rows:
        ends, change = _ends(row.get("ends")), _number(row.get("change"))
        high = ends[1] if ends else change
        if high is not None and high > min(bounds) + 0.1:
            yield f"{row['part']}: {row['arm']} may gain {high} %, and M excludes {min(bounds)} %"
