"""A hopeless screen that ends early: told, ranked, never retried, and off by default."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.quick_trials import QuickExecutor
from tests.helpers.waiting import until

SCREEN = ("-m", "wave1 or wave2 or wave3")
ON = (*SCREEN, "--xlatune-early-end", "on")
HOPELESS, RIVALS = "hopeless", ("r1", "r2", "fast")
PROFILES = "".join(
    f'        profile("{name}", "--xla_{name}=1"),\n' for name in (*RIVALS, "hopeless")
)
# a slow trial goes no further than the first steps of its window until the file `go` is there, or
# a minute has passed
HOLDS = """\
    for _ in range(3000 if step == 11 and "--xla_hopeless" in flags else 0):
        if not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            time.sleep(0.02)
"""
STEP = "for step in range(int(sys.argv[1])):\n"


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    # waves run in their order: the hopeless profile comes last, when the others are screened
    text = sweep_file.replace("Protocol(steps=12)", "Protocol(steps=20)")
    text = text.replace("screen_baselines=2", "screen_baselines=1").replace("n >= 2", "n >= 1")
    text = text.replace("        budget=40,\n", "        budget=40,\n        sigma_prior=0.004,\n")
    text = text.replace(
        "@pytest.mark.confirm",
        "@pytest.mark.wave3\ndef test_later(measure, profile):\n"
        "    assert measure(profile).not_slower\n\n\n@pytest.mark.confirm",
    )
    profiles = PROFILES.replace('"--xla_hopeless=1"', '"--xla_hopeless=1", wave="wave3"')
    folder.write(profiles=profiles, text=text)
    trainer = folder.path / "trainer.py"
    known = (
        trainer.read_text("utf-8").replace("speed = 1000.0\n", SPEED).replace(STEP, STEP + HOLDS)
    )
    trainer.write_text(known, encoding="utf-8")
    return folder


SPEED = 'speed = 700.0 if "--xla_hopeless" in flags else 1000.0\n'


def results(folder: Any) -> dict[str, dict[str, Any]]:
    """Arm -> the result of its trial of the screen."""
    found = (each["result"] for each in folder.events("trial-ended"))
    return {each["trial"]["arm"]: each for each in found if not each["trial"]["block"]}


def test_a_hopeless_screen_ends_early_and_ranks(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickExecutor, "beside", HOPELESS)
    done = project.run(*ON)
    done.assert_outcomes(passed=1 + 4)
    (cut,) = project.events("attempt-cut-short")
    assert cut["behind"]["step"] == 10
    assert cut["behind"]["below"] > cut["behind"]["bound"] > 0
    found = results(project)
    ended = found[HOPELESS]
    assert (ended["status"], ended["outcome"]["state"]) == ("measured", "cancelled")
    assert ended["score"]["window"] == [5, 10]
    assert ended["score"]["tgs"] == pytest.approx(700, rel=0.01)
    assert "ended-early" in ended["score"]["flags"]
    assert (ended["score"]["loss"], ended["reason"]) == (None, None)
    assert ended["findings"] == []
    assert all("ended-early" not in found[each]["score"]["flags"] for each in RIVALS)
    own = [each for each in project.submitted if each.startswith(HOPELESS)]
    assert len(own) == 1, "it is no failure, and not tried again"
    assert not [each for each in project.events("decided") if each["trial_id"] in own]

    page = project.read("reports/pretend/leaderboard.md")
    assert '"kind": "ended-early"' in project.read("reports/pretend/leaderboard.json")
    assert f"ended early, too far behind to become finalists: {HOPELESS}" in page
    document = project.read("reports/pretend-tuning.md")
    (job,) = [each for each in document.splitlines() if f"`{HOPELESS}` | screen |" in each]
    assert "| ended-early |" in job, "and not cancelled, as by a person"
    again = project.run(*ON)
    again.assert_outcomes(passed=1 + 4)
    assert len(project.submitted) == len(set(project.submitted)), "measured once, reused"


def test_off_is_the_default(project: Any) -> None:
    (project.path / "go").touch()
    project.run(*SCREEN).assert_outcomes(passed=1 + 4)
    assert project.events("attempt-cut-short") == []
    assert results(project)[HOPELESS]["score"]["window"] == [5, 19]


def test_a_session_that_is_killed_after_it_said_so_loses_nothing(project: Any) -> None:
    """The next one adopts the trial, ends it, and takes its first steps as they are."""
    command = (sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", *ON)
    with subprocess.Popen(command, cwd=project.path, stdout=subprocess.DEVNULL) as session:
        try:
            until(lambda: project.events("attempt-cut-short"))
        finally:
            session.kill()
    project.run(*ON).assert_outcomes(passed=1 + 4)
    assert len([each for each in project.submitted if each.startswith(HOPELESS)]) == 1
    assert results(project)[HOPELESS]["score"]["window"] == [5, 10]
    assert len([e for e in project.events("trial-ended") if e["result"]["trial"]["arm"] == HOPELESS
                and not e["result"]["trial"]["block"]]) == 1  # fmt: skip
