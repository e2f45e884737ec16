"""`<MODEL_TAG>-tuning.md`: what a team deploys from, and what the next sweep need not repeat.

Ten parts, the bullets of the header being the first: one document for all measured cells of a
model, in one of two languages. Headings and tables do not depend on the language. Every figure is
one of the records; where they do not carry a sentence, the document says so instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pytest_xlatune.cells import DeployedFile
from pytest_xlatune.hidden import without_secrets
from pytest_xlatune.profiles import BASELINE_ID
from pytest_xlatune.report.bubbles import TITLE, bubbles
from pytest_xlatune.report.covered import Covered, Elsewhere, names
from pytest_xlatune.report.deployment import Patch, conflicts, patch_of, recipe_lines
from pytest_xlatune.report.document import (
    Block,
    Code,
    Column,
    Document,
    Heading,
    Section,
    Table,
    Text,
    literal,
    literals,
    plain,
)
from pytest_xlatune.report.ending import ending_text
from pytest_xlatune.report.figures import ABSENT, interval, points, rate, size
from pytest_xlatune.report.leaderboard import ALPHA, CONFIRMED, header, headline, tables
from pytest_xlatune.report.phrases import Language, Say
from pytest_xlatune.report.signs import sign_flips
from pytest_xlatune.report.trials import job_rows, jobs_table
from pytest_xlatune.report.why import reason, why
from pytest_xlatune.results import Conclusion, VerdictKind

NO_ENV_ID = "baseline-no-env"  # the profile that puts every deployed flag back to its default
TOP_AND_BOTTOM = (8, 5)

_RECIPES = (
    Column(title="Cell", wrap=True),
    Column(title="Best recipe", wrap=True),
    Column(title="Flags", wrap=True),
    Column(title="TGS", align="right"),
    Column(title=f"{BASELINE_ID} TGS", align="right"),
    Column(title="delta %", align="right"),
    Column(title="95 %"),
    Column(title="n", align="right"),
    Column(title="jobs", wrap=True),
)
_SETTINGS = (Column(title="Setting"), Column(title="Value", wrap=True))
_FIGURES = (Column(title="Figure", wrap=True), Column(title="Value", wrap=True))
# a top-level key of a yml, its value, a comment:  remat_policy: "full"  # costs time
_YML = re.compile(r"([A-Za-z_]\w*):[ \t]*([^#\n]*?)[ \t]*(?:[ \t]#.*)?")
# a line of a shell file that says nothing:    # left over
_COMMENT = re.compile(r"\s*(?:#.*)?")

PerCell = Callable[[Covered], Iterator[Block]]


def tuning(cells: Sequence[Covered], language: Language = Language.ENGLISH) -> Document:
    """Return the tuning document of a model's cells, in the order they first came."""
    say = Say(language)
    model = cells[0].cell.model_tag
    axes = " and ".join(dict.fromkeys(str(each.cell.parallelism) for each in cells))
    patch = patch_of(cells)
    signs = sign_flips(cells, say)

    def each_cell(blocks: PerCell) -> tuple[Block, ...]:
        return _each(cells, blocks)

    parts: dict[str, tuple[Block, ...]] = {
        "TL;DR": tuple(_summary(cells, say)),
        "Inventory": each_cell(lambda each: _inventory(each, say)),
        f"Effect of `{model}.env.sh` on {axes}": each_cell(lambda each: _effect(each, say)),
        "Tuning leaderboard": each_cell(lambda each: _leaderboard(each, say)),
        "Why the winning flag wins": each_cell(lambda each: why(each, say)),
        "Negative findings": each_cell(lambda each: _negative(each, say)),
        **({} if signs is None else {"Sign flips vs other parallelisms": signs}),
        "Recommended deployment": tuple(_deployment(cells, patch, say)),
        "Appendix: data sources": (_appendix(cells, say),),
    }
    return Document(
        title=f"{model}: XLA tuning, {axes}",
        header=tuple(_header(cells, say)),
        sections=tuple(Section(title=title, blocks=blocks) for title, blocks in parts.items()),
    )


def _each(cells: Sequence[Covered], blocks: PerCell) -> tuple[Block, ...]:
    """Return the blocks of all cells, each below its own heading where there are several."""
    if len(cells) == 1:
        return tuple(blocks(cells[0]))
    called = names(cells)
    return tuple(
        block for each in cells for block in (Heading(text=called[each.cell_digest]), *blocks(each))
    )


def _header(cells: Sequence[Covered], say: Say) -> Iterator[str]:
    """Yield the bullets; those that differ between cells stand once for each."""
    called = names(cells)
    of_cell = {
        each.cell_digest: (
            *header(
                each.conclusion,
                cell=each.cell,
                history=each.history,
                now=datetime.fromtimestamp(each.written_s, UTC),
                digest=each.cell_digest,
                say=say,
            ),
            *_origins(each, say),
        )
        for each in cells
    }
    shared = set.intersection(*(set(bullets) for bullets in of_cell.values()))
    yield from (bullet for bullet in of_cell[cells[0].cell_digest] if bullet in shared)
    for cell_digest, bullets in of_cell.items():
        yield from (
            say("of-cell", text=bullet, cell=called[cell_digest])
            for bullet in bullets
            if bullet not in shared
        )


def _origins(covered: Covered, say: Say) -> Iterator[str]:
    configs = [file.path for file in covered.files if not file.is_shell]
    if configs:
        yield say("files", text=literals(configs))
    if covered.versions:
        versions = (f"{name} {version}" for name, version in sorted(covered.versions.items()))
        yield say("software", text=plain(", ".join(versions)))


def _summary(cells: Sequence[Covered], say: Say) -> Iterator[Block]:
    called = names(cells)
    rows = []
    for each in cells:
        best, recipe, base = each.best, each.recipe, each.conclusion.baseline
        rows.append(
            (
                called[each.cell_digest],
                f"★ {literal(best.profile)}" if best else "as deployed",
                (literal(recipe.shown_text) if recipe else "") or ABSENT,
                rate(best.tgs if best else base.tgs),
                rate(base.tgs),
                points(best.delta) if best else ABSENT,
                interval(best.ci95) if best else ABSENT,
                str(best.n if best else base.n),
                ", ".join(best.job_ids if best else base.job_ids) or ABSENT,
            )
        )
    yield Table(columns=_RECIPES, rows=tuple(rows))
    for each in cells:
        said = [
            headline(each.conclusion, say),
            ending_text(say, each.conclusion, history=each.history, stopped=each.stopped),
            *([reason(each, say)] if each.best else []),
        ]
        text = " ".join(said)
        yield Text(
            text=text
            if len(cells) == 1
            else say("of-cell", text=text, cell=called[each.cell_digest])
        )


def _inventory(covered: Covered, say: Say) -> Iterator[Block]:
    cell = covered.cell
    for title, settings in (
        ("Deployed environment", without_secrets(cell.deployed)),
        ("Configuration of the cell", without_secrets(cell.overrides)),
    ):
        if settings:
            rows = tuple((literal(name), literal(settings[name])) for name in sorted(settings))
            yield Table(title=title, columns=_SETTINGS, rows=rows)
        else:
            yield Text(text=say("nothing-set", title=title))
    for file in covered.files:
        if file.text:
            yield from _file(file, say)


def _file(file: DeployedFile, say: Say) -> Iterator[Block]:
    """Show a file: a shell file as it is read, a yml's plain keys as a table."""
    yield Text(text=say("recorded-file", path=literal(file.path)))
    if file.is_shell:
        lines = (line for line in file.text.split("\n") if not _COMMENT.fullmatch(line))
        yield Code(text="\n".join(lines), language="bash")
        return
    matches = (_YML.fullmatch(line) for line in file.text.split("\n"))
    rows = tuple((literal(each.group(1)), literal(each.group(2))) for each in matches if each)
    yield Table(columns=_SETTINGS, rows=rows)


def _effect(covered: Covered, say: Say) -> Iterator[Block]:
    conclusion = covered.conclusion
    verdict = conclusion.verdict(NO_ENV_ID)
    if verdict is None:
        yield Text(text=say("effect-unmeasured", profile=literal(NO_ENV_ID)))
        return
    kind = verdict.kind
    known = kind in CONFIRMED and kind is not VerdictKind.INCONCLUSIVE
    yield Text(text=say(f"effect-{kind}" if known else "effect-unknown"))
    pair = Conclusion(verdicts=(verdict,), baseline=conclusion.baseline)
    yield from tables(
        pair, profiles=covered.profiles, history=covered.history, best=covered.best, say=say
    )
    yield Text(text=say("restored", profile=literal(NO_ENV_ID)))


def _leaderboard(covered: Covered, say: Say) -> Iterator[Block]:
    conclusion = covered.conclusion
    yield from tables(
        conclusion,
        profiles=covered.profiles,
        history=covered.history,
        limit=TOP_AND_BOTTOM,
        say=say,
    )
    methods = dict.fromkeys(
        plain(each.method) for each in conclusion.verdicts if each.kind in CONFIRMED and each.method
    )
    rows = (
        ("M: no profile beats the baseline by more, at 95 %", size(conclusion.bound)),
        ("MDE80: the smallest effect found with 80 % power", size(conclusion.mde80)),
        ("Sigma: noise of one job's score between jobs", size(conclusion.sigma)),
        ("Alpha spent", f"{conclusion.alpha_spent:.3g} of {ALPHA:g}"),
        ("Method", "; ".join(methods) or ABSENT),
        *(("Note", plain(each)) for each in conclusion.notes),
    )
    yield Table(title="What this sweep can tell", columns=_FIGURES, rows=rows)
    yield from _bubble(covered, say)


def _bubble(covered: Covered, say: Say) -> Iterator[Block]:
    """Show the bubble of a pipeline, where a profile changes the shape of it."""
    section = bubbles(
        covered.cell,
        covered.profiles,
        files=covered.files,
        conclusion=covered.conclusion,
        say=say,
    )
    for block in section.blocks if section else ():
        yield replace(block, title=TITLE) if isinstance(block, Table) else block


def _negative(covered: Covered, say: Say) -> Iterator[Block]:
    conclusion = covered.conclusion
    found = tuple(
        each
        for each in conclusion.verdicts
        if each.kind is VerdictKind.SLOWER
        or (each.kind is VerdictKind.INVALID and not each.can_run)
    )
    if not found:
        yield Text(text=say("no-negative"))
        return
    chosen = Conclusion(verdicts=found, baseline=conclusion.baseline)
    blocks = tables(chosen, profiles=covered.profiles, history=covered.history, say=say)
    # the first is of what was confirmed: without a slower profile the baseline stands alone there
    is_slower = any(each.kind is VerdictKind.SLOWER for each in found)
    yield from blocks if is_slower else blocks[1:]


def _deployment(cells: Sequence[Covered], patch: Patch, say: Say) -> Iterator[Block]:
    called = names(cells)
    if patch.text:
        yield Text(text=say("patch", paths=literals(patch.paths)))
        yield Code(text=patch.text, language="diff")
    against = conflicts(cells)
    for each in cells:
        name, best, recipe = called[each.cell_digest], each.best, each.recipe
        if len(cells) > 1:
            yield Heading(text=name)
        if best is None:
            yield Text(text=say("leave"))
        elif recipe is None:
            yield Text(text=say("settings-gone", profile=literal(best.profile)))
        elif each.cell_digest in patch.missing:
            yield from _by_hand(each, patch.missing[each.cell_digest], say)
        for conflict in against:
            if conflict.cell is each:
                yield Text(
                    text=say(
                        "guarded" if conflict.guard else "not-guarded",
                        cell=name,
                        other=called[conflict.other.cell_digest],
                        names=literals(conflict.settings),
                        variables=literals(conflict.variables),
                    )
                )
        yield from _deployed_since(each, name, say)
        if best is not None:
            yield from _shown_for(each, say)


def _shown_for(covered: Covered, say: Say) -> Iterator[Block]:
    """Say for which configurations of the model the recipe is shown, and where it does harm."""
    cell = literal(covered.cell.label)
    if not covered.elsewhere:
        yield Text(text=say("measured-on", cell=cell))
        return
    kinds: dict[str, list[Elsewhere]] = {
        "holds-elsewhere": [],
        "harmful-elsewhere": [],
        "untold-elsewhere": [],
    }
    for each in covered.elsewhere:
        name = "holds" if each.holds else "harmful" if each.is_harmful else "untold"
        kinds[f"{name}-elsewhere"].append(each)
    for phrase, found in kinds.items():
        if found:
            tags = literals([each.config_tag for each in found])
            files = literals([f"{each.sweep}/gate.md" for each in found])
            yield Text(text=say(phrase, cell=cell, tags=tags, files=files))
    yield Text(text=say("other-parallelism"))


def _by_hand(covered: Covered, reason: str, say: Say) -> Iterator[Block]:
    """Say what a patch cannot: the lines to append, the keys to give."""
    recipe = covered.recipe
    yield Text(text=say("no-patch", why=reason))
    lines = recipe_lines(covered)
    if lines:
        path = f"configs/{covered.cell.model_tag}.env.sh"
        yield Text(text=say("append", path=literal(path)))
        yield Code(text=lines, language="bash")
    if recipe is not None and recipe.overrides:
        yield Text(text=say("trainer"))
        shown = without_secrets(recipe.overrides)
        yield Code(text="\n".join(f"{key}={value}" for key, value in shown.items()))


def _deployed_since(covered: Covered, name: str, say: Say) -> Iterator[Block]:
    for earlier in covered.earlier:
        if earlier.best is not None and covered.deploys(earlier):
            yield Text(
                text=say(
                    "deployed-since",
                    cell=name,
                    before=rate(earlier.baseline.tgs),
                    promised=rate(earlier.best.tgs),
                    now=rate(covered.conclusion.baseline.tgs),
                )
            )


def _appendix(cells: Sequence[Covered], say: Say) -> Block:
    called = names(cells)
    rows = [
        row
        for each in cells
        for row in job_rows(
            each.history,
            remarks=each.remarks,
            cell=called[each.cell_digest] if len(cells) > 1 else "",
        )
    ]
    return jobs_table(rows, has_cells=len(cells) > 1) or Text(text=say("no-jobs"))
