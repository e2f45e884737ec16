"""Write `<MODEL_TAG>-tuning.md`, from which a team deploys, and which later sweeps extend.

One document covers all measured cells of a model in ten parts, of which the header is the first. It
exists in two languages, with the same headings and rows. Every figure comes from a record. The
document calls a gain explained only if traces of both sides show a step that is shorter by about as
much as the throughput rose: a changed program alone does not prove the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, minute, percent, points, to_integer
from pytest_xlatune.report.bubble import config_of
from pytest_xlatune.report.deployment import deployed_by_hand, guarded_lines, patch_of
from pytest_xlatune.report.document import (
    Block,
    Code,
    Document,
    Heading,
    Table,
    Text,
    bullets,
    columns,
    literal,
    literals,
    plain,
    section,
)
from pytest_xlatune.report.guards import Conflict, conflicts, is_harm, is_no_loss, sign_flips
from pytest_xlatune.report.language import N_, Language, Translator, plainly
from pytest_xlatune.report.leaderboard import (
    finding,
    head_of,
    header,
    jobs_table,
    recipe_blocks,
    sensitivity,
    tables,
)
from pytest_xlatune.report.lines import figure, speed, words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell, names

# The traces explain a gain if they show this share of the expected change of a step's time. They
# need not show all of it, because profiling itself costs time.
_MIN_SHARE_SHOWN = 0.5

WHY = "Why the winning flag wins"
DEPLOYMENT = "Recommended deployment"

# the sweep file in a command:  pytest sweeps/test_pp8.py -n 4
_SWEEP_FILE = re.compile(r"\S+\.py\b")
# numbers in a yml:  8    0.5
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_NO_EVIDENCE = N_(
    "There is no readable evidence (HLO dump, trace) of both this profile and "
    "`baseline-deployed`, so this document cannot say why it wins. To record "
    "both, run: {command}"
)
_IDENTICAL = N_(
    "The two programs are identical, so nothing that the compiler does explains the gain. Only "
    "traces of both can show the cause at run time; to record them, run: {command}"
)
_PROGRAM_ONLY = N_(
    "The program changed as listed. Only traces of both can show whether the change causes the "
    "gain; to record them, run: {command}"
)
_EXPLAINED = N_(
    "The traces show the gain: in them the time of a step changes by {moved}, and a gain of "
    "{delta} in TGS corresponds to {expected}. The table lists the parts of a step."
)
_NOT_SHOWN = N_(
    "The traces do not show the gain: in them the time of a step changes by {moved}, and a gain "
    "of {delta} in TGS corresponds to {expected}. The evidence does not explain why the profile "
    "wins."
)
_OTHER_METRIC = N_(
    "The gain is measured in {metric}. The evidence lists what changed in the program and in a "
    "step, and does not show whether these changes cause the gain."
)
_EFFECTS: Mapping[VerdictKind, str] = {
    VerdictKind.FASTER: N_(
        "Without the deployed flags the cell is faster: they cost throughput here."
    ),
    VerdictKind.SLOWER: N_("Without the deployed flags the cell is slower: they help here."),
    VerdictKind.EQUIVALENT: N_("The deployed flags make no difference that matters here."),
}
_EFFECT_LIKELY_SLOWER = N_(
    "Without the deployed flags the cell is very likely slower: single runs lie further below than "
    "their noise explains, so they seem to help here."
)
_EFFECT_UNKNOWN = N_("The sweep does not show whether the deployed flags help here.")
_HARMED = N_("The recipe of {cell} must not reach {other}: {found} there.")
_UNVERIFIED = N_("The recipe of {cell} is not verified on {other}.")
_GUARDED = N_(
    "So the lines have a guard, which reads {variables}: export them before the trainer sources "
    "the file."
)
_NOT_GUARDED = N_(
    "No variable tells these cells apart, so no file that both read can hold the recipe: give it "
    "to the jobs of {cell} alone."
)
_HOLDS = N_("The recipe was measured on {cell}; gates exclude a loss with {tags} too ({files}).")
_HARMFUL = N_(
    "The recipe is conditional: with {tags} it is slower or cannot run ({files}). Give it to the "
    "jobs of {cell} alone."
)
_UNDECIDED = N_(
    "The recipe is conditional: a gate measured it with {tags} and cannot tell whether it loses "
    "there ({files}). It is proved for {cell} alone."
)


def tuning(
    cells: Sequence[MeasuredCell],
    language: Language = Language.ENGLISH,
    *,
    handwritten: str = "",
) -> Document:
    """Return the tuning document of a model's cells, in the order of `cells`.

    `handwritten` is the name of a document that a person wrote and that is kept; "" if there is
    none.
    """
    say = Translator(language)
    axes = " and ".join(dict.fromkeys(str(cell.cell.parallelism) for cell in cells))
    signs = sign_flips(cells, say)
    env_files = dict.fromkeys(file.path for cell in cells if (file := cell.env_file) is not None)
    deployed = literals(env_files) or "the deployed environment"

    def by_cell(part: Callable[[MeasuredCell, Translator], Iterable[Block]]) -> Iterator[Block]:
        for name, cell in _named(cells):
            if len(cells) > 1:
                yield Heading(text=name)
            yield from part(cell, say)

    parts: dict[str, Iterable[Block]] = {
        "TL;DR": _summary(cells, say),
        "Inventory": by_cell(_inventory),
        f"Effect of {deployed} on {axes}": by_cell(_effect),
        "Tuning leaderboard": by_cell(_leaderboard),
        WHY: by_cell(why),
        "Negative findings": by_cell(_negative),
        **({} if signs is None else {"Sign flips vs other parallelisms": signs}),
        DEPLOYMENT: _deployment(cells, say),
        "Appendix: data sources": [
            jobs_table(_named(cells), say=say) or say.text("No job was submitted.")
        ],
    }
    return Document(
        title=f"{cells[0].cell.model_tag}: XLA tuning, {axes}",
        header=tuple(_header(cells, handwritten, say)),
        sections=tuple(
            section(title, *(_with_translated_heads(block, say) for block in blocks))
            for title, blocks in parts.items()
        ),
    )


def _with_translated_heads(block: Block, say: Translator) -> Block:
    if not isinstance(block, Table):
        return block
    heads = tuple(replace(column, title=say.text_of(column.title)) for column in block.columns)
    title = say.text_of(block.title) if block.title else ""
    return replace(block, title=title, columns=heads)


def _named(cells: Sequence[MeasuredCell]) -> list[tuple[str, MeasuredCell]]:
    name_of = names(cells)
    return [(name_of[cell.cell_digest], cell) for cell in cells]


def _header(cells: Sequence[MeasuredCell], handwritten: str, say: Translator) -> Iterator[str]:
    """Yield bullets that all cells share once, other bullets with the name of their cell.

    Then come bullets on the English document, on earlier measurements and on a person's own text.
    """
    all_bullets = [list(header(_with_load(cell), say=say)) for cell in cells]
    for cell, cell_bullets in zip(cells, all_bullets, strict=True):
        if configs := literals(file.path for file in cell.files if not file.is_shell):
            cell_bullets.append(say("Base configuration: {text}", text=configs))
    shared = set.intersection(*map(set, all_bullets))
    yield from (bullet for bullet in all_bullets[0] if bullet in shared)
    for (name, _), cell_bullets in zip(_named(cells), all_bullets, strict=True):
        for bullet in cell_bullets:
            if bullet not in shared:
                yield say("{text} ({cell})", text=bullet, cell=name)
    if not say.is_english:
        yield say("The English document has the notes, reasons, changes and evidence too")
    if not any(covered.earlier for covered in cells):
        yield say("Earlier measurements: none is known here, so this is a fresh start")
    if handwritten:
        yield say(
            "A document written by hand was here; it is kept as {path}, and is not read",
            path=literal(handwritten),
        )


def _with_load(covered: MeasuredCell) -> MeasuredCell:
    """Return a cell with batch size and sequence length from the trainer's file, if not set."""
    config, cell = config_of(covered.files), covered.cell
    batch = config.get("per_device_batch_size", "")
    length = to_integer(config.get("max_target_length", ""))
    if cell.per_device_batch_size is None and _NUMBER.fullmatch(batch):
        cell = replace(cell, per_device_batch_size=float(batch))
    if cell.max_target_length is None:
        cell = replace(cell, max_target_length=length)
    return replace(covered, cells=(cell,))


def _summary(cells: Sequence[MeasuredCell], say: Translator) -> Iterator[Block]:
    rows = []
    for name, cell in _named(cells):
        best, base = cell.best, cell.conclusion.baseline
        shown = best or base
        rows.append(
            (
                name,
                f"★ {literal(best.arm)}" if best else say("as deployed"),
                (literal(cell.recipe.shown_text) if cell.recipe else "") or ABSENT,
                figure(shown),
                figure(base),
                points(best.delta) if best else ABSENT,
                interval(best.ci95) if best else ABSENT,
                str(shown.n),
                ", ".join(shown.job_ids) or ABSENT,
            )
        )
    head = head_of({cell.conclusion.metric for cell in cells})
    titles = columns(
        "~Cell", "~Best recipe", "~Flags", f">{head}", f">{BASELINE_ID} {head}", ">delta %",
        "95 %", ">n", "~jobs",
    )  # fmt: skip
    yield Table(columns=titles, rows=tuple(rows))
    for name, cell in _named(cells):
        text = finding(cell, say)
        if cell.best is not None:
            text += f" {_reason(cell, cell.best, say)}"
        yield Text(text=text if len(cells) == 1 else say("{text} ({cell})", text=text, cell=name))


def _inventory(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    cell = covered.cell
    environment = say("The deployed environment sets nothing.")
    if not cell.sourced and any(file.is_shell and file.text for file in covered.files):
        environment = say(
            "The sweep itself sets no variable. Its env files do, and they were not sourced on "
            "this machine, so the values are not known."
        )
    overrides = say("The cell overrides no key of the trainer's configuration.")
    for title, settings, nothing in (
        ("Deployed environment", cell.environment, environment),
        ("Configuration of the cell", cell.overrides, overrides),
    ):
        rows = tuple((literal(name), literal(settings[name])) for name in sorted(settings))
        heads = columns("Setting", "~Value")
        yield Table(title=title, columns=heads, rows=rows) if rows else Text(text=nothing)
    if cell.sourced:
        yield say.text(
            "Env files set {names}; the values are those after sourcing the files.",
            names=literals([name for name, _ in cell.sourced]),
        )
    for file in covered.files:
        if file.text:
            yield say.text("{path} as the sweep read it when it began:", path=literal(file.path))
            yield Code(text=file.text, language="bash" if file.is_shell else "yaml")


def _effect(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    verdict = covered.conclusion.verdict(NO_ENV_ID)
    if verdict is None:
        yield say.text(
            "Not measured: the sweep has no profile {profile}.", profile=literal(NO_ENV_ID)
        )
        return
    unconfirmed = _EFFECT_LIKELY_SLOWER if verdict.is_likely_slower else _EFFECT_UNKNOWN
    yield say.text(_EFFECTS.get(verdict.kind, unconfirmed))
    yield from tables(covered, only=[verdict], say=say)


def _leaderboard(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    yield from tables(covered, is_short=True, say=say)
    table = sensitivity(covered.conclusion, say)
    yield replace(table, title="What this sweep can tell")


def why(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    """Yield why the winner wins, as far as the evidence shows it."""
    best, recipe = covered.best, covered.recipe
    if best is None:
        yield say.text("There is no winner to explain.")
        return
    yield Text(text=_reason(covered, best, say))
    explanation = _explanation_of(covered, best)
    facts = explanation.facts
    if facts and say.is_english:
        yield Table(
            title=f"Evidence: {literal(BASELINE_ID)} to {literal(best.arm)}",
            columns=columns("Evidence", f"~From {BASELINE_ID} to the winner"),
            rows=tuple((fact.kind, plain(fact.text)) for fact in facts),
        )
    if paths := literals(dict.fromkeys(path for fact in facts for path in fact.artifacts)):
        yield say.text(
            "Artifacts of jobs {jobs}, below the work directory: {paths}.",
            jobs=", ".join(dict.fromkeys(job for fact in facts for job in fact.jobs)),
            paths=paths,
        )
    # notes and problems have no translation
    if recipe is not None and (recipe.note or recipe.origin) and say.is_english:
        notes = filter(None, (plain(recipe.note), plainly(recipe.origin)))
        yield Text(text=f"Why it was tried: {'; '.join(notes).rstrip('.')}.")
    if explanation.problems and say.is_english:
        yield bullets(*map(plain, explanation.problems))


def _explanation_of(covered: MeasuredCell, best: Verdict) -> Explanation:
    """Return what the evidence says about the winner; that of an earlier leader says nothing."""
    explanation = covered.explanation or Explanation()
    is_about_best = explanation.profile in ("", best.arm)
    return explanation if is_about_best else Explanation(problems=explanation.problems)


def _reason(covered: MeasuredCell, best: Verdict, say: Translator) -> str:
    """Return the sentence that says whether the gain is explained."""
    explanation, record = _explanation_of(covered, best), covered.record
    typed = _SWEEP_FILE.search(" ".join(record.commands if record is not None else ()))
    file = typed.group() if typed is not None else "SWEEP_FILE"
    moved, delta = explanation.moved, best.delta or 0.0
    # the relative change of a step's time that corresponds to the change of TGS
    expected = 1 / (1 + delta) - 1
    if not explanation.facts:
        msgid = _NO_EVIDENCE
    elif best.figure is not None:  # its change says nothing about the time of a step
        msgid = _OTHER_METRIC
    elif moved is None:
        msgid = _IDENTICAL if explanation.is_identical else _PROGRAM_ONLY
    else:
        is_shown = moved <= _MIN_SHARE_SHOWN * expected < 0
        msgid = _EXPLAINED if is_shown else _NOT_SHOWN
    return say(
        msgid,
        command=literal(f"xlatune evidence {file}"),
        metric=plain(best.figure.metric.title) if best.figure is not None else "",
        moved=percent(moved),
        delta=percent(best.delta),
        expected=percent(expected),
    )


def _negative(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    verdicts = [
        verdict
        for verdict in covered.conclusion.verdicts
        if verdict.kind is VerdictKind.SLOWER
        or verdict.is_likely_slower
        or (verdict.kind is VerdictKind.INVALID and not verdict.can_run)
    ]
    if not verdicts:
        yield say.text("No profile is confirmed to be slower, and the sweep dropped none.")
        return
    confirmed, *others = tables(covered, only=verdicts, say=say)
    # without a slower profile the table would have only the baseline
    if any(verdict.kind is VerdictKind.SLOWER for verdict in verdicts):
        yield confirmed
    yield from others


def _deployment(cells: Sequence[MeasuredCell], say: Translator) -> Iterator[Block]:
    patch, name_of = patch_of(cells, say), names(cells)
    if patch.text:
        yield say.text(
            "To deploy, give this patch to `git apply` at the root of the repository "
            "that holds {paths}:",
            paths=literals(patch.paths),
        )
        yield Code(text=patch.text, language="diff")
    for name, cell in _named(cells):
        best, recipe, against = cell.best, cell.recipe, conflicts(cell, cells)
        if len(cells) > 1:
            yield Heading(text=name)
        if best is None:
            yield say.text("Leave the deployed environment as it is.")
        elif recipe is None:
            yield say.text(
                "The sweep no longer names the settings of {profile}.", profile=literal(best.arm)
            )
        else:
            lines, file = "", cell.env_file
            if reason := patch.missing.get(cell.cell_digest):
                yield say.text("There is no patch: {why}.", why=reason)
                lines = guarded_lines(recipe, against)
            head = say.text(
                "Add these lines to the file that sets the environment of the jobs. If the "
                "launcher names it as `env_files=(FILE,)`, the next report has a patch of that "
                "file:"
            )
            if file is not None:
                head = say.text("Append to {path}:", path=literal(file.path))
            yield from deployed_by_hand(recipe, lines, head, say)
        yield from recipe_blocks(cell.conclusion, say)
        for conflict in against:
            if conflict.other is not None:
                other = name_of.get(conflict.other.cell_digest, conflict.where)
                yield Text(text=_conflict_text(conflict, name, other, say))
        yield from _deployed_since(cell, name, say)
        if best is not None:
            yield from _shown_for(cell, against, say)


def _conflict_text(conflict: Conflict, name: str, other: str, say: Translator) -> str:
    """Return why a recipe must not reach another cell, and what prevents that."""
    found = words_beside(conflict.verdict, say) if conflict.verdict else ""
    doubt = say(
        _HARMED if conflict.is_harmful else _UNVERIFIED, cell=name, other=other, found=found
    )
    ending = _GUARDED if conflict.guard else _NOT_GUARDED
    return f"{doubt} {say(ending, cell=name, variables=literal(conflict.variable))}"


def _shown_for(
    covered: MeasuredCell, against: Sequence[Conflict], say: Translator
) -> Iterator[Block]:
    """Yield the configurations for which the recipe is proved, and those that it harms."""
    cell = literal(covered.cell.label)
    if not covered.elsewhere:
        yield say.text(
            "The recipe was measured on {cell} only. Its effect may have the "
            "opposite sign on another parallelism or on another configuration of the "
            "model.",
            cell=cell,
        )
        return
    for msgid in (_HOLDS, _HARMFUL, _UNDECIDED):
        others = [other for other in covered.elsewhere if _ending_of(other.verdict) == msgid]
        if others:
            tags = literals(other.config_tag for other in others)
            files = literals(f"{other.sweep}/gate.md" for other in others)
            yield say.text(msgid, cell=cell, tags=tags, files=files)
    for other in covered.elsewhere:
        second = other.second
        if second is not None and is_no_loss(second) and not is_no_loss(other.verdict):
            yield say.text(
                "With {tag} the gate excludes a loss of the second best, {profile}.",
                tag=literal(other.config_tag),
                profile=literal(second.arm),
            )
    variables = {conflict.variable for conflict in against if conflict.other is None} - {""}
    if variables and covered.recipe and (covered.recipe.flags or covered.recipe.env):
        yield say.text(_GUARDED, variables=literals(variables))
    yield say.text("Its effect may have the opposite sign on another parallelism.")


def _ending_of(verdict: Verdict) -> str:
    """Return the text for a gate of a recipe that ended with this verdict."""
    return _HOLDS if is_no_loss(verdict) else _HARMFUL if is_harm(verdict) else _UNDECIDED


def _deployed_since(covered: MeasuredCell, name: str, say: Translator) -> Iterator[Block]:
    """Yield a sentence for each earlier recipe that is deployed now, and the cell's history."""
    for earlier in covered.earlier:
        if earlier.best is not None and covered.deploys(earlier):
            yield say.text(
                "The recipe of an earlier measurement of {cell} is deployed now: "
                "`baseline-deployed` was {before}, the recipe promised {promised}, "
                "and `baseline-deployed` is {now} today.",
                cell=name,
                before=speed(earlier.baseline),
                promised=_promise(earlier.best),
                now=speed(covered.conclusion.baseline),
            )
    if not covered.earlier:
        return
    measurements = [
        (earlier.written_s, earlier.baseline, earlier.best) for earlier in covered.earlier
    ]
    measurements.append((covered.written_s, covered.conclusion.baseline, covered.best))
    yield say.text("Earlier measurements of {cell}, and today's:", cell=name)
    yield Table(
        columns=columns("~When (UTC)", f">{BASELINE_ID}", ">n", "~recommended", ">promised, 95 %"),
        rows=tuple(
            (
                minute(written_s),
                figure(baseline),
                str(baseline.n),
                literal(best.arm) if best else ABSENT,
                _promise(best) if best else ABSENT,
            )
            for written_s, baseline, best in measurements
        ),
    )


def _promise(best: Verdict) -> str:
    return f"{points(best.delta)} % {interval(best.ci95)}"
