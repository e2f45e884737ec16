"""Export the figures of a report to MLflow by MLflow's client: a run for the study and each arm.

MLFLOW_TRACKING_URI and other variables of the client say where the runs go. The experiment is
MLFLOW_EXPERIMENT_NAME, or else the model tag. If a study is reported again after more jobs, its
runs are updated. MLflow is an optional dependency that takes seconds to import, so it is imported
only when an export needs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime

from pytest_xlatune.model.record import Json
from pytest_xlatune.report.exports import Export, Exported, arm_row, figures, study_row

_KEY = "xlatune.key"  # the tag by which the runs of a study are found again
_MOST_TAG_CHARS = 5000  # the most characters of a tag that every release of MLflow accepts
# these columns of an arm become tags; its figures become metrics
_TAGS = ("arm", "verdict", "is_reference", "settings", "reasons", "job_ids")


class MlflowExport(Export):
    """The format `mlflow`: runs in MLflow, and a file with their addresses."""

    name = "mlflow"
    title = "MLflow"
    remedy = "set MLFLOW_TRACKING_URI to the address of a server"

    def connect(self) -> None:
        """Check that a client can be made for the store that the variables name."""
        from mlflow import MlflowClient

        MlflowClient()

    def log(self, report: Exported, *, key: str) -> Json:
        """Log a run for the study and one for each arm."""
        from mlflow import MlflowClient

        client = MlflowClient()
        at_ms = round(datetime.fromisoformat(report.written).timestamp() * 1000)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or report.cell.model_tag
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)

        def run(key: str, name: str, facts: Mapping[str, object], **mlflow_tags: str) -> str:
            """Find or make the run with this key, set its tags, and return its id."""
            tag_value = key.replace("'", "")  # the filter language cannot escape a quote
            former_runs = client.search_runs(
                [experiment], filter_string=f"tags.`{_KEY}` = '{tag_value}'", max_results=1
            )
            if former_runs:
                run_id = str(former_runs[0].info.run_id)
            else:
                new_run = client.create_run(experiment, at_ms, {_KEY: tag_value})
                run_id = str(new_run.info.run_id)
            mlflow_tags |= {"runName": name}
            tags = {f"mlflow.{tag}": value for tag, value in mlflow_tags.items()}
            tags |= {f"xlatune.{tag}": _text(value) for tag, value in facts.items()}
            for tag, value in tags.items():
                client.set_tag(run_id, tag, value[:_MOST_TAG_CHARS])
            return run_id

        best, is_complete = report.conclusion.winner, report.conclusion.complete
        outcome = {"complete": is_complete, "winner": best.arm if best else ""}
        study = run(key, f"{report.sweep} {report.study}", {**study_row(report), **outcome})
        arms = {}
        for verdict in report.arms:
            row = arm_row(report, verdict)
            row_tags = {name: row[name] for name in _TAGS}
            arm_run = run(f"{key} {verdict.arm}", verdict.arm, row_tags, parentRunId=study)
            arms[verdict.arm] = arm_run
            before = client.get_run(arm_run).data.metrics
            for metric, value in figures(row).items():
                # Of several values for one step, MLflow shows the one with the latest time. So a
                # value that has changed since the last report is logged with the time of now.
                if before.get(metric) != value:
                    now_ms = round(time.time() * 1000)
                    client.log_metric(arm_run, metric, value, now_ms, len(report.trials))
        if is_complete:
            for run_id in (*arms.values(), study):
                client.set_terminated(run_id, end_time=at_ms)
        return {
            "tracking_uri": client.tracking_uri,
            "experiment_id": experiment,
            "run_id": study,
            "arms": arms,
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
