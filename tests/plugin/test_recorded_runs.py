"""What the figures of a sweep rest on is recorded of every trial, and what changes is told."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors.folder import read_outcomes, with_probe, write_spec
from pytest_xlatune.launchers.command import PROBE_FILE
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers.probe_environment import code_digest
from tests.helpers.words import in_words
from tests.plugin.conftest import PROFILES, SWEEP_FILE, Folder

# the packages of the trainer: an upgrade is another folder's name
SITE_OF = '"PYTHONPATH": str(Path(__file__).parent / "site"), '
PRETEND = SWEEP_FILE.replace("deployed={", "deployed={" + SITE_OF)


def install(folder: Folder, **versions: str) -> None:
    """Let the trainer's interpreter find these packages first."""
    site = folder.path / "site"
    for old in site.glob("*.dist-info"):
        old.rmdir()
    for name, version in versions.items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)


def record(folder: Folder) -> dict[str, Any]:
    found: dict[str, Any] = folder.json("reports/pretend/leaderboard.json")["record"]
    return found


@pytest.mark.parametrize(
    "run", ["run", pytest.param("run_with_workers", marks=pytest.mark.part("sweeps"))]
)
def test_an_upgrade_and_an_edit_of_the_trainer_begin_epochs_and_are_told(
    folder: Folder, run: str
) -> None:
    folder.write(text=PRETEND)
    install(folder, jax="0.9.0", jaxlib="0.9.0")
    folder.run("-m", "wave1")
    more = PROFILES + '        profile("later", "--xla_other=2"),\n'
    folder.write(text=PRETEND, profiles=more)
    folder.run("-m", "wave2")
    assert not folder.events("epoch-began"), "an edit of the sweep file is no change"
    assert {result["epoch"] for result in folder.results} == {0}
    assert record(folder)["nodes"][0]["packages"]["jaxlib"] == "0.9.0"

    install(folder, jax="0.9.0", jaxlib="0.10.2")
    done = getattr(folder, run)("-m", "confirm")
    (began,) = folder.events("epoch-began")
    upgrade = {"name": "jaxlib", "was": "0.9.0", "now": "0.10.2"}
    assert [change["values"] for change in began["why"]["values"]["changes"]] == [upgrade]
    assert {result["epoch"] for result in folder.results} == {0, 1}
    changed = f"on {began['nodes'][0]} changed: jaxlib 0.9.0 -> 0.10.2"
    assert in_words(record(folder)["changes"]) == changed
    assert f"on the way: {changed}:" in folder.read("reports/pretend-tuning.md").replace("\\", "")
    assert "a new epoch: on" in done.stdout.str()

    folder.write(text=PRETEND, profiles=f'{more}        profile("last", "--xla_other=3"),\n')
    folder.edit("trainer.py", ("", "# a change\n"))
    folder.run("-m", "wave2")
    (*_, edited) = folder.events("epoch-began")
    changes = edited["why"]["values"]["changes"]
    assert [change["values"] for change in changes] == [{"folder": str(folder.path)}]


@pytest.mark.parametrize(
    ("trainer", "edited", "is_seen"),
    [
        pytest.param("import model\n", "train.py", True, id="the script"),
        pytest.param("import model\n", "model.py", True, id="a module that it imports"),
        pytest.param("import parts.one\n", "parts/deep/two.py", True, id="a package whole"),
        pytest.param("import model\n", "plots.py", False, id="a file beside it"),
        pytest.param("import subprocess\n", "plots.py", True, id="it may start another"),
        pytest.param("import model\nmodel.\n", "plots.py", True, id="no Python that we can read"),
    ],
)
def test_the_files_that_a_trainer_may_import_are_its_code(
    tmp_path: Path, trainer: str, edited: str, is_seen: bool
) -> None:
    """An engineer draws a plot beside the trainer while fifty jobs run: no epoch begins."""
    texts = {"train.py": trainer, "model.py": "import ops\n", "ops.py": "", "plots.py": "x = 1\n"}
    texts |= {"parts/__init__.py": "", "parts/one.py": "", "parts/deep/two.py": ""}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    script = str(tmp_path / "train.py")
    before = code_digest(str(tmp_path), script)
    (tmp_path / edited).write_text(f"{texts[edited]}# edited\n", encoding="utf-8")
    assert (code_digest(str(tmp_path), script) != before) == is_seen


# the interpreter of the trainer runs this before anything else, where the probe asks it
HANGS = """\
import sys, time
if any("xlatune_environment" in each for each in sys.orig_argv):
    time.sleep(600)
"""


def test_a_probe_that_does_not_answer_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGS, encoding="utf-8")
    folder, trainer = tmp_path / "1", tmp_path / "train.py"
    trainer.touch()
    folder.mkdir()
    argv = (sys.executable, str(trainer))
    probe = (sys.executable, f"{{xlatune.folder}}/{PROBE_FILE}", "trainer", str(trainer))
    spec = LaunchSpec(argv=argv, env={"PYTHONPATH": str(tmp_path)}, probe=probe)
    write_spec(folder, with_probe(spec, devices=False))
    run = "from pytest_xlatune.executors import payload; payload.PROBE_S = 6.0; "
    code = f"{run}payload.run({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert read_outcomes(folder)[0].state is State.COMPLETED
    told = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    assert told["node"]["kernel"] == platform.release()
    assert "no answer in time" in told["problems"][0]
