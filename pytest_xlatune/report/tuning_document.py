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

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
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
from pytest_xlatune.report.guards import (
    Conflict,
    conflicts,
    sign_flips,
)
from pytest_xlatune.report.language import N_, Language, Translator, plainly
from pytest_xlatune.report.leaderboard import (
    finding,
    head_of,
    header,
    jobs_table,
    sensitivity,
    tables,
)
from pytest_xlatune.report.lines import figure, speed, words
from pytest_xlatune.report.measured_cell import (
    MeasuredCell,
    OtherCell,
    names,
)
from pytest_xlatune.report.recipes import recipe_blocks

# The traces explain a gain if they show this share of the expected change of a step's time. They
# need not show all of it, because profiling itself costs time.
_MIN_SHARE_SHOWN = 0.5

WHY = "Why the winning flag wins"
DEPLOYMENT = "Recommended deployment"
_COLUMNS = columns("Evidence", "~From baseline-deployed to the winner")

# the sweep file in a command:  pytest sweeps/test_pp8.py -n 4
_SWEEP_FILE = re.compile(r"\S+\.py\b")
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
_CEILING = N_(
    "The evidence run of the baseline shows the parts of a step: {parts}. No setting can gain more "
    "than the share of the part that it changes."
)


def why(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    """Yield why the winner wins, as far as the evidence shows it."""
    best, recipe = covered.best, covered.recipe
    explanation = covered.explanation or Explanation()
    if best is None:
        yield say.text("There is no winner to explain.")
        if covered.exposed is not None:
            yield say.text(_CEILING, parts=plainly(covered.exposed, say))
        return
    yield Text(text=_reason(best, explanation, say, record=covered.record))
    if explanation.facts:
        yield from _evidence(explanation, say)
    if not say.is_english:
        return
    if recipe is not None and (recipe.note or recipe.origin):
        notes = filter(None, (plain(recipe.note), plainly(recipe.origin)))
        yield Text(text=f"Why it was tried: {'; '.join(notes).rstrip('.')}.")
    if explanation.problems:
        yield bullets(*map(plain, explanation.problems))


def _evidence(explanation: Explanation, say: Translator) -> Iterator[Block]:
    """Yield the facts, which are in the English document only, and then their artifacts."""
    facts = explanation.facts
    if say.is_english:
        title = f"Evidence: {literal(BASELINE_ID)} to {literal(explanation.profile)}"
        rows = tuple((fact.kind, plain(fact.text)) for fact in facts)
        yield Table(title=title, columns=_COLUMNS, rows=rows)
    paths = literals(dict.fromkeys(path for fact in facts for path in fact.artifacts))
    jobs = ", ".join(dict.fromkeys(job for fact in facts for job in fact.jobs))
    if paths:
        yield say.text(
            "Artifacts of jobs {jobs}, below the work directory: {paths}.", jobs=jobs, paths=paths
        )


def _reason(
    best: Verdict, explanation: Explanation, say: Translator, *, record: RunRecord | None
) -> str:
    """Return the sentence that says whether the gain is explained; `record` has the commands."""
    typed = _SWEEP_FILE.search(" ".join(record.commands if record is not None else ()))
    file = typed.group() if typed is not None else "SWEEP_FILE"
    command = literal(f"xlatune evidence {file}")
    if not explanation.facts:
        return say(
            "There is no readable evidence (HLO dump, trace) of both this profile and "
            "`baseline-deployed`, so this document cannot say why it wins. To record "
            "both, run: {command}",
            command=command,
        )
    if explanation.profile != best.arm:
        return say(
            "The evidence below belongs to {profile}, which led before; the sweep "
            "recorded none of {best}. To record it, run: {command}",
            profile=literal(explanation.profile),
            best=literal(best.arm),
            command=command,
        )
    if best.figure is not None:
        return say(_OTHER_METRIC, metric=plain(best.figure.metric.title))
    if explanation.moved is None:
        return say(_IDENTICAL if explanation.is_identical else _PROGRAM_ONLY, command=command)
    # the relative change of a step's time that corresponds to the change of TGS
    expected = 1 / (1 + (best.delta or 0.0)) - 1
    is_shown = explanation.moved <= _MIN_SHARE_SHOWN * expected < 0
    return say(
        _EXPLAINED if is_shown else _NOT_SHOWN,
        moved=percent(explanation.moved),
        delta=percent(best.delta),
        expected=percent(expected),
    )


_HISTORY = columns(
    f"~{N_('When (UTC)')}",
    ">baseline-deployed",
    ">n",
    f"~{N_('recommended')}",
    f">{N_('promised, 95 %')}",
)
_SETTINGS = columns("Setting", "~Value")
# a line of a shell file that is blank or a comment:    # left over
_COMMENT = re.compile(r"\s*(?:#.*)?")
# numbers in a yml:  8    0.5
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

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
    model = cells[0].cell.model_tag
    axes = " and ".join(dict.fromkeys(str(cell.cell.parallelism) for cell in cells))
    signs = sign_flips(cells, say)
    env_files = dict.fromkeys(filter(None, map(_env_file, cells)))
    deployed = literals(env_files) if env_files else "the deployed environment"

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
        title=f"{model}: XLA tuning, {axes}",
        header=(*_header(cells, say), *_other_documents(cells, handwritten, say)),
        sections=tuple(
            section(title, *(_with_translated_heads(block, say) for block in blocks))
            for title, blocks in parts.items()
        ),
    )


# heads of columns and titles of tables, listed for the check that each has a translation
_HEADS = (
    N_("Cell"), N_("Best recipe"), N_("Flags"), N_("jobs"), N_("Setting"), N_("Settings"),
    N_("Value"), N_("Profile"), N_("verdict"), N_("settings"), N_("reason"), N_("evidence"),
    N_("Figure"), N_("Job"), N_("Stage"), N_("Attempt"), N_("State"),
    N_("Remark"),
    N_("Log, below the work directory"),
    N_("Sign"), N_("in the recipe"), N_("gain %"), N_("against"), N_("blocks"),
    N_("runs lost"), N_("hangs"), N_("retries"), N_("step (s)"),
    N_("Deployed environment"), N_("Configuration of the cell"), N_("Confirmed"),
    N_("Screened: ranks, proves nothing"), N_("Dropped: cannot run here"),
    N_("No valid measurement"), N_("Runs that were lost or tried again"),
    N_("What this sweep can tell"),
)  # fmt: skip
# values of `Effect` and `Needed` in tables, listed for the same check
_VALUES = (
    N_("in effect"), N_("asked"), N_("not seen"), N_("contradicted"),
    N_("needed"), N_("not shown to be needed"), N_("not measured without it"),
)  # fmt: skip


def _with_translated_heads(block: Block, say: Translator) -> Block:
    if not isinstance(block, Table):
        return block
    heads = tuple(replace(column, title=say.text_of(column.title)) for column in block.columns)
    title = say.text_of(block.title) if block.title else ""
    return replace(block, title=title, columns=heads)


def _env_file(covered: MeasuredCell) -> str:
    """Return the path of the file that deploys a cell's environment; "" if none was named."""
    return next((file.path for file in covered.files if file.is_shell), "")


def _named(cells: Sequence[MeasuredCell]) -> list[tuple[str, MeasuredCell]]:
    name_of = names(cells)
    return [(name_of[cell.cell_digest], cell) for cell in cells]


def _header(cells: Sequence[MeasuredCell], say: Translator) -> Iterator[str]:
    """Yield bullets that all cells share once, and other bullets with the name of their cell."""
    all_bullets = [(*header(_with_load(cell), say=say), *_origins(cell, say)) for cell in cells]
    shared = set.intersection(*map(set, all_bullets))
    yield from (bullet for bullet in all_bullets[0] if bullet in shared)
    for (name, _), cell_bullets in zip(_named(cells), all_bullets, strict=True):
        yield from (
            say("{text} ({cell})", text=bullet, cell=name)
            for bullet in cell_bullets
            if bullet not in shared
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


def _other_documents(
    cells: Sequence[MeasuredCell], handwritten: str, say: Translator
) -> Iterator[str]:
    """Yield bullets on the English document, on earlier measurements and on a person's own text."""
    if not say.is_english:
        yield say("The English document has the notes, reasons, changes and evidence too")
    if not any(covered.earlier for covered in cells):
        yield say("Earlier measurements: none is known here, so this is a fresh start")
    if handwritten:
        yield say(
            "A document written by hand was here; it is kept as {path}, and is not read",
            path=literal(handwritten),
        )


def _origins(covered: MeasuredCell, say: Translator) -> Iterator[str]:
    configs = [file.path for file in covered.files if not file.is_shell]
    if configs:
        yield say("Base configuration: {text}", text=literals(configs))
    if covered.versions:
        versions = (f"{name} {version}" for name, version in sorted(covered.versions.items()))
        yield say("Software of the sweep: {text}", text=plain(", ".join(versions)))


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
            explanation = cell.explanation or Explanation()
            text += f" {_reason(cell.best, explanation, say, record=cell.record)}"
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
        yield Table(title=title, columns=_SETTINGS, rows=rows) if rows else Text(text=nothing)
    if cell.sourced:
        yield say.text(
            "Env files set {names}; the values are those after sourcing the files.",
            names=literals([name for name, _ in cell.sourced]),
        )
    for file in covered.files:
        if file.text:
            yield say.text(
                "{path} as the sweep read it when it began, without comment lines.",
                path=literal(file.path),
            )
            yield _file(file)


def _file(file: DeployedFile) -> Block:
    """Return the text of a file without comment lines."""
    lines = (line for line in file.text.split("\n") if not _COMMENT.fullmatch(line))
    return Code(text="\n".join(lines), language="bash" if file.is_shell else "yaml")


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
    yield say.text(
        "{profile} puts every deployed flag back to its default. A sweep refuses to do so for a "
        "flag whose values XLA adds up: a flag that is appended cannot take a value away. "
        "Variables stay as deployed unless the sweep states a value for them.",
        profile=literal(NO_ENV_ID),
    )


def _leaderboard(covered: MeasuredCell, say: Translator) -> Iterator[Block]:
    yield from tables(covered, is_short=True, say=say)
    table = sensitivity(covered.conclusion, say)
    yield replace(table, title="What this sweep can tell")


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
    patch = patch_of(cells, say)
    if patch.text:
        yield say.text(
            "To deploy, give this patch to `git apply` at the root of the repository "
            "that holds {paths}:",
            paths=literals(patch.paths),
        )
        yield Code(text=patch.text, language="diff")
    name_of = names(cells)
    for name, cell in _named(cells):
        best, against = cell.best, conflicts(cell, cells)
        if len(cells) > 1:
            yield Heading(text=name)
        if best is None:
            yield say.text("Leave the deployed environment as it is.")
        elif cell.recipe is None:
            yield say.text(
                "The sweep no longer names the settings of {profile}.",
                profile=literal(best.arm),
            )
        elif cell.cell_digest in patch.missing:
            why = patch.missing[cell.cell_digest]
            yield from _by_hand(cell, cell.recipe, against, why, say)
        yield from recipe_blocks(cell.conclusion, say)
        for conflict in against:
            if conflict.other is not None:
                other = name_of.get(conflict.other.cell_digest, conflict.where)
                yield Text(text=" ".join(_conflict_sentences(conflict, name, other, say)))
        yield from _deployed_since(cell, name, say)
        if best is not None:
            yield from _shown_for(cell, against, say)


def _conflict_sentences(
    conflict: Conflict, name: str, other: str, say: Translator
) -> tuple[str, str]:
    """Return why a recipe must not reach another cell, and what prevents that."""
    found = words(conflict.verdict, say) if conflict.verdict else ""
    doubt = _HARMED if conflict.is_harmful else _UNVERIFIED
    ending = _GUARDED if conflict.guard else _NOT_GUARDED
    return (
        say(doubt, cell=name, other=other, found=found),
        say(ending, cell=name, variables=literals(conflict.variables)),
    )


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
    by_msgid: dict[str, list[OtherCell]] = {_HOLDS: [], _HARMFUL: [], _UNDECIDED: []}
    for other in covered.elsewhere:
        msgid = _HOLDS if other.holds else _HARMFUL if other.is_harmful else _UNDECIDED
        by_msgid[msgid].append(other)
    for msgid, others in by_msgid.items():
        if others:
            tags = literals([other.config_tag for other in others])
            files = literals([f"{other.sweep}/gate.md" for other in others])
            yield say.text(msgid, cell=cell, tags=tags, files=files)
    for other in covered.elsewhere:
        if other.second is not None and other.second_alone_holds:
            yield say.text(
                "With {tag} the gate excludes a loss of the second best, {profile}.",
                tag=literal(other.config_tag),
                profile=literal(other.second.arm),
            )
    variables = dict.fromkeys(
        name for conflict in against if conflict.other is None for name in conflict.variables
    )
    if variables and covered.recipe and (covered.recipe.flags or covered.recipe.env):
        yield say.text(_GUARDED, variables=literals(variables))
    yield say.text("Its effect may have the opposite sign on another parallelism.")


def _by_hand(
    covered: MeasuredCell,
    recipe: Profile,
    against: Sequence[Conflict],
    reason: str,
    say: Translator,
) -> Iterator[Block]:
    """Yield the lines to append and the keys to pass if there is no patch."""
    yield say.text("There is no patch: {why}.", why=reason)
    path = _env_file(covered)
    head = (
        say.text("Append to {path}:", path=literal(path))
        if path
        else say.text(
            "Add these lines to the file that sets the environment of the jobs. If the launcher "
            "names it as `env_files=(FILE,)`, the next report has a patch of that file:"
        )
    )
    yield from deployed_by_hand(recipe, guarded_lines(recipe, against), head, say)


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
    rows = [
        (
            minute(written_s),
            figure(baseline),
            str(baseline.n),
            literal(best.arm) if best else ABSENT,
            _promise(best) if best else ABSENT,
        )
        for written_s, baseline, best in measurements
    ]
    yield say.text("Earlier measurements of {cell}, and today's:", cell=name)
    yield Table(columns=_HISTORY, rows=tuple(rows))


def _promise(best: Verdict) -> str:
    return f"{points(best.delta)} % {interval(best.ci95)}"
