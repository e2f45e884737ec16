"""The figures of a report in MLflow, by MLflow's own client: a run for the study, one for each arm.

Where the runs go is the client's own affair: MLFLOW_TRACKING_URI and its other variables say it.
The experiment is MLFLOW_EXPERIMENT_NAME, or the model tag. A study that is reported again, because
more of it was measured, goes on with its runs. MLflow is an extra, imported where it is asked for:
that takes seconds.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.report.exports import Export, Exported, figures

if TYPE_CHECKING:
    from mlflow import MlflowClient

_KEY = "xlatune.key"  # the tag that finds the runs of a study again
_MOST_TAG = 5000  # characters that every release takes


class MlflowExport(Export):
    """The format `mlflow`: runs in MLflow, and a file that says where they are."""

    def check(self) -> None:
        """Find out whether MLflow is installed and can use the store that is named.

        Raises:
            ConfigError: it is not, or it cannot.
        """
        try:
            _client()
        except ModuleNotFoundError:
            raise ConfigError(
                "export mlflow: MLflow is not installed here; install pytest-xlatune[mlflow], or "
                "take mlflow out of --xlatune-export"
            ) from None
        except Exception as error:  # noqa: BLE001 - any fault of the client means the same
            raise ConfigError(
                f"export mlflow: MLflow's client cannot be used ({_said(error)}); set "
                "MLFLOW_TRACKING_URI to the address of a server, or take mlflow out of "
                "--xlatune-export"
            ) from None

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:
        """Log a report; return where its runs are.

        Raises:
            LedgerError: MLflow does not take them.
        """
        try:
            with warnings.catch_warnings():  # a pytest may turn the client's into errors
                warnings.simplefilter("ignore")
                return {".mlflow.json": _log(report, _client(), key=key)}
        except Exception as error:  # noqa: BLE001 - as above
            raise LedgerError(
                f"MLflow did not take the figures: {_said(error)}; the reports are complete: mend "
                "the cause, then run `xlatune report --export mlflow`"
            ) from None


def _client() -> MlflowClient:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        return MlflowClient()


def _said(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _log(report: Exported, client: MlflowClient, *, key: str) -> str:
    """Log everything; return, as JSON text, where it is.

    `key` is the same for each report of one ledger and of no other.
    """
    at_ms = round(datetime.fromisoformat(report.written).timestamp() * 1000)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or report.cell.model_tag
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)

    def run(key: str, tags: Mapping[str, str]) -> str:
        """Return the id of the run with this key, made where there is none, with these tags."""
        quoted = key.replace("'", "")  # the language of the filter has no way to escape it
        held = client.search_runs(
            [experiment], filter_string=f"tags.`{_KEY}` = '{quoted}'", max_results=1
        )
        each = held[0] if held else client.create_run(experiment, at_ms, {_KEY: quoted})
        for tag, value in tags.items():
            client.set_tag(each.info.run_id, tag, value[:_MOST_TAG])
        return str(each.info.run_id)

    best = report.conclusion.winner
    study = run(
        key,
        {
            "mlflow.runName": f"{report.sweep} {report.study}",
            "xlatune.sweep": report.sweep,
            "xlatune.study": report.study,
            "xlatune.cell": report.cell.label,
            "xlatune.cell_digest": report.cell_digest,
            "xlatune.complete": str(report.conclusion.complete).lower(),
            "xlatune.written": report.written,
            "xlatune.winner": best.arm if best else "",
        },
    )
    arms = {}
    for verdict in report.arms:
        arms[verdict.arm] = own = run(
            f"{key} {verdict.arm}",
            {
                "mlflow.runName": verdict.arm,
                "mlflow.parentRunId": study,
                "xlatune.arm": verdict.arm,
                "xlatune.verdict": str(verdict.kind),
                "xlatune.is_reference": str(report.is_reference(verdict.arm)).lower(),
                "xlatune.settings": report.settings.get(verdict.arm, ""),
                "xlatune.reasons": "; ".join(map(sentence, verdict.reasons)),
                "xlatune.jobs": " ".join(verdict.job_ids),
            },
        )
        before = client.get_run(own).data.metrics
        for metric, value in figures(verdict).items():
            # a report may be written twice. Of one step MLflow shows the latest time, and of one
            # time the largest value: so the time is that of the logging, in milliseconds
            if before.get(metric) != value:
                now_ms = round(time.time() * 1000)
                client.log_metric(own, metric, value, now_ms, len(report.trials))
    if report.conclusion.complete:
        for each in (*arms.values(), study):
            client.set_terminated(each, end_time=at_ms)
    kept = {
        "schema": 1,
        "tracking_uri": client.tracking_uri,
        "experiment_id": experiment,
        "run_id": study,
        "arms": arms,
    }
    return json.dumps(kept, indent=2, sort_keys=True) + "\n"
