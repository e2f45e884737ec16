"""What a sweep would run, and what that could see: shown before anything is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_xlatune.cells import Cell, LaunchSpec, Stage, Trial
from pytest_xlatune.hidden import hide, secrets_of, without_secrets
from pytest_xlatune.profiles import Profile
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Code,
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
)

_TRIAL_COLUMNS = (
    Column(title="#", align="right"),
    Column(title="stage"),
    Column(title="trial", wrap=True),
    Column(title="flags", wrap=True),
)


def plan(
    *,
    cell: Cell,
    trials: Sequence[Trial],
    launches: Sequence[tuple[Profile, LaunchSpec]],
    capacity: Sequence[str],
    scripts: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the plan as a document.

    Args:
        cell: what is held fixed.
        trials: what runs first, in order; a confirmation follows from what they show.
        launches: how each profile would be started.
        capacity: what the plan can see, one sentence each.
        scripts: title and text of submission scripts.
    """
    rows = tuple(
        (str(number), _stage(trial), literal(trial.id), literal(trial.profile.shown_text))
        for number, trial in enumerate(trials, start=1)
    )
    started = tuple(block for each in launches for block in _launch(*each, cell=cell))
    written = tuple(
        block
        for title, text in scripts
        for block in (Text(text=title), Code(text=text, language="bash"))
    )
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {', '.join(cell.nodelist) or 'this machine or as given'}",),
        sections=(
            Section(title="What it can see", blocks=(Bullets(items=tuple(capacity)),)),
            Section(title="Trials", blocks=(Table(columns=_TRIAL_COLUMNS, rows=rows),)),
            Section(title="Commands", blocks=started),
            *((Section(title="Submission scripts", blocks=written),) if written else ()),
        ),
    )


def _stage(trial: Trial) -> str:
    return f"{trial.group}" if trial.stage is Stage.SCREEN else str(trial.stage)


def _launch(profile: Profile, spec: LaunchSpec, *, cell: Cell) -> tuple[Block, ...]:
    env = "".join(
        f"{name}={shlex.quote(value)} \\\n" for name, value in without_secrets(spec.env).items()
    )
    files = "".join(f"\n# {name}\n{text}" for name, text in spec.files.items())
    # a container has what is deployed in a file
    secrets = secrets_of(spec.env, cell.deployed, profile.env, profile.overrides)
    command = hide(f"{env}{shlex.join(spec.argv)}{files}", secrets)
    return (Text(text=literal(profile.id)), Code(text=command, language="bash"))
