"""CVS configurations are read: a row is a file with changes, the exit status, words."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.guests.cvs.launcher import deployed_of
from pytest_xlatune.guests.cvs.reading import read_cvs_file
from pytest_xlatune.guests.cvs.source import leaves_of
from pytest_xlatune.guests.cvs.values import CvsFile
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.cvs_written import CLUSTER, first, fourth, thresholds, write

GONE: Any = object()
FILES: dict[str, dict[str, Any]] = {
    "1": first(),
    "1 multi": first(multi=True),
    "4": fourth(),
    "4 single": fourth(multi=False),
    "empty": {},
    "cluster": CLUSTER,
    "thresholds": thresholds("BS=1"),
}
MODEL = "model_params/single_node/llama3.1-70b/mi300x"
MAXTEXT = "train_params/maxtext_config"
BF16, FP8 = "BS=2,PRECISION=BF16,SL=8192", "BS=5,PRECISION=FP8,SL=4096"
IMAGE = f"example/i:1@sha256:{'0' * 64}"
PINNED = {"config/container_image": IMAGE}
ONE_NODE = {**PINNED, "config/nnodes": "1"}
FILLED = {"threshold_json": "tiny_threshold.json", "container/image": IMAGE}
DISTRIBUTED = {
    **FILLED, "container/env/NCCL_IB_HCA": "mlx5_0", "container/env/NCCL_SOCKET_IFNAME": "eno1",
}  # fmt: skip


def changed(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a file with values in their places; a path is written with slashes."""
    data = copy.deepcopy(FILES[name])
    for path, value in changes.items():
        *above, last = path.split("/")
        below: Any = data
        for key in above:
            below = below.setdefault(key, {})
        if value is GONE:
            del below[last]
        else:
            below[last] = value
    return data


def read(tmp_path: Path, name: str = "4", changes: Any = (), **given: Any) -> CvsFile:
    return read_cvs_file(write(tmp_path, "config.json", changed(name, dict(changes))), **given)


ROWS: list[tuple[str, str, dict[str, Any], str, int, list[str]]] = [
    # what is open
    ("a number of nodes in prose", "1", {}, "", 2, ["open items", "config.nnodes: the number"]),
    ("the user says it", "1", PINNED, "--cvs-set config.nnodes=1", 0, ["FSDP=8"]),
    ("a sample", "1 multi", {}, "", 2,
     ["config.nccl_socket_ifname", "sample: eno0", "nccl_ib_hca"]),
    ("an image of a tag alone", "1", {"config/nnodes": "1"}, "", 2,
     ["config.container_image", "NAME@sha256:HEX"]),
    ("four of generation 4", "4", {}, "", 2, ["container.image", "NCCL_IB_HCA", "threshold_json"]),
    ("none of generation 4", "4", DISTRIBUTED, "--nodes 4", 0, ["FSDP=32", "nodes: 4", "batch 2"]),
    ("nodes not said", "4", DISTRIBUTED, "", 0,
     ["nodes: not given", "axes: they depend on the number of nodes"]),
    ("which FP8", "4", {**DISTRIBUTED, "gpu_name": "mi3xx", "runs": [FP8]}, "", 2,
     ["gpu_name", "from mi35x on"]),
    ("FP8 of a new GPU", "4", {**DISTRIBUTED, "gpu_name": "MI355X", "runs": [FP8]}, "", 0,
     ["batch 5", "length 4096, fp8"]),
    # what each key becomes
    ("a misspelt key", "1", {**ONE_NODE, "config/training_step": "3"}, "", 0,
     ["unknown   config.training_step:", "did you mean training_steps?"]),
    # what cannot be read
    ("no whole number", "4", {f"{MAXTEXT}/steps": "2.5"}, "", 2,
     ["steps is '2.5'", "whole number"]),
    ("too large", "4", {"gpus_per_node": 10**30}, "", 2, ["gpus_per_node", "below 1e18"]),
    ("a list", "4", {"runs": "x"}, "", 2, ["runs is 'x', expected a list"]),
    ("a list in the environment", "4", {"container/env/A": []}, "", 2, ["container.env.A is list"]),
    ("two that take the rest", "4", {f"{MAXTEXT}/dcn_data_parallelism": -1}, "", 2,
     ["dcn_fsdp_parallelism", "only one axis of a side can be -1"]),
    ("an unknown sweep", "4", {"runs": [BF16[:-1]]}, "", 2,
     ["unknown sweep", "did you mean", BF16]),
    ("a word of a sweep", "4", {"sweeps": {"BS=2,LR=3": {}}, "runs": GONE}, "", 2,
     ["unknown word 'LR'"]),
    ("no model", "1", {"model_params": {}}, "", 2, ["model_params has no model"]),
    ("a key below a value", "1", {}, "--cvs-set config.nnodes.x=1", 2,
     ["--cvs-set config.nnodes.x: config.nnodes is no object and has no keys"]),
    ("a path that is not there", "1", {}, "--cvs-set config2.nnodes=1", 2,
     ["unknown path 'config2.nnodes'", "config.nnodes"]),
    # what is another file
    ("generation 2", "1", {"config/xla_flags": {}}, "", 2, ["without config.xla_flags"]),
    ("generation 3", "empty", {"training/steps": 30}, "", 2, ["generations 1", "4 (train_params)"]),
    ("no file of CVS", "empty", {"a": 1}, "", 2, ["its keys are a"]),
    ("Megatron", "empty", {"config/master_address": "x", "model_params": {}}, "", 2,
     ["a CVS file of Megatron-LM", "only files of MaxText"]),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=what) for what, *row in ROWS])
def test_a_file_is_shown_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: list[Any]
) -> None:
    name, changes, args, status, words = row
    path = write(tmp_path, "config.json", changed(name, changes))
    assert main(["cvs", "show", str(path), *args.split()]) == status
    out, err = capsys.readouterr()
    told = " ".join((out + err).split())
    assert [each for each in words if " ".join(each.split()) not in told] == []
    assert bool(out) != bool(err), "a file that is refused shows nothing else"


def test_no_json_of_cvs_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    for text, said in (
        ('{\n "a": 1\n "b": 2\n}', "line 3, column 2"),
        ("[1]", "is an object"),
        ('{"config": {"training_steps": NaN}, "model_params": {}}', "NaN is not a number"),
        ('{"a": ' * 50 + "1" + "}" * 50, "of few levels"),
        ('{"config": ' + "9" * 5000 + "}", "cannot be read"),
    ):
        path.write_text(text)
        assert main(["cvs", "show", str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, said in err, str(path) in err) == ("", True, True), said


@pytest.mark.parametrize("name", ["1", "1 multi", "4", "4 single"])
def test_every_leaf_has_one_class_and_none_is_unknown(tmp_path: Path, name: str) -> None:
    file = read(tmp_path, name)
    assert len(file.leaves) == len(list(leaves_of(FILES[name]))) == sum(file.accounting.values())
    assert file.accounting["unknown"] == 0
    assert file.accounting["comment"] > 0
    assert (file.generation, file.cells[0].model) == (name[0], "llama3.1-70b")
    assert (file.cells[0].gpu, file.cells[0].steps) == ("mi300x", 30)


def test_flags_environment_and_keys_are_those_of_the_generation(tmp_path: Path) -> None:
    found = read(tmp_path, "1")
    (cell,) = found.cells
    assert "xla_gpu_first_collective_call_warn_stuck_timeout_seconds" in cell.xla_flags
    assert found.env["NVTE_CK_BWD_V3"] == found.env["NVTE_CK_USES_BWD_V3"] == "1"
    assert "NNODES" not in found.env
    assert found.env["MINE"] == "7"
    devices = ("--device=/dev/dri", "--device=/dev/kfd")
    assert found.container.args == (*devices, "--shm-size=256g", "--privileged")
    # the token by its path alone
    assert deployed_of(found, cell)["HF_TOKEN_PATH"].endswith("/.hf_token")
    assert "base_emb_dim" not in cell.maxtext, "generation 1 writes it where nothing reads it"
    assert cell.maxtext["packing"] is True
    listed = {"config/nccl_ib_hca": GONE, "config/nccl_ib_hca_list": "mlx5_0"}
    assert read(tmp_path, "1 multi", listed).env["NCCL_IB_HCA"] == "mlx5_0"
    quoted = {"train_params/xla_flags": {"xla_gpu_enable_command_buffer": "''"}}
    found = read(tmp_path, "4", quoted)
    (cell,) = found.cells
    assert cell.xla_flags == {"xla_gpu_enable_command_buffer": ""}
    assert (found.env["NCCL_DEBUG"], found.added["NCCL_CROSS_NIC"]) == ("WARN", "0")
    assert cell.maxtext["rope_max_timescale"] == 500000
    assert cell.maxtext["normalization_layer_epsilon"] == 1e-5
    assert cell.maxtext["scan_layers"] is True
    assert found.container.mounts[0].startswith("/shared/")
    # a model of two GPUs has a cell for each with its flags
    other = copy.deepcopy(FILES["1"]["model_params"]["single_node"]["llama3.1-70b"]["mi300x"])
    other["xla_flags"] = {"xla_gpu_graph_level": "3"}
    cells = read(tmp_path, "1", {MODEL.replace("300x", "355"): other}).cells
    assert {each.name: each.xla_flags["xla_gpu_graph_level"] for each in cells} == {
        "llama3.1-70b mi300x": "0", "llama3.1-70b mi355": "3"
    }  # fmt: skip


def test_a_cluster_file_says_the_nodes_and_the_user(tmp_path: Path) -> None:
    def read_with(**changes: Any) -> CvsFile:
        return read(tmp_path, cluster=write(tmp_path, "c.json", changed("cluster", changes)))

    assert read_with(node_dict={"node001": {}}).cells[0].nodes == 1
    found = read_with(username="one")
    assert found.cells[0].nodes == len(CLUSTER["node_dict"])
    assert "/shared/one" in found.container.mounts[0]
    placeholder: Any = {"{xx.xx.xx.xx|hostname}": {}}
    for nodes in (placeholder, GONE):
        with pytest.raises(ConfigError, match="must have the names of the nodes"):
            read_with(node_dict=nodes)


def test_thresholds_stand_in_the_file_that_is_named(tmp_path: Path) -> None:
    for entry, said in (
        ({"kind": "min", "value": "380"}, "at least 380"),
        ({"kind": "within", "value": 3}, "unknown kind of threshold 'within'"),
        ({"kind": "min", "value": "3 ms"}, "value is '3 ms', expected a number"),
        (3, f"{BF16}.training.final_loss is 3, expected an object"),
    ):
        data = {BF16: {"training.final_loss": entry}, "_c": {"a": 1}}
        write(tmp_path, "tiny_threshold.json", data)
        try:
            found = read(tmp_path).cells[0].thresholds["final_loss"].words
        except ConfigError as error:
            found = str(error)
        assert said in found


def test_thresholds_that_are_not_below_the_folder_are_a_note(tmp_path: Path) -> None:
    (tmp_path / "cvs").mkdir()
    there = str(write(tmp_path, "t.json", thresholds(BF16)))
    for name in ("1" * 400, "a\0b", "no such", ".", "../t.json", "", there):
        found = read(tmp_path / "cvs", "4", {"threshold_json": name})
        assert not found.cells[0].thresholds
        assert any("no metric" in each for each in found.notes)


def test_what_contradicts_the_file_is_noted(tmp_path: Path) -> None:
    write(tmp_path, "tiny_threshold.json", thresholds(BF16.replace("2", "3")))
    (note,) = read(tmp_path).notes
    assert "'BS=3,PRECISION=BF16,SL=8193' belong to no sweep" in note.replace("8192", "8193")
    (note,) = read(tmp_path, "1 multi", {"config/nnodes": "2"}, nodes=4).notes
    assert "config.nnodes is 2, but the run has 4" in note


ODD: tuple[Any, ...] = (
    None, True, "", "x", "<changeme>", -1, 0, 10**400, 1e308, [], {}, [[]], {"a": {}}, "{a}",
)  # fmt: skip


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return every object and list of a file with each of its keys."""
    if not isinstance(data, dict | list):
        return []
    keys = list(data) if isinstance(data, dict) else range(len(data))
    return [each for key in keys for each in ((data, key), *places(data[key]))]


def test_damaged_files_end_in_one_kind_of_error(tmp_path: Path) -> None:
    """Values are swapped, keys dropped, nested, renamed: one to three changes in a file."""
    path, chance, refused = tmp_path / "config.json", random.Random(15), 0
    for _ in range(1500):
        data = copy.deepcopy(chance.choice([*FILES.values()]))
        for _ in range(chance.randint(1, 3)):
            if not (found := places(data)):
                continue
            below, key = chance.choice(found)
            kind = chance.choice(["drop", "rename", "deeper", "twice", "odd", "odd"])
            if kind == "drop":
                del below[key]
            elif kind == "rename" and isinstance(below, dict):
                below[chance.choice(["name", "kind", "{paths.a}", "x" * 50])] = below.pop(key)
            else:
                odd = copy.deepcopy(chance.choice(ODD))
                below[key] = {"deeper": {"deeper": below[key]}, "twice": [below[key]] * 2}.get(
                    kind, odd
                )
        path.write_text(json.dumps(data))
        try:
            file = read_cvs_file(path)
        except ConfigError as error:
            refused += str(path) in str(error)
        else:
            assert sum(file.accounting.values()) == len(file.leaves)
            json.dumps(file.cells[0].maxtext, allow_nan=False)
    assert 50 < refused < 1400
