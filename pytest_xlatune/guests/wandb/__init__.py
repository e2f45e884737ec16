"""The figures of a report in Weights & Biases, by its own client: a run for each arm, one group.

Where the runs go is the client's own affair: WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY and its other
variables say it. The project is WANDB_PROJECT, or the model tag. With WANDB_MODE=offline they lie
in `wandb/` until `wandb sync` takes them. A study that is reported again, because more of it was
measured, goes on with its runs. The client is an extra, imported where it is asked for: that takes
seconds. It is told to collect nothing by itself: no command line, no git, no console, no machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import TrialResult, Verdict
from pytest_xlatune.report.exports import Export, Exported, figure_of, figures, slug

if TYPE_CHECKING:
    from wandb import Run, Settings

_WITHOUT_SERVER = ("offline", "dryrun", "disabled")
_MOST_NAME = 120  # characters of a project's name that W&B takes


class WandbExport(Export):
    """The format `wandb`: runs in Weights & Biases, and a file that says where they are."""

    def check(self) -> None:
        """Find out whether the client is installed and, for a server, has a key.

        Raises:
            ConfigError: it is not, or it has none.
        """
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                "export wandb: the client of W&B is not installed here; install "
                "pytest-xlatune[wandb], or take wandb out of --xlatune-export"
            )
        if _mode() in _WITHOUT_SERVER:
            return
        with _quiet():
            try:
                import wandb

                has_key = wandb.login(prompt=False, verify=False)
                why = "it has no key"
            except Exception as error:  # noqa: BLE001 - any fault of the client means the same
                has_key, why = False, _said(error)
        if not has_key:
            raise ConfigError(
                f"export wandb: the client of W&B cannot be used ({why}); set WANDB_API_KEY, or "
                "WANDB_MODE=offline and say `wandb sync` later, or take wandb out of "
                "--xlatune-export"
            )

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:
        """Log a report; return where its runs are.

        Raises:
            LedgerError: W&B does not take them.
        """
        return {".wandb.json": log_to_wandb(report, key=key)}


def log_to_wandb(report: Exported, *, key: str) -> str:
    """Log a report; return, as JSON text, where its runs are.

    `key` is the same for each report of one ledger and of no other.

    Raises:
        LedgerError: W&B does not take them.
    """
    with _quiet():
        try:
            runs = {each.arm: _log_arm(report, each, key=key) for each in report.arms}
        except Exception as error:  # noqa: BLE001 - as above
            raise LedgerError(
                f"W&B did not take the figures: {_said(error)}; the reports are complete: mend "
                "the cause, then run `xlatune report --export wandb`"
            ) from None
    kept = {
        "schema": 1,
        "mode": _mode(),
        "project": _project(report),
        "group": _group(report),
        "arms": runs,
    }
    return json.dumps(kept, indent=2, sort_keys=True) + "\n"


def _mode() -> str:
    return os.environ.get("WANDB_MODE", "online").lower()


def _project(report: Exported) -> str:
    """Return the project; W&B takes no slash and none of `#?%:` in a name."""
    name = os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]+", "-", report.cell.model_tag)
    return name[:_MOST_NAME]


def _group(report: Exported) -> str:
    return f"{report.sweep} {report.study} {report.cell_digest}"[:_MOST_NAME]


def _said(error: Exception) -> str:
    """Return the first line of an error; an address in it may hold a password."""
    lines = str(error).strip().splitlines()
    return hide_quoted(lines[0] if lines else type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the client's warnings from a pytest that turns them into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _settings() -> Settings:
    from wandb import Settings

    return Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
    )


def _log_arm(report: Exported, verdict: Verdict, *, key: str) -> dict[str, str]:
    """Log an arm as a run; return its id, and where it lies if no server has it."""
    import wandb

    run = wandb.init(
        project=_project(report),
        group=_group(report),
        job_type="reference" if report.is_reference(verdict.arm) else "arm",
        name=verdict.arm,
        id=hashlib.sha256(f"{key} {verdict.arm}".encode()).hexdigest()[:32],
        resume="allow",
        reinit="create_new",
        settings=_settings(),
    )
    try:
        best = report.conclusion.winner
        run.config.update(
            {
                "sweep": report.sweep,
                "study": report.study,
                "cell": report.cell.label,
                "cell_digest": report.cell_digest,
                "arm": verdict.arm,
                "settings": report.settings.get(verdict.arm, ""),
            },
            allow_val_change=True,
        )
        _log_trials(report, run, verdict.arm)
        run.summary.update(
            {
                **figures(verdict),
                "verdict": str(verdict.kind),
                "reasons": "; ".join(map(sentence, verdict.reasons)),
                "jobs": " ".join(verdict.job_ids),
                "is_winner": best is not None and best.arm == verdict.arm,
                "complete": report.conclusion.complete,
                "written": report.written,
            }
        )
        kept = {"run_id": run.id}
        if run.offline:
            kept["folder"] = os.path.relpath(Path(run.dir).parent)
    finally:
        run.finish()
    return kept


def _log_trials(report: Exported, run: Run, arm: str) -> None:
    """Log the figure of each trial of an arm as a course: the number of the trial is the step.

    Trials are in the order in which they ended, so that an earlier report has the first ones, which
    a run that goes on has already.
    """
    own = [result for _, result in report.trials if result.trial.arm == arm]
    scored = [
        figure
        for result in sorted(own, key=_ended)
        if result.score is not None and (figure := figure_of(result.score)) is not None
    ]
    for step, figure in enumerate(scored):
        if step >= run.step:
            run.log({f"trial-{slug(figure.metric)}": figure.value}, step=step)


def _ended(result: TrialResult) -> float:
    end_s = result.outcome.end_s if result.outcome else None
    return end_s if end_s is not None else math.inf
