"""The export to MLflow, read back by MLflow's own client from a store of files: tox -e mlflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.tasks.reports import publish
from tests.helpers.scripted import FakeExecutor, campaign, run

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: tox -e mlflow has it")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the client, which the tests use too


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/runs")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return mlflow.MlflowClient()


def test_the_figures_are_read_back_and_a_report_written_again_goes_on(
    tmp_path: Path, store: Any
) -> None:
    held = campaign(tmp_path, FakeExecutor())
    for _ in range(4):
        held.turn()
    reports = tmp_path / "reports"
    check_exports(("mlflow",))
    publish(held.folder, reports, exports=("mlflow",))
    experiment = store.get_experiment_by_name("pretend").experiment_id
    begun = {each.info.run_id: each.info.status for each in store.search_runs([experiment])}
    assert set(begun.values()) == {"RUNNING"}
    run(held)
    for _ in range(2):
        written = publish(held.folder, reports, exports=("mlflow",))
    kept = json.loads(written[-1].read_text(encoding="utf-8"))
    assert written[-1].name == "leaderboard.mlflow.json"
    assert kept["experiment_id"] == experiment
    runs = {each.info.run_id: each for each in store.search_runs([experiment])}
    assert set(runs) == {kept["run_id"], *kept["arms"].values()}
    assert begun.keys() <= runs.keys()
    text = (reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    told = json.loads(text)["conclusion"]
    verdicts = {each["arm"]: each for each in (*told["verdicts"], told["reference"])}
    assert set(kept["arms"]) == set(verdicts)
    for arm, run_id in kept["arms"].items():
        found, verdict = runs[run_id], verdicts[arm]
        assert found.info.status == "FINISHED"
        assert found.data.tags["mlflow.parentRunId"] == kept["run_id"]
        assert found.data.tags["xlatune.verdict"] == verdict["kind"]
        low, high = verdict["ci95"] or (None, None)
        names = ("tgs", "step_s", "delta", "mde80", "n")
        figures = {name: verdict[name] for name in names} | {"ci95_low": low, "ci95_high": high}
        present = {name: value for name, value in figures.items() if value is not None}
        assert found.data.metrics == present
    assert runs[kept["run_id"]].data.tags["xlatune.winner"] == "fast"
    first, second = (each.step for each in store.get_metric_history(kept["arms"]["fast"], "n"))
    assert first < second, "a figure stands at its number of trials"


def test_a_server_that_is_away_costs_no_report(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        check_exports(("mlflow",))
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pass-word-1@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    reports = tmp_path / "reports"
    with pytest.raises(LedgerError, match="MLflow did not accept") as error:
        publish(held.folder, reports, exports=("csv", "mlflow"))
    assert "pass-word-1" not in str(error.value)
    assert (reports / "pretend" / "leaderboard.arms.csv").exists()
    argv = ["report", str(held.folder), "--reports", str(reports), "--export", "mlflow"]
    assert main(argv) == 3
    assert "reports are complete" in capsys.readouterr().err
