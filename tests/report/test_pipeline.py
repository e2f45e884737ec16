"""The bubble of a pipeline: MaxText's own arithmetic, before a sweep and after it."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.report.bubble import NoPipeline, Pipeline, bubbles, config_of, pipeline_of
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.render import markdown


def cell(parallelism: str = "PP=8", **overrides: str) -> Cell:
    return Cell(
        model_tag="m", parallelism=Parallelism.parse(parallelism), overrides=dict(overrides)
    )


@pytest.mark.parametrize(
    ("parallelism", "overrides", "expected"),
    [
        pytest.param(
            "PP=8",
            {"base_num_decoder_layers": "8"},
            Pipeline(stages=8, microbatches=8, repeats=1),
            id="as many microbatches as stages without a word",
        ),
        pytest.param(
            "PP=8",
            {"base_num_decoder_layers": "64", "num_layers_per_pipeline_stage": "2"},
            Pipeline(stages=8, microbatches=8, repeats=4),
            id="repeats follow from the layers",
        ),
        pytest.param(
            "PP=8,FSDP=2",
            {"num_pipeline_repeats": "2", "num_pipeline_microbatches": "32"},
            Pipeline(stages=8, microbatches=32, repeats=2),
            id="or are said",
        ),
        pytest.param(
            "PP=4",
            {
                "base_num_decoder_layers": "61",
                "pipeline_parallel_layers": "56",
                "num_layers_per_pipeline_stage": "7",
            },
            Pipeline(stages=4, microbatches=4, repeats=2),
            id="of the layers that are in the pipeline",
        ),
        pytest.param(
            "PP=4",
            {"num_pipeline_repeats": "1", "pipeline_delay_activation_forwarding": "True"},
            Pipeline(stages=4, microbatches=8, repeats=1, delay=2),
            id="twice the delay",
        ),
        pytest.param(
            "PP=2",
            {"num_layers_per_pipeline_stage": "-1", "num_pipeline_microbatches": "4"},
            Pipeline(stages=2, microbatches=4, repeats=1),
            id="all layers of a stage at once",
        ),
    ],
)
def test_the_shape(parallelism: str, overrides: dict[str, str], expected: Pipeline) -> None:
    assert pipeline_of(cell(parallelism, **overrides), BASELINE) == expected


@pytest.mark.parametrize(
    ("model", "parallelism", "overrides", "expected"),
    [
        ("mixtral-8x22b", "PP=8", {}, Pipeline(stages=8, microbatches=8, repeats=7)),
        (
            "llama3.1-405b",
            "PP=8",
            {"pipeline_parallel_layers": "120"},
            Pipeline(stages=8, microbatches=8, repeats=15),
        ),
        # the three dense layers of 61 come before the pipeline
        (
            "deepseek3-671b",
            "PP=2",
            {"num_layers_per_pipeline_stage": "29"},
            Pipeline(stages=2, microbatches=2, repeats=1),
        ),
        (
            "llama3.1-405b",
            "PP=8",
            {"base_num_decoder_layers": "16"},
            Pipeline(stages=8, microbatches=8, repeats=2),
        ),
    ],
)
def test_the_layers_of_a_model_by_its_name(
    model: str, parallelism: str, overrides: dict[str, str], expected: Pipeline
) -> None:
    base = {"base_num_decoder_layers": "16", "pipeline_parallel_layers": "-1"}  # of base.yml
    named = cell(parallelism, model_name=model, **overrides)
    assert pipeline_of(named, BASELINE, base) == expected
    in_file = cell(parallelism, **overrides)
    assert pipeline_of(in_file, BASELINE, base | {"model_name": model}) == expected


def test_a_model_whose_layers_do_not_divide_is_told_before_the_sweep_with_the_key_to_set() -> None:
    said = pipeline_of(cell("PP=8", model_name="{model_tag}"), BASELINE)
    assert isinstance(said, NoPipeline), "a model that is not known"
    for model, layers, fewer in (("deepseek3-671b", 58, 56), ("llama3.1-405b", 126, 120)):
        own = Cell(
            model_tag=model,
            parallelism=Parallelism.parse("PP=8"),
            overrides={"model_name": "{model_tag}"},
        )
        found = pipeline_of(own, BASELINE)
        assert isinstance(found, NoPipeline)
        assert f"{layers} layers do not divide" in found.reason
        assert f"pipeline_parallel_layers={fewer}" in found.reason
        stated = pipeline_of(own, BASELINE, {"pipeline_parallel_layers": str(fewer)})
        assert isinstance(stated, Pipeline), "its configuration leaves layers out of the pipeline"
        of_base = pipeline_of(own, BASELINE, {"pipeline_parallel_layers": "-1"})
        assert isinstance(of_base, NoPipeline)


@pytest.mark.parametrize(
    ("shape", "bubble"),
    [
        ((8, 8, 1), 7 / 15),
        ((8, 16, 1), 7 / 23),
        ((8, 8, 4), 7 / 39),
        ((1, 8, 1), 0.0),
    ],
)
def test_the_formula(shape: tuple[int, int, int], bubble: float) -> None:
    stages, microbatches, repeats = shape
    own = Pipeline(stages=stages, microbatches=microbatches, repeats=repeats)
    assert own.bubble == pytest.approx(bubble)


def test_a_delay_doubles_the_bubble_and_a_smaller_one_is_a_gain() -> None:
    one = Pipeline(stages=8, microbatches=16, repeats=1)
    late = Pipeline(stages=8, microbatches=16, repeats=1, delay=2)
    assert late.bubble == pytest.approx(14 / 30)
    # 8 of 15 iterations work, then 16 of 23
    assert one.over(Pipeline(stages=8, microbatches=8, repeats=1)) == pytest.approx(30 / 23 - 1)
    assert late.over(late) == 0


@pytest.mark.parametrize(
    ("parallelism", "overrides", "words"),
    [
        pytest.param("FSDP=8", {}, "has no pipeline", id="no pipeline"),
        pytest.param("PP=8", {}, "number of layers", id="unknown layers"),
        pytest.param("PP=8", {"base_num_decoder_layers": "61"}, "61 layers", id="do not divide"),
        pytest.param(
            "PP=8", {"num_pipeline_repeats": "many"}, "is not a number", id="is not a number"
        ),
        pytest.param("PP=8", {"num_pipeline_repeats": "0"}, "is 0", id="none"),
        pytest.param(
            "PP=8",
            {"num_pipeline_repeats": "1", "num_pipeline_microbatches": "9"},
            "not a multiple of 8",
            id="microbatches",
        ),
        pytest.param(
            "PP=8",
            {"base_num_decoder_layers": "64", "global_parameter_scale": "4"},
            "global_parameter_scale",
            id="scaled",
        ),
    ],
)
def test_what_cannot_be_told_says_why(
    parallelism: str, overrides: dict[str, str], words: str
) -> None:
    found = pipeline_of(cell(parallelism, **overrides), BASELINE)
    assert isinstance(found, NoPipeline)
    assert words in found.reason


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
    assert config == {
        "base_num_decoder_layers": "32",
        "num_pipeline_microbatches": "16",
        "num_layers_per_pipeline_stage": "4",
    }
    shallow = cell(num_layers_per_pipeline_stage="2")
    more = profile("more", overrides={"num_pipeline_microbatches": "32"})
    assert pipeline_of(cell(), BASELINE, config) == Pipeline(stages=8, microbatches=16, repeats=1)
    assert pipeline_of(shallow, more, config) == Pipeline(stages=8, microbatches=32, repeats=2)


def shown() -> str:
    own = cell(num_pipeline_repeats="1")
    profiles = (
        profile("flag", "--xla_a=1"),
        profile("m-16", overrides={"num_pipeline_microbatches": "16"}),
        profile("m-9", overrides={"num_pipeline_microbatches": "9"}),
    )
    section = bubbles(own, profiles)
    assert section is not None
    return markdown(Document(title="t", header=(), sections=(section,)))


def test_a_plan_predicts_the_change() -> None:
    before = shown()
    assert f"| `baseline-deployed` | 8 | 8 | 1 | 46.7 % | {ABSENT} |" in before
    assert "| `m-16` | 8 | 16 | 1 | 30.4 % | +30.4 |" in before
    assert "m-9: 9 microbatches" in before
    assert "flag" not in before


def test_where_nothing_shapes_a_pipeline_there_is_no_section() -> None:
    flag = profile("flag", "--xla_a=1")
    more = profile("more", overrides={"num_pipeline_microbatches": "32"})
    assert bubbles(cell(), [flag]) is None
    assert bubbles(cell("FSDP=8"), [more]) is None
