"""CVS files are read: facts, open items, accounting; one kind of error."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.guests.cvs._draft import other_trainer
from pytest_xlatune.guests.cvs.files import CvsGiven, _beside, read_cvs_file
from pytest_xlatune.guests.cvs.reading import CvsFile, leaves_of
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.cvs_written import CLUSTER, first, fourth, thresholds, write

ALL = {
    "1 single": first(),
    "1 multi": first(multi=True),
    "1 both": first(both=True),
    "4": fourth(),
    "4 single": fourth(multi=False),
}


def read(tmp_path: Path, data: Any, name: str = "config.json", **given: Any) -> CvsFile:
    return read_cvs_file(write(tmp_path, name, data), CvsGiven(**given))


@pytest.mark.parametrize("name", ALL)
def test_every_leaf_has_one_class_and_none_is_unknown(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, ALL[name])
    counts = found.accounting
    leaves = len(list(leaves_of(ALL[name])))
    assert counts.pop("leaves") == leaves == sum(counts.values())
    assert counts["unknown"] == 0, [each for each in found.leaves if each.cls == "unknown"]
    assert counts["comment"] > 0
    assert found.generation == name.split(" ", maxsplit=1)[0]
    assert found.model == "llama3.1-70b"
    assert found.gpu == "mi300x"
    assert found.steps == 30
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1 single", {"config.nnodes"}),
        ("1 multi", {"config.nnodes", "config.nccl_ib_hca", "config.nccl_socket_ifname"}),
        (
            "4",
            {"threshold_json", "container.image"}
            | {f"container.env.NCCL_{key}" for key in ("IB_HCA", "SOCKET_IFNAME")},
        ),
        ("4 single", {"threshold_json", "container.image"}),
    ],
)
def test_open_items_are_what_this_run_uses(tmp_path: Path, name: str, expected: set[str]) -> None:
    assert {each.path for each in read(tmp_path, ALL[name]).open_items} == expected


def test_what_the_user_gives_closes_an_item(tmp_path: Path) -> None:
    values = {
        "config.nnodes": "4",
        "config.nccl_ib_hca": "mlx5_0",
        "config.nccl_socket_ifname": "eno1",
    }
    found = read(tmp_path, first(multi=True), values=values)
    assert found.open_items == ()
    assert found.env["NCCL_SOCKET_IFNAME"] == "eno1"
    (cell,) = found.cells
    assert (cell.nodes, cell.parallelism) == (4, "FSDP=32")


def test_a_cluster_file_says_how_many_nodes_and_which_mode(tmp_path: Path) -> None:
    cluster = write(tmp_path, "cluster.json", CLUSTER)
    found = read(tmp_path, first(both=True), cluster=cluster)
    assert found.mode == "distributed"
    assert "config.nnodes" not in {each.path for each in found.open_items}
    one = {**CLUSTER, "node_dict": {"node001": {"vpc_ip": "node001"}}}
    cluster = write(tmp_path, "cluster.json", one)
    assert read(tmp_path, first(both=True), cluster=cluster).mode == "single"
    shown = read_cvs_file(cluster)
    assert (shown.kind, shown.nodes) == ("cluster", ("node001",))


def test_flags_and_environment_are_those_of_the_generation(tmp_path: Path) -> None:
    found = read(tmp_path, first())
    assert "xla_gpu_first_collective_call_warn_stuck_timeout_seconds" in found.xla_flags
    assert found.env["NVTE_CK_BWD_V3"] == found.env["NVTE_CK_USES_BWD_V3"] == "1"
    assert "NNODES" not in found.env
    assert found.env["MINE"] == "7"
    assert found.added["NCCL_IB_DISABLE"] == "1"
    data = fourth()
    data["train_params"]["xla_flags"] = {"xla_gpu_enable_command_buffer": "''"}
    later = read(tmp_path, data)
    assert later.xla_flags == {"xla_gpu_enable_command_buffer": ""}
    assert later.env["NCCL_DEBUG"] == "WARN"
    assert later.added["NCCL_CROSS_NIC"] == "0"


def test_the_words_of_a_value_are_typed(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, fourth()).cells
    assert cell.maxtext["rope_max_timescale"] == 500000
    assert cell.maxtext["normalization_layer_epsilon"] == 1e-5
    assert cell.maxtext["scan_layers"] is True
    (cell,) = read(tmp_path, first()).cells
    assert "base_emb_dim" not in cell.maxtext, "generation 1 writes it where nothing reads it"
    assert cell.maxtext["packing"] is True


def test_cells_are_the_sweeps_that_run_with_their_thresholds(tmp_path: Path) -> None:
    name, other = (each for each in fourth()["sweeps"] if each != "_comment")
    write(tmp_path, "tiny_threshold.json", thresholds(name, other))
    found = read(tmp_path, fourth(), nodes=4)
    (cell,) = found.cells
    assert cell.name == name
    assert cell.thresholds["training.tflops_per_sec_per_gpu"].value == 380
    assert (cell.nodes, cell.parallelism) == (4, "FSDP=32")
    fp8 = read(tmp_path, {**fourth(), "runs": ["BS=5,PRECISION=FP8,SL=4096"]}).cells[0]
    assert (fp8.per_device_batch_size, fp8.max_target_length) == (5, 4096)
    assert fp8.precision == "nanoo_fp8"
    assert fp8.maxtext["remat_policy"] == "minimal"
    shown = read_cvs_file(tmp_path / "tiny_threshold.json")
    assert (shown.kind, shown.generation, shown.accounting["unknown"]) == ("threshold", "4", 0)


def test_fp8_of_a_gpu_that_is_not_named_is_asked(tmp_path: Path) -> None:
    data = {**fourth(), "gpu_name": "mi3xx"}
    assert "gpu_name" not in read(tmp_path, data).to_json()["open_items"]
    data["runs"] = ["BS=5,PRECISION=FP8,SL=4096"]
    assert "gpu_name" in read(tmp_path, data).to_json()["open_items"]


def test_a_name_among_the_runs_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    data = {**fourth(), "runs": ["BS=2,PRECISION=BF16,SL=819"]}
    with pytest.raises(ConfigError, match="did you mean 'BS=2,PRECISION=BF16,SL=8192'"):
        read(tmp_path, data)


@pytest.mark.parametrize("name", ["1" * 400, "a\0b", "no such", "."])
def test_thresholds_under_no_possible_name_are_a_note(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {**fourth(), "threshold_json": name})
    assert not found.cells[0].thresholds
    assert any("no metric has a threshold" in each for each in found.notes)


def test_two_axes_that_take_the_rest_are_refused(tmp_path: Path) -> None:
    data = fourth()
    data["train_params"]["maxtext_config"]["dcn_data_parallelism"] = -1
    with pytest.raises(ConfigError, match="only one of a side can take the rest"):
        read(tmp_path, data)


def test_cells_of_thresholds_that_are_of_no_sweep_are_named(tmp_path: Path) -> None:
    (name,) = fourth()["runs"]
    other = name.replace("BS=2", "BS=3")
    write(tmp_path, "tiny_threshold.json", thresholds(other))
    (note,) = [each for each in read(tmp_path, fourth()).notes if "no sweep" in each]
    assert repr(other) in note
    assert f"the nearest is {name!r}" in note


def test_a_branch_of_maxtext_is_told(tmp_path: Path) -> None:
    data = fourth()
    own = {"maxtext_branch": "b", "maxtext_root": "/a", "maxtext_install_cmd": "c"}
    data["train_params"] |= own
    found = read(tmp_path, data)
    assert found.accounting["unknown"] == 0
    assert any(each.startswith("train_params.maxtext_branch: CVS") for each in found.notes)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({**first(), "config": {**first()["config"], "xla_flags": {}}}, "config file .* 2"),
        ({"framework": "jaxmaxtext", "training": {"steps": 30}}, "config file .* 3"),
        (thresholds("STEPS=30,BATCH=2,SEQLEN=8192"), "threshold file .* 3"),
    ],
)
def test_a_generation_between_the_two_is_refused_by_name(
    tmp_path: Path, data: Any, kind: str
) -> None:
    with pytest.raises(ConfigError, match=f"a {kind}; only generations 1 .* and 4 .* are read"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("block", "every", "target", "is_noted"),
    [
        ({"target_metric": "auto", "target_value": 10.0}, -1, 10.0, False),
        ({"target_metric": "train_loss", "target_value": "10"}, 5, 10.0, False),
        ({"target_value": 10.0}, None, 10.0, False),
        ({"target_metric": "auto", "target_value": 10.0}, 5, None, True),
        ({"target_metric": "eval_loss", "target_value": 10.0}, -1, None, True),
        ({"target_metric": "auto", "target_value": 0.0}, -1, None, False),
        ({"target_metric": "eval_loss", "target_value": -1}, -1, None, False),
    ],
)
def test_the_target_of_the_loss_is_the_one_of_the_steps(
    tmp_path: Path, block: Any, every: Any, target: float | None, is_noted: bool
) -> None:
    data = {**fourth(), "convergence": block}
    data["train_params"]["maxtext_config"]["eval_interval"] = every
    found = read(tmp_path, data)
    assert found.target == target
    assert any("target_metric" in each for each in found.notes) == is_noted


def test_a_loss_curve_that_does_not_say_has_the_values_of_cvs(tmp_path: Path) -> None:
    found = read(tmp_path, {**fourth(), "loss_curve": {"sample_every": 2}})
    assert (found.max_slope, found.enforce_slope) == (0.0, True)
    said = {"max_slope": "0.1", "enforce": "False"}
    found = read(tmp_path, {**fourth(), "loss_curve": said})
    assert (found.max_slope, found.enforce_slope) == (0.1, False)
    found = read(tmp_path, fourth())
    assert (found.max_slope, found.enforce_slope) == (None, False)


def test_the_nodes_of_a_cluster_file_under_either_key(tmp_path: Path) -> None:
    nodes = CLUSTER["node_dict"]
    data = {"username": "one", "head_node": "node001", "nodes": nodes, "env_vars": {}}
    path = write(tmp_path, "cluster.json", data)
    shown = read_cvs_file(path)
    assert (shown.kind, shown.nodes) == ("cluster", tuple(nodes))
    assert shown.accounting["unknown"] == 0
    assert read(tmp_path, fourth(), cluster=path).cells[0].nodes == 4


@pytest.mark.parametrize("name", ["{xx.xx.xx.xx|hostname}", "{head-node-ip}", "<changeme>"])
def test_a_template_of_a_cluster_file_is_told_and_counts_for_no_run(
    tmp_path: Path, name: str
) -> None:
    path = write(tmp_path, "cluster.json", {**CLUSTER, "node_dict": {name: {"vpc_ip": name}}})
    assert any(f"{name}: no name of a node yet" in each for each in read_cvs_file(path).notes)
    with pytest.raises(ConfigError, match="names no node"):
        read(tmp_path, fourth(), cluster=path)


def test_show_as_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "single.json", first())
    assert main(["cvs", "show", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        *("schema", "generation", "kind", "model", "mode", "gpu", "image", "steps", "cells"),
        *("xla_flags", "env", "open_items", "accounting"),
    ]
    assert document["open_items"] == ["config.nnodes"]
    assert main(["cvs", "show", str(path), "--cvs-set", "config.nnodes=1"]) == 0
    shown = capsys.readouterr().out
    assert "CVS generation 1, config" in shown
    assert "FSDP=8" in shown
    other = write(tmp_path, "other.json", fourth())
    assert main(["cvs", "show", str(path), str(other), "--json", "--nodes", "1"]) == 2
    assert [each["generation"] for each in json.loads(capsys.readouterr().out)] == ["1", "4"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "within", "value": 3}, "tolerance_pct is None, expected percent above 0"),
        ({"kind": "within", "value": 3, "tolerance_pct": -1}, "percent above 0"),
        ({"kind": "min_ratio", "value": 3}, "a number, or the name of another metric"),
        ({"kind": "min_ratio", "value": 3, "reference": "final_los"}, "mean 'final_loss'"),
        ({"kind": "mini", "value": 3}, "did you mean 'min'"),
    ],
)
def test_a_threshold_that_lacks_a_part_is_refused(tmp_path: Path, entry: Any, said: str) -> None:
    data = {"BS=1": {"training.final_loss": entry}}
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, data, "threshold.json")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"error_patterns": {"a": "(["}}, "error_patterns.a: '\\(\\['.* is no regular expression"),
        ({"error_patterns": {"a": 1}}, "error_patterns.a is 1, expected a regular expression"),
        ({"loss_curve": {"max_slope": "steep"}}, "loss_curve.max_slope is 'steep'"),
        ({"convergence": {"target_value": []}}, "convergence.target_value is list"),
    ],
)
def test_a_block_that_cannot_act_is_refused(tmp_path: Path, block: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, {**fourth(), **block})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n "a": 1\n "b": 2\n}', "line 3, column 2"),
        ('{\n "a": 1\n}', "line 2: JSON, but no CVS file"),
        ("[1]", "line 1: this is a list"),
        ('{"config": {"training_steps": NaN}, "model_params": {}}', "NaN is no number"),
        ("[" * 100000, "nested too deeply"),
        ('{"config": {}, "model_params": {"single_node": {"m": {"g": {"a": 1e999}}}}}', "larger"),
    ],
    ids=["a missing comma", "other keys", "a list", "NaN", "nested", "too large"],
)
def test_no_cvs_file_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main(["cvs", "show", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert str(path) in shown.err


def test_a_file_is_read_within_20_ms(tmp_path: Path) -> None:
    data = fourth()
    data["sweeps"] |= {f"BS={number},SL=8192": {"steps": 40} for number in range(20)}
    del data["runs"]
    path = write(tmp_path, "config.json", data)
    took = []
    for _ in range(5):
        begun = time.process_time()
        read_cvs_file(path)
        took.append(time.process_time() - begun)
    assert min(took) < 0.020


ODD: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    "<changeme>",
    -1,
    0,
    10**400,
    1e308,
    [],
    {},
    [[]],
    {"a": {}},
    "{a}",
)


def mutated(data: Any, chance: random.Random) -> Any:
    """Return a file with one to three changes: values swapped, keys dropped, nested, renamed."""
    made = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        below = made
        while True:
            keys = list(below) if isinstance(below, dict) else list(range(len(below)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(below[key], dict | list) and below[key] and chance.random() < 0.85:
                below = below[key]
                continue
            kind = chance.random()
            if kind < 0.2:
                del below[key]
            elif kind < 0.3 and isinstance(below, dict):
                below[chance.choice(["name", "kind", "{paths.a}", "x" * 50])] = below.pop(key)
            elif kind < 0.4:
                below[key] = {"deeper": below[key]}
            elif kind < 0.5:
                below[key] = [below[key]] * 2
            else:
                below[key] = copy.deepcopy(chance.choice(ODD))
            break
    return made


def mutants(count: int) -> Iterator[Any]:
    chance = random.Random(15)
    files = [*ALL.values(), CLUSTER, thresholds("BS=1", "default")]
    for _ in range(count):
        yield mutated(chance.choice(files), chance)


def test_damaged_files_end_in_one_kind_of_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    refused = 0
    for data in mutants(1500):
        path.write_text(json.dumps(data))
        try:
            found = read_cvs_file(path)
        except ConfigError as error:
            refused += str(path) in str(error)
        else:
            assert sum(found.accounting.values()) == 2 * found.accounting["leaves"]
            json.dumps(found.to_json(), allow_nan=False)
    assert 50 < refused < 1400


def test_a_cvs_file_names_its_thresholds_beside_it(tmp_path: Path) -> None:
    (tmp_path / "cvs").mkdir()
    for place in (tmp_path, tmp_path / "cvs"):
        (place / "thresholds.json").write_text("{}")
    file = tmp_path / "cvs" / "run.json"
    assert _beside(file, "thresholds.json") == tmp_path / "cvs" / "thresholds.json"
    assert _beside(file, "../thresholds.json") is None
    assert _beside(file, str(tmp_path / "thresholds.json")) is None


MEGATRON = {
    "config": {
        "container_image": "example/megatron:v1",
        "nnodes": "2",
        "master_address": "<changeme>",
        "training_iterations": "30",
    },
    "model_params": {
        "multi_node": {
            "llama3_1_8b": {
                "mi300x": {"batch_size": "128", "precision": "TE_FP8", "model_size": "8"}
            }
        }
    },
}
TITAN_KEYS = {"sequence_length": "8192", "tensor_parallel_degree": "1", "model_name": "tiny"}
COMBINED = {"a": {"name": "a", "micro_batch_size": "4", "precision": "FP8"}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(MEGATRON, "Megatron-LM, .*batch_size 128, precision TE_FP8", id="megatron"),
        pytest.param(
            {"config": {"torchtitan_root": "/t", "training_iterations": "10"},
             "model_params": {"single_node": {"tiny": {"mi325": TITAN_KEYS}}}},
            "TorchTitan, .*sequence_length 8192", id="torchtitan",
        ),
        pytest.param(
            {"schema_version": 1, "framework": "torchtitan_single", "config": {"nnodes": "1"},
             "model_params": {"sequence_length": "4096"}, "sweep": {"combinations": COMBINED}},
            "TorchTitan", id="torchtitan of the third form",
        ),
        pytest.param(
            {"gpu_name": "MI355X", "container": {"image": "i"}, "sweep": {"combinations": COMBINED},
             "train_params": {"training_iterations": "<changeme>", "sequence_length": "8192"}},
            "Megatron-LM, .*micro_batch_size 4, precision FP8", id="megatron of the newest form",
        ),
    ],
)  # fmt: skip
def test_a_file_of_another_trainer_is_refused_by_its_name(
    tmp_path: Path, data: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"a CVS file of {said}"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("schema", "is_told"),
    [(1, False), ("1", False), (9, True), ("x", True)],
    ids=["the known one", "as text", "a later one", "a word"],
)
def test_a_schema_that_is_not_known_is_told(tmp_path: Path, schema: Any, is_told: bool) -> None:
    data = {**fourth(), "schema_version": schema}
    notes = read(tmp_path, data).notes
    assert any(f"schema_version {schema} is not known" in each for each in notes) == is_told


def test_the_files_of_maxtext_are_no_other_trainers() -> None:
    assert not any(other_trainer(each) for each in ALL.values())


def test_a_threshold_file_shows_its_cells_and_what_they_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = {
        "training.tokens_per_sec_per_gpu": {"kind": "min", "value": 700},
        "training.final_loss": {"kind": "within", "value": 4, "tolerance_pct": 5},
        "training.eval_loss": {"kind": "info", "value": 100, "optional": True},
    }
    path = write(tmp_path, "t_threshold.json", {"_comment": "x", "NN1_ST30_BF16_B5_SL8192": cell})
    assert main(["cvs", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "CVS generation 4, threshold" in out
    assert "cell NN1_ST30_BF16_B5_SL8192:" in out
    assert "training.tokens_per_sec_per_gpu: min 700" in out
    assert "training.final_loss: within 4 by 5 %" in out
    assert "recorded only: training.eval_loss" in out
    assert main(["cvs", "show", "--json", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["cells"]
    assert found["name"] == "NN1_ST30_BF16_B5_SL8192"
    assert found["thresholds"] == {
        "training.tokens_per_sec_per_gpu": {"kind": "min", "value": 700},
        "training.final_loss": {"kind": "within", "value": 4, "tolerance_pct": 5},
        "training.eval_loss": {"kind": "info", "value": 100},
    }
    assert "precision" not in found, "a file of thresholds says nothing of what runs"


def test_the_names_of_the_newest_sweeps_are_labels_and_tell_the_nodes(tmp_path: Path) -> None:
    own = {"per_device_batch_size": 5, "max_target_length": 4096, "quantization": "fp8"}
    data = {**fourth(multi=True), "sweeps": {"NN4_ST30_FP8_B5_SL8192": own}}
    (cell,) = read(tmp_path, {**data, "runs": ["NN4_ST30_FP8_B5_SL8192"]}).cells
    assert (cell.nodes, cell.per_device_batch_size, cell.precision) == (4, 5, "fp8")
