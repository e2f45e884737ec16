"""The bubble of a pipeline: MaxText's own arithmetic, before a sweep and after it."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.report.bubble import NoPipeline, Pipeline, bubbles, config_of, pipeline_of
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.render import markdown
from tests.helpers.texts import DATA

LAYERS = "base_num_decoder_layers"
PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
MICROBATCHES = "num_pipeline_microbatches"
IN_PIPELINE = "pipeline_parallel_layers"
BASE_YML = {LAYERS: "16", IN_PIPELINE: "-1"}


def cell(parallelism: str = "PP=8", model_tag: str = "m", **overrides: str) -> Cell:
    return Cell(
        model_tag=model_tag, parallelism=Parallelism.parse(parallelism), overrides=overrides
    )


def shape(stages: int, microbatches: int, repeats: int, delay: int = 1) -> Pipeline:
    return Pipeline(stages=stages, microbatches=microbatches, repeats=repeats, delay=delay)


CELLS = dict(
    line.split(": ", 1)
    for line in (DATA / "pipelines.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("name", CELLS)
def test_the_shape_follows_from_the_cell_or_says_why_not(name: str) -> None:
    words, _, expected = CELLS[name].partition(" -> ")
    axes, *settings = words.split()
    overrides = dict(setting.split("=") for setting in settings)
    found = pipeline_of(cell(axes, **overrides), BASELINE)
    if isinstance(found, NoPipeline):
        assert expected in found.reason
    else:
        assert found == shape(*map(int, expected.split()))
    if "model_name" in overrides and isinstance(found, Pipeline):
        # the file that all models share says less than the model's name
        assert pipeline_of(cell(axes, **overrides), BASELINE, BASE_YML) == found


def test_the_bubble_is_the_share_of_iterations_in_which_a_stage_waits() -> None:
    shapes = (shape(8, 8, 1), shape(8, 16, 1), shape(8, 8, 4), shape(1, 8, 1))
    assert [each.bubble for each in shapes] == pytest.approx([7 / 15, 7 / 23, 7 / 39, 0.0])
    assert shape(8, 16, 1, delay=2).bubble == pytest.approx(14 / 30)
    # 8 of 15 iterations work, then 16 of 23
    assert shape(8, 16, 1).over(shape(8, 8, 1)) == pytest.approx(30 / 23 - 1)


def test_a_profile_wins_over_the_cell_and_the_cell_over_the_file() -> None:
    files = (
        DeployedFile(path="a.env.sh", text="num_pipeline_repeats: 9"),
        DeployedFile(
            path="m.yml",
            text="# x\nbase_num_decoder_layers: 32  # all\nnum_pipeline_microbatches: '16'\n"
            "outer:\n  nested: 1\nnum_layers_per_pipeline_stage: 4\n",
            is_shell=False,
        ),
    )
    config = config_of(files)
    assert config == {LAYERS: "32", MICROBATCHES: "16", PER_STAGE: "4"}
    more = profile("more", overrides={MICROBATCHES: "32"})
    assert pipeline_of(cell(), BASELINE, config) == shape(8, 16, 1)
    assert pipeline_of(cell(**{PER_STAGE: "2"}), more, config) == shape(8, 32, 2)


def test_a_plan_predicts_the_change_where_a_profile_shapes_the_pipeline() -> None:
    flag = profile("flag", "--xla_a=1")
    more, odd = (profile(f"m-{n}", overrides={MICROBATCHES: n}) for n in ("16", "9"))
    section = bubbles(cell(**{REPEATS: "1"}), (flag, more, odd))
    assert section is not None
    text = markdown(Document(title="t", header=(), sections=(section,)))
    assert f"| `baseline-deployed` | 8 | 8 | 1 | 46.7 % | {ABSENT} |" in text
    assert "| `m-16` | 8 | 16 | 1 | 30.4 % | +30.4 |" in text
    assert "m-9: 9 microbatches" in text
    assert "flag" not in text
    assert bubbles(cell(), [flag]) is None
    assert bubbles(cell("FSDP=8"), [more]) is None
