"""The figures of a report in MLflow, by MLflow's own client: a run for the study, one for each arm.

Where the runs go is the client's own affair: MLFLOW_TRACKING_URI and its other variables say it.
The experiment is MLFLOW_EXPERIMENT_NAME, or the model tag. A study that is reported again, because
more of it was measured, goes on with its runs. MLflow is an extra, imported where it is asked for:
that takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import TrialResult, Verdict
from pytest_xlatune.report.exports import Export, Exported, figure_of, figures, slug

if TYPE_CHECKING:
    from mlflow import MlflowClient

_KEY = "xlatune.key"  # the tag that finds the runs of a study again
_MOST_TAG = 5000  # characters that every release takes
_MOST_BATCH = 1000  # metrics in one request
_PARENT, _NAME = "mlflow.parentRunId", "mlflow.runName"


class MlflowExport(Export):
    """The format `mlflow`: runs in MLflow, and a file that says where they are."""

    def check(self) -> None:
        """Find out whether MLflow is installed and can use the store that is named.

        Raises:
            ConfigError: it is not, or it cannot.
        """
        _check()

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:
        """Log a report; return where its runs are.

        Raises:
            LedgerError: MLflow does not take them.
        """
        return {".mlflow.json": log_to_mlflow(report, key=key)}


def _check() -> None:
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(
            "export mlflow: MLflow is not installed here; install pytest-xlatune[mlflow], or take "
            "mlflow out of --xlatune-export"
        )
    with _quiet():
        try:
            _client()
        except Exception as error:  # noqa: BLE001 - any fault of the client means the same
            raise ConfigError(
                f"export mlflow: MLflow's client cannot be used ({_said(error)}); set "
                "MLFLOW_TRACKING_URI to the address of a server, or take mlflow out of "
                "--xlatune-export"
            ) from None


def log_to_mlflow(report: Exported, *, key: str) -> str:
    """Log a report; return, as JSON text, where its runs are.

    `key` is the same for each report of one ledger and of no other.

    Raises:
        LedgerError: MLflow does not take them.
    """
    with _quiet():
        try:
            return _Runs(report, _client(), key=key).log()
        except Exception as error:  # noqa: BLE001 - as above
            raise LedgerError(
                f"MLflow did not take the figures: {_said(error)}; the reports are complete: mend "
                "the cause, then run `xlatune report --export mlflow`"
            ) from None


def _client() -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient()


def _said(error: Exception) -> str:
    """Return the first line of an error; an address in it may hold a password."""
    lines = str(error).strip().splitlines()
    return hide_quoted(lines[0] if lines else type(error).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the client's warnings from a pytest that turns them into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Runs:
    """The runs of one report."""

    def __init__(self, report: Exported, client: MlflowClient, *, key: str) -> None:
        self._report, self._client, self._key = report, client, key
        self._at_ms = round(datetime.fromisoformat(report.written).timestamp() * 1000)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or report.cell.model_tag
        found = client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else client.create_experiment(name)

    def log(self) -> str:
        """Log everything; return the JSON text of where it is."""
        report = self._report
        best = report.conclusion.winner
        study = self._run(
            self._key,
            name=f"{report.sweep} {report.study}",
            tags={
                "xlatune.sweep": report.sweep,
                "xlatune.study": report.study,
                "xlatune.cell": report.cell.label,
                "xlatune.cell_digest": report.cell_digest,
                "xlatune.complete": str(report.conclusion.complete).lower(),
                "xlatune.written": report.written,
                "xlatune.winner": best.arm if best else "",
            },
        )
        arms = {each.arm: self._arm(study, each) for each in report.arms}
        if report.conclusion.complete:
            for run in (*arms.values(), study):
                self._client.set_terminated(run, end_time=self._at_ms)
        kept = {
            "schema": 1,
            "tracking_uri": hide_quoted(self._client.tracking_uri),
            "experiment_id": self._experiment,
            "run_id": study,
            "arms": arms,
        }
        return json.dumps(kept, indent=2, sort_keys=True) + "\n"

    def _arm(self, study: str, verdict: Verdict) -> str:
        report = self._report
        run = self._run(
            f"{self._key} {verdict.arm}",
            name=verdict.arm,
            tags={
                _PARENT: study,
                "xlatune.arm": verdict.arm,
                "xlatune.verdict": str(verdict.kind),
                "xlatune.is_reference": str(report.is_reference(verdict.arm)).lower(),
                "xlatune.settings": report.settings.get(verdict.arm, ""),
                "xlatune.reasons": "; ".join(map(sentence, verdict.reasons)),
                "xlatune.jobs": " ".join(verdict.job_ids),
            },
        )
        self._log(run, figures(verdict))
        self._log_trials(run, verdict.arm)
        return run

    def _run(self, key: str, *, name: str, tags: Mapping[str, str]) -> str:
        """Return the id of the run with this key, made where there is none, with these tags."""
        quoted = key.replace("'", "")  # the language of the filter has no way to escape it
        found = self._client.search_runs(
            [self._experiment], filter_string=f"tags.`{_KEY}` = '{quoted}'", max_results=1
        )
        shown = {key: value[:_MOST_TAG] for key, value in tags.items()}
        if found:
            run: str = found[0].info.run_id
            for tag, value in shown.items():
                self._client.set_tag(run, tag, value)
            return run
        made = self._client.create_run(
            self._experiment,
            start_time=self._at_ms,
            tags={**shown, _KEY: quoted, _NAME: name},
        )
        made_id: str = made.info.run_id
        return made_id

    def _log(self, run: str, found: Mapping[str, float]) -> None:
        """Log figures where they differ from what the run has: a report may be written twice.

        The step is the number of trials that the figures come from. MLflow takes the latest of
        one step, and the largest of one time: so the time is that of the logging, in
        milliseconds, not that of the report, in seconds.
        """
        before = self._client.get_run(run).data.metrics
        changed = {name: value for name, value in found.items() if before.get(name) != value}
        step, now_ms = len(self._report.trials), round(time.time() * 1000)
        self._batch(run, [(name, value, now_ms, step) for name, value in changed.items()])

    def _log_trials(self, run: str, arm: str) -> None:
        """Log the figure of each trial of an arm as a course: the number of the trial is the step.

        Trials are in the order in which they ended, so that an earlier report has the first ones.
        """
        own = [result for _, result in self._report.trials if result.trial.arm == arm]
        scored = [
            (result, figure)
            for result in sorted(own, key=_ended)
            if result.score is not None and (figure := figure_of(result.score)) is not None
        ]
        metrics = []
        for name in {f"trial-{slug(figure.metric)}" for _, figure in scored}:
            had = {each.step: each.value for each in self._client.get_metric_history(run, name)}
            metrics += [
                (name, figure.value, self._ended_ms(result), step)
                for step, (result, figure) in enumerate(scored)
                if f"trial-{slug(figure.metric)}" == name and had.get(step) != figure.value
            ]
        self._batch(run, metrics)

    def _ended_ms(self, result: TrialResult) -> int:
        end_s = result.outcome.end_s if result.outcome else None
        return self._at_ms if end_s is None else round(end_s * 1000)

    def _batch(self, run: str, metrics: list[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        made: list[Any] = [Metric(*each) for each in metrics]
        for at in range(0, len(made), _MOST_BATCH):
            self._client.log_batch(run, metrics=made[at : at + _MOST_BATCH])


def _ended(result: TrialResult) -> float:
    end_s = result.outcome.end_s if result.outcome else None
    return end_s if end_s is not None else math.inf
