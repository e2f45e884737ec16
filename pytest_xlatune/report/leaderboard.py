"""The leaderboard of a cell: how its sweep ended, its profiles in tables, and all its jobs.

A winner is a profile that the statistics call FASTER, never the largest estimate. The claim that
nothing helps is about all measured profiles at once: none gains more than M, the largest gain that
is not excluded. Confirmed and screened profiles never share a table: the best of many single runs
is partly best by luck (winner's curse), so its delta does not compare with a confirmed one. The
order in a table is that of the conclusion. This module computes no delta, interval or verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    Needed,
    RecipePart,
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
from pytest_xlatune.report.measured_cell import MAX_TIMINGS, MeasuredCell, thinned

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
    trials = [(name, cell, result) for name, cell in cells for result in cell.every_trial]
    # The ids of jobs have no order: those of local jobs are process ids, which the kernel uses
    # again from the lowest.
    trials.sort(key=lambda trial: inf if trial[2].start_s is None else trial[2].start_s)
    name_head = ["~Cell"] if len(cells) > 1 else []
    log_head = ["~Log, below the work directory"] if any(cell.logs for _, cell in cells) else []
    rows = tuple(
        (
            plain(job_id),
            *(name for _ in name_head),
            *_attempt(result, number, cell.remarks, say),
            *(literal(cell.logs.get(job_id, "")) or ABSENT for _ in log_head),
        )
        for name, cell, result in trials
        for number, job_id in enumerate(result.job_ids, start=1)
    )
    scores = (result.score for _, _, result in trials if result.score)
    head = head_of({score.figure.metric if score.figure else TGS for score in scores})
    heads = (f"~{arms}", "Stage", ">Attempt", "State", f">{head}", "~Remark")
    return (
        Table(columns=columns("~Job", *name_head, *heads, *log_head), rows=rows) if rows else None
    )


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
    trial, outcome = result.trial, result.outcome
    stage = "screen" if trial.is_screened else trial.stage
    is_last = number == len(result.job_ids)
    score = result.score if is_last else None
    remark = "" if score else plain(remarks.get(result.job_ids[number - 1], ""))
    if is_last and result.reason and not remark:
        remark = plainly(result.reason)
    # reasons have no translation, so other languages show the class of the failure
    if not say.is_english and remark:
        remark = _class_of(result.findings) if is_last else ""
    # while an attempt runs, `outcome` is still that of the previous attempt
    is_running = outcome is None or result.status is TrialStatus.RUNNING
    state = result.status if is_running or outcome is None else outcome.state
    return (
        literal(trial.arm),
        f"{stage} {trial.block}" if trial.block else stage,
        str(number),
        str(state) if is_last else say("retried"),
        figure(score),
        remark or ABSENT,
    )


def leaderboard(subject: MeasuredCell) -> Document:
    """Return the leaderboard as a document."""
    recipe = tuple(recipe_blocks(subject.conclusion))
    return Document(
        title=f"{subject.cell.label}: leaderboard",
        provenance=header(subject),
        sections=(
            section("What was found", Text(text=finding(subject))),
            *([section("The recipe", *recipe)] if recipe else []),
            section("Leaderboard", *tables(subject)),
            section("What this sweep can tell", sensitivity(subject.conclusion)),
        ),
    )


_SCORED_BY: Mapping[Metric, str] = {
    TGS: N_(
        "Steady state: tokens over time of steps {first} to {last} of {steps}, "
        "in Tokens/s/device (TGS); fewer than {least} usable steps give no score"
    ),
    BUSBW: N_("Score: the bus bandwidth in GB/s that the test prints for one size"),
}


def header(subject: MeasuredCell, *, load: str = "", say: Translator = ENGLISH) -> tuple[str, ...]:
    """Return the bullets about the cell, the nodes, the load and the time.

    `load` has the measured batch sizes if there are several, and is "" otherwise.
    """
    cell, conclusion, protocol = subject.cell, subject.conclusion, subject.cell.protocol
    slots = "; ".join(f"{number}: {nodes}" for number, (_, nodes) in enumerate(subject.slots, 1))
    if not load and cell.per_device_batch_size is not None:
        batch = f"{cell.per_device_batch_size:g}"
        load = say("{number} sequences per device and step", number=batch)
    load = load or say("the model's own batch size")
    if cell.max_target_length is not None:
        load += say(", {number} tokens each", number=cell.max_target_length)
    texts = {
        N_("Written: {text}"): f"{subject.written:%Y-%m-%d %H:%M %Z}".rstrip(),
        N_("Model: {text}"): literal(cell.model_tag),
        N_("Parallelism: {text}"): literal(str(cell.parallelism)),
        N_("Devices: {text}"): str(cell.devices or ""),
        N_("Configuration: {text}"): literal(cell.config_tag),
        N_("Node slots: {text}"): plain(slots),
        N_("Nodes: {text}"): "" if slots else literals(cell.nodelist) or say("this machine"),
        N_("Image: {text}"): literal(cell.image),
        N_("Launcher: {text}"): literal(cell.launcher),
        N_("Load: {text}"): load,
        N_("Cell: {text}"): literal(subject.cell_digest or cell.digest),
        N_("Time of a step: {text}"): sentence(subject.exposed, say.text_of),
    }
    # a result with `memory` is of a compilation on this machine, not of a job
    history = [result for result in subject.history if result.memory is None]
    return (
        *(say(msgid, text=text) for msgid, text in texts.items() if text),
        say(
            _SCORED_BY[protocol.scored_by],
            first=conclusion.first_step or protocol.first_step,
            last=protocol.last_step,
            steps=protocol.steps,
            least=protocol.min_steps,
        ),
        *(record_lines(subject.record, say) if subject.record is not None else ()),
        state_line(conclusion, history, say),
    )


def state_line(
    conclusion: Conclusion, history: Sequence[TrialResult], say: Translator = ENGLISH
) -> str:
    """Return how far a sweep is: its trials and jobs, and the number of verdicts of each kind."""
    jobs = sum(len(result.job_ids) for result in history)
    return say(
        "State: {state}: {final} of {trials} over, {jobs}; {tally}",
        state=say("complete") if conclusion.complete else say("preliminary"),
        final=sum(result.status.is_final for result in history),
        trials=say.count(len(history), "{n} trial", "{n} trials"),
        jobs=say.count(jobs, "{n} job", "{n} jobs"),
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

    Problems, changes and the note on autotuning have no translation, so other languages have only
    the number of changes.
    """
    for part, msgid in _RECORDED.items():
        shown = literal if part in ("code", "repositories") else plain
        if facts := record.facts(part):
            texts = (f"{shown(name)} {plain(text)}" for name, text in facts.items())
            yield say(msgid, text="; ".join(texts))
    if say.is_english:
        if problems := dict.fromkeys(text for node in record.nodes for text in node.problems):
            yield f"Not recorded: {plain('; '.join(problems))}"
        for change in record.changes:
            yield f"Changed on the way: {plainly(change)}: nothing compares across it"
        if record.autotuning:
            yield f"Autotuning of GPU kernels: {plain(record.autotuning)}"
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


def finding(subject: MeasuredCell, say: Translator = ENGLISH) -> str:
    """Return what a sweep found: its winner or none, and how it ended."""
    ending = ending_text(say, subject.conclusion, stopped=subject.stopped)
    return f"{headline(subject.conclusion, say)} {ending}"


def headline(conclusion: Conclusion, say: Translator = ENGLISH) -> str:
    """Return the headline: the winner, and why arms that gain more do not win."""
    best, moved = conclusion.winner, conclusion.tuning.moved
    sentences = []
    if moved is not None:
        failed = say(
            "The A/A control failed: settings that change nothing changed the figure by {ci95} % "
            "(95 %; 1 control in 20 does so by chance). Do not trust these figures: the cell is "
            "not quiet enough.",
            ci95=interval(moved),
        )
        sentences.append(failed)
    if best is not None:
        winner = say(
            "★ {profile} is faster than `baseline-deployed` by {delta} % (95 % "
            "interval {ci95}, n = {n}).",
            profile=literal(best.arm),
            delta=points(best.delta),
            ci95=interval(best.ci95),
            n=best.n,
        )
        sentences.append(winner)
        if best.likely is not None:
            likely = say(
                "It is the best of several, so its figure is rather too large: likely {delta} % "
                "(95 % interval {ci95}).",
                delta=points(best.likely[0]),
                ci95=interval(best.likely[1:]),
            )
            sentences.append(likely)
    elif all(verdict.kind is not VerdictKind.FASTER for verdict in conclusion.verdicts):
        sentences.append(say("No profile is confirmed to be faster than `baseline-deployed`."))
    least_delta = (best.delta if best is not None else None) or 0.0
    for verdict in conclusion.verdicts:
        reason = _why_no_winner(verdict, say)
        if reason and verdict is not best and (verdict.delta or 0.0) > least_delta:
            passed_over = say(
                "{profile} is at {delta} % (95 % interval {ci95}), and no winner: {reason}.",
                profile=literal(verdict.arm),
                delta=points(verdict.delta),
                ci95=interval(verdict.ci95),
                reason=reason,
            )
            sentences.append(passed_over)
    return " ".join(sentences)


def _why_no_winner(verdict: Verdict, say: Translator) -> str:
    """Return why an arm with a gain is not recommended; "" if it shows no gain."""
    if verdict.kind is VerdictKind.INCONCLUSIVE and verdict.ci95 and verdict.ci95[0] > 0:
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
    return say("the recipe is the smallest set of settings that is shown to be needed")


def recipe_blocks(conclusion: Conclusion, say: Translator = ENGLISH) -> Iterator[Block]:
    """Yield the settings of the recipe as a table, and a link to how sure it is.

    Yield nothing if there is no recipe, or if its gain may be nothing.
    """
    recipe = conclusion.tuning.recipe
    if recipe is None or conclusion.winner is None:
        return
    if recipe.parts:
        yield Table(
            title=say("Recipe: {profile}", profile=literal(recipe.arm)),
            columns=columns("~Settings", "~verdict", ">gain %", "~against", ">blocks"),
            rows=tuple(_recipe_row(part, say) for part in recipe.parts),
        )
    if recipe.largest != recipe.arm:
        yield say.text(
            "{largest} has the largest estimate. Its other settings are not shown to be needed, "
            "so the recipe leaves them out.",
            largest=literal(recipe.largest),
        )
    if any(part.need is Needed.NOT_TESTED for part in recipe.parts):
        yield say.text(
            "The same blocks have no run without some of these settings: they are known to help "
            "together, and any of them may do nothing."
        )
    yield say.text(
        "How often such a recipe has all settings that help, depending on the noise of a job: "
        "docs/explanation/how_sure.md."
    )


def _recipe_row(part: RecipePart, say: Translator) -> tuple[str, ...]:
    return (
        literals(part.settings),
        say.text_of(str(part.need)),
        points(part.gain),
        literal(part.without) or ABSENT,
        str(part.n or ABSENT),
    )


def sensitivity(conclusion: Conclusion, say: Translator = ENGLISH) -> Table:
    """Return the effects that the sweep can find and can exclude, and the alpha that it spent.

    In other languages the table lacks the method and the notes that have no translation.
    """
    bound, least_gain = conclusion.tuning.bound, conclusion.tuning.from_start80
    rows = []
    if conclusion.winner is None and bound is not None and bound < 0:
        label = say("Every setting that was decided is slower, at 95 % (M), by at least")
        rows.append((label, size(-bound)))
    elif conclusion.winner is None:
        rows.append((say("Any larger gain is ruled out, at 95 % (M)"), size(bound)))
    finalist = say("Smallest effect that is found with 80 % power, of a finalist (MDE80)")
    sweep = say("Smallest gain of one profile that the whole sweep finds with 80 % power")
    sigma = say("Noise: how much the score of one job differs from another's (sigma)")
    alpha = say("Risk of a false winner that is spent (alpha)")
    rows += [
        (finalist, size(conclusion.noise.mde80)),
        *([] if least_gain is None else [(sweep, size(least_gain))]),
        (sigma, fine_percent(conclusion.noise.sigma)),
        (alpha, say("{spent} of {allowed}", spent=f"{conclusion.alpha:.3g}", allowed=f"{ALPHA:g}")),
    ]
    if say.is_english:
        compared = (verdict.method for verdict in conclusion.verdicts if verdict.kind in CONFIRMED)
        methods = dict.fromkeys(filter(None, map(plainly, compared)))
        label = "How K profiles were compared with one baseline (method)"
        rows.append((label, "; ".join(methods) or ABSENT))
    notes = filter(say.says, conclusion.notes)
    rows += [(say("Note"), plainly(message, say)) for message in notes]
    return Table(columns=columns("~Figure", "~Value"), rows=tuple(rows))


def settings_by_arm(profiles: Iterable[Profile], say: Translator = ENGLISH) -> dict[str, str]:
    """Return arm -> its settings, as the text in a table."""
    settings = {profile.id: literal(profile.shown_text) or ABSENT for profile in profiles}
    return {**settings, BASELINE_ID: say("as deployed")}


# the head of a column, and a function that returns the text of a verdict in it
VerdictColumn = tuple[str, Callable[[Verdict], str]]
REASONS: VerdictColumn = ("~reason", lambda verdict: joined(verdict.reasons) or ABSENT)
JOBS: VerdictColumn = ("~jobs", lambda verdict: ", ".join(verdict.job_ids) or ABSENT)


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

    def change(verdict: Verdict) -> str:
        return ABSENT if verdict.arm == base.arm else points(verdict.delta)

    def ends(verdict: Verdict) -> str:
        return ABSENT if verdict.arm == base.arm else interval(verdict.ci95)

    def verdict_text(verdict: Verdict) -> str:
        is_reference = verdict.arm == base.arm and bool(verdict.n)
        return say("baseline") if is_reference else words_beside(verdict, say)

    shown: list[VerdictColumn] = [(f">{metric.head}", figure)]
    if metric == TGS:
        shown.append((">step (s)", lambda verdict: significant(verdict.step_s)))
    shown += [
        (f">delta % vs {base.arm}", change),
        ("95 %", ends),
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
    pending = [verdict.arm for verdict in verdicts if is_pending(verdict)]
    confirmed = [v for v in verdicts if v.kind in CONFIRMED and v.arm not in pending]
    screened = [verdict for verdict in verdicts if verdict.kind is VerdictKind.SCREENED]
    left_out = len(screened) - _TOP_ROWS - _BOTTOM_ROWS if is_short else 0
    if left_out > 0:
        screened = [*screened[:_TOP_ROWS], *screened[-_BOTTOM_ROWS:]]
    troubled = [verdict for verdict in verdicts if verdict.lost or verdict.hangs or verdict.retries]
    invalid = [verdict for verdict in verdicts if verdict.kind is VerdictKind.INVALID]
    results = (*named, *_result_columns(conclusion, say))
    trouble: tuple[VerdictColumn, ...] = (
        named[0],
        ("~runs lost", lambda v: plainly(v.lost.message, say) if v.lost else ABSENT),
        (">hangs", lambda v: str(v.hangs)),
        (">retries", lambda v: str(v.retries)),
    )
    reasons = (*named, *_finding_columns(subject.history, say), JOBS)
    for title, group, shown in (
        ("Confirmed", [*confirmed, conclusion.baseline], results),
        ("Screened: ranks, proves nothing", screened, results),
        ("Runs that were lost or tried again", troubled, trouble),
        ("Dropped: cannot run here", [v for v in invalid if not v.can_run], reasons),
        ("No valid measurement", [v for v in invalid if v.can_run], reasons),
    ):
        if group:
            yield verdict_table(group, *shown, title=title)
        if title == "Confirmed" and confirmed:
            yield say.text(
                "delta % compares jobs of the same block. A profile's {figure} is the baseline's "
                "{figure} times the profile's change; the list of jobs has the measured {figure} "
                "of each job.",
                figure=plain(conclusion.metric.title),
            )
        if group is screened and left_out > 0:
            more = "{n} more profile between these.", "{n} more profiles between these."
            yield Text(text=say.count(left_out, *more))
    if pending:
        yield say.text("Not measured yet: {names}.", names=literals(pending))


def _finding_columns(
    history: Sequence[TrialResult], say: Translator
) -> tuple[VerdictColumn, VerdictColumn]:
    """Return the columns for the reason of a verdict, and for the line of a log that shows it."""

    def findings(verdict: Verdict) -> list[Finding]:
        """Return the findings about a profile; the one that dropped it comes first."""
        own = (result.findings for result in history if result.trial.profile.id == verdict.arm)
        every = [finding for findings in own for finding in findings]
        return sorted(every, key=lambda finding: finding.action is not Action.DROP)

    def evidence(verdict: Verdict) -> str:
        said = first(finding.said for finding in findings(verdict))
        return literal(sentence(said)) or ABSENT

    reason = ("~reason", lambda verdict: _class_of(findings(verdict)) or ABSENT)
    return REASONS if say.is_english else reason, ("~evidence", evidence)


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
        record       `RunRecord`: nodes, packages, devices, code, commands, seed, time, node-hours
        slots        only with several node slots: list of `cell_digest` and `nodes`
        trials       list of `TrialResult`, each with its `id`; sorted by id. A trial of more than
                     100 steps has no `timings`, which are in the ledger

    Absent values are null, and not-a-number and the infinities are the strings "nan", "inf" and
    "-inf". Keys are sorted, so that two reports can be compared line by line.
    """
    slots = [{"cell_digest": digest, "nodes": nodes} for digest, nodes in subject.slots]
    trials = [
        {"id": result.trial.id, **thinned(result, steps=MAX_TIMINGS).to_json()}
        for result in subject.history
    ]
    document = {
        "schema": SCHEMA,
        "written": subject.written.isoformat(timespec="seconds"),
        "cell_digest": subject.cell.digest,
        "cell": subject.cell.to_json(),
        "profiles": [profile.to_json() for profile in subject.profiles],
        "conclusion": subject.conclusion.to_json(),
        **({"record": subject.record.to_json()} if subject.record is not None else {}),
        **({"slots": slots} if slots else {}),
        "trials": sorted(trials, key=lambda trial: str(trial["id"])),
    }
    return pretty_json(document)
