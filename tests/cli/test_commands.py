"""The command line: what it prints, its help, how it refuses, and commands of others."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune import __version__
from pytest_xlatune.cli import COMMANDS, main
from pytest_xlatune.cli import _parser as parser_of
from tests.cli.conftest import Run
from tests.helpers import scripted
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture
from tests.helpers.captures import node
from tests.helpers.guests import install, whole
from tests.helpers.hlo_programs import write_dump

SWEEPS = Path(__file__).parents[2] / "sweeps"
LAUNCHER = "python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml"
STEP = (
    "completed step: {}, seconds: 0.500, TFLOP/s/device: 1.5, Tokens/s/device: {:.3f}, "
    "total_weights: 512, loss: {}\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    lines = [STEP.format(step, 1024, 7.1) for step in range(15)]
    path.write_text("XLA_FLAGS=--xla_a=1\n" + "".join(lines), encoding="utf-8")
    return path


def test_steps_as_json(log: Path, tmp_path: Path, run: Run) -> None:
    status, out, _ = run("steps", "--json", log)
    document = json.loads(out)
    assert (status, document["schema"]) == (0, 1)
    (entry,) = document["logs"]
    step = {"step": 3, "seconds": 0.5, "tgs": 1024.0, "tflops": 1.5, "mfu": None, "loss": 7.1}
    assert entry["steps"][3] == step
    assert entry["score"]["tgs"] == pytest.approx(1024)
    assert entry["score"]["window"] == [5, 14]
    assert (entry["status"], entry["no_score_reason"]) == ("ok", None)
    assert entry["xla_flags"] == "--xla_a=1"
    # absent is null, and NaN is a word
    path = tmp_path / "nan.log"
    path.write_text(STEP.format(0, 1024, "nan"), encoding="utf-8")
    (entry,) = json.loads(run("steps", "--json", path)[1])["logs"]
    assert (entry["steps"][0]["loss"], entry["score"]) == ("nan", None)
    assert entry["findings"][0]["class"] == "numerical-failure"
    status, out, err = run("steps", "--json", tmp_path / "gone.log", log)
    assert (status, "gone.log cannot be read: No such file" in err) == (2, True)
    assert [Path(each["path"]).name for each in json.loads(out)["logs"]] == ["job.log"]


def test_steps_and_triage_as_text(log: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TGS 1024.0, 0.5000 s/step" in run("steps", log)[1]
    assert run("triage", log)[0] == 0
    with log.open("a", encoding="utf-8") as file:
        file.write("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n")
    status, out, _ = run("triage", log)
    assert (status, "oom-gpu" in out) == (1, True)
    # a trial is named by its folder
    folder = log.parent / "fast-wave2.0-ac98cfcf49.1"
    folder.mkdir()
    log.rename(folder / "log.0.txt")
    (folder / "log.1.txt").write_text("completed step: 0, seconds: 9.0\n", encoding="utf-8")
    assert "log.0.txt" in run("steps", folder)[1]
    # an output that was closed from the start, as Python has it under `>&-`, is no trouble
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["steps", str(folder)]) == 0


def test_numpy_starts_no_threads_and_jobs_inherit_nothing() -> None:
    code = """if True:
        import os
        from pytest_xlatune.cli.parsers import load_function
        load_function("pytest_xlatune.cli.drill:run_drill")
        print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ)
    """
    clean = {name: value for name, value in os.environ.items() if "OPENBLAS" not in name}
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, env=clean)
    assert printed.split() == ["1", "False"]


def written_to(output: int, *given: str) -> tuple[str, int]:
    """What a process of the command says on stderr, and its exit code; closes the output."""
    code = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv, stderr = [sys.executable, "-c", code, *given], subprocess.PIPE
    with os.fdopen(output, "w") as file:
        ended = subprocess.run(argv, stdout=file, stderr=stderr, text=True, check=False, env=env)
    return ended.stderr, ended.returncode


def test_an_output_that_cannot_be_written_is_one_message_and_no_traceback(
    log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # `xlatune steps LOG | head`, and head has what it wants
    assert written_to(writing, "steps", str(log)) == ("", 0)
    for command in (["steps", str(log)], ["--help"]):
        said, status = written_to(os.open("/dev/full", os.O_WRONLY), *command)
        assert (said.count("\n"), status) == (1, 3)
        assert said.startswith("xlatune: ")
        assert "No space left" in said
    # a sign that a terminal cannot show ends no command
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown, named = tmp_path / "shown", log.rename(log.with_name("größe.log"))
    output = os.open(shown, os.O_WRONLY | os.O_CREAT)
    assert written_to(output, "triage", str(named)) == ("", 0)
    assert "gr\\xf6\\xdfe.log" in shown.read_text(encoding="ascii")


ONE_PROFILE = """
SWEEP = Sweep(
    name=NAME, launcher=CommandLauncher(argv=("true",)), profiles=(profile("a", "--xla_a=1"),)
)
"""
IMPORTS = "from pytest_xlatune import CommandLauncher, Sweep, profile\n"


FROM_OTHER = "if 1:\n    from other import *\n"
BAD_FILES = {
    "no file": (None, "no such file"),
    "a trainer": ("open('ran', 'w').close()\n", "declares no SWEEP = Sweep("),
    "a bad profile": (f"{IMPORTS}SWEEP = profile('A')\n", "imported: ConfigError: profile id 'A'"),
    "what may declare one": (FROM_OTHER, "cannot be imported: ModuleNotFoundError"),
    "no model": (f'{IMPORTS}NAME = "x"{ONE_PROFILE}', "the model (--model)"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_sweep_file_is_one_message(
    tmp_path: Path, text: str | None, message: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "test_x.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    status, _, err = run("plan", path)
    assert status == 2
    assert message in err
    assert not Path("ran").exists(), "a trainer is not run as a sweep file"


def test_a_study_is_what_pytest_runs_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    sweep = str(SWEEPS / "test_nodes.py")
    cell = ["--nodelist", "node[001-004]", "--model", "m", "--parallelism", "FSDP=8"]
    cell += ["--pdbs", "8", "--launcher", LAUNCHER]
    started: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        started.append([program, *words])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    assert run("study", "nodes", sweep, "--plan", *cell)[0] == 0
    (words,) = started
    assert words[:7] == [sys.executable, sys.executable, "-m", "pytest", sweep, "-m", "nodes"]
    assert words[7:10] == ["--xlatune-plan", "--xlatune-nodelist", "node[001-004]"]
    assert "run it: xlatune study nodes" in run("study", "gate", sweep, *cell)[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_examples_that_the_command_takes(name: str, run: Run) -> None:
    _, said, _ = run(name, "--help")
    assert COMMANDS[name].examples
    for example in COMMANDS[name].examples:
        assert example in said
        program, command, *words = shlex.split(example.partition(" > ")[0])  # the shell's own part
        assert (program, command) == ("xlatune", name)
        words = ["--against" if word == "--" else word for word in words]
        if "--help" in words or name == "flags":  # it reads some words in a way of its own
            continue
        parser_of(name).parse_args([name, *words])


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        ("plan SWEEP", 0, ("finds with 80 % power", "ici_fsdp_parallelism=2")),
        ("plan SWEEP --parallelism FSDP=8", 2, ("multiply to 8, but the cell has 2 devices",)),
        ("plan SWEEP --budget many", 2, ("xlatune: --budget: found 'many'",)),
        ("jobs --workdir nowhere", 2, ("name another --workdir",)),
        ("jobs pretend", 2, ("unknown sweep 'pretend'",)),
        ("--version", 0, (f"xlatune {__version__}\n",)),
        ("XLATUNE_WORKDIRR=x jobs", 2, ("XLATUNE_WORKDIRR",)),
        ("flags lint --python /no/such/python --xla_a=1", 2, ("not on this machine",)),
        ("flags lint --python p --jaxlib 0.8.3 --xla_a=1", 2, ("one of the two",)),
        ("flags lint --deployed '--xla_a=1 b' --xla_a=1", 2, ("--deployed: 'b' does not begin",)),
        ("flags list --device nope --axis DP", 2, ("unknown device 'nope'",)),
        ("flags show xla_gpu_autotune_lvl", 2, ("did you mean",)),
    ],
)
def test_a_command_ends_with(
    argv: str, status: int, words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"SWEEP": str(SWEEPS / "test_quickstart.py")}
    given = [named.get(word, word) for word in shlex.split(argv)]
    if given[0].startswith("XLATUNE_"):
        monkeypatch.setenv(*given.pop(0).split("="))
    ended, out, err = run(*given)
    assert ended == status
    assert [each for each in words if each not in (err if status else out)] == []
    assert bool(out) is not bool(status)


def test_a_report_of_a_ledger_is_named_by_its_path_and_may_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    monkeypatch.chdir(tmp_path)
    folder, gone = str(made.folder), str(tmp_path / "gone")
    assert "FASTER" in run("report", folder, "--no-files")[1]
    status, out, _ = run("report", folder, folder, "--json")
    assert (status, [report["schema"] for report in json.loads(out)]) == (0, [3, 3])
    status, out, err = run("report", folder, gone, "--json")
    assert (status, len(json.loads(out))) == (3, 1), "a list where several were named"
    assert "gone does not exist" in err
    assert not (tmp_path / "reports").exists()
    assert run("report", folder, gone, folder)[0] == 3
    assert (tmp_path / "reports" / "pretend-tuning.md").exists()


(ENTRY, COMMAND), PROJECT = whole("a command")


def test_it_is_listed_beside_ours_and_runs_as_ours_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    group = "pytest_xlatune.commands"
    # one that cannot be loaded, and a name of ours
    more = {"broken": "their_absence:COMMAND", "steps": "xlatune_words:COMMAND"}
    names = {group: {**PROJECT["entry-points"][group], **more}}
    modules = {"xlatune_words": ENTRY, "xlatune_words_command": COMMAND}
    monkeypatch.syspath_prepend(install(tmp_path / "there", "their-words", names, modules))
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def helped(*words: str) -> str:
        status, out, _ = run(*words, "--help")
        assert status == 0
        return " ".join(out.split())

    assert "score of logs" in helped("steps")
    assert "xlatune_words" not in sys.modules, "no other distribution can take a name of ours"
    assert "words count the words of a file, 100 % of them" in helped()
    assert "xlatune_words_command" not in sys.modules, "its own module is not loaded for that"
    (tmp_path / "notes.txt").write_text("one two three")
    assert run("words", "notes.txt") == (0, "3 words\n", "")
    status, _, err = run("words", "none.txt")
    assert (status, "xlatune: none.txt: no such file" in err) == (2, True)
    assert "examples: xlatune words notes.txt" in helped("words")
    why = "their_absence:COMMAND of their-words 1.2 cannot be loaded: ModuleNotFound"
    status, _, err = run("broken")
    assert (status, why in err) == (2, True)
    assert why in helped(), "the others are there"


OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("list", ("--xla_gpu_all_gather_combine_threshold_bytes = 268435456",)),
        # of an axis it is what a wave would take
        ("list --axis pp --jaxlib 0.10.2 --device sm_90",
         ("left out: pipeline-ag: --xla_gpu_pipeline_all_gather is accepted since",)),
        ("show --xla_gpu_collective_inflation_factor NCCL_BUFFSIZE",
         ("collective-inflation: --xla_gpu_collective_inflation_factor (blocked)",
          "recipes write 16M")),
        # a flag that only the releases know
        ("show xla_gpu_graph_min_graph_size", ("not in the catalog",)),
        ("show ag channels",
         ("seen in:  NCCL_DEBUG=INFO", "accepted since jaxlib 0.4.30 or before")),
    ],
)  # fmt: skip
def test_list_and_show(run: Run, argv: str, words: tuple[str, ...]) -> None:
    code, out, _ = run("flags", *argv.split())
    assert code == 0
    assert [each for each in words if each not in out] == []


@pytest.mark.usefixtures("xla")
def test_lint_of_a_sweep_file(run: Run) -> None:
    sweep = SWEEPS / "test_quickstart.py"
    code, out, _ = run("flags", "lint", sweep, "--python", sys.executable)
    assert code == 1
    assert "profile warp-drive: unknown to this XLA: --xla_cpu_enable_warp_drive" in out


MEGASCALE = "--megascale_abort_on_hangs=true"
# words of the command -> rules that object, whether the tables know the release
WITHOUT_XLA: dict[str, tuple[str, list[str], bool]] = {
    "a release that was probed": (
        "--jaxlib 0.6.2 --xla_gpu_pipeline_all_gather=on", ["unknown-flag"], True),
    "a release between one that lacks it and one that has it": (
        f"--jaxlib 0.4.34 '{OVERLAP}=2 --xla_gpu_enable_latency_hiding_scheduler=true'", [], False),
    "a release of later": (
        "--jaxlib 99.0 --xla_gpu_no_such=1 --deployed --xla_gpu_autotune_level=0", [], False),
    "a bare flag of libtpu": (f"{MEGASCALE} --device v6e --jaxlib 0.10.2", ["tpu-flag"], True),
    "a flag of libtpu in its variable": (
        f"LIBTPU_INIT_ARGS={MEGASCALE} --jaxlib 0.4.35", [], True),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "rules", "is_probed"), WITHOUT_XLA.values(), ids=WITHOUT_XLA)
def test_lint_without_an_xla(run: Run, argv: str, rules: list[str], *, is_probed: bool) -> None:
    code, out, _ = run("flags", "lint", "--json", *shlex.split(argv))
    document = json.loads(out)
    assert [objection["rule"] for objection in document["objections"]] == rules
    assert code == bool(rules)
    (said,) = document["unchecked"]
    assert ("other releases than jaxlib" not in said) is is_probed


def captured(folder: Path, unit: int) -> Path:
    """A folder with the capture of a node with four devices, steps 5, 6 and 7."""
    folder.mkdir()
    (folder / "n1.xplane.pb").write_bytes(node(gpus=4, unit=unit).data())
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return captured(tmp_path / "base", 10**6)


def test_dumps_of_a_gpu_are_read_with_the_files_beside_them_and_compared(
    run: Run, tmp_path: Path
) -> None:
    good = write_dump(tmp_path / "dump", "fsdp-ov")
    code, out, err = run("hlo", good)
    assert (code, err) == (0, "")
    assert "4 x all-gather: 32 MiB, asynchronous" in out
    assert "option xla_gpu_enable_latency_hiding_scheduler=true" in out
    dumps = [write_dump(tmp_path / name, name) for name in ("fsdp", "fsdp-ag")]
    code, out, _ = run("hlo", *dumps)
    assert code == 0
    assert "all-gathers in the loop: 4 of 32 MiB -> 2 of 64 MiB" in out
    code, out, _ = run("hlo", *dumps, "--json")
    assert (code, json.loads(out)["difference"]["change"]) == (0, "other program")
    for bad in ("/dev", "/dev/zero"):
        for argv in ((bad,), (good, bad)):
            code, out, err = run("hlo", *argv)
            assert (code, err.count("\n")) == (2, 1)
            assert f"{bad}: no " in err
            assert ("jit_train_step for sm_9.0" in out) is (good in argv)


def test_a_trace_reconciles_and_two_variants_are_compared(
    run: Run, base: Path, tmp_path: Path
) -> None:
    code, out, err = run("drill", base, "--json", "--steps", 3)
    assert (code, err) == (0, "")
    (drill,) = json.loads(out)["variants"]
    assert (drill["steps"], len(drill["gpus"])) == ([5, 6, 7], 4)
    total = sum(step["sum_ps"] for gpu in drill["gpus"] for step in gpu["steps"])
    assert sum(row["sum_ps"] for row in drill["families"]) == total
    assert sum(row["sum_ps"] for row in drill["kernels"]) == total
    faster = captured(tmp_path / "faster", 9 * 10**5)
    argv = ["--steps", 3, base, "--", faster, "--step-time", 0.5, "--step-time", 0.4]
    code, out, err = run("drill", *argv)
    assert (code, err) == (0, "")
    assert "step - total kernel" in out
    assert json.loads(run("drill", *argv, "--json")[1])["sentences"]
    for options, message in (
        (("--gpus", 16), "4 devices with kernels in 1 capture, 16 expected"),
        (("--step-time", 1, "--step-time", 2), "2 times for 1 variant;"),
    ):
        code, out, err = run("drill", base, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


@pytest.mark.parametrize("name", ["n2.xplane.pb", "n2.trace.json.gz"], ids=["cut", "foreign"])
def test_a_bad_capture_is_named_and_the_others_are_still_read(
    run: Run, base: Path, name: str
) -> None:
    good = base / "n1.xplane.pb"
    data = good.read_bytes()
    (base / name).write_bytes(data[: len(data) // 2] if "xplane" in name else b"no gzip at all")
    for argv in ((base,), ("/gone", base), (base, "--", "/gone")):
        code, out, err = run("drill", *argv)
        assert (code, "steps 5, 6, 7" in out) == (2, True)
        assert f"{name}: " in err
        assert ("/gone: no such file" in err) is ("/gone" in argv)
        assert "no capture among" not in err
    good.unlink()
    code, out, err = run("drill", base)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name}: " in err
