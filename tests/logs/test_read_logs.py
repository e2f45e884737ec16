"""A plain log without a ledger: its protocol, as every MaxText prints it, and its JSON."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.result import Outcome, Score, State
from pytest_xlatune.tasks.files import STDIN, UnreadableLogError
from pytest_xlatune.tasks.read_logs import JobLog, logs_of, read_one
from tests.helpers.log_lines import step, text_of


def read(tmp_path: Path, *config: str, steps: int = 15, last: str = "") -> JobLog:
    path = tmp_path / "job.log"
    lines = [f"Config param {each}" for each in config]
    path.write_bytes(text_of([*lines, *(step(each) for each in range(steps)), last]))
    return read_one(path)


# of each MaxText -> the profiler
PROFILERS = {
    "profiler: ": "",  # 0.1: nothing
    "profiler: ProfilerType.NONE": "",  # 0.2: the enum's member
    "profiler: <ProfilerType.NONE: ''>": "",  # an enum as Python shows it
    "profiler: None": "",
    'profiler: ""': "",
    "profiler: xplane": "xplane",  # 0.1: on
    "profiler: ProfilerType.XPLANE": "xplane",  # 0.2: on
    "profiler: <ProfilerType.NSYS: 'nsys'>": "nsys",
}


@pytest.mark.parametrize(("said", "profiler"), PROFILERS.items())
def test_the_window_follows_the_real_profiler_setting(
    tmp_path: Path, said: str, profiler: str
) -> None:
    found = read(tmp_path, said, "skip_first_n_steps_for_profiler: 4", "profiler_steps: 2")
    assert found.protocol.profiler == profiler
    assert isinstance(found.score, Score)
    assert found.score.window == ((9, 14) if profiler else (5, 14))
    assert read(tmp_path, "skip_first_n_steps_for_profiler: 0").protocol.skip_first_steps == 0


@pytest.mark.parametrize(
    "config",
    [["steps: 15"], ["steps: -1", "learning_rate_schedule_steps: 15"], ["steps: nonsense"], []],
)
def test_steps_are_those_that_the_configuration_asks_for(tmp_path: Path, config: list[str]) -> None:
    assert read(tmp_path, *config).protocol.steps == 15


ALL = [step(each) for each in range(15)]
CONFIG = ["Config param steps: 15", "Config param profiler: "]
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.00GiB."


@pytest.mark.parametrize("more", [0, 200], ids=["a short log", "a long one"])
def test_of_a_log_without_an_end_the_last_lines_are_shown(
    tmp_path: Path, more: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    early = ["the first line of all", *(f"line {at} {'x' * 90}" for at in range(more))]
    end = ["HF_TOKEN=plant-1234567", ALL[7], "\x1b]0;title\x07 the last word"]
    path.write_bytes(text_of([*early, *CONFIG, *ALL[:7], *end]))
    assert main(["triage", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "first line" not in shown
    assert "plant" not in shown
    last = [line.strip() for line in shown.partition("Last lines")[2].split("\n") if line.strip()]
    assert [line.partition(",")[0] for line in last[:2]] == [
        "completed step: 5", "completed step: 6"
    ]  # fmt: skip
    assert last[3].startswith("completed step: 7,")
    assert last[4].endswith("the last word")


def test_the_payloads_own_word_of_the_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.0.txt"
    path.write_bytes(text_of([*CONFIG, *ALL[:8]]))
    assert read_one(path).status == "unfinished"
    killed = Outcome(state=State.FAILED, signal=9, end_s=2.0)
    (tmp_path / "outcome.json").write_text(json.dumps(killed.to_json()), encoding="utf-8")
    found = read_one(path)
    assert (found.status, found.health) == ("killed", "failed")
    assert found.reached.endswith("its end: failed (signal 9)")


def test_several_logs_exit_by_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths: dict[str, Path] = {}
    for name, lines in (("good", ALL), ("half", ALL[:8]), ("bad", [*ALL[:2], OOM])):
        paths[name] = tmp_path / f"{name}.log"
        paths[name].write_bytes(text_of([*CONFIG, *lines]))
    good, half, bad = map(str, paths.values())
    assert main(["triage", good, half]) == 3
    assert main(["triage", good, half, bad]) == 1
    assert main(["triage", good, bad, str(tmp_path / "gone")]) == 2
    assert "gone cannot be read" in capsys.readouterr().err


def test_figures_that_are_no_numbers_are_words_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "completed step: 0, seconds: nan, TFLOP/s/device: inf, MFU: nan%, "
        "Tokens/s/device: inf, total_weights: 1, loss: -inf\n",
        encoding="utf-8",
    )
    main(["steps", "--json", str(path)])
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    figures = {name: found["steps"][0][name] for name in ("seconds", "tgs", "tflops", "mfu")}
    assert figures == {"seconds": "nan", "tgs": "inf", "tflops": "inf", "mfu": "nan"}


@pytest.mark.parametrize("steps", ["100000000", "999999999999999", "9" * 4000])
def test_memory_is_bounded_by_the_log_and_not_by_a_number_in_it(tmp_path: Path, steps: str) -> None:
    read(tmp_path)  # what is loaded once
    tracemalloc.start()
    found = read(tmp_path, f"steps: {steps}", last=f"completed step: {'9' * 15}, seconds: 1.0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.report.last_step == int("9" * 15)
    assert peak < 10e6


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        pytest.param(
            ["slurm-123_1.out", "slurm-123_2.out.gz", "slurm-1234_1.out", "notes.md"],
            "123", ["slurm-123_1.out", "slurm-123_2.out.gz"], id="an array by its number",
        ),
        pytest.param(
            ["slurm-123_1.out", "slurm-9.out"], "", ["slurm-123_1.out", "slurm-9.out"],
            id="a folder of several jobs",
        ),
        pytest.param(
            ["88_1_log.out", "88_0_log.out", "88_0_log.err", "89_4_0_log.out"], "",
            ["88_0_log.out", "89_4_0_log.out"], id="submitit: rank 0 of each job",
        ),
        pytest.param(["88_1_log.out", "88_0_log.out"], "88", ["88_0_log.out"], id="one of them"),
        pytest.param(["log.1.txt", "log.0.txt", "x.out"], "", ["log.0.txt"], id="an attempt"),
        pytest.param(["12-llama.log", "12-llama.out"], "12", ["12-llama.log"], id="maxtext-slurm"),
        pytest.param(["notes.log"], "note", ["note"], id="a name that is none of a job"),
    ],
)  # fmt: skip
def test_folders_of_jobs_and_arrays(
    tmp_path: Path, names: list[str], asked: str, found: list[str]
) -> None:
    for each in names:
        (tmp_path / each).write_bytes(b"completed step: 1, seconds: 0.5, loss: 7.0\n")
    assert [each.name for each in logs_of(tmp_path / asked)] == found


MANY = text_of([*CONFIG, *(f"{each} {'x' * 99}" for each in range(30_000)), *ALL])
PACKED = {
    "gzip": gzip.compress(MANY),
    "members with zeros between": gzip.compress(MANY[:999])
    + b"\0" * 700
    + gzip.compress(MANY[999:]),
    "plain": MANY,
}


@pytest.mark.parametrize("is_piped", [False, True], ids=["a file", "the standard input"])
@pytest.mark.parametrize("packed", PACKED)
def test_gzip_and_the_standard_input_are_read_as_a_plain_file_is(
    packed: str, *, is_piped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(PACKED[packed])
    with path.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = read_one(STDIN if is_piped else path)
    assert (found.status, found.report.last_step, found.report.size_bytes) == ("ok", 14, len(MANY))
    assert found.report.notes == ()


def test_a_gzipped_log_that_is_cut_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log.gz"
    noise = random.Random(3).randbytes(2_000_000).hex().encode()
    path.write_bytes(gzip.compress(text_of([*CONFIG, *ALL[:8]]) + noise)[:-1000])
    assert main(["triage", str(path)]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "last step 7 of 15; no end in the log * its gzip data is cut or damaged" in said
    assert main(["steps", str(path)]) == 3
    assert "its gzip data is cut or damaged: only the" in " ".join(capsys.readouterr().out.split())
    path.write_bytes(path.read_bytes()[:12] + b"?" * 99)
    with pytest.raises(UnreadableLogError, match="damaged from the first byte on"):
        read_one(path)


# text and pattern of a file that is no log -> what is told
NO_LOGS = {
    "nothing in it": ("", None, "is empty; name the log"),
    "no step of ours: the message says how to write a pattern": (
        "hello\n", None,
        r"1 line, none .*tqdm, json; .*put \(\?P<step>\\d\+\) in the place of its number"),
    "nor of the pattern": ("hello\n", "nemo", "the step pattern .* fits none"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "pattern", "said"), NO_LOGS.values(), ids=NO_LOGS)
def test_a_file_that_is_no_log_is_told_by_what_it_lacks(
    tmp_path: Path, text: str, pattern: str | None, said: str
) -> None:
    path = tmp_path / "a.md"
    path.write_text(text)
    with pytest.raises(UnreadableLogError, match=said):
        read_one(path, pattern=step_pattern(pattern) if pattern else None)
    with pytest.raises(UnreadableLogError, match="Is a directory; name the log of a job"):
        read_one(*logs_of(tmp_path))
