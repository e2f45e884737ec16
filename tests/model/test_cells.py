"""Cells and trials: what is held fixed, and the identity that a ledger lives by."""

from __future__ import annotations

import msgspec
import pytest

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.trial import ConfirmDesign, LaunchSpec, Trial

CELL = Cell(
    model_tag="llama3.1-405b",
    parallelism=Parallelism.parse("PP=2,FSDP=4"),
    per_device_batch_size=7,
    max_target_length=4096,
    devices=8,
)


def trial(**changes: object) -> Trial:
    base = Trial(
        cell_digest=CELL.digest,
        profile=profile("overlap-2", "--xla_a=1"),
        protocol=CELL.protocol,
        study="tuning",
        stage="wave2",
    )
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize("text", ["FSDP=8", "pp=2, fsdp=4", "TP=1", "DP=2,TP=2,EP=2"])
def test_parallelism_reads_what_it_writes(text: str) -> None:
    parsed = Parallelism.parse(text)
    assert Parallelism.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected AXIS=DEGREE"),
        ("8", "expected AXIS=DEGREE"),
        ("FSDP=0", "expected AXIS=DEGREE"),
        ("FSDP=-1", "expected AXIS=DEGREE"),
        ("FSDP=2,FSDP=4", "given twice"),
        ("FDSP=8", "did you mean 'FSDP'"),
    ],
)
def test_bad_parallelism_shows_itself(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Parallelism.parse(text)


def test_stages_over_slices_share_the_devices_of_all() -> None:
    over = Cell(model_tag="m", parallelism=Parallelism.parse("PP=8"), devices=64)
    assert over.devices == 64
    with pytest.raises(ConfigError, match="multiply to 8"):
        msgspec.structs.replace(over, devices=12)


def test_axes_must_multiply_to_the_devices() -> None:
    with pytest.raises(ConfigError, match="multiply to 8, but the cell has 16 devices"):
        msgspec.structs.replace(CELL, devices=16)


def test_a_cell_on_other_nodes_is_another_cell() -> None:
    assert msgspec.structs.replace(CELL, nodelist=("node001",)).digest != CELL.digest
    assert Cell.from_json(CELL.to_json()).digest == CELL.digest
    assert CELL.digest is CELL.digest, "worked out once: it is asked for with every trial"


def test_label_and_invariant() -> None:
    assert CELL.label == "llama3.1-405b PP=2,FSDP=4 pdbs=7"
    assert CELL.tokens_per_device_step == 28672
    assert msgspec.structs.replace(CELL, max_target_length=None).tokens_per_device_step is None


@pytest.mark.parametrize("tag", ["", "a b", "../x", "-x", "a/b"])
def test_a_model_tag_is_a_file_name(tag: str) -> None:
    with pytest.raises(ConfigError, match="model tag"):
        msgspec.structs.replace(CELL, model_tag=tag)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": ""}, "expected 'tgs' .* or 'none'"),
        ({"metric": "TGS"}, "cannot be scored"),
        ({"metric": "field:"}, "cannot be scored"),
        ({"metric": "field:goodput"}, "better, 'higher' or 'lower'"),
        ({"metric": "field:goodput", "metric_is_better": "more"}, "say which is better"),
        ({"metric": "busbw", "metric_is_better": "lower"}, "leave them out"),
        ({"metric_unit": "ms"}, "leave them out"),
    ],
)
def test_a_metric_that_cannot_be_scored_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Protocol(**settings)  # type: ignore[arg-type]


def test_the_metric_and_its_direction_make_another_cell_and_its_unit_does_not() -> None:
    def digest(**settings: str) -> str:
        return msgspec.structs.replace(CELL, protocol=Protocol(**settings)).digest  # type: ignore[arg-type]

    lower = digest(metric="field:wait", metric_is_better="lower")
    assert len({lower, digest(metric="field:wait", metric_is_better="higher"), digest()}) == 3
    assert lower == digest(metric="field:wait", metric_is_better="lower", metric_unit="ms")


@pytest.mark.parametrize("name", ["steps", "min_steps", "deadline_s"])
def test_a_protocol_without_steps_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        msgspec.structs.replace(Protocol(), **{name: 0})


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"profile": profile("overlap-2", "--xla_a=2")}, id="another flag"),
        pytest.param({"profile": profile("overlap-3", "--xla_a=1")}, id="another name"),
        {"stage": "confirm"},
        {"block": 1},
        {"position": 1},
        {"design": ConfirmDesign(arms=3, blocks=4, baselines=2)},
        {"study": "gate"},
        {"cell_digest": "0" * 16},
        {"protocol": Protocol(steps=25)},
    ],
    ids=lambda changes: f"another {next(iter(changes))}",
)
def test_identity_covers_everything_that_matters(changes: dict[str, object]) -> None:
    assert trial(**changes).id != trial().id


def test_identity_ignores_words_and_patience() -> None:
    reworded = profile("overlap-2", "--xla_a=1", note="because", wave="wave9")
    assert trial(profile=reworded).id == trial().id
    patient = msgspec.structs.replace(CELL.protocol, deadline_s=9)
    assert trial(protocol=patient).id == trial().id
    assert msgspec.structs.replace(CELL, protocol=patient).digest == CELL.digest


def test_a_trial_survives_json_and_knows_the_baseline() -> None:
    assert Trial.from_json(trial().to_json()) == trial()
    assert trial(profile=BASELINE, arm=BASELINE.id).is_baseline
    assert not trial().is_baseline


def test_a_launch_spec_survives_json() -> None:
    spec = LaunchSpec(argv=("python", "train.py"), env={"NCCL_IB_HCA": "a:1,^b"}, inherit=("PATH",))
    assert LaunchSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("size", [0, -3, float("inf"), float("nan")])
def test_a_batch_of_nothing_is_refused(size: float) -> None:
    with pytest.raises(ConfigError, match=r"per_device_batch_size is .*expected a number above 0"):
        Cell(model_tag="m", parallelism=Parallelism.parse("DP=1"), per_device_batch_size=size)
