"""No command loads what it does not use: the modules of a process that ran one command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main

# of other people, each slow or large; and of ours, what drives a cluster
HEAVY = frozenset(
    {"scipy", "numpy", "submitit", "jinja2", "matplotlib", "ruamel", "rich", "hypothesis"}
)
ALWAYS = HEAVY | {"pytest"}
DRIVING = frozenset({"campaign", "executors", "ledger", "prepare", "studies"})
JUST_READING = DRIVING | {"launchers", "catalog"}

STEP = (
    "completed step: {}, seconds: {:.3f}, TFLOP/s/device: 1.5, Tokens/s/device: {:.3f}, "
    "total_weights: 512, loss: 7.1\n"
)
HLO = """HloModule jit_step, is_scheduled=true

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %add.1 = f32[8]{0} add(%p, %p)
}
"""
SWEEP = """
from pytest_xlatune import Sweep, profile
from pytest_xlatune.launchers.command import CommandLauncher

SWEEP = Sweep(
    name="small",
    launcher=CommandLauncher(argv=("/bin/true",)),
    profiles=(profile("a", "--xla_a=1"), profile("b", "--xla_b=1")),
)
"""
TRACE = {"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "x"}}]}
OF_CELL = "--model m --parallelism FSDP=8 --nodelist n1"
# a process for each command that has loaded nothing of ours before: a fork of this one
RUN = """
import json, os, sys
for command in json.load(sys.stdin):
    if (child := os.fork()) == 0:
        from pytest_xlatune.cli import main
        code = 0
        sys.stdout = sys.stderr = open(os.devnull, "w")
        try:
            code = main(command.split())
        except SystemExit as left:
            code = left.code
        with open(sys.argv[1], "a") as file:
            file.write(json.dumps([code, sorted(sys.modules)]) + chr(10))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, command
"""


def prepare(folder: Path) -> None:
    """Write small inputs for every command, by the names that the table below has."""
    for side, seconds in (("one", 0.5), ("two", 0.52)):
        (folder / side).mkdir()
        for job in range(4):
            job_s = seconds * (1 + job / 1000)
            text = "".join(STEP.format(step, job_s, 512 / job_s) for step in range(15))
            (folder / side / f"{job}.log").write_text(text, encoding="utf-8")
    dump = "module_0001.jit_step.cpu_after_optimizations.txt"
    (folder / dump).write_text(HLO, encoding="utf-8")
    (folder / "test_small.py").write_text(SWEEP, encoding="utf-8")
    (folder / "h.trace.json").write_text(json.dumps(TRACE), encoding="utf-8")
    plane = b"\x12\x09/host:CPU"  # an XSpace of one plane without a line
    (folder / "h.xplane.pb").write_bytes(b"\x0a" + bytes([len(plane)]) + plane)
    table = "job,profile,tgs,step_s\n" + "".join(
        f"{100 + at},{'baseline' if at % 2 else 'a'},{1000 + at},0.512\n" for at in range(8)
    )
    (folder / "jobs.csv").write_text(table, encoding="utf-8")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them."""
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder)
    return folder


# command, its exit code, packages of others that it must not load, packages of ours
TABLE = [
    ("steps one/0.log", 0, ALWAYS, JUST_READING | {"evidence"}),
    ("triage one/0.log", 0, ALWAYS, JUST_READING | {"evidence"}),
    ("megascale one/0.log", 0, ALWAYS, JUST_READING | {"evidence", "report", "stats", "sweep"}),
    ("compare one two", 0, ALWAYS - {"numpy"}, JUST_READING | {"evidence"}),
    ("hlo .", 0, ALWAYS, JUST_READING | {"logs", "stats"}),
    ("drill h.trace.json", 2, ALWAYS - {"numpy"}, JUST_READING | {"logs"}),
    ("network h.xplane.pb", 0, ALWAYS - {"numpy"}, JUST_READING | {"logs", "report", "tasks"}),
    ("flags list", 0, ALWAYS, DRIVING | {"launchers", "evidence", "logs"}),
    ("flags list --axis FSDP", 0, ALWAYS, DRIVING | {"launchers", "logs"}),
    ("flags show ag", 0, ALWAYS, DRIVING | {"launchers", "logs"}),
    ("flags lint --jaxlib 0.8.3 --xla_a=1", 1, ALWAYS, {"campaign", "ledger", "logs"}),
    (
        f"flags lint --jaxlib 0.8.3 test_small.py {OF_CELL}",
        1,
        ALWAYS,
        {"campaign", "ledger"},
    ),
    # submitit renders the batch script of a plan for Slurm, and of no other
    (f"plan test_small.py {OF_CELL}", 0, ALWAYS - {"submitit"}, {"evidence", "campaign"}),
    (f"plan test_small.py {OF_CELL} --executor local", 0, ALWAYS, {"evidence", "campaign"}),
    ("jobs", 2, ALWAYS, {"evidence", "prepare", "studies"}),
    ("report", 2, ALWAYS, {"evidence", "prepare", "studies"}),
    ("--help", 0, ALWAYS, JUST_READING | {"evidence", "logs", "report", "stats", "sweep", "tasks"}),
]


# what a trial told: of each field of each class a dataclass compiles six functions
TRIALS = frozenset({"model.result", "model.trial", "model.rotation", "model.rotation_score"})
PAGES = frozenset({"report.page", "report.page_plots", "report.study_plots"})
# what a log needs that stands still, has a straggler or a digest of libtpu
OF_TROUBLE = frozenset(
    {"stats.stragglers", "stats.design", "logs.standstill", "guests.megascale.digests"}
)
# of reports
WRITERS = frozenset({"report.page", "report.covered", "report.exports", "report.tuning_document"})
# command, modules of ours that it must not load beside the packages above
MODULES = [
    ("steps one/0.log", TRIALS | PAGES | OF_TROUBLE),
    ("triage one/0.log", TRIALS | PAGES | OF_TROUBLE),
    ("megascale one/0.log", TRIALS),
    ("hlo .", TRIALS | PAGES | {"model.cell"}),
    (
        "drill h.trace.json",
        TRIALS | PAGES | {"model.cell", "evidence.hlo", "evidence.trace.xplane"},
    ),
    ("network h.xplane.pb", TRIALS | {"model.cell"}),
    ("flags list", TRIALS | PAGES),
    ("jobs --workdir w", PAGES),
    ("megascale --help", {"logs", "guests.megascale.digest"}),
    ("flags lint --jaxlib 0.8.3 --xla_a=1", {"prepare.preflight", "sweep.resolved", "studies"}),
    ("history --workdir w", WRITERS | {"studies.tuning", "studies.gate", "stats.rotations"}),
    ("watch --workdir w --once", WRITERS | {"studies.tuning", "studies.gate"}),
    ("report --workdir w", frozenset({"studies.tuning", "report.exports"})),
    ("import nosuch.csv --model m", {"campaign"}),
    # of a sweep file: no log is read where nothing ran
    (f"flags lint --jaxlib 0.8.3 test_small.py {OF_CELL}", frozenset({"logs", "logs.grammar"})),
    (f"plan test_small.py {OF_CELL} --executor local", frozenset({"logs", "prepare.compilers"})),
]

IMPORTED = [f"import jobs.csv {OF_CELL} --workdir w", "jobs --workdir w", "report --workdir w"]


@pytest.fixture(scope="module")
def loaded_by(inputs: Path) -> dict[str, tuple[int, list[str]]]:
    """The exit code of each command and the modules that its process had at its end."""
    commands = [*(command for command, *_ in TABLE), *IMPORTED]
    commands += [command for command, _ in MODULES if command not in commands]
    found = inputs / "modules.jsonl"
    # a setting of ours in the environment is looked at by each command
    told = ("COV", "XLATUNE_")
    env = {name: each for name, each in os.environ.items() if not name.startswith(told)}
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(found)],
        cwd=inputs,
        env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = found.read_text(encoding="utf-8").splitlines()
    return {command: tuple(json.loads(line)) for command, line in zip(commands, lines, strict=True)}


def test_a_ledger_is_listed_and_reported_without_what_measures(
    loaded_by: dict[str, tuple[int, list[str]]],
) -> None:
    (code, _), (of_jobs, listed), (of_report, reported) = (loaded_by[each] for each in IMPORTED)
    assert (code, of_jobs, of_report) == (0, 0, 0)
    assert not own(listed) & (DRIVING - {"ledger"} | {"evidence", "logs"})
    assert not own(reported) & {"campaign", "evidence", "executors", "prepare"}
    assert not {name.partition(".")[0] for name in reported} & (ALWAYS - {"numpy", "jinja2"})


@pytest.mark.parametrize("command", ["hlo .", "steps one/0.log", "drill h.trace.json", "jobs"])
def test_a_misspelt_variable_is_told_by_every_command(
    command: str, inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(inputs)
    monkeypatch.setenv("XLATUNE_WORKDIRR", "elsewhere")
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert "XLATUNE_WORKDIRR" in said.err
    assert "XLATUNE_WORKDIR" in said.err.replace("XLATUNE_WORKDIRR", "")
    assert not said.out


@pytest.mark.parametrize(
    ("command", "code", "others", "ours"), TABLE, ids=[command for command, *_ in TABLE]
)
def test_a_command_loads_only_what_it_uses(
    command: str,
    code: int,
    others: set[str],
    ours: set[str],
    loaded_by: dict[str, tuple[int, list[str]]],
) -> None:
    was, modules = loaded_by[command]
    assert was == code
    top = {name.partition(".")[0] for name in modules}
    assert not top & others
    assert sorted(own(modules) & ours) == []
    assert "cli" in own(modules)  # the walk sees what was loaded


@pytest.mark.parametrize(("command", "left_out"), MODULES, ids=[command for command, _ in MODULES])
def test_a_command_loads_no_class_of_trials_and_no_plot_without_need(
    command: str, left_out: frozenset[str], loaded_by: dict[str, tuple[int, list[str]]]
) -> None:
    _, modules = loaded_by[command]
    ours = {name.removeprefix("pytest_xlatune.") for name in modules}
    assert sorted(ours & left_out) == []
    assert "model.errors" in ours  # the walk sees what was loaded


def own(modules: list[str]) -> set[str]:
    """The packages of ours among modules."""
    return {name.split(".")[1] for name in modules if name.startswith("pytest_xlatune.")}


THREADS = """
import json, os, sys
from pytest_xlatune.cli import main
main(["drill", "h.xplane.pb"])
print(json.dumps([len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS")]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by /proc")
@pytest.mark.parametrize("said", [None, "2"])
def test_a_command_that_loads_numpy_starts_no_threads_and_leaves_the_environment(
    inputs: Path, said: str | None
) -> None:
    environ = {key: value for key, value in os.environ.items() if "_NUM_THREADS" not in key}
    if said is not None:
        environ["OPENBLAS_NUM_THREADS"] = said
    run = subprocess.run(
        [sys.executable, "-c", THREADS],
        cwd=inputs, env=environ, check=True, stdout=subprocess.PIPE, timeout=120,
    )  # fmt: skip
    threads, left = json.loads(run.stdout.splitlines()[-1])
    assert left == said
    if said is None:
        assert threads == 1
