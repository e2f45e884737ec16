"""Export the figures of a report to Weights & Biases by its client: a run for each arm.

WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY and other variables of the client say where the runs go.
The project is WANDB_PROJECT, or else the model tag. With WANDB_MODE=offline the runs stay in
`wandb/` until `wandb sync` uploads them. If a study is reported again after more jobs, its runs are
updated. The client is an optional dependency that takes seconds to import, so it is imported only
when an export needs it. It is set to collect nothing by itself: not the command line, git, the
console or the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.report.exports import Export, Exported, arm_row, figures, study_row

_WITHOUT_SERVER = ("offline", "dryrun", "disabled")
_MOST_NAME_CHARS = 120  # the most characters of a project's name that W&B accepts
_SUMMARY = ("verdict", "reasons", "job_ids", "complete")  # columns of an arm in a run's summary
_COLLECT_NOTHING = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
}


class WandbExport(Export):
    """The format `wandb`: runs in Weights & Biases, and a file with their addresses."""

    name = "wandb"
    title = "W&B"
    remedy = "set WANDB_API_KEY, or WANDB_MODE=offline and run `wandb sync` later"

    def connect(self) -> None:
        """Log in, unless the mode needs no server."""
        import wandb

        if not (_mode() in _WITHOUT_SERVER or wandb.login(prompt=False, verify=False)):
            raise RuntimeError("the client has no key")

    def log(self, report: Exported, *, key: str) -> Json:
        """Log a run for each arm, all in one group."""
        name = os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]+", "-", report.cell.model_tag)
        place = {
            "project": name[:_MOST_NAME_CHARS],
            "group": f"{report.sweep} {report.study} {report.cell_digest}"[:_MOST_NAME_CHARS],
        }
        arms = {verdict.arm: _log(report, verdict, place, key=key) for verdict in report.arms}
        return {"mode": _mode(), **place, "arms": arms}


def _mode() -> str:
    return os.environ.get("WANDB_MODE", "online").lower()


def _log(
    report: Exported, verdict: Verdict, place: Mapping[str, str], *, key: str
) -> dict[str, str]:
    """Log an arm as a run; return its id, and its folder if no server has it.

    `key` is the same for every report of a ledger, and differs between ledgers.
    """
    import wandb

    best, row = report.conclusion.winner, arm_row(report, verdict)
    with wandb.init(
        **place,
        job_type="reference" if report.is_reference(verdict.arm) else "arm",
        name=verdict.arm,
        id=hashlib.sha256(f"{key} {verdict.arm}".encode()).hexdigest()[:32],
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(**_COLLECT_NOTHING),
    ) as run:
        config = {**study_row(report), "arm": verdict.arm, "settings": row["settings"]}
        run.config.update(config, allow_val_change=True)
        run.summary.update(
            {
                **figures(row),
                **{name: row[name] for name in _SUMMARY},
                "is_winner": best is not None and best.arm == verdict.arm,
            }
        )
        address = {"run_id": run.id}
        if run.offline:
            address["folder"] = os.path.relpath(Path(run.dir).parent)
        return address
