"""The figures of a report in Weights & Biases, by its own client: a run for each arm, one group.

Where the runs go is the client's own affair: WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY and its other
variables say it. The project is WANDB_PROJECT, or the model tag. With WANDB_MODE=offline they lie
in `wandb/` until `wandb sync` takes them. A study that is reported again, because more of it was
measured, goes on with its runs. The client is an extra, imported where it is asked for: that takes
seconds. It is told to collect nothing by itself: no command line, no git, no console, no machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.report.exports import Export, Exported, figures

_WITHOUT_SERVER = ("offline", "dryrun", "disabled")
_MOST_NAME = 120  # characters of a project's name that W&B takes
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
    """The format `wandb`: runs in Weights & Biases, and a file that says where they are."""

    def check(self) -> None:
        """Find out whether the client is installed and, for a server, has a key.

        Raises:
            ConfigError: it is not, or it has none.
        """
        why = "it has no key"
        try:
            with warnings.catch_warnings():  # a pytest may turn the client's into errors
                warnings.simplefilter("ignore")
                import wandb

                if _mode() in _WITHOUT_SERVER or wandb.login(prompt=False, verify=False):
                    return
        except ModuleNotFoundError:
            raise ConfigError(
                "export wandb: the client of W&B is not installed here; install "
                "pytest-xlatune[wandb], or take wandb out of --xlatune-export"
            ) from None
        except Exception as error:  # noqa: BLE001 - any fault of the client means the same
            why = _said(error)
        raise ConfigError(
            f"export wandb: the client of W&B cannot be used ({why}); set WANDB_API_KEY, or "
            "WANDB_MODE=offline and say `wandb sync` later, or take wandb out of --xlatune-export"
        )

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:
        """Log a report; return where its runs are.

        Raises:
            LedgerError: W&B does not take them.
        """
        name = os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]+", "-", report.cell.model_tag)
        place = {
            "project": name[:_MOST_NAME],
            "group": f"{report.sweep} {report.study} {report.cell_digest}"[:_MOST_NAME],
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arms = {each.arm: _log(report, each, place, key=key) for each in report.arms}
        except Exception as error:  # noqa: BLE001 - as above
            raise LedgerError(
                f"W&B did not take the figures: {_said(error)}; the reports are complete: mend "
                "the cause, then run `xlatune report --export wandb`"
            ) from None
        kept = {"schema": 1, "mode": _mode(), **place, "arms": arms}
        return {".wandb.json": json.dumps(kept, indent=2, sort_keys=True) + "\n"}


def _mode() -> str:
    return os.environ.get("WANDB_MODE", "online").lower()


def _said(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _log(
    report: Exported, verdict: Verdict, place: Mapping[str, str], *, key: str
) -> dict[str, str]:
    """Log an arm as a run; return its id, and where it lies if no server has it.

    `key` is the same for each report of one ledger and of no other.
    """
    import wandb

    best = report.conclusion.winner
    with wandb.init(
        **place,
        job_type="reference" if report.is_reference(verdict.arm) else "arm",
        name=verdict.arm,
        id=hashlib.sha256(f"{key} {verdict.arm}".encode()).hexdigest()[:32],
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(**_COLLECT_NOTHING),
    ) as run:
        config = {
            "sweep": report.sweep,
            "study": report.study,
            "cell": report.cell.label,
            "cell_digest": report.cell_digest,
            "arm": verdict.arm,
            "settings": report.settings.get(verdict.arm, ""),
        }
        run.config.update(config, allow_val_change=True)
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
        return kept
