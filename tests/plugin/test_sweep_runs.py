"""A sweep as a pytest run: bad input, the plan, the outcomes, the ledger, the reports."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.tasks.measured import measured_elsewhere
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS, BESIDE_THE_LAB
from tests.plugin.conftest import HEAD, STANDARD, SWEEP_FILE, Folder, declaring

SLURM = ("--xlatune-executor=slurm",)
AXES = '        model_tag="pretend",\n        parallelism="FSDP=4",\n'


def wave2(new: str) -> tuple[str, str]:
    return "@pytest.mark.wave2", new


COMMITS = declaring("study=Commits()", commits=True)
SECOND = "from msgspec.structs import replace\nOTHER = replace(SWEEP, name='other')\n"
# id -> (sweep file or its change, options, what the message says)
Case = tuple[str | tuple[str, str], tuple[str, ...], str]
MISTAKES: dict[str, Case] = {
    "a duplicate profile id": (
        ('"same"', '"fast"'), (),
        "*duplicate profile id 'fast' ('--xla_fast=1' and '--xla_other=1')*"),
    "a marker argument that does not exist": (
        wave2('@pytest.mark.wave2(profile=["fast"])'), (),
        "*unknown argument 'profile' in @pytest.mark.wave2*"),
    "a test of a wave that derives nothing": (
        ("(measure, profile)", "(measure, derived)"), (), "*derives nothing in wave2*"),
    "missing inputs, all of them": (
        (AXES, ""), SLURM,
        "*is missing the model*; the parallelism*; the nodes in Slurm*none is guessed*"),
    "a wave of -m that does not exist": (
        "", ("-m", "wave1 or wave22"), "*unknown marker 'wave22' in -m; did you mean 'wave2'*"),
    "a misspelt option": (
        "", ("--xlatune-budgt=3",), "ERROR: unknown option '--xlatune-budgt' *mean '*-budget'*"),
    "a marker that is nearly one": (
        ("@pytest.mark.confirm", "@pytest.mark.confrim"), (),
        "*unknown marker 'confrim' in test_finalist*did you mean 'confirm'*"),
    "a file where the reports are to lie": (
        "", ("--xlatune-reports=test_sweep.py",), "*--xlatune-reports: *test_sweep.py is a file*"),
    "settings in a pipe": ("", ("--xlatune-config=pipe",), "ERROR: pipe cannot be read*"),
    "an export whose client is not installed": (
        "", ("--xlatune-export=csv,mlflow",), "*export mlflow: the client*"),
    "standard tests of a sweep of another name": (
        f"{HEAD}MINE = SWEEP\ndel SWEEP\ntests = standard_tests(MINE)\n", (),
        "*write tests = standard_tests(SWEEP)*"),
    "two sweeps in a module": (
        f"{STANDARD}{SECOND}more = standard_tests(OTHER)\n", (), "*a module has one sweep*"),
    "standard tests of no sweep": (
        f"{HEAD}\ntests = standard_tests(None)\n", (), "*standard_tests(None): expected a Sweep*"),
    "a check of nodes without nodes": (declaring("study=Nodes()"), (), "*compares cells*"),
    "commits without a range": (COMMITS, (), "*(--xlatune-commits main..HEAD)*"),
    "a range of no commit": (
        COMMITS, ("--xlatune-commits", "main..HEAD"), "*is no range of 1 to 511*"),
    "one commit by two names": (
        COMMITS, ("--xlatune-commits", "main,HEAD"), "*names one commit twice*"),
    "a batch size that is not passed on": (
        declaring("study=BatchSize(start=4)"), (), "*does not pass per_device_batch_size*"),
}  # fmt: skip
# one that every worker finds when it collects, and one that ends the run before there are any
TWO_WORKERS = ("a duplicate profile id", "a wave of -m that does not exist")


@pytest.mark.parametrize(
    ("mistake", "run"),
    [
        *(pytest.param(each, "run", id=each) for each in MISTAKES),
        *(pytest.param(each, "run_with_workers", marks=BESIDE_THE_LAB) for each in TWO_WORKERS),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_4(folder: Folder, mistake: str, run: str) -> None:
    change, options, message = MISTAKES[mistake]
    if isinstance(change, tuple):
        folder.edit("test_sweep.py", change)
    elif change:
        folder.write(text=change)
    os.mkfifo(folder.path / "pipe")
    Repository(folder.path / "trainer").commit("one", train="")
    done = getattr(folder, run)(*options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    lines = pytest.LineMatcher([*done.outlines, *done.errlines])
    lines.fnmatch_lines([message])
    lines.no_fnmatch_line("*INTERNALERROR*")
    lines.no_fnmatch_line("*Traceback*")
    assert not folder.submitted


def test_a_folder_of_sessions_that_is_none_of_ours_is_one_message(folder: Folder) -> None:
    sessions = folder.path / ".xlatune" / "sessions"
    sessions.parent.mkdir(mode=0o700)
    sessions.symlink_to(folder.path)
    done = folder.run("-k", "baseline")
    assert done.ret == Exit.INTERNAL
    done.stdout.fnmatch_lines([f"*{sessions}*"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*secure_files.py*")


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_what_keeps_all_tests_from_running_is_said_in_full_once(folder: Folder, run: str) -> None:
    folder.edit("test_sweep.py", ('"trainer.py"', '"trainr.py"'))
    done = getattr(folder, run)()
    # where CI is set, pytest's own summary cuts nothing off and has it again
    in_full = done.stdout.str().split("= short test summary info =", maxsplit=1)[0]
    assert in_full.count("(in full at ") > 2
    assert done.parseoutcomes()["errors"] > 3
    assert getattr(folder, run)("-x").ret == pytest.ExitCode.USAGE_ERROR, "-x is no interrupt"
    assert not folder.submitted


def test_without_an_ini_file_the_ledger_lies_where_pytest_was_started(
    folder: Folder, tmp_path: Path
) -> None:
    """Values of options that exist as folders take part in what pytest calls its root directory."""
    for name in ("pytest.ini", "tox.ini", "pyproject.toml"):
        (folder.path / name).unlink(missing_ok=True)
    far, report = tmp_path / "far", Path("reports/pretend/leaderboard.md")
    far.mkdir()
    there = ("-k", "fast", "--xlatune-workdir", str(far))
    for root, more in ((folder.path, ()), (far, ("--rootdir", str(far)))):
        folder.run(*there, *more).assert_outcomes(passed=1)
        assert (root / report).exists()
        assert not (tmp_path / "reports").exists()


THRESHOLD = '"--xla_gpu_collective_permute_decomposer_threshold=1024"'
FAULTY = f"""\
        profile("fast", "--xla_fast=1"),
        profile("buffer", env={{"NCCL_BUFFSIZE": "16M"}}),
        profile("threshold", {THRESHOLD}),
        profile("control-inflated", "--xla_gpu_collective_inflation_factor=2"),
"""
CONTROL = f"""\
        profile("fast", "--xla_fast=1"),
        profile("control-threshold", {THRESHOLD}, env={{"NCCL_MAX_NCHANELS": "8"}}),
"""


def test_faults_are_said_at_once_and_nothing_runs_but_a_control_is_measured(folder: Folder) -> None:
    folder.write(profiles=FAULTY)
    refused = folder.run("-m", "wave2")
    shown = refused.stdout.str()
    assert refused.ret != 0
    assert "nothing was submitted" in shown
    assert "profile buffer: NCCL_BUFFSIZE=16M is read as 16" in shown
    assert "[partner]" in shown
    assert "profile control-inflated: --xla_gpu_collective_inflation_factor is never set" in shown
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"

    # what only the target's XLA can say stops the tests behind it too: the look at the flags is
    # that of test_baseline, and the other tests do not ask for it
    folder.put(
        "conftest.py",
        "from pytest_xlatune.prepare import preflight\n"
        "from pytest_xlatune.prepare.preflight import Preflight\n"
        "preflight.check_flags = lambda *_, **__: Preflight(faults=('knows no flag',))\n",
    )
    text = SWEEP_FILE.replace("test_baseline(baseline", "test_baseline(preflight, baseline")
    folder.write(profiles=CONTROL, text=text)
    refused = folder.run("-m", "wave1 or wave2")
    assert refused.ret == 4
    assert "knows no flag" in refused.stdout.str()
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"
    folder.put("conftest.py", "")
    begun = folder.run("-m", "wave2")
    begun.assert_outcomes(passed=2)
    assert "NCCL_MAX_NCHANELS is no known variable; did you" in begun.stdout.str()


def test_a_plan_takes_what_trials_have_taken_and_the_noise_that_they_have_shown(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned() -> str:
        capsys.readouterr()
        assert main(["plan", "test_sweep.py"]) == 0
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.chdir(folder.path)
    folder.run("-m", "wave2").assert_outcomes(passed=2, xfailed=1)
    plan = planned()
    assert re.search(r"\d+ jobs to run, each on 1 node; 5 trials measured", plan)
    assert re.search(r"about 0.\d node-hours: .* \d+ s, .* of \d+ here", plan)
    assert re.search(r"about \d+ .* one after", plan)
    assert ("is assumed" in plan, "a job noise of" in plan) == (True, False), "single runs"
    folder.run()
    plan = planned()
    assert ("is assumed" in plan, "a job noise of" in plan) == (False, True)


def test_a_budget_that_can_only_rank_is_refused(folder: Folder) -> None:
    text = folder.read("test_sweep.py")
    design = text[text.index("        screen_baselines") : text.index("    ),\n)\n")]
    finalist = ("def test_finalist", "def not_test_finalist")
    folder.edit("test_sweep.py", (design, "        budget=8,\n"), finalist)
    refused = folder.run("-m", "wave2")
    assert refused.ret == Exit.USAGE
    refused.stdout.fnmatch_lines(["*only rank *: 8 jobs screen 3 profiles*"])
    assert not folder.submitted
    folder.run("--xlatune-plan").stdout.fnmatch_lines(["*ranking only*"])
    folder.run("-m", "wave2", "--xlatune-yes").assert_outcomes(passed=2, xfailed=1)


def test_trials_measured_from_another_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, cell = tmp_path, Path("pretend/cell")  # few folders lie in it, unlike in pytest's own
    project = above / "project"
    kept, below = project / ".xlatune", project / "sweeps"
    (kept / cell).mkdir(parents=True)
    (kept / cell / "ledger.jsonl").write_text("{}\n")
    below.mkdir()
    for here, workdir in ((below, below / ".xlatune"), (above, project / "x/.xlatune")):
        monkeypatch.chdir(here)
        (note,) = measured_elsewhere(cell, workdir)
        assert f"--xlatune-workdir={kept}" in note
    monkeypatch.chdir(project)
    assert measured_elsewhere(cell, kept) == ()
    assert measured_elsewhere(Path("pretend/other"), below / ".xlatune") == ()


TWO = """\
        profile("early", "--xla_early=1", wave="wave1"),
        profile("fast", "--xla_fast=1"),
"""
MORE = '        profile("more", overrides={"num_pipeline_microbatches": "16"}, wave="wave5"),\n'
WAVES = """\
    no_env=NoEnv(defaults={"xla_deployed": "0"}),
    derived=(
        Stacks(wave="wave3", slots=1),
        Around(wave="wave4", slots=1, ladders={"xla_width": ("1", "2", "4", "8")}),
    ),
    config_tags={"dense": {"mode": "dense"}},
    site="""
OVERRIDES = 'overrides={"mode": "plain", "num_pipeline_repeats": "1"},\n        protocol='


def collected(folder: Folder, *options: str) -> list[str]:
    lines = folder.run("--collect-only", "-q", *options).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_each_wave_is_a_test_that_names_wave_and_profile_or_slot(folder: Folder) -> None:
    folder.write(profiles=TWO, text=STANDARD)
    finalists = ["test_finalist[finalist-1]", "test_finalist[finalist-2]"]
    plain = ["test_baseline", "test_wave1[early]", "test_wave2[fast]", *finalists]
    assert collected(folder) == plain
    assert collected(folder, "-m", "wave1") == ["test_baseline", "test_wave1[early]"]
    assert collected(folder, "-k", "fast") == ["test_wave2[fast]"]
    folder.run("--no-xlatune").assert_outcomes(deselected=5)
    plan = folder.run_with_workers("--xlatune-plan")
    screen = "*trials of the screen, then blocks of *"
    plan.stdout.fnmatch_lines([screen, "*--xla_deployed=1 --xla_fast=1*"])
    assert not (folder.path / ".xlatune").exists()
    folder.write(profiles=TWO + MORE, text=STANDARD)
    folder.edit(
        "test_sweep.py",
        ("FSDP=4", "PP=4"),
        ("    site=", WAVES),
        ("protocol=", OVERRIDES),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("tests(SWEEP)", "tests(SWEEP, evidence=True)"),
    )
    assert collected(folder) == [
        *("test_baseline", "test_without_env", "test_wave1[early]", "test_evidence"),
        *("test_wave2[fast]", "test_wave3_derived[stack-1]", "test_wave4_derived[around-1]"),
        *("test_wave5[more]", *finalists, "test_why_the_winner_wins", "test_elsewhere[dense]"),
    ]
    assert collected(folder, "-m", "wave1_5") == ["test_evidence"]
    folder.run("--xlatune-plan").stdout.fnmatch_lines(
        [
            "*wave3: 1 slot for Stacks*",
            "*wave4: 1 slot for Around*",
            "*Pipeline bubble*",
            "*more * 4 * 16 * 1 * 15.8 % * +47.4*",
        ]
    )
    assert not folder.submitted
    done = folder.run("-m", "wave3 or wave4", "-rs")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(["*SKIPPED*stack-1 stayed empty*"])


WAITS = """\
import time
from pytest_xlatune.plugin.fixtures import untimed
def test_waits(request):
    with untimed(request.config):
        time.sleep(0.8)

def test_works_too_long(request):
    with untimed(request.config):
        time.sleep(0.1)
    time.sleep(5)
"""


def test_waiting_does_not_count_against_a_limit_of_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WAITS)
    done = pytester.runpytest_subprocess("-p", "xlatune", "-o", "timeout=0.4")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*Timeout (>0.4s) from pytest-timeout*"])


def test_a_sweep_without_the_plugin_is_left_out_in_a_line(folder: Folder) -> None:
    folder.put("test_other.py", "def test_one(): pass\n")
    argv = ("-p", "no:xlatune", "test_sweep.py", "test_other.py")
    done = folder.pytester.runpytest_subprocess(*argv)
    assert done.parseoutcomes()["passed"] == 1
    assert "errors" not in done.parseoutcomes()
    done.stdout.fnmatch_lines(["xlatune: the plugin is off*test_sweep.py*"])


def test_an_expression_that_selects_nothing_names_the_tests(folder: Folder) -> None:
    done = folder.run("-k", "fsat")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["xlatune: no test of a sweep is selected; known: *fast*"])
    folder.put("test_other.py", "def test_nothing(): pass\n")
    done = folder.run("-k", "nothing", "test_sweep.py", "test_other.py")
    assert done.ret == 0
    assert "no test of a sweep" not in done.stdout.str()


SCREEN, BLOCKS = 2 + 3, 3 * 3
LEFT = pytest.mark.part("sweeps")


def concluded(folder: Folder) -> dict[str, object]:
    assert len(folder.submitted) == len(set(folder.submitted)) == SCREEN + BLOCKS
    conclusion: dict[str, object] = folder.json("reports/pretend/leaderboard.json")["conclusion"]
    return conclusion


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_a_sweep_is_selected_in_parts_and_measures_each_trial_once(
    folder: Folder, run: str
) -> None:
    first = folder.run("-k", "fast")
    first.assert_outcomes(passed=1)
    names = sorted(trial.split("-wave2")[0] for trial in folder.submitted)
    assert names == ["baseline-deployed", "baseline-deployed", "fast"]
    text = first.stdout.str()
    assert "\x1b" not in text, "a file has no line that is rewritten"
    assert len(re.findall("pretend FSDP=4: .* to run", text)) == 1, "the cell is named once"
    assert len([line for line in text.splitlines() if "(job" in line and "TGS" in line]) == 3
    first.stdout.fnmatch_lines(["*fast (job *) * TGS * s/step screened +*% so far*"])

    folder.run("-m", "wave2", "--junitxml=junit.xml").assert_outcomes(passed=2, xfailed=1)
    assert len(folder.submitted) == SCREEN
    figures = {
        case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        for case in ET.parse(folder.path / "junit.xml").iter("testcase")
    }
    fast = figures["test_flag[fast]"]
    assert (fast["xlatune.verdict"], fast["xlatune.profile"]) == ("SCREENED", "fast")
    assert float(fast["xlatune.delta_pct"]) == pytest.approx(10, abs=0.5)
    assert json.loads(fast["xlatune"])["n"] == int(fast["xlatune.n"]) == 1
    assert "xlatune.ci95" not in fast
    (node,) = json.loads(fast["xlatune.record"])["nodes"]
    assert node["packages"]["python"] == platform.python_version()
    assert figures["test_flag[unknown]"]["xlatune.verdict"] == "INVALID"

    getattr(folder, run)("-m", "confirm").assert_outcomes(passed=2)
    conclusion = concluded(folder)
    kinds = [verdict["kind"] for verdict in conclusion["verdicts"]]  # type: ignore[attr-defined]
    assert kinds[:2] == ["FASTER", "EQUIVALENT"]
    assert conclusion["complete"]
    assert "FASTER" in folder.read("reports/pretend-tuning.md")

    again = folder.run("-v")
    again.assert_outcomes(passed=5, xfailed=1)
    assert again.ret == 0
    assert concluded(folder) == conclusion
    assert len(folder.events("attempt-ended")) == SCREEN + BLOCKS
    again.stdout.fnmatch_lines(["*14 trials reused from the ledger*"])
    again.stdout.fnmatch_lines(["*PASSED fast FASTER +1*.* %*"])


def test_a_confirmed_loss_fails_or_xfails_as_asked(folder: Folder) -> None:
    # it looked fast once: the screen's run of it was lucky
    folder.write(profiles='        profile("slow", "--xla_slow=1"),\n')
    folder.edit("test_sweep.py", ("blocks=3", "blocks=4"))
    lucky = 'speed *= 1.5 if sys.argv[2].startswith("slow-wave2") else 1\n'
    folder.edit("trainer.py", ("speed *= 1 + 0.002", f"{lucky}speed *= 1 + 0.002"))
    done = folder.run()
    done.assert_outcomes(passed=2, failed=1)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*AssertionError: slow SLOWER*"])
    folder.run("--xlatune-negative=xfail").assert_outcomes(passed=2, xfailed=1)


def test_a_profile_with_another_loss_is_a_finding_and_the_sweep_goes_on(folder: Folder) -> None:
    both = '        profile("right", "--xla_right=1"), profile("wrong", "--xla_wrong=1"),\n'
    folder.write(profiles=both)
    folder.edit("trainer.py", ("loss: 7.1", "loss: {8.1 if 'wrong' in sys.argv[2] else 7.1}"))
    done = folder.run("-m", "wave2", "-rx")
    done.assert_outcomes(passed=1, xfailed=1)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*wrong INVALID (not comparable): its loss is 8.1*"])


def test_what_was_not_measured_is_an_error_and_is_tried_again(folder: Folder) -> None:
    late = '        profile("late", env={"SLEEP_S": "60"}),\n'
    folder.write(profiles=f'{late}        profile("fast", "--xla_fast"),\n')
    folder.edit("test_sweep.py", ("steps=12", "steps=12, deadline_s=10"))
    done = folder.run("-m", "wave2")
    done.assert_outcomes(passed=1, errors=1)
    assert done.ret == 11
    done.stdout.fnmatch_lines(["late INVALID *time-limit*"])
    folder.run("-m", "wave2").assert_outcomes(passed=1, errors=1)
    assert sum(trial.startswith("late") for trial in folder.submitted) == 2


@pytest.fixture
def small_disk(folder: Folder) -> Iterator[Path]:
    """The directory of reports, on a file system of its own with space for one small file."""
    path = folder.path / "reports"
    path.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8k", "full", str(path)]
    if subprocess.run(argv, check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but nothing can be mounted")
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("run", ["run", pytest.param("run_with_workers", marks=LEFT)])
def test_reports_that_cannot_be_written_lose_nothing(
    folder: Folder, small_disk: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = getattr(folder, run)()
    shown = full.stdout.str()
    assert "reports cannot be written: No space left on device" in shown
    assert "Traceback" not in shown
    assert "fast is faster than baseline-deployed" in shown, "the summary is there all the same"
    assert full.ret == pytest.ExitCode.INTERNAL_ERROR
    assert not [path for path in small_disk.rglob("*") if path.name.startswith(".")]
    measured, jobs = len(folder.results), len(folder.submitted)
    monkeypatch.chdir(folder.path)
    assert main(["report", "pretend"]) == 3, "still full"
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    assert main(["report", "pretend"]) == 0
    assert "FASTER" in folder.read("reports/pretend-tuning.md")
    assert getattr(folder, run)().ret == pytest.ExitCode.OK
    assert (len(folder.results), len(folder.submitted)) == (measured, jobs)
