"""What is kept of a sweep and what is shown: no secret, what figures rest on, patch, recipe."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers import secrets_planted as planted
from tests.helpers.sessions import run_inside
from tests.helpers.words import in_words
from tests.plugin.conftest import PROFILES, SWEEP_FILE, Folder

RANK_ONLY = ("--xlatune-yes",)  # eight jobs decide nothing
RUN = (*RANK_ONLY, "-vv", "--showlocals", "--junitxml=junit.xml")


@pytest.fixture
def sweep(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    planted.write(folder.path, executor="local")
    monkeypatch.setenv(*planted.INHERITED)
    return folder


COMMANDS = (
    ("report", "pretend", "--reports", "again"),
    ("report", "pretend", "--json"),
    ("watch", "--once"),
    ("history",),
    ("jobs", "pretend"),
    ("plan", "test_sweep.py"),
)


def test_thirteen_kinds_of_secrets_reach_the_trainer_and_nothing_else(
    sweep: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sweep.run_apart(*RUN)
    text = said.stdout.str() + said.stderr.str()
    work = sweep.path / ".xlatune"
    for profile, has_profile in (("secretive", True), ("baseline", False)):
        (log,) = planted.logs(work, profile)
        assert f"got {planted.digest_of(has_profile=has_profile)}" in log, log
    assert "401: (hidden)" in sweep.read("junit.xml"), "what the trainer said is quoted"
    assert planted.shown_in(text) == []
    assert planted.leaks(work) == {}
    assert planted.leaks(sweep.path / "reports") == {}
    assert planted.shown_in(sweep.read("junit.xml")) == []
    assert planted.open_ones(work / "pretend") == []
    capsys.readouterr()
    for command in COMMANDS:
        status, shown = main(command), "".join(capsys.readouterr())
        assert status != 2, (command, shown)
        assert shown, command
        assert planted.shown_in(shown) == [], command
    assert planted.leaks(sweep.path / "again") == {}
    before = len(sweep.submitted)
    sweep.run(*RUN)
    assert len(sweep.submitted) <= before + 2, "what was kept without secrets is found again"


def test_no_mistake_shows_a_secret(sweep: Folder) -> None:
    """Neither an env file that fails, nor a placeholder that does not exist."""
    text = sweep.read("site.env.sh")
    sweep.put("site.env.sh", f"set -x\n{text}false_command\n")
    failed = sweep.run(*RANK_ONLY)
    assert planted.shown_in(failed.stdout.str() + failed.stderr.str()) == []
    sweep.put("site.env.sh", text)
    sweep.edit("test_sweep.py", ("plant-twelve-12", "plant-{twelve}-12"))
    refused = sweep.run(*RUN)
    shown = refused.stdout.str() + refused.stderr.str() + sweep.read("junit.xml")
    assert refused.ret == 4
    assert "the command's argument '(hidden)'" in shown
    assert "twelve" not in shown
    assert planted.shown_in(shown) == []


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


SECRET = "hush-hush-hush"
ENV_FILE = """\
# what is deployed for the pretend cell
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"
"""
WON_PROFILES = f"""\
        profile("fast", "--xla_fast=1", env={{"PRETEND_TOKEN": "{SECRET}"}}),
        profile("same", "--xla_other=1"),
"""
SITE = 'SiteSettings(executor="local", env_file=str(ENV_FILE), unseen=("PRETEND_*",))'


def test_the_recommended_patch_deploys_the_win_and_the_next_run_shows_it(folder: Folder) -> None:
    folder.write(profiles=WON_PROFILES)
    folder.edit(
        "test_sweep.py",
        ('deployed={"XLA_FLAGS": "--xla_deployed=1"}', "deployed=deployed_env(ENV_FILE)"),
        ('SiteSettings(executor="local")', SITE),
        ("SWEEP = ", 'ENV_FILE = Path(__file__).parent / "pretend.env.sh"\nSWEEP = '),
    )
    folder.put("pretend.env.sh", ENV_FILE)
    subprocess.run(["git", "init", "-q"], cwd=folder.path, check=True, timeout=240)
    assert folder.run("--xlatune-zh").ret == 0
    assert (folder.path / "reports/pretend-tuning.zh.md").is_file()
    assert "★ `fast`" in folder.read("reports/pretend-tuning.md")
    for path in (folder.path / "reports").rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text(encoding="utf-8"), path

    apply = ["git", "apply", "reports/pretend-tuning.patch"]
    subprocess.run(apply, cwd=folder.path, check=True, timeout=240)
    assert folder.run().ret == 0
    ledgers = folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    reports = [read_cell_report(path.parent) for path in ledgers]
    before, after = (report.conclusion for report in sorted(reports, key=lambda each: each.at_s))
    won = before.verdict("fast")
    now = after.baseline.tgs
    assert won is not None
    assert now == pytest.approx(won.tgs, rel=0.01), "what was measured is what is deployed"


def test_the_gate_of_a_recipe_passes_where_it_holds_and_fails_where_it_does_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.run().assert_outcomes(passed=5, xfailed=1)
    monkeypatch.chdir(folder.path)
    apply = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main(apply) == 0
    run_inside(folder.pytester, "test_sweep_recipe.py").assert_outcomes(passed=1)
    folder.edit("test_sweep_recipe.py", ("--xla_fast=1", "--xla_other=1"))
    done = run_inside(folder.pytester, "test_sweep_recipe.py")
    done.assert_outcomes(failed=1)
    assert done.ret == 1


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
def test_a_ledger_that_is_gone_is_told_and_nothing_is_measured_unasked(
    folder: Folder, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = ("-m", "wave2")
    folder.run(*rank)
    (path,) = folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    attempts = sorted(path.parent.glob("*/*/spec.json"))
    if gone == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"")
        assert main(["jobs", "--workdir", str(folder.path / ".xlatune")]) == 3
        assert "holds attempts of session" in capsys.readouterr().err

    shown = " ".join(folder.run(*rank).stdout.str().split())
    for words in ("holds attempts of session", "deleted or emptied", "--xlatune-fresh"):
        assert words in shown
    assert sorted(path.parent.glob("*/*/spec.json")) == attempts, "nothing was started"
    folder.run(*rank, "--xlatune-fresh")
    assert len(list(path.parent.glob("*/*/spec.json"))) > len(attempts)


LOST_PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("same", "--xla_same=1"),
        profile("other", "--xla_other=1"),
"""
# it hands on what is deployed, and nothing that was appended
DROPS = """export XLA_FLAGS="${{XLA_FLAGS%% --xla_deployed*}} --xla_deployed=1"; exec "$@\""""


def test_a_sweep_whose_flags_are_lost_stops_after_two_profiles(folder: Folder) -> None:
    folder.write(profiles=LOST_PROFILES)
    between = f"argv=('bash', '-c', {DROPS!r}, 'wrapper', sys.executable, "
    folder.edit("test_sweep.py", ("argv=(sys.executable, ", between))
    done = folder.run()
    stops = [event for event in folder.events("decided") if event["next"] == "stop"]
    measured = len(folder.results)
    arms = [result["trial"]["profile"]["id"] for result in folder.results]
    ran = [arm for arm in arms if arm != "baseline-deployed"]
    assert done.ret == Exit.NOT_MEASURED
    assert len(ran) == len({*ran}) == 2
    (stop,) = stops
    assert stop["cls"] == "flags-not-effective"
    for word in ran:
        assert word in in_words(stop["found"])
    done.stdout.fnmatch_lines(["*flags-not-effective*the sweep stops*"])
    # a session that is started again looks at one trial more, and stops on it
    folder.run()
    assert len(folder.results) <= measured + 2


def test_what_nothing_shows_wins_nothing_however_fast_it_is(folder: Folder) -> None:
    # one profile, so that a block needs a second baseline
    text = SWEEP_FILE.replace("block_baselines=1", "block_baselines=2")
    folder.write(profiles='        profile("ring", env={"GAIN": "1"}),\n', text=text)
    gain = "speed = 1100.0 if 'GAIN' in os.environ else 1000.0"
    folder.edit("trainer.py", ("speed = 1000.0", gain))
    done = folder.run("--junitxml=junit.xml")
    assert done.ret == Exit.NOT_MEASURED, done.stdout.str()
    board = folder.json("reports/pretend/leaderboard.json")
    (ring,) = board["conclusion"]["verdicts"]
    assert (ring["kind"], ring["effect"], ring["unproved"]) == ("FASTER", "asked", ["GAIN"])
    markdown = folder.read("reports/pretend/leaderboard.md")
    tuning, junit = folder.read("reports/pretend-tuning.md"), folder.read("junit.xml")
    for view in (markdown, tuning, done.stdout.str(), junit):
        assert "asked" in view
        assert "★" not in view
    assert "nothing shows that `GAIN` was" in markdown
    assert not (folder.path / "reports/pretend-tuning.patch").exists()
