"""A ledger concludes again to the same; a calibration is kept and is the prior of what follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.tasks.reports import publish
from pytest_xlatune.tasks.runs import NotCalibrated, calibrate
from tests.helpers import scripted
from tests.helpers.quick_trials import QuickExecutor
from tests.helpers.scripted import campaign_of
from tests.helpers.tables import rows


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    """Run a whole pretend sweep; the folder of its ledger."""
    each = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(each)
    return tmp_path / "pretend" / "cell"


def test_a_ledger_concludes_to_what_its_reports_say(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(swept, tmp_path / "reports")
    published = (tmp_path / "reports" / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    for path in (swept, swept / LEDGER):
        assert main(["report", str(path), "--json"]) == 0
        assert capsys.readouterr().out == published
    assert main(["report", str(swept), "--no-files"]) == 0
    assert "FASTER" in capsys.readouterr().out
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes((swept / LEDGER).read_bytes())
    main(["report", str(copy), "--json"])
    assert capsys.readouterr().out == published


@rows(
    "name, words",
    {
        "nothing": ("gone", "gone does not exist"),
        "an empty file": ("empty.jsonl", "is no ledger of a sweep: it is empty"),
        "the work directory": (".", "name one of the cells below it"),
    },
)
def test_what_is_no_ledger_is_refused_and_says_what_to_name(
    swept: Path, tmp_path: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").touch()
    assert main(["report", str(tmp_path / name)]) == 3
    said = capsys.readouterr().err
    assert words in said
    assert (str(swept) in said) is (name in (".", "pretend"))


def test_a_calibration_without_scores_says_why(tmp_path: Path) -> None:
    """One job of each slot has a score, and a second one of the first."""
    limit = Outcome(state=State.TIMEOUT, reason="DUE TO TIME LIMIT")

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if int(trial_id.partition("calibration.")[2].partition("-")[0]) < 7:
            return scripted.ordinary(trial_id, attempt)
        return scripted.log(steps=2), limit

    slots = tuple((f"node{at}",) for at in range(6))
    cell = replace(scripted.CELL, nodelist=slots[0])
    study = CalibrationStudy(cell=cell, jobs=12, slots=slots)
    executor = scripted.FakeExecutor(script)
    made = campaign_of(tmp_path / "pretend" / "cell", executor, study, session="later")
    made.open()
    scripted.run(made)
    with pytest.raises(NotCalibrated, match=r"7 jobs .* 8 are needed"):
        calibrate(made, lambda: None)


def test_calibrate_as_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_xlatune.executors.local.LocalExecutor", QuickExecutor)
    monkeypatch.setattr("pytest_xlatune.campaign.TURN_S", 0.0)
    monkeypatch.chdir(tmp_path)
    script = (
        "import sys\n"
        "for s in range(12):\n"
        "    t = 0.5 + 0.001 * (len(sys.argv[1]) + s % 3 + hash(sys.argv[1]) % 7)\n"
        "    print(f'completed step: {s}, seconds: {t:.6f}, TFLOP/s/device: 0.1, '\n"
        "          f'Tokens/s/device: {512 / t:.3f}, total_weights: 512, loss: 7.1')\n"
    )
    (tmp_path / "trainer.py").write_text(script, encoding="utf-8")
    (tmp_path / "test_pretend.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_xlatune import *\n"
        "SWEEP = Sweep(name='pretend',\n"
        "    cell=CellSettings(model_tag='pretend', parallelism='FSDP=4',\n"
        "        protocol=Protocol(steps=12)),\n"
        "    launcher=CommandLauncher(argv=(sys.executable,\n"
        "        str(Path(__file__).parent / 'trainer.py'), '{trial}')),\n"
        "    profiles=(profile('x', env={'A': '1'}),), design=DesignSettings(budget=60),\n"
        "    site=SiteSettings(executor='local'))\n",
        encoding="utf-8",
    )
    assert main(["plan", "test_pretend.py"]) == 0
    assert "0.6 % is assumed" in " ".join(capsys.readouterr().out.split())
    assert main(["calibrate", "test_pretend.py", "--jobs", "4"]) == 0
    shown = capsys.readouterr().out
    assert "job noise:" in shown
    assert "65 jobs" in shown
    (path,) = (tmp_path / ".xlatune").glob("pretend/*/calibration.json")
    assert "submitted " in (path.parent / "xlatune.log").read_text(encoding="utf-8")
    sigma = json.loads(path.read_text(encoding="utf-8"))["noise"]["sigma_job"]
    assert main(["plan", "test_pretend.py"]) == 0
    said = capsys.readouterr().out
    assert f"{100 * sigma:.1f} % job noise" in said
    assert "is assumed" not in said
    assert main(["calibrate", "test_pretend.py", "--jobs", "3"]) == 2
    path.write_text("{", encoding="utf-8")
    assert main(["plan", "test_pretend.py"]) == 3
    assert "calibrate again" in capsys.readouterr().err
