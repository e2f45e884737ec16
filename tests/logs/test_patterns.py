"""Step lines of other trainers: presets, a user's own pattern, and what is refused."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.logs import LogReader, LogReport, fitting
from pytest_xlatune.logs.patterns import PRESETS, step_pattern
from pytest_xlatune.model.errors import ConfigError
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
    reports = []
    for size in (1 << 20, 97):
        reader = LogReader(step_pattern(said))
        for at in range(0, len(log), size):
            reader.feed(log[at : at + size])
        reader.close()
        reports.append(reader.report())
    assert repr(reports[0]) == repr(reports[1])
    return reports[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_preset_reads_the_lines_of_its_trainer(form: str) -> None:
    preset, line, figures = FORMS[form]
    report = read(text_of(["start", *(line.format(at, at + 1) for at in range(1, 16))]), preset)
    assert [each.step for each in report.steps] == list(range(1, 16))
    one = report.steps[7]
    assert (one.step_s, one.tgs, one.tflops, one.mfu, one.loss) == pytest.approx(figures)
    assert form == preset or fitting(line.format(3, 4).encode()) == preset


def test_an_object_without_a_figure_is_no_step() -> None:
    assert not read(b'{"step": 5, "msg": "saved"}\n', "json").steps


def test_a_users_own_pattern() -> None:
    said = r"epoch \d+ it (?P<step>\d+) took (?P<ms>[\d.]+) ms, (?P<tgs>[\d,.]+) tok/s"
    lines = [f"epoch 0 it {each} took 500.5 ms, 1,024.5 tok/s" for each in range(8)]
    report = read(text_of(["it is nothing", *lines]), said)
    assert [(each.step, each.step_s, each.tgs) for each in report.steps] == [
        (each, 0.5005, 1024.5) for each in range(8)
    ]
    said = r"iter (?P<step>\d+) of (?P<total>\d+), (?P<rate>[\d.]+) steps a second"
    report = read(text_of(["iter 3 of 40, 4.0 steps a second"]), said)
    assert (rates(report), report.goal_step) == ([(3, 0.25)], 40)


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
    (tmp_path / "xlatune.toml").write_text('step-pattern = "megatron-lm"\n', encoding="utf-8")
    assert main(["steps", "--json", "a/0.log"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    assert found["last_step"] == 15
    for said in ("tokens of a step are not declared", "per_device_batch_size", "--tokens"):
        assert said in found["no_score_reason"]
    assert main(["steps", "--json", "--tokens", "2000", "a/0.log"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    assert found["score"]["tgs"] == pytest.approx(2000.0)
    assert main(["compare", "--tokens", "1000", "a", "b"]) == 0
    assert "verdict: FASTER" in capsys.readouterr().out
    # the command line counts more
    (tmp_path / "titan.log").write_bytes(text_of(TITAN.format(each) for each in range(1, 16)))
    assert main(["steps", "--json", "--step-pattern", "torchtitan", "titan.log"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    assert (found["score"]["tgs"], found["score"]["step_s"]) == (pytest.approx(7282.0), None)
    (tmp_path / "xlatune.toml").write_text('step-pattern = "megatron"\n', encoding="utf-8")
    assert main(["triage", "a/0.log"]) == 2
    assert "did you mean 'megatron-lm'" in capsys.readouterr().err


def rates(report: LogReport) -> list[tuple[int, float | None]]:
    return [(each.step, each.step_s and round(each.step_s, 3)) for each in report.steps]


def test_steps_of_thousands_and_a_bar_that_begins() -> None:
    first = "  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|          | 1/100 [00:02<02:58, 1.6it/s]"
    assert rates(read(text_of([first]), "tqdm")) == [(0, None), (1, 0.625)]
    thousands = LEVANTER.replace("{0}.0it/70.0it", "7.08kit/10.0kit").replace("1.2s/it", "2.0it/s")
    report = read(text_of([thousands]), "levanter")
    assert (rates(report), report.goal_step) == ([(7080, 0.5)], 10000)


COUNTED = MEGATRON.format(3) + " number of nan iterations:   {} |"
# preset -> a line with a NaN, and lines that are no step of it
NANS = {
    "torchtitan": (TITAN.format(3).replace("3.24405", "nan"), TITAN[:90]),
    "megatron-lm": (COUNTED.format(1).replace("lm loss: 1.043863E+01 | ", ""), ""),
    "nemo": (
        "Epoch 0: 0%| | 3/20 [00:01<00:40, 2.01s/it, reduced_train_loss=nan, global_step=3.0, ]",
        ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NANS)
def test_a_nan_is_seen_and_a_torn_line_is_none(name: str) -> None:
    line, more = NANS[name]
    report = read(text_of([line]) + more.encode(), name)
    assert [each.step for each in report.steps] == [3]
    assert math.isnan(report.steps[0].loss or 0.0)
    assert [each.cls for each in report.findings] == ["numerical-failure"]
    assert read(text_of([COUNTED.format(0)]), "megatron-lm").findings == ()


MAXTEXT = "completed step: {0}, seconds: 9.000, Tokens/s/device: 8150.000, loss: 9.500"
BARS = "Loading shards: 10%|#    | {0}/10 [00:01<00:02, 2.00it/s]"


@pytest.mark.parametrize("preset", ["tqdm", "megatron-lm"])
def test_of_two_formats_in_one_log_the_one_that_was_asked_for_counts(preset: str) -> None:
    own = [LINES[preset].format(each) for each in range(1, 9)]
    others = [MAXTEXT.format(each) for each in range(12)]
    alone = read(text_of(own), preset).steps
    by_turns = [each for two in zip(others, own, strict=False) for each in two]
    for lines in ([*others, *own], [*own, *others], by_turns):
        assert read(text_of(lines), preset).steps == alone


def test_a_bar_of_something_else_is_not_the_format_that_fits() -> None:
    lines = [BARS.format(each) for each in range(1, 11)]
    lines += [TITAN.format(each) for each in range(1, 9)]
    assert fitting(text_of(lines)) == "torchtitan"


# preset -> the lines that tell the last step, and the end of a run that came to it
GOALS: dict[str, tuple[str, int, str]] = {
    "megatron-lm": (
        "", 5000, "[after training is done] datetime: 2026-01-12 07:08:09"),
    "torchtitan": (
        ("[titan] 2026-05-18 16:04:46,338 - root - INFO - Trainer is initialized with local batch "
        "size 8, sequence length 2048, total steps 40 (warmup 8)"), 40,
        "[titan] 2026-05-18 16:04:46,338 - root - INFO - Training completed"),
    "nemo": ("", 99, ""),
    "levanter": ("", 70, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", GOALS)
def test_the_last_step_is_read_from_the_lines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, goal, end = GOALS[name]
    path = tmp_path / "job.log"

    def status(*more: str, last: int = 12) -> tuple[str, int | None]:
        first = max(1, last - 11)
        lines = [head, *(LINES[name].format(each) for each in range(first, last + 1)), *more]
        path.write_bytes(text_of(lines))
        main(["triage", "--json", "--step-pattern", name, str(path)])
        (found,) = json.loads(capsys.readouterr().out)["logs"]
        return found["health"], found["steps_wanted"]

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
        ("exiting program after 230.25 minutes", 5000, 0),
        ("", 5000, None),
    ],
)
def test_an_end_of_megatron_that_was_asked_for(end: str, goal: int, code: int | None) -> None:
    lines = [*(MEGATRON.format(each) for each in range(1, 13)), end]
    report = read(text_of(lines), "megatron-lm")
    assert (report.last_step, report.goal_step, report.exit_code) == (12, goal, code)


@pytest.mark.parametrize("name", [each for each in PRESETS if each != "tqdm"])
def test_an_unknown_log_is_tried_against_all_formats(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    lines = [LINES[name].format(each) for each in range(1, 16)]
    path.write_bytes(text_of(["hello", *lines]))
    assert main(["steps", str(path)]) == 2
    assert f"are those of {name}: --step-pattern {name} reads them" in " ".join(
        capsys.readouterr().err.split()
    )
    # of one that is read for its failure, a note says it
    path.write_bytes(text_of([*lines, "torch.OutOfMemoryError: CUDA out of memory."]))
    main(["triage", "--json", str(path)])
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    assert found["status"] == "oom-gpu"
    assert f"--step-pattern {name}" in found["notes"][-1]


def test_a_bar_without_an_end_of_line_is_read_where_it_is_closed() -> None:
    log = "".join(f"\r 5%|#  | {at}/3 [00:02<00:38,  2.50s/it]" for at in range(1, 4)).encode()
    for cut, last in ((log, 3), (log[:-1], 2)):
        reader = LogReader(pattern=step_pattern("tqdm"))
        reader.feed(cut)
        reader.close()
        assert reader.report().last_step == last
