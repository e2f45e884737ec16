"""Step lines of other trainers, tables of tests, metrics files, and looks at ranks that hang."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune import CommandLauncher, ConfigError, Sweep, profile
from pytest_xlatune.cli import main
from pytest_xlatune.logs import LogReader, LogReport, fitting, read_log
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.patterns import PRESETS, step_pattern
from pytest_xlatune.logs.standstill import HangLook, SeenProcess, standstill
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import BUSBW, TGS, Logged, Metric
from pytest_xlatune.model.result import Action
from tests.helpers.guests import install, whole
from tests.helpers.log_lines import read as read_at
from tests.helpers.log_lines import text_of


def forms() -> dict[str, tuple[str, str, list[float | None]]]:
    """Of `tests/data/trainers.txt`: a form's preset, its line and the figures that it tells."""
    text = (Path(__file__).parents[1] / "data" / "trainers.txt").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.strip().split("\n\n")[1:]]
    return {
        name[2:]: (preset, ast.literal_eval(line), json.loads(figures))
        for name, preset, figures, line in blocks
    }


FORMS = forms()
LINES = {name: FORMS[name][1] for name in PRESETS}
TITAN, MEGATRON, LEVANTER = (LINES[name] for name in ("torchtitan", "megatron-lm", "levanter"))


def read(log: bytes, said: str) -> LogReport:
    whole, in_pieces = (read_at(log, cuts, pattern=said) for cuts in ((), range(97, len(log), 97)))
    assert repr(whole) == repr(in_pieces)
    return whole[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_preset_reads_the_lines_of_its_trainer(form: str) -> None:
    preset, line, figures = FORMS[form]
    report = read(text_of(["start", *(line.format(at, at + 1) for at in range(1, 16))]), preset)
    assert [each.step for each in report.steps] == list(range(1, 16))
    one = report.steps[7]
    assert (one.step_s, one.tgs, one.tflops, one.mfu, one.loss) == pytest.approx(figures)
    assert form == preset or fitting(line.format(3, 4).encode()) == preset


OWN = r"epoch \d+ it (?P<step>\d+) took (?P<ms>[\d.]+) ms, (?P<tgs>[\d,.]+) tok/s"
RATE = r"iter (?P<step>\d+) of (?P<total>\d+), (?P<rate>[\d.]+) steps a second"
COUNTED = MEGATRON.format(3).replace("lm loss: 1.043863E+01 | ", "") + " number of nan iterations: "
NEMO = "Epoch 0: 0%| | 3/20 [00:01<00:40, 2.01s/it, reduced_train_loss=nan, global_step=3.0, ]\n"
BAR = "\r 5%|#  | {}/3 [00:02<00:38,  2.50s/it]"
BARS = "".join(map(BAR.format, range(1, 4)))
LastStep = tuple[int, float | None, float | None, bool]  # seconds, TGS, whether its loss is NaN
# preset or pattern, a log -> its last step, and the step that it is to come to
READ: dict[str, tuple[str, str, LastStep | None, int | None]] = {
    "an object without a figure is no step": (
        "json", '{"step": 5, "msg": "saved"}\n', None, None),
    "a user's own": (
        OWN, "it is nothing\nepoch 0 it 7 took 500.5 ms, 1,024.5 tok/s\n",
        (7, 0.5005, 1024.5, False), None),
    "a user's own, of a rate": (
        RATE, "iter 3 of 40, 4.0 steps a second\n", (3, 0.25, None, False), 40),
    "a bar that begins": ("tqdm", "  0%|          | 0/100 [00:00<?, ?it/s]\n",
                          (0, None, None, False), 100),
    "thousands": (
        "levanter", LEVANTER.replace("{0}.0it/70.0it", "7.08kit/10.0kit").replace(
            "1.2s/it", "2.0it/s") + "\n", (7080, 0.5, None, False), 10000),
    "a bar that its next closes": ("tqdm", BARS, (3, 2.5, None, False), 3),
    "a bar that is not closed": ("tqdm", BARS[:-1], (2, 2.5, None, False), 3),
    "NaN of torchtitan, and a torn line": (
        "torchtitan", TITAN.format(3).replace("3.24405", "nan") + "\n" + TITAN[:90],
        (3, None, 7282.0, True), None),
    "NaN of NeMo": ("nemo", NEMO, (3, 2.01, None, True), None),
    "NaN that Megatron counts": (
        "megatron-lm", f"{COUNTED}  1 |\n", (3, 19.1388, None, True), 5000),
    "no NaN": ("megatron-lm", f"{COUNTED}  0 |\n", (3, 19.1388, None, False), 5000),
}  # fmt: skip


@pytest.mark.parametrize(("said", "log", "last", "goal"), READ.values(), ids=READ)
def test_a_pattern_reads_what_its_lines_tell(
    said: str, log: str, last: LastStep | None, goal: int | None
) -> None:
    report = read(log.encode(), said)
    steps = [
        (each.step, each.step_s and round(each.step_s, 4), each.tgs, math.isnan(each.loss or 0.0))
        for each in report.steps
    ]
    assert (steps[-1] if steps else None, report.goal_step) == (last, goal)
    is_nan = bool(last and last[3])
    assert [each.cls for each in report.findings] == ["numerical-failure"] * is_nan


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("torchtitn", "unknown step pattern 'torchtitn'.*did you mean 'torchtitan'"),
        (r"step (\d+)", r"found the groups none; expected \(\?P<step>"),
        (r"step (?P<step>\d+) (?P<speed>\d+)", "found the groups step, speed; expected"),
        (r"(?P<step>\d+", "missing \\)|unterminated"),
        (r"(?P<step>\d+): (?P<ms>\d+)", "has no fixed word by which step lines"),
    ],
)
def test_what_is_no_pattern_is_one_message(said: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_pattern(said)


def test_the_settings_file_says_the_pattern_for_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for side, ms in (("a", 1000.0), ("b", 900.0)):
        (tmp_path / side).mkdir()
        for job in range(6):
            text = MEGATRON.replace("19138.8", f"{ms + job / 10:.1f}").replace("5000", "  15")
            lines = (text.format(n) for n in range(1, 16))
            (tmp_path / side / f"{job}.log").write_bytes(text_of(lines))
    (tmp_path / "titan.log").write_bytes(text_of(TITAN.format(each) for each in range(1, 16)))
    (tmp_path / "xlatune.toml").write_text('step-pattern = "megatron-lm"\n', encoding="utf-8")

    def steps(*words: str) -> Any:
        assert main(["steps", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["logs"][0]

    entry = steps("a/0.log")
    assert entry["last_step"] == 15
    for said in ("tokens of a step are not declared", "per_device_batch_size", "--tokens"):
        assert said in entry["no_score_reason"]
    assert steps("--tokens", "2000", "a/0.log")["score"]["tgs"] == pytest.approx(2000.0)
    assert main(["compare", "--tokens", "1000", "a", "b"]) == 0
    assert "verdict: FASTER" in capsys.readouterr().out
    # the command line counts more
    score = steps("--step-pattern", "torchtitan", "titan.log")["score"]
    assert (score["tgs"], score["step_s"]) == (pytest.approx(7282.0), None)
    (tmp_path / "xlatune.toml").write_text('step-pattern = "megatron"\n', encoding="utf-8")
    assert main(["triage", "a/0.log"]) == 2
    assert "did you mean 'megatron-lm'" in capsys.readouterr().err


MAXTEXT = "completed step: {0}, seconds: 9.000, Tokens/s/device: 8150.000, loss: 9.500"


@pytest.mark.parametrize("preset", ["tqdm", "megatron-lm"])
def test_of_two_formats_in_one_log_the_one_that_was_asked_for_counts(preset: str) -> None:
    own = [LINES[preset].format(each) for each in range(1, 9)]
    others = [MAXTEXT.format(each) for each in range(12)]
    alone = read(text_of(own), preset).steps
    by_turns = [each for two in zip(others, own, strict=False) for each in two]
    for lines in ([*others, *own], [*own, *others], by_turns):
        assert read(text_of(lines), preset).steps == alone
    shards = [f"Loading shards: 10%|#    | {at}/10 [00:01<00:02, 2.00it/s]" for at in range(9)]
    assert fitting(text_of([*shards, *own])) == preset, "a bar of something else is not the format"


TITAN_LOGS = "[titan] 2026-05-18 16:04:46,338 - root - INFO - "
# preset -> the lines that tell the last step, that step, and the end of a run that came to it
GOALS: dict[str, tuple[str, int, str]] = {
    "megatron-lm": ("", 5000, "[after training is done] datetime: 2026-01-12 07:08:09"),
    "torchtitan": (
        f"{TITAN_LOGS}Trainer is initialized with sequence length 2048, total steps 40 (warmup 8)",
        40, f"{TITAN_LOGS}Training completed"),
    "nemo": ("", 99, ""),
    "levanter": ("", 70, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", GOALS)
def test_the_last_step_is_read_from_the_lines(name: str, triaged: Callable[..., Any]) -> None:
    head, goal, end = GOALS[name]

    def status(*more: str, last: int = 12) -> tuple[str, int | None]:
        numbers = range(max(1, last - 11), last + 1)
        lines = [head, *(LINES[name].format(each) for each in numbers), *more]
        entry, _ = triaged(lines, "--step-pattern", name)
        return entry["health"], entry["steps_wanted"]

    assert status() == ("unfinished", goal)
    assert status(last=goal) == ("healthy", goal)
    # the watchdog of torch ended it
    dead = "[rank2]: [E1105 09:20:57.7 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught "
    assert status(f"{dead}collective operation timeout: WorkNCCL(SeqNum=3)")[0] == "failed"
    if end:  # where the last step is not the last that is logged
        assert status(end)[0] == "healthy"


@pytest.mark.parametrize(
    ("end", "goal", "code"),
    [
        ("[exiting program at iteration 12] datetime: 2026-01-12 07:09:09 ", 12, None),
        ("[exiting program after 230.25 minutes] datetime: 2026-01-12 07:09:09 ", 5000, 0),
    ],
)
def test_an_end_of_megatron_that_was_asked_for(end: str, goal: int, code: int | None) -> None:
    lines = [*(MEGATRON.format(each) for each in range(1, 13)), end]
    report = read(text_of(lines), "megatron-lm")
    assert (report.last_step, report.goal_step, report.exit_code) == (12, goal, code)


@pytest.mark.parametrize("name", [each for each in PRESETS if each != "tqdm"])
def test_an_unknown_log_is_tried_against_all_formats(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], triaged: Callable[..., Any]
) -> None:
    path = tmp_path / "job.log"
    lines = [LINES[name].format(each) for each in range(1, 16)]
    path.write_bytes(text_of(["hello", *lines]))
    assert main(["steps", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"are those of {name}: --step-pattern {name} reads them" in said
    # of one that is read for its failure, a note says it
    entry, _ = triaged([*lines, "torch.OutOfMemoryError: CUDA out of memory."])
    assert entry["status"] == "oom-gpu"
    assert f"--step-pattern {name}" in entry["notes"][-1]


FORMAT, PROJECT = whole("a log format")
SHORT = """\
from pytest_xlatune.logs.formats import LogFormat
class Short(LogFormat):
    words = ("ace",)
"""
TICKS = "".join(f"tick {at} took 0.512 s, {1000 + at}.0 tokens a second\n" for at in range(12))
BLOCK = "Stuck workers: \n  n7\nend of the list\n"
MODULES = {"xlatune_ticks": FORMAT[0], "their_short": SHORT}


def brought(
    folder: Path, monkeypatch: pytest.MonkeyPatch, groups: Mapping[str, Mapping[str, str]]
) -> None:
    install(folder / "there", "their-ticks", groups, MODULES)
    monkeypatch.syspath_prepend(folder / "there")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for each in MODULES:
        sys.modules.pop(each, None)


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_steps_and_blocks_of_a_brought_format_are_read_in_any_pieces(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(tmp_path, monkeypatch, PROJECT["entry-points"])
    data = (TICKS + BLOCK).encode()
    report, fatal = read_at(data, range(size, len(data), size))
    assert [(each.step, each.tgs) for each in report.steps] == [(at, 1000 + at) for at in range(12)]
    [finding] = report.findings
    assert (finding.cls, finding.action) == (FailureClass.HANG_MID_TRAINING, Action.RETRY)
    assert (finding.line, finding.text, finding.detail) == (13, "Stuck workers:", "worker n7")
    assert fatal == finding
    # steps behind a block refute it, and MaxText's lines are read as before
    after = LogReader()
    after.feed((TICKS[:45] + BLOCK + TICKS).encode())
    assert after.fatal is None
    assert [each.step for each in read_log([text_of(map(MAXTEXT.format, range(9)))]).steps] == [
        *range(9)
    ]


def test_one_that_is_none_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(
        name="small",
        launcher=CommandLauncher(argv=("/bin/true",)),
        profiles=(profile("a", "--xla_a=1"),),
    )
    entry_points = {"pytest_xlatune.log_formats": {"ticks": "their_short:Short"}}
    brought(tmp_path, monkeypatch, entry_points)
    why = r"found words \('ace',\).*must be in lower case and have 3 letters"
    with pytest.raises(ConfigError, match=why):
        sweep.resolve()


# the layout of nccl-tests 2.13:  all_reduce_perf -b 8G -e 8G -f 2 -g 8
TEST = (Path(__file__).parents[1] / "data" / "nccl_tests.txt").read_text(encoding="utf-8")
ROW = TEST.splitlines()[9]
BAD_ROW = ROW.replace("    0    41619", "   17    41619") + "\n"
# before 2.13: no root where there is none, and the greatest error instead of a count
OLD_ROW = ROW.replace("      -1 ", " ").replace("     0", "  2e-07")
OLD = TEST.replace(ROW, OLD_ROW)


def table_of(text: str, metric: Metric) -> Logged:
    return read_figures(text.encode().splitlines(keepends=True), metric)


WRONG = TEST.replace("    0    41619", "   17    41619")
# a table of a test -> what is wrong with it
TABLES = {
    "one size": (TEST, ""),
    "below srun -l": ("".join(f"0: {line}\n" for line in TEST.splitlines()), ""),
    "a collective without reduction": (TEST.replace("     sum      -1", ""), ""),
    "not checked": (TEST.replace("    0    41619", "  N/A    41619"), ""),
    "corrupt data": (WRONG, "17 wrong values"),
    "two sizes": (
        TEST.replace(ROW, f"{ROW}\n{ROW.replace('8589934592', '4294967296')}"), "2 sizes"),
    "the last of two runs": (WRONG.replace("360.97", "12.5") + TEST, ""),
    "a summary's FAILED": (TEST.replace("0 OK", "12 FAILED"), "12 wrong values"),
    "in other letters": (TEST.replace("0 OK", "1,200 failed"), "1200 wrong"),
    "a summary alone, its rows left out": (
        TEST.replace(f"{ROW}\n", "").replace("0 OK", "3 FAILED"), "3 wrong values"),
    "FAILED below the average": (f"{TEST}# Out of bounds values : 7 FAILED\n", "7 wrong"),
    "a second test, corrupt and cut": (TEST + BAD_ROW, "17 wrong"),
    "the errors of an old table": (OLD, ""),
    "an old table of two sizes": (
        OLD.replace(OLD_ROW, f"{OLD_ROW}\n{OLD_ROW.replace('8589934592', '1048576')}"), "2 sizes"),
    "a count of 5000 digits is no row": (
        ROW.replace("    0    41619", f"  {'9' * 5000}    41619") + "\n" + TEST, ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), TABLES.values(), ids=TABLES)
def test_bus_bandwidth_is_the_average_of_one_size(text: str, said: str) -> None:
    found = table_of(text, BUSBW)
    assert found.value == 360.97
    assert said in sentence(found.problem)
    assert bool(said) == bool(found.problem)


def test_a_table_that_was_cut_has_no_bandwidth() -> None:
    assert table_of(TEST[: TEST.index("# Out of bounds")], BUSBW) == Logged()
    assert table_of("srun: error: n1: task 0: Killed\n", BUSBW).problem is None
    assert table_of(TEST, TGS) == Logged()


LOSS = 7.12345678


def metrics_line(step: float, **more: object) -> str:
    values = {
        "step": step,
        "run_name": "r",
        "learning/loss": LOSS,
        "perf/step_time_seconds": 0.123456789,
        "perf/per_device_tokens_per_sec": 8294.4001,
        "perf/per_device_tflops_per_sec": 0.0345,
    }
    return json.dumps(values | more) + "\n"


# the text of a file -> step, start and loss of its records
FILES: dict[str, tuple[str, list[tuple[int, int, float | None]]]] = {
    "a whole line": (metrics_line(3.0), [(3, 0, LOSS)]),
    "a missing value": ('{"step": 2, "perf/step_time_seconds": "fast"}', [(2, 0, None)]),
    "a loss that is infinite": (metrics_line(0, **{"learning/loss": math.inf}), [(0, 0, math.inf)]),
    "a loss of NaN": (metrics_line(0, **{"learning/loss": math.nan}), [(0, 0, math.nan)]),
    "the last start counts": (
        "".join(metrics_line(each) for each in (0, 1, 2, 1, 2, 3)),
        [(1, 1, LOSS), (2, 1, LOSS), (3, 1, LOSS)]),
    **{f"torn at {cut}": (metrics_line(0) + metrics_line(1)[:cut], [(0, 0, LOSS)])
       for cut in range(1, 60, 7)},
    **{text or "nothing": (text, [])
       for text in ("", "\n\n", "[1]\n", "null", '{"step": NaN}', '{"step": true}')},
}  # fmt: skip


@pytest.mark.parametrize(("text", "records"), FILES.values(), ids=FILES)
def test_a_file_is_read_as_far_as_it_tells_steps(
    text: str, records: list[tuple[int, int, float | None]]
) -> None:
    found = parse_metrics(text)
    told = [(each.step, each.start, each.loss) for each in found]
    assert repr(told) == repr(records)  # NaN equals NaN
    figures = {(each.step_s, each.tgs, each.tflops) for each in found}
    assert figures <= {(0.123456789, 8294.4001, 0.0345), (None, None, None)}, "not rounded"


AT = ("/x/site-packages/jax/_src/array.py:8 _value", "/home/u/train.py:40 main")


def process(rank: int, **said: Any) -> SeenProcess:
    usual = {
        "pid": 100 + rank, "parent": 1, "name": "python", "rank": rank, "state": "S",
        "threads": 30, "call": "waits", "channel": "futex_wait", "on": "",
        "stacks": (AT,),
    }  # fmt: skip
    return SeenProcess(**{**usual, **said})


def look(rank: int, *, node: str = "", **said: Any) -> HangLook:
    return HangLook(
        node=node or f"n{rank}",
        rank=rank,
        at_s=1e9,
        quiet_s=900.0,
        processes=(process(rank, **said),),
    )


ELSEWHERE = (("/home/u/data.py:9 load", "/home/u/train.py:38 main"),)


FOUR: dict[int, dict[str, Any]] = {rank: {} for rank in range(4)}
READS = {"call": "reads", "on": "a socket"}
FILE = {"call": "reads", "on": "/data/shard-7"}
LATE = {0: 9, 1: 9, 2: 7, 3: 9}
OTHERS = "; 3 other ranks waiting in train.py:40 main"
# what rank 2 of four does, while the others wait at one place -> what is said of it
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "stopped": ({"state": "T"}, "stopped by a signal or a debugger in train.py:40 main"),
    "under a debugger": ({"state": "t", "stacks": ()}, "stopped by a signal or a debugger"),
    "died": (
        {"state": "Z", "threads": 1, "stacks": ()}, "its program has ended (unknown)"),
    "a file system that is away": (
        {"state": "D", "call": "", "channel": "rpc_wait_bit_killable"},
        "in an uninterruptible wait of the kernel (rpc_wait_bit_killable) in train.py:40 main"),
    "a server is silent": (
        {"call": "reads", "on": "a socket", "stacks": ELSEWHERE},
        "waits for a socket in data.py:9 load"),
    "asleep": ({"call": "sleeps", "stacks": ELSEWHERE}, "sleeps in data.py:9 load"),
    "a loop of Python": (
        {"call": "running", "state": "R", "stacks": ELSEWHERE},
        "computes on the host in data.py:9 load"),
    "a loop without stacks": ({"call": "", "state": "R", "stacks": ()}, "computes on the host"),
    "another collective": ({"stacks": ELSEWHERE}, "waiting in data.py:9 load"),
}  # fmt: skip
# what the ranks do, two on a node, and what else is known -> the ranks behind, and what is said
JOBS: dict[str, tuple[dict[int, Any], dict[str, Any], tuple[int, ...], str]] = {
    **{name: ({**FOUR, 2: odd}, {}, (2,), f"rank 2 on n1 is behind: {said}{OTHERS}")
       for name, (odd, said) in ODD.items()},
    "two are enough where one waits": (
        {0: {"call": "sleeps"}, 1: {}}, {}, (0,), "sleeps in train.py:40 main"),
    "which of two that wait cannot be told": (
        {0: {"stacks": ELSEWHERE}, 1: {}}, {}, (), "no rank of 2 stands out"),
    "waits in a socket's read": (
        {0: READS, 1: READS, 2: {}, 3: READS}, {}, (2,), "waiting in train.py:40 main"),
    "a file that does not come holds most up": (
        {0: FILE, 1: FILE, 2: {}, 3: FILE}, {}, (0, 1, 3), "waits for /data/shard-7"),
    "a call of the driver is a wait": (
        {0: {}, 1: {"call": "reads", "on": "/dev/kfd"}, 2: {}}, {}, (), "no rank stands out"),
    "all alike": (FOUR, {}, (), "all 4: waiting in train.py:40 main"),
    "two steps behind": (FOUR, {"steps": LATE}, (2,), "is behind after step 7"),
    "one step behind": (FOUR, {"steps": {**LATE, 2: 8}}, (), "no rank stands out"),
    "a rank prints no steps": (FOUR, {"steps": {0: 9, 2: 3}}, (), "no rank stands out"),
    "a rank ended": (
        {0: {}, 1: {}, 3: {}}, {"ended": {2: "signal 9"}, "ranks": range(4)}, (2,),
        "its program has ended (signal 9)"),
    "a node is silent": (
        {0: {}, 1: {}, 3: {}}, {"ranks": range(4)}, (2,), "its node did not answer"),
    "all ranks of a node": (
        {rank: FILE if rank in (2, 3) else {} for rank in range(6)}, {}, (2, 3),
        "ranks 2, 3 on n1 are behind"),
    "one rank of a node": (
        {rank: FILE if rank == 2 else {} for rank in range(6)}, {}, (2,), "rank 2 on n1 is"),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "more", "behind", "said"), JOBS.values(), ids=JOBS)
def test_who_is_behind(
    ranks: dict[int, dict[str, Any]], more: dict[str, Any], behind: tuple[int, ...], said: str
) -> None:
    looks = [look(rank, node=f"n{rank // 2}", **odd) for rank, odd in ranks.items()]
    found = standstill(looks, **more)
    assert found is not None
    assert found.behind == behind
    assert said in sentence(found.why)
    assert bool(found.node) == (len(behind) > 1 and "ranks 2, 3" in said)
    # a node of one rank is named
    alone = standstill([look(rank, **odd) for rank, odd in ranks.items()], **more)
    assert alone is not None
    nodes = [f"n{rank}" for rank in behind if rank in ranks]
    assert (alone.behind, alone.node) == (behind, nodes[0] if len(nodes) == 1 else "")


def test_of_a_rank_s_processes_the_trainer_counts_and_not_the_shell_above_it() -> None:
    shell = process(0, pid=90, name="bash", threads=1, call="wait4", stacks=())
    loop = process(0, call="running", state="R", stacks=ELSEWHERE)
    first = HangLook(node="n0", rank=0, at_s=1.0, quiet_s=99.0, processes=(shell, loop))
    found = standstill([first, look(1), look(2)])
    assert found is not None
    assert found.behind == (0,)


@given(st.permutations(range(5)), st.sampled_from(["T", "D", "R"]), st.integers(0, 4))
def test_the_order_of_the_answers_changes_nothing(order: list[int], state: str, odd: int) -> None:
    looks = [look(rank, **({"state": state, "call": ""} if rank == odd else {})) for rank in order]
    assert standstill(looks) == standstill(sorted(looks, key=lambda each: each.rank))
