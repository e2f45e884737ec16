"""A table of jobs run by hand: an order, its noise, and no verdict."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import find_ledgers
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import CellReport, read_cell_report
from pytest_xlatune.tasks.import_table import import_table, read_table

OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
PRIORITY = "--xla_gpu_enable_highest_priority_async_stream=true"
DECOMPOSER = "--xla_gpu_collective_permute_decomposer_threshold"
# figures of a published sweep on eight nodes
TABLE = f"""\
Job,Profile,Flags,Env,TGS,Step_s,Status
14001,baseline-deployed,,,955.3,30.01,ok
14002,hp-stream,{PRIORITY},,972.1,29.49,ok
14003,cp-1G,{DECOMPOSER}=1073741824,,970.7,29.54,ok
14004,cp-256M,{DECOMPOSER}=268435456,,961.0,29.84,ok
14005,overlap2,{OVERLAP},,994.9,28.82,ok
14006,overlap2,{OVERLAP},,978.6,29.30,ok
14007,overlap2,{OVERLAP},,989.2,29.99,ok
14008,pipelined-ag,--xla_gpu_enable_pipelined_all_gather=true,,,,OOM
14009,p2p,--xla_gpu_enable_pipelined_p2p=true,,904.6,31.70,ok
14010,tree,,NCCL_ALGO=Tree,,,node failed
"""
NO_OPS = ("hp-stream", "cp-1G", "cp-256M")
CELL = Cell(model_tag="deepseek3-671b", parallelism=Parallelism.parse("PP=8"))


def known(workdir: Path, text: str = TABLE, *, no_ops: tuple[str, ...] = NO_OPS) -> CellReport:
    rows = read_table(text, where="pp8.csv")
    folder = import_table(rows, cell=CELL, no_ops=no_ops, sweep="pp8", workdir=workdir, at_s=1e9)
    return read_cell_report(folder)


def test_no_single_run_is_more_than_screened(tmp_path: Path) -> None:
    conclusion = known(tmp_path).conclusion
    kinds = {each.arm: each.kind for each in conclusion.verdicts}
    assert set(kinds.values()) == {VerdictKind.SCREENED, VerdictKind.INVALID}
    assert kinds["overlap2"] is VerdictKind.SCREENED
    assert all(each.ci95 is None for each in conclusion.verdicts)
    assert conclusion.tuning.bound is None
    assert conclusion.alpha == 0


def test_profiles_that_do_nothing_are_the_control_and_give_the_noise(tmp_path: Path) -> None:
    conclusion = known(tmp_path).conclusion
    control = [math.log(each) for each in (955.3, 972.1, 970.7, 961.0)]
    repeats = [math.log(each) for each in (994.9, 978.6, 989.2)]
    squares = sum((value - fmean(group)) ** 2 for group in (control, repeats) for value in group)
    assert conclusion.noise.sigma == pytest.approx(math.sqrt(squares / 5))
    overlap = conclusion.verdict("overlap2")
    assert overlap is not None
    assert overlap.delta == pytest.approx(math.expm1(fmean(repeats) - fmean(control)))
    assert overlap.n == 3
    assert overlap.job_ids == ("14005", "14006", "14007")
    assert "outside the noise" in sentence(overlap.reasons[0])
    assert "own runs are -1.0 %" in " ".join(map(sentence, conclusion.notes))


def test_without_repeats_nothing_is_said_of_noise(tmp_path: Path) -> None:
    table = "job,profile,flags,step_s\n1,baseline,,100\n2,a,--xla_a=1,103\n"
    with pytest.raises(ConfigError, match="--tokens N"):
        known(tmp_path, table, no_ops=())
    table = "job,profile,flags,tgs,seconds\n1,baseline,,100,2\n2,a,--xla_a=1,103,1.942\n"
    conclusion = known(tmp_path, table, no_ops=()).conclusion
    assert conclusion.noise.sigma is None
    assert conclusion.noise.mde80 is None
    assert "noise is not known" in sentence(conclusion.verdicts[0].reasons[0])
    assert "the baseline ran once" in " ".join(map(sentence, conclusion.notes))


def test_rows_with_the_same_effective_settings_are_repeats(tmp_path: Path) -> None:
    # the last of a flag wins, so both do the same
    table = (
        "job,profile,flags,tgs,seconds\n1,baseline,,100,2\n"
        "2,a,--xla_a=1,110,1.8182\n3,b,--xla_a=2 --xla_a=1,112,1.7857\n"
    )
    conclusion = known(tmp_path, table, no_ops=()).conclusion
    assert conclusion.noise.sigma == pytest.approx(abs(math.log(112 / 110)) / math.sqrt(2))


def test_what_has_no_figure_is_dropped_or_unmeasured(tmp_path: Path) -> None:
    conclusion = known(tmp_path).conclusion
    oom, tree = conclusion.verdict("pipelined-ag"), conclusion.verdict("tree")
    assert oom is not None
    assert tree is not None
    assert not oom.can_run
    assert oom.reasons == (say("the table says: {status}", status="oom"),)
    assert tree.can_run
    assert tree.reasons == (say("the table says: {status}", status="node failed"),)


def test_the_document_claims_nothing_of_how_the_jobs_ran(tmp_path: Path) -> None:
    text = markdown(known(tmp_path).document)
    assert "### Ranks, proves nothing" in text
    assert "synthetic" not in text
    assert "Steady state" not in text
    assert "★" not in text
    assert "| 14005 | `overlap2` |" in text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param("a,b\n1,2\n", "has no column profile, tgs", id="other columns"),
        pytest.param("job,profile,tgs\n", "no jobs", id="no rows"),
        pytest.param("job,profile,tgs\n1,a,5\n", "no row is", id="no baseline"),
        pytest.param("job,profile,tgs\n1,baseline,1e400\n", "tgs: found '1e400'", id="no number"),
        pytest.param('job,profile,tgs\n1,baseline,"1,5"\n', "found '1,5'", id="a comma"),
        pytest.param(
            "job,profile,tgs\n1,baseline,fast\n2,a,-1\n",
            "line 2: tgs: found 'fast'.*; line 3: tgs: found '-1'",
            id="all that is wrong at once",
        ),
        pytest.param(
            "job,profile,flags,tgs\n1,baseline,,5\n2,a,--xla_a=1,5\n3,a,--xla_a=2,5\n",
            "line 4: profile 'a' has other settings",
            id="one name for two things",
        ),
        pytest.param(
            "job,profile,tgs\n1,baseline,5\n1,a,5\n", "job 1 is in line 2 too", id="job twice"
        ),
        pytest.param(
            "job,profile,tgs\n1,baseline,5\n2,a,\n", "neither TGS nor seconds", id="no figure"
        ),
        pytest.param(
            "job,profile,tgs,status\n1,baseline,5,ok\n2,a,5,finshed\n",
            "line 3: status 'finshed' is not known",
            id="an unknown word of an end",
        ),
        pytest.param(
            "job,profile,flags,tgs\n1,baseline,--xla_a=1,5\n",
            "baseline-deployed has settings",
            id="baseline with flags",
        ),
        pytest.param(
            "job,profile,flags,tgs\n1,baseline,,5\n2,a,xla_a=1,5\n",
            "does not begin with '--'",
            id="flags that XLA would not read",
        ),
    ],
)
def test_a_bad_table_is_refused_before_anything_is_written(table: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_table(table, where="t.csv")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("job,profile,env,tgs\n1,baseline,,5\n2,a,X='1,5\n", "line 3: env: No closing quotation"),
        ('job,profile,tgs\n1,"baseline,5\n', "line 2: unexpected end of data"),
        (f"job,profile,tgs\n1,baseline,{'9' * 140_000}\n", "field larger than field limit"),
        ("job,profile,tgs\n1,base\rline,5\n", "no job|status|neither|t.csv"),
    ],
    ids=["an open quote in env", "an open quote", "a field of 140 kB", "a carriage return"],
)
def test_what_is_no_table_is_one_message(table: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_table(table, where="t.csv")


GOOD = "job,profile,flags,tgs,status\n1,baseline,,8000,ok\n2,a,--xla_a=1,8100.5,ok\n"


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(GOOD, id="commas"),
        pytest.param(GOOD.replace(",", "\t"), id="tabs"),
        pytest.param(GOOD.replace(",", ";"), id="semicolons"),
        pytest.param(GOOD.replace("job,profile,flags", '"Job ID","Name",xla_flags'), id="W&B"),
        pytest.param(GOOD.replace(",ok", ",finished"), id="finished"),
        pytest.param(GOOD.replace("\n", "\r\n") + ",,,,\r\n\r\n", id="a spreadsheet's end"),
    ],
)
def test_columns_are_separated_and_called_as_programs_do(table: str) -> None:
    rows = read_table(table, where="t")
    assert [(each.line, each.job, each.profile.id, each.tgs) for each in rows] == [
        (2, "1", "baseline-deployed", 8000.0),
        (3, "2", "a", 8100.5),
    ]
    assert rows[1].profile.shown_text == "--xla_a=1"


def test_jobs_without_an_id_are_called_by_their_lines() -> None:
    rows = read_table("profile;seconds_per_step\nbaseline;3.0301\na;3.1\n", where="t")
    assert [(row.job, row.step_s) for row in rows] == [("line-2", 3.0301), ("line-3", 3.1)]


@pytest.mark.parametrize("cell", ["OOM", "3120.4", ""])
def test_a_job_that_failed_has_no_figure_whatever_stands_there(cell: str) -> None:
    row = read_table(f"job,profile,tgs,status\n1,baseline,5,\n2,a,{cell},OOM\n", where="t")[1]
    assert (row.tgs, row.status) == (None, "oom")


NAMES = "job,profile,tgs,status\n1,baseline,1136.0,\n2,ag-1g,1267.5,\n3,async,1152.9,\n4,db,,OOM\n"


def test_an_empty_cell_is_no_repeat_of_the_baseline(tmp_path: Path) -> None:
    conclusion = known(tmp_path, NAMES, no_ops=()).conclusion
    assert conclusion.noise.sigma is None
    winner = conclusion.verdict("ag-1g")
    assert winner is not None
    assert winner.delta == pytest.approx(1267.5 / 1136.0 - 1)
    (reason,) = map(sentence, winner.reasons)
    assert "its noise is not known" in reason
    notes = " ".join(map(sentence, conclusion.notes))
    assert "settings of ag-1g, async, db" in notes
    said = known(tmp_path / "2", NAMES, no_ops=("async",)).conclusion
    assert said.noise.sigma is not None
    assert "settings of ag-1g, db:" in " ".join(map(sentence, said.notes))


def test_an_empty_cell_beside_the_same_profile_takes_its_settings(tmp_path: Path) -> None:
    table = "job,profile,flags,tgs\n1,baseline,,100\n2,a,,110\n3,a,--xla_a=1,112\n4,a,,111\n"
    rows = read_table(table, where="t.csv")
    assert {each.profile.shown_text for each in rows[1:]} == {"--xla_a=1"}
    assert known(tmp_path, table, no_ops=()).conclusion.noise.sigma is not None


def test_the_command_imports_reports_and_refuses_the_same_table_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pp8.csv").write_text(TABLE, encoding="utf-8")
    command = ["import", "pp8.csv", "--model", "deepseek3-671b", "--parallelism", "PP=8"]
    assert main([*command, "--no-op", "hp-stream"]) == 0
    assert "Ranks, proves nothing" in capsys.readouterr().out
    assert (tmp_path / "reports/pp8/leaderboard.md").is_file()
    assert len(find_ledgers(tmp_path / ".xlatune")) == 1
    assert main([*command, "--no-op", "hp-stream"]) == 2
    assert "holds this table already" in capsys.readouterr().err
    assert main([*command, "--no-op", "overlap3"]) == 2
    assert "did you mean 'overlap2'?" in capsys.readouterr().err
    assert main(command[:2]) == 2
    assert "add --model and --parallelism" in capsys.readouterr().err
    nothing = "job,profile,tgs,status\n1,baseline,,crashed\n2,a,,killed\n"
    (tmp_path / "pp8.csv").write_text(nothing, encoding="utf-8")
    assert main([*command, "--name", "nothing"]) == Exit.NOT_MEASURED


def test_what_the_command_shows_fits_80_columns_and_counts_one_degree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(
        "job,profile,flags,tgs,status\n1,baseline,,1001.5,ok\n2,baseline,,1003.5,ok\n"
        "3,overlap,--xla_a=1,1030.1,ok\n4,other,--xla_b=1,1100.0,ok\n5,third,,1050.0,ok\n"
    )
    monkeypatch.chdir(tmp_path)  # a path in a line is never broken
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--model", "m", "--parallelism", "DP=4", "--workdir", "w", "--reports", "r")
    assert main(["import", "jobs.csv", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [each for each in lines if len(each) > 80 and not each.startswith("written: ")] == []
    assert "1 degree of freedom" in " ".join(" ".join(lines).split())
