"""Two sweeps of one cell, by their ledgers: what each arm's change has become, and what differs.

The sweeps ran at two times. No block holds trials of both, so nothing cancels a drift between them:
each arm is compared with the reference beside it, then and now, and these two changes are compared.
The references themselves are two samples of jobs, by Welch's t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.redact import hide_kept, without_secrets
from pytest_xlatune.model.result import Comparison, relative
from pytest_xlatune.report.document import mapped
from pytest_xlatune.report.history import ArmThenNow, Difference, PastSweep, ThenNow
from pytest_xlatune.report.words import sentence
from pytest_xlatune.stats.compare import change_of_delta, two_samples
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.tasks.publish import Known, read_known
from pytest_xlatune.tasks.run_record import record_of_study


def compare_sweeps(a: Path, b: Path) -> ThenNow:
    """Compare the sweep of ledger B with that of ledger A; each is a file or a cell's folder.

    Raises:
        ConfigError: they are one ledger, of two kinds of study, or of two metrics.
        LedgerError: one cannot be read.
    """
    then, now = read_known(a), read_known(b)
    if then.folder.resolve() == now.folder.resolve():
        raise ConfigError(f"{a} and {b} are the same ledger; name two")
    kinds = [each.study.name.partition("-")[0] for each in (then, now)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{a} is a study of kind {kinds[0]!r}, {b} of kind {kinds[1]!r}: their changes have no "
            "common meaning; name two sweeps that asked the same question"
        )
    metrics = [each.conclusion.metric for each in (then, now)]
    if metrics[0] != metrics[1] and _is_measured(then) and _is_measured(now):
        raise ConfigError(
            f"{a} was scored by {metrics[0].head}, {b} by {metrics[1].head}: they do not compare"
        )
    settings = [{e.id: e.settings_text for e in each.profiles} for each in (then, now)]
    both = [each for each in now.conclusion.verdicts if then.conclusion.verdict(each.arm)]
    other = {each.arm for each in both if settings[0].get(each.arm) != settings[1].get(each.arm)}
    arms = []
    for each in both:
        before = then.conclusion.verdict(each.arm)
        if before is not None and each.arm not in other:
            change = change_of_delta(before, each)
            arms.append(ArmThenNow(then=before, now=each, change=change))
    found = ThenNow(
        then=_past(then, kinds[0]),
        now=_past(now, kinds[1]),
        arms=tuple(arms),
        other_settings=tuple(sorted(other)),
        reference=_reference(then, now),
        differs=tuple(_differences(then, now)),
        notes=tuple(_notes(then, now)),
    )
    return mapped(found, hide_kept)


def _is_measured(known: Known) -> bool:
    return any(each.score is not None for each in known.history)


def _past(known: Known, kind: str) -> PastSweep:
    return PastSweep(
        folder=str(known.folder),
        sweep=known.sweep,
        kind=kind,
        label=known.cell.label,
        digest=known.study.cells[0].digest,
        conclusion=known.conclusion,
        ended_s=known.at_s,
    )


def _reference(then: Known, now: Known) -> tuple[float, float, float] | None:
    """Return how the figure of the reference changed, with its 95 % interval, by Welch's t."""
    arms = {each.conclusion.reference.arm for each in (then, now) if each.conclusion.reference}
    if len(arms) != 1:
        return None
    scores = [
        [each.score.value for each in known.scored if each.score and each.trial.arm in arms]
        for known in (then, now)
    ]
    found = two_samples(scores[0], scores[1], alpha=SWEEP_ALPHA)
    if not isinstance(found, Comparison):
        return None
    low, high = found.ci95
    return relative(found.estimate), relative(low), relative(high)


_OF_CELL = {
    "model_tag": "model",
    "parallelism": "parallelism",
    "config_tag": "configuration",
    "per_device_batch_size": "batch per device",
    "max_target_length": "tokens of a sequence",
    "nodelist": "nodes",
    "image": "image",
    "code": "commit",
    "launcher": "started as",
    "devices": "devices",
    "protocol": "protocol",
}


def _differences(then: Known, now: Known) -> Iterator[Difference]:
    """Yield what differs of the cells and of what their trials told of their environment."""
    cells = [each.cell.to_json() for each in (then, now)]
    slots = ["; ".join(nodes for _, nodes in each.slots) for each in (then, now)]
    if slots[0] != slots[1]:
        nodes = [compress(each.cell.nodelist) for each in (then, now)]
        one = [words or nodes[at] for at, words in enumerate(slots)]
        yield Difference(what="node slots", then=one[0], now=one[1])
    for name, words in _OF_CELL.items():
        if name == "nodelist" and any(slots):
            continue
        if cells[0][name] != cells[1][name]:
            if name == "protocol":
                parts = [_texts(each[name]) for each in cells]
                yield from _of_tables("protocol: ", *parts)
            else:
                values = [getattr(each.cell, name) for each in (then, now)]
                yield Difference(what=words, then=_text(values[0]), now=_text(values[1]))
    for words, tables in (
        ("deployed ", [without_secrets(each.cell.environment) for each in (then, now)]),
        ("override ", [without_secrets(each.cell.overrides) for each in (then, now)]),
        ("pytest_xlatune's ", [dict(each.state.opened[-1].versions) for each in (then, now)]),
    ):
        yield from _of_tables(words, *tables)
    records = [record_of_study(each.state, each.study) for each in (then, now)]
    for part in ("packages", "devices", "node", "code", "repositories"):
        facts = [each.facts(part) for each in records]
        if all(facts):
            words = "trainer's files in " if part == "code" else ""
            yield from _of_tables(words, *facts)


def _of_tables(words: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name in dict.fromkeys((*then, *now)):
        if then.get(name) != now.get(name):
            yield Difference(what=f"{words}{name}", then=then.get(name, ""), now=now.get(name, ""))


def _texts(table: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in table.items()}


def _text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _notes(then: Known, now: Known) -> Iterator[str]:
    yield (
        "No block holds trials of both sweeps. A drift of the machine between them is part of the "
        "change of the reference; from the change of a delta it cancels only where it acts on "
        "reference and arm alike"
    )
    ran = [{(e.trial.id, e.job_ids) for e in known.history if e.job_ids} for known in (then, now)]
    if ran[0] & ran[1]:
        yield (
            "A and B began as one ledger, and one is a copy: a job that stands in both is compared "
            "with itself, so no interval here holds"
        )
    yield (
        "Each interval holds at 95 % by itself: of twenty arms, about one lies outside of its "
        "interval by chance"
    )
    if then.cell.label != now.cell.label:
        yield (
            f"Two cells, {then.cell.label} and {now.cell.label}: what changed is the cell as well "
            "as the time"
        )
    first = [each.conclusion.first_step or each.cell.protocol.first_step for each in (then, now)]
    if first[0] != first[1]:
        yield f"The window begins at step {first[0]} in A and at step {first[1]} in B"
    for name, each in (("A", then), ("B", now)):
        if not each.conclusion.complete:
            yield f"{name} is not over: its verdicts are preliminary"
        for change in record_of_study(each.state, each.study).changes:
            yield f"Changed on the way in {name}: {sentence(change)}"
