"""The leaderboard of a cell: how its sweep ended, its profiles in tables, and all its jobs.

A winner is a profile that the statistics call FASTER, never the largest estimate. The claim that
nothing helps is about all measured profiles at once: none gains more than M, the largest gain that
is not excluded. Confirmed and screened profiles never share a table: the best of many single runs
is partly best by luck (winner's curse), so its delta does not compare with a confirmed one. The
order in a table is that of the conclusion. This module computes no delta, interval or verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf

from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.message import first, sentence
from pytest_xlatune.model.metric import BUSBW, TGS, Metric
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import (
    ABSENT,
    fine_percent,
    interval,
    minute,
    points,
    significant,
    size,
)
from pytest_xlatune.report.document import (
    Block,
    Document,
    Section,
    Table,
    Text,
    bullets,
    columns,
    literal,
    literals,
    plain,
    section,
)
from pytest_xlatune.report.language import ENGLISH, N_, Translator, joined, plainly
from pytest_xlatune.report.lines import (
    effect_words,
    ending_text,
    figure,
    is_pending,
    tally,
    words_beside,
)
from pytest_xlatune.report.measured_cell import (
    MAX_TIMINGS,
    MeasuredCell,
    thinned,
)
from pytest_xlatune.report.recipes import recipe_blocks

SCHEMA = 3  # version of the JSON text
ALPHA = 0.05  # risk of a false winner in a sweep; the conclusion says how much of it is spent
CONFIRMED = frozenset(
    {VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT, VerdictKind.INCONCLUSIVE}
)
_TOP_ROWS, _BOTTOM_ROWS = 8, 5  # screened profiles in a short table

JOBS_TITLE = "Jobs"


def jobs_table(
    cells: Sequence[tuple[str, MeasuredCell]], *, arms: str = "Profile", say: Translator = ENGLISH
) -> Table | None:
    """Return the table of all jobs in the order of their start; None if there are no jobs.

    Args:
        cells: the name and the facts of each cell; names are shown if there are several cells.
        arms: the head of the column of arms.
        say: the language.
    """
    has_names = len(cells) > 1
    has_logs = any(cell.logs for _, cell in cells)
    trials = [(name, cell, result) for name, cell in cells for result in cell.every_trial]
    # The ids of jobs have no order: those of local jobs are process ids, which the kernel uses
    # again from the lowest.
    trials.sort(key=lambda trial: inf if trial[2].start_s is None else trial[2].start_s)
    rows = [
        (
            plain(job_id),
            *([name] if has_names else []),
            *_attempt(result, number, cell.remarks, say),
            *([literal(cell.logs.get(job_id, "")) or ABSENT] if has_logs else []),
        )
        for name, cell, result in trials
        for number, job_id in enumerate(result.job_ids, start=1)
    ]
    metrics = {
        result.score.figure.metric if result.score.figure else TGS
        for _, _, result in trials
        if result.score
    }
    titles = (
        *(("~Job", "~Cell") if has_names else ("~Job",)),
        *(f"~{arms}", "Stage", ">Attempt", "State", f">{head_of(metrics)}", "~Remark"),
        *(("~Log, below the work directory",) if has_logs else ()),
    )
    return Table(columns=columns(*titles), rows=tuple(rows)) if rows else None


def jobs(subject: MeasuredCell, *, arms: str = "Profile") -> Section:
    """Return the section of all jobs of a study; `arms` is the word for its arms."""
    table = jobs_table([("", subject)], arms=arms)
    return section(JOBS_TITLE, table or Text(text="No job."))


def sigma_and_notes(conclusion: Conclusion) -> tuple[str, ...]:
    """Return the noise of the study's jobs, and its notes."""
    sigma = f"Noise of one job's score (sigma): {fine_percent(conclusion.noise.sigma)}."
    return (sigma, *map(plainly, conclusion.notes))


def can_tell(conclusion: Conclusion, noun: str) -> Section:
    """Return the section about how small an effect a check, a gate or a study can show."""
    return section(f"What this {noun} can tell", bullets(*sigma_and_notes(conclusion)))


def head_of(metrics: Collection[Metric]) -> str:
    """Return the head of a column of figures: `TGS` for no metric, `figure` for several."""
    heads = {metric.head for metric in metrics} or {TGS.head}
    return heads.pop() if len(heads) == 1 else "figure"


def _attempt(
    result: TrialResult, number: int, remarks: Mapping[str, str], say: Translator
) -> tuple[str, ...]:
    trial = result.trial
    stage = "screen" if trial.is_screened else trial.stage
    is_last = number == len(result.job_ids)
    score = result.score if is_last else None
    remark = "" if score else plain(remarks.get(result.job_ids[number - 1], ""))
    if is_last and result.reason and not remark:
        remark = plainly(result.reason)
    # reasons have no translation, so other languages show the class of the failure
    if not say.is_english and remark:
        remark = _class_of(result.findings) if is_last else ""
    return (
        literal(trial.arm),
        f"{stage} {trial.block}" if trial.block else stage,
        str(number),
        _state(result) if is_last else say("retried"),
        figure(score),
        remark or ABSENT,
    )


def _state(result: TrialResult) -> str:
    outcome = result.outcome
    # while an attempt runs, `outcome` is still that of the previous attempt
    if outcome is None or result.status is TrialStatus.RUNNING:
        return str(result.status)
    if outcome.signal is not None:
        return f"{outcome.state}, signal {outcome.signal}"
    if outcome.state is State.FAILED and outcome.exit_code is not None:
        return f"{outcome.state}, exit {outcome.exit_code}"
    return str(outcome.state)


def leaderboard(subject: MeasuredCell) -> Document:
    """Return the leaderboard as a document."""
    conclusion = subject.conclusion
    recipe = tuple(recipe_blocks(conclusion))
    return Document(
        title=f"{subject.cell.label}: leaderboard",
        provenance=header(subject),
        sections=(
            section("What was found", Text(text=finding(subject))),
            *([section("The recipe", *recipe)] if recipe else []),
            section("Leaderboard", *tables(subject)),
            section("What this sweep can tell", sensitivity(conclusion)),
        ),
    )


def header(subject: MeasuredCell, *, load: str = "", say: Translator = ENGLISH) -> tuple[str, ...]:
    """Return the bullets about the cell, the nodes, the load and the time.

    `load` has the measured batch sizes if there are several, and is "" otherwise.
    """
    cell, conclusion = subject.cell, subject.conclusion
    # a result with `memory` is of a compilation on this machine, not of a job
    history = [result for result in subject.history if result.memory is None]
    protocol = cell.protocol
    length = cell.max_target_length
    axes = literal(str(cell.parallelism))
    parallelism = say("Parallelism: {axes}", axes=axes)
    if cell.devices:
        devices = say.count(cell.devices, "{n} device", "{n} devices")
        parallelism = say("Parallelism: {axes} on {devices}", axes=axes, devices=devices)
    slots = "; ".join(f"{number}: {nodes}" for number, (_, nodes) in enumerate(subject.slots, 1))
    nodes = "" if subject.slots else literals(cell.nodelist) or say("this machine")
    texts = {
        N_("Configuration: {text}"): literal(cell.config_tag),
        N_("Node slots: {text}"): plain(slots),
        N_("Nodes: {text}"): nodes,
        N_("Image: {text}"): literal(cell.image),
        N_("Launcher: {text}"): literal(cell.launcher),
    }
    return (
        say("Written: {text}", text=f"{subject.written:%Y-%m-%d %H:%M %Z}".rstrip()),
        say("Model: {text}", text=literal(cell.model_tag)),
        parallelism,
        *(say(msgid, text=text) for msgid, text in texts.items() if text),
        say(
            "Load: {batch}{length}, {dataset} data",
            batch=load or _batch_words(cell.per_device_batch_size, say),
            length="" if length is None else say(", {number} tokens each", number=length),
            dataset=plain(protocol.dataset_type),
        ),
        say(
            _SCORED_BY[protocol.scored_by],
            first=conclusion.first_step or protocol.first_step,
            last=protocol.last_step,
            steps=protocol.steps,
            least=protocol.min_steps,
        ),
        say("Cell: {text}", text=literal(subject.cell_digest or cell.digest)),
        *(record_lines(subject.record, say) if subject.record is not None else ()),
        *(
            [say("Time of a step: {text}", text=sentence(subject.exposed, say.text_of))]
            if subject.exposed is not None
            else ()
        ),
        state_line(conclusion, history, say, evidence=len(subject.evidence)),
    )


def _batch_words(batch: float | None, say: Translator) -> str:
    if batch is None:
        return say("the model's own batch size")
    return say("{number} sequences per device and step", number=f"{batch:g}")


def state_line(
    conclusion: Conclusion,
    history: Sequence[TrialResult],
    say: Translator = ENGLISH,
    *,
    evidence: int = 0,
) -> str:
    """Return how far a sweep is: its trials and jobs, and the number of verdicts of each kind.

    `evidence` is the number of evidence runs, which are not in `history`.
    """
    jobs = sum(len(result.job_ids) for result in history)
    return say(
        "State: {state}: {final} of {trials} over, {jobs}{evidence}; {tally}",
        state=say("complete") if conclusion.complete else say("preliminary"),
        final=sum(result.status.is_final for result in history),
        trials=say.count(len(history), "{n} trial", "{n} trials"),
        jobs=say.count(jobs, "{n} job", "{n} jobs"),
        evidence=say.count(evidence, ", and {n} evidence run", ", and {n} evidence runs")
        if evidence
        else "",
        tally=tally(conclusion.verdicts, say),
    )


_RECORDED: Mapping[str, str] = {
    "packages": N_("Software of the trainer: {text}"),
    "devices": N_("Devices of a process: {text}"),
    "node": N_("Machine: {text}"),
    "code": N_("Files of the trainer: {text}"),
    "repositories": N_("Repositories: {text}"),
}


def record_lines(record: RunRecord, say: Translator) -> Iterator[str]:
    """Yield the bullets about software, machine, nodes, commands and time of the measurement.

    Texts without a translation, for example about changes, are in the English document only.
    """
    for part, msgid in _RECORDED.items():
        shown = literal if part in ("code", "repositories") else plain
        named_facts = [f"{shown(name)} {plain(text)}" for name, text in record.facts(part).items()]
        if named_facts:
            yield say(msgid, text="; ".join(named_facts))
    if say.is_english:
        yield from _english_remarks(record)
    elif record.changes:
        yield say.count(
            len(record.changes),
            "{n} change on the way: nothing compares across it",
            "{n} changes on the way: nothing compares across them",
        )
    if not record.nodes:
        yield say("Not recorded: no trial has reported its environment yet")
    if record.commands:
        yield say("Command: {text}", text=literals(record.commands))
    if record.seed is not None:
        yield say("Random seed of the order: {number}", number=record.seed)
    if None not in (record.started_s, record.ended_s, record.node_hours):
        yield say(
            "Measured: {start} to {end} UTC, {hours} node-hours",
            start=minute(record.started_s),
            end=minute(record.ended_s),
            hours=significant(record.node_hours),
        )


def _english_remarks(record: RunRecord) -> Iterator[str]:
    """Yield the bullets whose texts have no translation."""
    problems = dict.fromkeys(text for environment in record.nodes for text in environment.problems)
    if problems:
        yield f"Not recorded: {plain('; '.join(problems))}"
    for change in record.changes:
        yield f"Changed on the way: {plainly(change)}: nothing compares across it"
    if record.autotuning:
        yield f"Autotuning of GPU kernels: {plain(record.autotuning)}"


_SCORED_BY: Mapping[Metric, str] = {
    TGS: N_(
        "Steady state: tokens over time of steps {first} to {last} of {steps}, "
        "in Tokens/s/device (TGS); fewer than {least} usable steps give no score"
    ),
    BUSBW: N_("Score: the bus bandwidth in GB/s that the test prints for one size"),
}


def finding(subject: MeasuredCell, say: Translator = ENGLISH) -> str:
    """Return what a sweep found: its winner or none, and how it ended."""
    conclusion = subject.conclusion
    ending = ending_text(say, conclusion, stopped=subject.stopped)
    return f"{headline(conclusion, say)} {ending}"


def headline(conclusion: Conclusion, say: Translator = ENGLISH) -> str:
    """Return the headline: the winner, and why arms that gain more do not win."""
    best, moved = conclusion.winner, conclusion.tuning.moved
    sentences: list[str] = []
    if moved is not None:
        failed = say(
            "The A/A control failed: settings that change nothing changed the figure by {ci95} % "
            "(95 %; 1 control in 20 does so by chance). Do not trust these figures: the cell is "
            "not quiet enough.",
            ci95=interval(moved),
        )
        sentences.append(failed)
    if best is not None:
        winner_text = say(
            "★ {profile} is faster than `baseline-deployed` by {delta} % (95 % "
            "interval {ci95}, n = {n}).",
            profile=literal(best.arm),
            delta=points(best.delta),
            ci95=interval(best.ci95),
            n=best.n,
        )
        sentences.append(winner_text)
    elif all(verdict.kind is not VerdictKind.FASTER for verdict in conclusion.verdicts):
        sentences.append(say("No profile is confirmed to be faster than `baseline-deployed`."))
    if best is not None and best.likely is not None:
        likely = say(
            "It is the best of several, so its figure is rather too large: likely {delta} % "
            "(95 % interval {ci95}).",
            delta=points(best.likely[0]),
            ci95=interval(best.likely[1:]),
        )
        sentences.append(likely)
    for verdict in conclusion.verdicts:
        is_above = verdict.kind is VerdictKind.FASTER or (
            verdict.ci95 is not None and verdict.ci95[0] > 0
        )
        is_larger = (verdict.delta or 0.0) > ((best.delta if best else None) or 0.0)
        reason = _why_no_winner(verdict, conclusion, say)
        if verdict is not best and is_above and is_larger and reason:
            passed_over = say(
                "{profile} is at {delta} % (95 % interval {ci95}), and no winner: {reason}.",
                profile=literal(verdict.arm),
                delta=points(verdict.delta),
                ci95=interval(verdict.ci95),
                reason=reason,
            )
            sentences.append(passed_over)
    return " ".join(sentences)


def _why_no_winner(verdict: Verdict, conclusion: Conclusion, say: Translator) -> str:
    """Return why an arm with a gain is not recommended; "" if nothing speaks against it."""
    if verdict.kind is VerdictKind.INCONCLUSIVE:
        return plainly(first(verdict.reasons), say).rstrip(".")
    if verdict.kind is not VerdictKind.FASTER:
        return ""
    if verdict.unproved:
        return say(
            "nothing shows that {names} was in effect. To decide it, measure that setting alone, "
            "have the trainer's log print it, or declare it with `SiteSettings(unseen=...)`, and "
            "run the sweep again with `--xlatune-fresh`",
            names=literals(verdict.unproved),
        )
    if not verdict.wins:
        return say(
            "it is the best of several, and its gain, corrected for this choice, may be nothing"
        )
    if (recipe := conclusion.tuning.recipe) is None:
        return ""
    largest = conclusion.verdict(recipe.largest)
    if (verdict.delta or 0.0) <= ((largest.delta if largest is not None else None) or 0.0):
        return say(
            "the recipe is the smallest set that is not shown to be slower than {largest}",
            largest=literal(recipe.largest),
        )
    # A stack that gains more may not lead, because no block has its parts.
    return say(
        "the same blocks have no run without some of its settings, so any of these may do nothing"
    )


def sensitivity(conclusion: Conclusion, say: Translator = ENGLISH) -> Table:
    """Return the effects that the sweep can find and can exclude, and the alpha that it spent.

    In other languages the table lacks the method and the notes that have no translation.
    """
    bound, least_gain = conclusion.tuning.bound, conclusion.tuning.from_start80
    rows: list[tuple[str, str]] = []
    if conclusion.winner is None and bound is not None and bound < 0:
        label = say("Every setting that was decided is slower, at 95 % (M), by at least")
        rows.append((label, size(-bound)))
    elif conclusion.winner is None:
        rows.append((say("Any larger gain is ruled out, at 95 % (M)"), size(bound)))
    label = say("Smallest effect that is found with 80 % power, of a finalist (MDE80)")
    rows.append((label, size(conclusion.noise.mde80)))
    if least_gain is not None:
        label = say("Smallest gain of one profile that the whole sweep finds with 80 % power")
        rows.append((label, size(least_gain)))
    label = say("Noise: how much the score of one job differs from another's (sigma)")
    rows.append((label, fine_percent(conclusion.noise.sigma)))
    label = say("Risk of a false winner that is spent (alpha)")
    between = "of" if say.is_english else "/"
    rows.append((label, f"{conclusion.alpha:.3g} {between} {ALPHA:g}"))
    if say.is_english:
        label = "How K profiles were compared with one baseline (method)"
        rows.append((label, _methods(conclusion) or ABSENT))
    notes = filter(say.says, conclusion.notes)
    rows += [(say("Note"), plainly(message, say)) for message in notes]
    return Table(columns=columns("~Figure", "~Value"), rows=tuple(rows))


def _methods(conclusion: Conclusion) -> str:
    """Return each method once; if there are several, with the arms that it compared."""
    arms_of: dict[str, list[str]] = {}
    for verdict in conclusion.verdicts:
        if verdict.kind in CONFIRMED and verdict.method:
            arms_of.setdefault(plainly(verdict.method), []).append(verdict.arm)
    if len(arms_of) < 2:  # noqa: PLR2004 - one method compared all arms
        return "".join(arms_of)
    return "; ".join(f"{method}: {literals(arms)}" for method, arms in arms_of.items())


def settings_by_arm(profiles: Iterable[Profile], say: Translator = ENGLISH) -> dict[str, str]:
    """Return arm -> its settings, as the text in a table."""
    settings = {profile.id: literal(profile.shown_text) or ABSENT for profile in profiles}
    return {**settings, BASELINE_ID: say("as deployed")}


def _joined_reasons(verdict: Verdict) -> str:
    return joined(verdict.reasons) or ABSENT


# the head of a column, and a function that returns the text of a verdict in it
VerdictColumn = tuple[str, Callable[[Verdict], str]]
REASONS: VerdictColumn = ("~reason", _joined_reasons)
JOBS: VerdictColumn = ("~jobs", lambda verdict: ", ".join(verdict.job_ids) or ABSENT)


def _trouble_columns(say: Translator) -> tuple[VerdictColumn, ...]:
    """Return the columns of a table of arms with lost runs, hangs or retries."""

    def lost_runs(verdict: Verdict) -> str:
        return plainly(verdict.lost.message, say) if verdict.lost else ABSENT

    return (
        ("~runs lost", lost_runs),
        (">hangs", lambda verdict: str(verdict.hangs)),
        (">retries", lambda verdict: str(verdict.retries)),
    )


def verdict_table(verdicts: Iterable[Verdict], *shown: VerdictColumn, title: str = "") -> Table:
    """Return a table with a row for each verdict."""
    return Table(
        title=title,
        columns=columns(*(head for head, _ in shown)),
        rows=tuple(tuple(text_of(verdict) for _, text_of in shown) for verdict in verdicts),
    )


def profile_columns(
    subject: MeasuredCell, say: Translator = ENGLISH
) -> tuple[VerdictColumn, VerdictColumn]:
    """Return the columns for the name, with a star for the winner, and for the settings."""
    best, settings = subject.conclusion.winner, settings_by_arm(subject.profiles, say)
    return (
        ("~Profile", lambda verdict: ("★ " if verdict is best else "") + literal(verdict.arm)),
        ("~Flags", lambda verdict: settings.get(verdict.arm, ABSENT)),
    )


def _result_columns(conclusion: Conclusion, say: Translator) -> tuple[VerdictColumn, ...]:
    """Return the columns that follow the settings in a leaderboard."""
    base, metric = conclusion.baseline, conclusion.metric

    def without_reference(text_of: Callable[[Verdict], str]) -> Callable[[Verdict], str]:
        return lambda verdict: ABSENT if verdict.arm == base.arm else text_of(verdict)

    def verdict_text(verdict: Verdict) -> str:
        is_reference = verdict.arm == base.arm and bool(verdict.n)
        return say("baseline") if is_reference else words_beside(verdict, say)

    shown: list[VerdictColumn] = [(f">{metric.head}", figure)]
    if metric == TGS:
        shown.append((">step (s)", lambda verdict: significant(verdict.step_s)))
    shown += [
        (f">delta % vs {base.arm}", without_reference(lambda verdict: points(verdict.delta))),
        ("95 %", without_reference(lambda verdict: interval(verdict.ci95))),
        (">n", lambda verdict: str(verdict.n)),
        ("~verdict", verdict_text),
    ]
    # an imported table has no such column: it does not say whether settings were in effect
    if any(verdict.effect is not None for verdict in conclusion.verdicts):
        shown.append(("~settings", lambda verdict: plain(effect_words(verdict, say))))
    return tuple(shown)


def tables(
    subject: MeasuredCell,
    *,
    only: Sequence[Verdict] | None = None,
    is_short: bool = False,
    say: Translator = ENGLISH,
) -> Iterator[Block]:
    """Yield the tables of verdicts, except empty ones; the first always has the reference.

    Args:
        subject: the facts of the cell.
        only: the verdicts to show; None stands for all.
        is_short: whether to show only the top and the bottom of the screened profiles.
        say: the language.
    """
    conclusion, named = subject.conclusion, profile_columns(subject, say)
    verdicts = conclusion.verdicts if only is None else only
    confirmed = [
        verdict for verdict in verdicts if verdict.kind in CONFIRMED and not is_pending(verdict)
    ]
    screened = [verdict for verdict in verdicts if verdict.kind is VerdictKind.SCREENED]
    base, metric = conclusion.baseline, conclusion.metric
    results = _result_columns(conclusion, say)
    yield verdict_table((*confirmed, base), *named, *results, title="Confirmed")
    if confirmed:
        yield say.text(
            "delta % compares jobs of the same block. A profile's {figure} is the baseline's "
            "{figure} times the profile's change; the list of jobs has the measured {figure} of "
            "each job.",
            figure=plain(metric.title),
        )
    shown, left_out = top_and_bottom(screened) if is_short else (screened, 0)
    if shown:
        yield verdict_table(shown, *named, *results, title="Screened: ranks, proves nothing")
    if left_out:
        yield Text(
            text=say.count(
                left_out, "{n} more profile between these.", "{n} more profiles between these."
            )
        )
    troubled = [verdict for verdict in verdicts if verdict.lost or verdict.hangs or verdict.retries]
    if troubled:
        title = "Runs that were lost or tried again"
        yield verdict_table(troubled, named[0], *_trouble_columns(say), title=title)
    invalid = [verdict for verdict in verdicts if verdict.kind is VerdictKind.INVALID]
    for title, group in {
        "Dropped: cannot run here": [verdict for verdict in invalid if not verdict.can_run],
        "No valid measurement": [verdict for verdict in invalid if verdict.can_run],
    }.items():
        if group:
            evidence = ("~evidence", partial(_evidence, history=subject.history))
            reason = partial(_reason, history=subject.history, say=say)
            yield verdict_table(group, *named, ("~reason", reason), evidence, JOBS, title=title)
    pending = [verdict.arm for verdict in verdicts if is_pending(verdict)]
    if pending:
        yield say.text("Not measured yet: {names}.", names=literals(pending))


def top_and_bottom(screened: list[Verdict]) -> tuple[list[Verdict], int]:
    """Return the top and the bottom of screened profiles, and how many are left out."""
    left_out = max(0, len(screened) - _TOP_ROWS - _BOTTOM_ROWS)
    if not left_out:
        return screened, 0
    return [*screened[:_TOP_ROWS], *screened[-_BOTTOM_ROWS:]], left_out


def _findings(verdict: Verdict, history: Sequence[TrialResult]) -> list[Finding]:
    """Return the findings about a profile; the one that dropped it comes first."""
    findings = [
        finding
        for result in history
        if result.trial.profile.id == verdict.arm
        for finding in result.findings
    ]
    return sorted(findings, key=lambda finding: finding.action is not Action.DROP)


def _evidence(verdict: Verdict, *, history: Sequence[TrialResult]) -> str:
    texts = (finding.said for finding in _findings(verdict, history) if finding.said is not None)
    text = next(texts, None)
    return ABSENT if text is None else literal(sentence(text))


def _reason(verdict: Verdict, *, history: Sequence[TrialResult], say: Translator) -> str:
    if say.is_english:
        return _joined_reasons(verdict)
    return _class_of(_findings(verdict, history)) or ABSENT


def _class_of(findings: Sequence[Finding]) -> str:
    """Return the name of the failure class, which is the same in all languages."""
    return literal(str(findings[0].cls)) if findings else ""


def leaderboard_json(subject: MeasuredCell) -> str:
    """Return the leaderboard for programs: one JSON text, with one newline at its end.

    The fields:

        schema       3; raised when a field changes its meaning or is removed
        written      the time, ISO 8601
        cell_digest  the digest of the cell
        cell         `Cell`; deployed values whose names suggest secrets are hidden
        profiles     list of `Profile`
        conclusion   `Conclusion`: reference, verdicts, alpha and the study's record, which in a
                     tuning sweep has finalists, bound (M), mde80, sigma; changes are fractions,
                     +0.034 is +3.4 %
        uses         only in a study whose arms are cells: arm -> `DeviceUse` (TFLOP/s, MFU, memory)
        record       `RunRecord`: nodes, packages, devices, code, commands, seed, time, node-hours
        slots        only with several node slots: list of `cell_digest` and `nodes`
        trials       list of `TrialResult`, each with its `id`; sorted by id. A trial of more than
                     100 steps has no `timings`, which are in the ledger; the baseline always has
                     them, because a gate scores it again in the gate's own window

    Absent values are null, and not-a-number and the infinities are the strings "nan", "inf" and
    "-inf". Keys are sorted, so that two reports can be compared line by line.
    """
    uses = subject.uses
    slots = [{"cell_digest": digest, "nodes": nodes} for digest, nodes in subject.slots]
    trials = [
        {
            "id": result.trial.id,
            **thinned(result, steps=inf if result.trial.is_baseline else MAX_TIMINGS).to_json(),
        }
        for result in subject.history
    ]
    document = {
        "schema": SCHEMA,
        "written": subject.written.isoformat(timespec="seconds"),
        "cell_digest": subject.cell.digest,
        "cell": subject.cell.to_json(),
        "profiles": [profile.to_json() for profile in subject.profiles],
        "conclusion": subject.conclusion.to_json(),
        **({"uses": {arm: use.to_json() for arm, use in uses.items()}} if uses else {}),
        **({"record": subject.record.to_json()} if subject.record is not None else {}),
        **({"slots": slots} if slots else {}),
        "trials": sorted(trials, key=lambda trial: str(trial["id"])),
    }
    return pretty_json(document)
