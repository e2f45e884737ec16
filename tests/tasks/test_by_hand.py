"""Jobs run by hand: two directories of logs, a table, a recipe of another place."""

from __future__ import annotations

import ast
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_xlatune.cli import main
from pytest_xlatune.cli.compare import compare_sides
from pytest_xlatune.ledger import find_ledgers
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.model.message import say
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.tasks.cell_report import CellReport, read_cell_report
from pytest_xlatune.tasks.import_table import import_table, read_table
from tests.helpers.history import verdict
from tests.helpers.second_looks import tried
from tests.helpers.tables import recorded


def log(tgs: float, *, steps: int = 15, config: str = "", seed: int = 0, loss: str = "7.1") -> str:
    random = Random(f"{tgs} {seed}")
    lines = [config]
    for step in range(steps):
        step_s = 512 / tgs * (1 + random.uniform(-0.002, 0.002))
        lines.append(
            f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 1.5, "
            f"Tokens/s/device: {512 / step_s:.4f}, total_weights: 512, loss: {loss}"
        )
    return "\n".join([*lines, ""])


def side(folder: Path, *jobs: float | str, **files: str) -> Path:
    """A folder with the log of each job, of this speed or this text; and with other files."""
    for number, job in enumerate(jobs):
        files[f"job-{number}.log"] = job if isinstance(job, str) else log(job, seed=number)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


A = (1000.0, 1003.0, 998.0, 1001.0)
FAST = (1050.0, 1053.0, 1049.0, 1051.0)
# all steps are there, so the bad end behind them changes no figure
BAD_END = "== Training FAILED (exit=143, 84s) ==\n"
ENDED_BADLY = [log(tgs, config="Config param steps: 15") + BAD_END for tgs in FAST]
NO_RATE = [log(tgs).replace("Tokens/s/device: ", "Tokens/s/device: nan #") for tgs in (1e3, 1001)]
LOSSES = [log(1050.0 + at, seed=at, loss="7.9") for at in range(4)]


@pytest.mark.parametrize(
    ("a", "b", "kind", "words"),
    [
        pytest.param(A, FAST, "FASTER", "", id="faster"),
        pytest.param(A, (1080.0, 930.0, 1010.0, 970.0), "INCONCLUSIVE", "", id="noisy"),
        pytest.param(A, ENDED_BADLY, "FASTER", "", id="a bad end behind the last step counts"),
        pytest.param(A[:2], (1200.0, 1201.0), "INCONCLUSIVE", "more jobs: 2 de", id="two each"),
        pytest.param(A, NO_RATE, "INCONCLUSIVE", "run more jobs: ", id="one without a score"),
        pytest.param(A, LOSSES, "INVALID", "not the same training: ", id="another loss"),
    ],
)
def test_two_sides_end_in_a_verdict_or_in_what_is_missing_for_one(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float | str, ...], kind: str, words: str
) -> None:
    found = compare_sides(side(tmp_path / "a", *a), side(tmp_path / "b", *b))
    assert found.kind == kind
    assert (found.comparison is None) == bool(words)
    assert words in found.reasons[0]
    assert bool(found.b.left_out) == ("nan" in str(b))


@settings(max_examples=tried(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    a=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
    b=st.lists(st.floats(900, 1100), min_size=1, max_size=4, unique=True),
)
def test_swapping_the_sides_inverts_the_ratio(
    tmp_path_factory: pytest.TempPathFactory, a: list[float], b: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("swap")
    one, other = side(folder / "one", *a), side(folder / "other", *(tgs * 1.0001 for tgs in b))
    there, back = compare_sides(one, other), compare_sides(other, one)
    shutil.rmtree(folder)
    mirror = {VerdictKind.FASTER: VerdictKind.SLOWER, VerdictKind.SLOWER: VerdictKind.FASTER}
    assert back.kind is mirror.get(there.kind, there.kind)
    assert (back.comparison is None) is (there.comparison is None)
    if there.comparison is not None and back.comparison is not None:
        low, high = there.comparison.ci95
        assert [-end for end in back.comparison.ci95] == pytest.approx([high, low])


def test_what_counts_as_a_job_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Copies, failures and ranks counted as jobs would make any n."""
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n"
    others = {
        "job-9.log": log(A[0], seed=0),
        "notes.md": "which node was slow\n",
        "oom.log": log(500.0) + oom,
        "short.log": log(500.0, steps=8),
        ".hidden": "x",
    }
    long = log(1002.0, steps=40, seed=7)
    a = side(tmp_path / "a", *A, long, **others)
    b = tmp_path / "b"
    for number, tgs in enumerate((1010.0, 1011.0, 1012.0)):
        side(b / f"job-{number}", **{f"log.{rank}.txt": log(tgs, seed=rank) for rank in (0, 1)})
    side(b / "two", **{"x.log": log(1013.0), "y.log": log(1013.0)})
    shutil.copytree(b / "job-0", b / "job-9")
    found = compare_sides(a, b)
    assert [path.name for path in found.a.scores] == [f"job-{n}.log" for n in range(5)]
    out = {path.name: reason for path, reason in found.a.left_out.items()}
    assert out.keys() == others.keys() - {".hidden"}
    assert "a copy of" in out["job-9.log"]
    assert out["oom.log"].startswith("oom")
    short = "no score: 3 usable steps in the window 5-14, 6 needed (last step seen: 7)"
    assert out["short.log"] == short
    scores = [*found.a.scores.values(), *found.b.scores.values()]
    assert {score.window for score in scores} == {(5, 14)}
    assert [path.name for path in found.b.scores] == ["log.0.txt"] * 3
    assert [*found.b.left_out] == [b / "job-9" / "log.0.txt", b / "two"]
    # submitit writes one log for each task
    tasks = {
        f"{80 + job}_{task}_log.out": log(1050.0 + job, seed=10 * job + task)
        for job in range(3)
        for task in range(4)
    }
    found = compare_sides(a, side(tmp_path / "c", **tasks))
    assert (len(found.b.scores), found.b.left_out) == (3, {})


OTHER_PROTOCOL = "Config param profiler: xplane\nConfig param steps: 40\n"
NAN = log(1000, loss="nan")
NOT_COMPARED: dict[str, tuple[tuple[float | str, ...], str]] = {
    "no folder": ((), "does not exist"),
    "one log on both sides": ((A[0],), "same log as .*other side"),
    "another protocol": (
        (log(1010.0, steps=40, config=OTHER_PROTOCOL),), "ran by different protocols"),
    "no healthy job": (
        (NAN, "hello\n"), r"b holds no log .* \(job-0.log: numerical-failure: .*; job-1.log: "),
}  # fmt: skip


@pytest.mark.parametrize(("b", "words"), NOT_COMPARED.values(), ids=NOT_COMPARED)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, b: tuple[float | str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        compare_sides(side(tmp_path / "a", *A), side(tmp_path / "b", *b))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(tmp_path / "a", *A), side(tmp_path / "b", 950.0, 951.0, 949.0)
    gate = ("--gate", "0.01")
    for argv, status, said in (
        ((a, b), 0, "verdict: SLOWER"),
        ((a, b, *gate), 1, "1.0 %: regression"),
        ((b, a, *gate), 0, "1.0 %: pass"),
        ((a / "job-0.log", b / "job-0.log", *gate), 10, "verdict: none"),
        ((a, side(tmp_path / "c", *LOSSES), *gate), 11, "not the same training"),
    ):
        assert main(["compare", *map(str, argv)]) == status
        assert said in capsys.readouterr().out


def look(rank: int, **told: object) -> str:
    """What a node saw of a process that stands still."""
    process = {
        "pid": 9 + rank, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "waits", "channel": "", "on": "",
        "stacks": [["/u/train.py:4 main"]], **told,
    }  # fmt: skip
    node = {"node": f"n{rank}", "rank": rank, "at_s": 1e9, "quiet_s": 700.0}
    return json.dumps({**node, "processes": [process]})


def test_triage_names_the_rank_that_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [log(1000, steps=7, seed=rank, config="Config param steps: 40") for rank in (0, 1)]
    looks = {"hang.json": look(0), "hang.1.json": look(1, call="read", on="/data/a", stacks=[])}
    logs = {f"log.{rank}.txt": text for rank, text in enumerate(lines)}
    assert main(["triage", "--json", str(side(tmp_path / "still", **logs, **looks))]) == 3
    (behind,) = (each["behind"] for each in json.loads(capsys.readouterr().out)["logs"])
    assert behind["ranks"] == [1]
    said = "rank 1 on n1 is behind after step 6: waits for /data/a; 1 other rank waiting in "
    assert f"{said}train.py:4 main" in behind["sentence"]
    # one log of two ranks of a healthy job
    labelled = (f"{rank}: {line}\n" for rank in (0, 1) for line in lines[rank].splitlines())
    healthy = side(tmp_path / "healthy", **{"log.txt": "".join(labelled)}) / "log.txt"
    main(["triage", "--json", str(healthy)])
    assert json.loads(capsys.readouterr().out)["logs"][0]["behind"] is None


OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
PRIORITY = "--xla_gpu_enable_highest_priority_async_stream=true"
DECOMPOSER = "--xla_gpu_collective_permute_decomposer_threshold"
# figures of a published sweep on eight nodes
TABLE = f"""\
Job,Profile,Flags,TGS,Step_s,Status
14001,baseline-deployed,,955.3,30.01,ok
14002,hp-stream,{PRIORITY},972.1,29.49,ok
14003,cp-1G,{DECOMPOSER}=1073741824,970.7,29.54,ok
14004,cp-256M,{DECOMPOSER}=268435456,961.0,29.84,ok
14005,overlap2,{OVERLAP},994.9,28.82,ok
14006,overlap2,{OVERLAP},978.6,29.30,ok
14007,overlap2,{OVERLAP},989.2,29.99,ok
14008,pipelined-ag,--xla_gpu_enable_pipelined_all_gather=true,,,OOM
14009,p2p,--xla_gpu_enable_pipelined_p2p=true,904.6,31.70,ok
14010,tree,NCCL_ALGO=Tree,,,node failed
"""
CELL = Cell(model_tag="deepseek3-671b", parallelism=Parallelism.parse("PP=8"))


def imported(workdir: Path, text: str, *no_ops: str) -> CellReport:
    rows = read_table(text, where="pp8.csv")
    folder = import_table(rows, cell=CELL, no_ops=no_ops, sweep="pp8", workdir=workdir, at_s=1e9)
    return read_cell_report(folder)


def sigma(*groups: tuple[float, ...]) -> float:
    """The noise that groups of repeats show together."""
    logs = [[math.log(tgs) for tgs in group] for group in groups]
    squares = sum((value - fmean(group)) ** 2 for group in logs for value in group)
    return math.sqrt(squares / sum(len(group) - 1 for group in logs))


def test_a_table_is_an_order_with_its_noise_and_no_single_run_is_more(tmp_path: Path) -> None:
    conclusion = imported(tmp_path, TABLE, "hp-stream", "cp-1G", "cp-256M").conclusion
    kinds = {verdict.kind for verdict in conclusion.verdicts}
    assert kinds == {VerdictKind.SCREENED, VerdictKind.INVALID}
    assert all(verdict.ci95 is None for verdict in conclusion.verdicts)
    assert (conclusion.tuning.bound, conclusion.alpha) == (None, 0)
    # profiles that do nothing are the control, and give the noise
    control, repeats = (955.3, 972.1, 970.7, 961.0), (994.9, 978.6, 989.2)
    assert conclusion.noise.sigma == pytest.approx(sigma(control, repeats))
    overlap = verdict(conclusion, "overlap2")
    assert overlap.kind is VerdictKind.SCREENED
    gain = fmean(map(math.log, repeats)) - fmean(map(math.log, control))
    assert overlap.delta == pytest.approx(math.expm1(gain))
    assert (overlap.n, overlap.job_ids) == (3, ("14005", "14006", "14007"))
    # what has no figure is dropped or unmeasured
    for name, can_run, status in (("pipelined-ag", False, "oom"), ("tree", True, "node failed")):
        lost = verdict(conclusion, name)
        assert lost.can_run is can_run
        assert lost.reasons == (say("the table says: {status}", status=status),)
    # the last of a flag wins; an empty cell takes the settings of the same profile
    rows = "2,a,--xla_a=1,110\n3,b,--xla_a=2 --xla_a=1,112\n4,a,,111\n"
    same = imported(tmp_path / "same", f"job,profile,flags,tgs\n1,baseline,,100\n{rows}")
    assert same.conclusion.noise.sigma == pytest.approx(sigma((110, 112, 111)))


def test_without_repeats_nothing_is_said_of_noise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pp8.csv: line 2: .*--tokens N"):
        imported(tmp_path, "job,profile,flags,step_s\n1,baseline,,100\n2,a,--xla_a=1,103\n")
    table = "job,profile,flags,tgs,seconds\n1,baseline,,100,2\n2,a,--xla_a=1,103,1.942\n"
    assert imported(tmp_path, table).conclusion.noise.sigma is None
    # an empty cell is no repeat of the baseline
    names = (
        "job,profile,tgs,status\n1,baseline,1136.0,\n2,ag-1g,1267.5,\n3,async,1152.9,\n4,db,,OOM\n"
    )
    for no_ops in ((), ("async",)):
        conclusion = imported(tmp_path / str(no_ops), names, *no_ops).conclusion
        assert (conclusion.noise.sigma is None) is (not no_ops)
        assert no_ops or verdict(conclusion, "ag-1g").delta == pytest.approx(1267.5 / 1136.0 - 1)


REFUSED = recorded("tables.txt", "refused")
REFUSED |= {
    "a field of 140 kB": (
        f"job,profile,tgs\n1,baseline,{'9' * 140_000}\n",
        "field larger than field limit",
    ),
    "a carriage return": ("job,profile,tgs\n1,base\rline,5\n", "no job|status|neither|t.csv"),
}


@pytest.mark.parametrize(("table", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_table_is_refused_before_anything_is_written(table: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.rstrip("\n")):
        read_table(table, where="t.csv")


GOOD = "job,profile,flags,tgs,status\n1,baseline,,8000,ok\n2,a,--xla_a=1,8100.5,ok\n"


PROGRAMS = {
    "commas": GOOD,
    "tabs": GOOD.replace(",", "\t"),
    "W&B": GOOD.replace("job,profile,flags", '"Job ID","Name",xla_flags'),
    "finished": GOOD.replace(",ok", ",finished"),
    "a spreadsheet's end": GOOD.replace("\n", "\r\n") + ",,,,\r\n\r\n",
}


@pytest.mark.parametrize("table", PROGRAMS.values(), ids=PROGRAMS)
def test_columns_are_separated_and_called_as_programs_do(table: str) -> None:
    rows = read_table(table, where="t")
    read = [(row.job, row.profile.id, row.tgs) for row in rows]
    assert read == [("1", "baseline-deployed", 8000.0), ("2", "a", 8100.5)]
    assert rows[1].profile.shown_text == "--xla_a=1"


def test_a_job_without_a_number_has_that_of_its_line_and_one_that_failed_no_figure() -> None:
    rows = read_table("profile;seconds_per_step\nbaseline;3.0301\na;3.1\n", where="t", tokens=8.0)
    assert [(row.job, row.step_s) for row in rows] == [("line-2", 3.0301), ("line-3", 3.1)]
    for figure in ("OOM", "3120.4", ""):  # a job that failed has none, whatever stands there
        table = f"job,profile,tgs,status\n1,baseline,5,\n2,a,{figure},OOM\n"
        row = read_table(table, where="t")[1]
        assert (row.tgs, row.status) == (None, "oom")


def test_the_command_imports_reports_and_refuses_the_same_table_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pp8.csv"
    path.write_text(TABLE, encoding="utf-8")
    path.with_suffix(".tsv").write_text(TABLE.replace(",", "\t"), encoding="utf-8")
    command = ["import", "pp8.csv", "--model", "deepseek3-671b", "--parallelism", "PP=8"]
    assert main([*command, "--no-op", "hp-stream"]) == 0
    assert "Ranks, proves nothing" in capsys.readouterr().out
    assert (tmp_path / "reports/pp8/leaderboard.md").is_file()
    assert len(find_ledgers(tmp_path / ".xlatune")) == 1
    for argv, said in (
        ([*command, "--no-op", "hp-stream"], "holds a table already"),
        ([command[0], "pp8.tsv", *command[2:]], "another --name"),  # it would share the reports
        ([*command, "--no-op", "overlap3"], "did you mean 'overlap2'?"),
        (command[:2], "add --model and --parallelism"),
    ):
        assert main(argv) == 2
        assert said in capsys.readouterr().err
    path.write_text("job,profile,tgs,status\n1,baseline,,crashed\n2,a,,killed\n", encoding="utf-8")
    assert main([*command, "--name", "nothing"]) == Exit.NOT_MEASURED


ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "reports" / "example" / "quickstart-tuning.json"
SETTINGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=3"
TO = ("--to", str(ROOT / "sweeps" / "test_quickstart.py"))
Edit = Callable[[dict[str, Any]], object]


def edited(path: Path, edit: Edit) -> Path:
    data = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    edit(data["cells"][0])
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def with_secret(cell: dict[str, Any]) -> None:
    arm = cell["conclusion"]["verdicts"][0]["arm"]
    recipe = next(each for each in cell["profiles"] if each["id"] == arm)
    recipe["env"].update(HF_TOKEN="(hidden)")


WITHOUT_RECIPE: dict[str, tuple[Edit | bytes, str]] = {
    "not over": (lambda cell: cell["conclusion"].update(complete=False), "has 0 recipes"),
    "no winner": (
        lambda cell: cell["conclusion"]["verdicts"][0].update(kind="EQUIVALENT"), "has 0 recipes"),
    "a secret": (with_secret, "the value of HF_TOKEN is secret"),
    "no document": (b"{}", "is no tuning document"),
    "a newer one": (b'{"schema": 9, "cells": []}', "schema 9, this version reads 4"),
    "no cell": (b'{"schema": 4, "cells": []}', "by --cell: none"),
    "no text": (b"\xff\xfe", "is no tuning document"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WITHOUT_RECIPE.values(), ids=WITHOUT_RECIPE)
def test_a_file_without_a_recipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Edit | bytes, said: str
) -> None:
    path = tmp_path / "x-tuning.json"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        edited(path, change)
    assert main(["recipe", "apply", str(path), *TO]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (err.count("xlatune:"), out) == (1, "")


def test_no_text_of_a_file_becomes_code_of_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "sweeps", tmp_path / "sweeps", ignore=shutil.ignore_patterns("__py*"))
    to = tmp_path / "sweeps" / "test_quickstart.py"
    evil = 'a"""\n\x0cimport os\r\u2028os.abort()'
    path = edited(tmp_path / "x-tuning.json", lambda cell: cell["cells"][0].update(config_tag=evil))
    assert main(["recipe", "apply", str(path), "--to", str(to)]) == 0
    assert SETTINGS in capsys.readouterr().out
    text = to.with_name("test_quickstart_recipe.py").read_text(encoding="utf-8")
    kinds = [type(each).__name__ for each in ast.parse(text).body]
    imports = ["Import", "ImportFrom", "Import", "ImportFrom", "ImportFrom"]
    assert kinds == ["Expr", *imports, "Assign", "Assign", "FunctionDef"]
    assert main(["recipe", "apply", str(path), "--to", str(to)]) == 2
    assert "edited by hand" in capsys.readouterr().err
