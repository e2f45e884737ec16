"""CVS configurations: a row is a file with changes, an exit status, words; and a file that runs."""

from __future__ import annotations

import copy
import json
import random
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Sweep, profile
from pytest_xlatune.cli import main
from pytest_xlatune.guests.cvs.launcher import deployed_of
from pytest_xlatune.guests.cvs.reading import read_cvs_file
from pytest_xlatune.guests.cvs.source import leaves_of
from pytest_xlatune.guests.cvs.values import CvsFile
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import quick_trials, run_inside, run_with_workers
from tests.helpers.tell_options import TELL_OPTIONS
from tests.helpers.words import places

Data = dict[str, Any]

TINY_KEYS: Data = {
    "model_size": "70",
    **{
        f"{side}_{axis}_parallelism": "1"
        for side in ("ici", "dcn")
        for axis in ("fsdp", "data", "sequence", "tensor", "pipeline")
    },
    "scan_layers": "true",
    "ici_fsdp_parallelism": "8",
    "dcn_fsdp_parallelism": "-1",
    "remat_policy": "full",
    "dtype": "bfloat16",
    "quantization": "",
    "per_device_batch_size": "2",
    "max_target_length": "8192",
    "skip_first_n_steps_for_profiler": "3",
    "mlp_activations": ["silu", "linear"],
    "normalization_layer_epsilon": "1.0e-5",
    "rope_max_timescale": "500_000",
    "precision": "TE_FP8",
}
FIRST_FLAGS: Data = {
    "xla_gpu_enable_cublaslt": "True",
    "xla_gpu_graph_level": "0",
    "xla_gpu_first_collective_call_warn_stuck_timeout_seconds": "300",
}


def first(*, multi: bool = False) -> Data:
    config: Data = {
        "container_image": "example/jax-training:v25.9",
        "nnodes": "<changeme> = number of nodes used",
        "coordinator_ip": "<changeme>" if multi else "localhost",
        "training_steps": "30",
        "nvte_ck_bwd_v3": "1",
        "xla_python_client_mem_fraction": ".93",
        "hf_token_file": "/shared/{user-id}/.hf_token",
        "shm_size": "256G",
        "_comments_data_cache_dir": "fill in <changeme> everywhere",
        "data_cache_dir": "/shared/{user-id}/cache",
        "container_config": {
            "device_list": ["/dev/dri", "/dev/kfd"],
            "volume_dict": {"/shared/{user-id}": "/shared/{user-id}"},
            "env_dict": {"JAX_COORDINATOR_IP": "<changeme>", "NNODES": "1", "MINE": "7"},
        },
    }
    if multi:
        config |= {
            "nccl_ib_hca_list": "<changeme>",
            "nccl_ib_hca": "<changeme>",
            "nccl_socket_ifname": "eno0 <changeme>",
            "nccl_ib_tc": "41",
        }
    gates = {"tflops_per_sec_per_gpu": "380", "tokens_per_sec_per_gpu": "800"}
    model = {**TINY_KEYS, "xla_flags": dict(FIRST_FLAGS), "result_dict": gates}
    mode = "multi_node" if multi else "single_node"
    return {"config": config, "model_params": {mode: {"llama3.1-70b": {"mi300x": model}}}}


def thresholds(*names: str, tflops: float = 380) -> Data:
    return {
        "_comment": "of <changeme>",
        **{
            name: {
                "training.tflops_per_sec_per_gpu": {"kind": "min", "value": tflops},
                "training.tokens_per_sec_per_gpu": {"kind": "min", "value": 800},
                "training.step_time_seconds": {"kind": "info", "value": None},
            }
            for name in names
        },
    }


def fourth(*, multi: bool = True) -> Data:
    env: Data = {"NCCL_DEBUG": "WARN", "JAX_COORDINATOR_PORT": "12345"}
    if multi:
        env |= {"NCCL_IB_HCA": "bnxt_re0 <changeme>", "NCCL_SOCKET_IFNAME": "eno0 <changeme>"}
    of_first = ("model_size", "precision")
    maxtext = {key: value for key, value in TINY_KEYS.items() if key not in of_first}
    return {
        "enforce_thresholds": False,
        "threshold_json": "tiny_threshold.json <changeme>",
        "paths": {"shared_fs": "/shared/{user-id}", "models_dir": "{shared_fs}/models"},
        "container": {
            "lifetime": "per_run",
            "image": "example/jax-training:v26.4 <changeme>",
            "runtime": {
                "name": "docker",
                "args": {
                    "network": "host",
                    "privileged": True,
                    "shm-size": "256G",
                    "ulimit": ["memlock=-1"],
                    "volumes": ["{paths.models_dir}:/models"],
                },
            },
            "env": env,
        },
        "gpu_name": "mi300x",
        "train_params": {
            "train_script_paths": ["src/MaxText/train.py", "MaxText/train.py"],
            "xla_flags": {"xla_gpu_autotune_level": "4"},
            "maxtext_config": {**maxtext, "model_name": "llama3.1-70b", "steps": 30},
        },
        "smoke": {"enabled": True, "steps": 5},
        "sweeps": {
            "_comment": "of <changeme>",
            "BS=2,PRECISION=BF16,SL=8192": {},
            "BS=5,PRECISION=FP8,SL=4096": {"remat_policy": "minimal"},
        },
        "runs": ["BS=2,PRECISION=BF16,SL=8192"],
    }


CLUSTER: Data = {
    "username": "{user-id}",
    "priv_key_file": "/shared/{user-id}/.ssh/id",
    "head_node_dict": {"mgmt_ip": "node001"},
    "node_dict": {
        f"node{number:03}": {"bmc_ip": "NA", "vpc_ip": f"node{number:03}"} for number in range(1, 5)
    },
}


def write(folder: Path, name: str, data: Data) -> Path:
    path = folder / name
    path.write_text(json.dumps(data, indent=2))
    return path


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
    ("generation 3", "empty", {"training/steps": 30}, "", 2, ["generation 1", "4 (train_params)"]),
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
    assert len(file.leaves) == len(list(leaves_of(FILES[name]))) == sum(file.leaf_counts.values())
    assert file.leaf_counts["unknown"] == 0
    assert file.leaf_counts["comment"] > 0
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


def test_damaged_files_end_in_one_kind_of_error(tmp_path: Path) -> None:
    """Values are swapped, keys dropped, nested, renamed: one to three changes in a file."""
    path, chance, refused = tmp_path / "config.json", random.Random(15), 0
    for _ in range(1500):
        data = copy.deepcopy(chance.choice([*FILES.values()]))
        for _ in range(chance.randint(1, 3)):
            if not (found := list(places(data))):
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
            assert sum(file.leaf_counts.values()) == len(file.leaves)
            json.dumps(file.cells[0].maxtext, allow_nan=False)
    assert 50 < refused < 1400


# MaxText's lines at 820 tokens/s and 0.475 TFLOP a token; step 9 of every job is 4 % slower
TRAINER = f"""\
import hashlib, os, sys
{TELL_OPTIONS}
config, *words = sys.argv[1:]
assert open(config).read() == "base_config: base.yml\\n"
keys = dict(each.split("=", 1) for each in words)
assert keys["dtype"] == "bfloat16"
print(f"XLA_FLAGS={{asked}}", flush=True)
noise = int(hashlib.sha256(keys["run_name"].rpartition("-")[0].encode()).hexdigest()[:8], 16)
speed = 820.0 * (1 + 0.01 * (noise / 2**32 - 0.5))
fast = "--xla_gpu_autotune_level=0" in asked and os.environ["NCCL_DEBUG"] == "INFO"
speed *= 1.1 if fast else 1.0
tokens = float(keys["per_device_batch_size"]) * float(keys["max_target_length"])
if os.environ.get("SLURM_PROCID", "0") == "0":
    for step in range(int(keys["steps"])):
        own = speed * (0.96 if step == 9 else 1)
        print(f"completed step: {{step}}, seconds: {{tokens / own:.6f}}, "
              f"TFLOP/s/device: {{own * 0.475:.3f}}, Tokens/s/device: {{own:.3f}}, "
              f"total_weights: 1, loss: {{9 - step * 0.1:.3f}}", flush=True)
"""
LOCAL = ("--xlatune-executor", "local", "--xlatune-container", "runtime=none")


@pytest.fixture
def folder(
    loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    # these jobs measure nothing: they need not take turns with real ones on this machine
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "machine.lock"))
    (pytester.path / "train.py").write_text(TRAINER)
    return pytester.path


def run(
    pytester: pytest.Pytester, name: str, *args: str, launcher: str = ""
) -> tuple[Any, dict[str, dict[str, str]]]:
    """Run a file; return what pytest said, and the properties of each metric."""
    python = ",".join(filter(None, (f"python={sys.executable}", launcher)))
    words = ("--cvs-config", name, *LOCAL, "--xlatune-launcher", python, "--junitxml", "junit.xml")
    ran = run_with_workers if "-n2" in args else run_inside
    done = ran(pytester, *words, "-p", "no:cacheprovider", *args)
    found = {}
    for case in ET.parse(pytester.path / "junit.xml").iter("testcase"):
        own = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        if "cvs.metric" in own:
            found[own["cvs.metric"]] = own
    return done, found


def test_generation_1_passes_by_the_mean_although_a_step_is_slow(
    pytester: pytest.Pytester, folder: Path
) -> None:
    data = first()
    data["config"]["nnodes"] = "1"
    write(folder, "gen1.json", data)
    script = f"scripts={folder / 'train.py'}"
    done, _ = run(pytester, "gen1.json", launcher=script)
    done.assert_outcomes(passed=4)
    text = done.stdout.str()
    assert "tflops_per_sec_per_gpu is 389" in text
    assert "smoke test of CVS" in text


def fourth_here(folder: Path, *, tflops: float, **metrics: Any) -> None:
    data = fourth(multi=False)
    data["train_params"]["train_script_paths"] = [str(folder / "no.py"), str(folder / "train.py")]
    data["container"]["image"] = "example/jax-training:v26.4"
    data["threshold_json"] = "tiny_threshold.json"
    data["enforce_thresholds"] = True
    write(folder, "gen4.json", data)
    limits = thresholds(*(each for each in data["sweeps"] if each[0] != "_"), tflops=tflops)
    for cell in (each for name, each in limits.items() if name[0] != "_"):
        cell |= {f"training.{name}": each for name, each in metrics.items()}
    write(folder, "tiny_threshold.json", limits)


@pytest.mark.parametrize("workers", ["-n0", pytest.param("-n2", marks=BESIDE_THE_LAB)])
def test_generation_4_gates_each_kind_of_threshold_with_noise_and_resumes(
    pytester: pytest.Pytester, folder: Path, workers: str
) -> None:
    demands = {
        "step_time_seconds": {"kind": "max", "value": 21},
        "step_time_p95_ms": {"kind": "max_ms", "value": 19000},
        "final_loss": {"kind": "max", "value": 5},
        "loss_decreased": {"kind": "min", "value": 1},
        "tokens_per_sec_total": {"kind": "info", "value": 6500},
        "scaling_efficiency_pct": {"kind": "min", "value": 90},
    }
    fourth_here(folder, tflops=500, **demands)
    done, found = run(pytester, "gen4.json", workers)
    assert {name: each["cvs.verdict"] for name, each in found.items()} == {
        "tflops_per_sec_per_gpu": "fail",
        "tokens_per_sec_per_gpu": "pass",
        "step_time_seconds": "pass",
        "step_time_p95_ms": "fail",
        "final_loss": "fail",
        "loss_decreased": "pass",
        "tokens_per_sec_total": "recorded",
        "scaling_efficiency_pct": "cannot tell",
    }
    assert "every job has the same" in found["final_loss"]["cvs.lines"]
    assert "no job gives scaling_efficiency_pct" in found["scaling_efficiency_pct"]["cvs.lines"]
    assert found["tokens_per_sec_per_gpu"]["xlatune.n"] == "5"
    done.assert_outcomes(passed=4, failed=4)
    assert done.ret == 1
    (ledger,) = folder.glob(".xlatune/cvs-gen4/*/ledger.jsonl")
    begun = ledger.read_text().count('"attempt-submitted"')
    # a threshold is an argument of the verdict: the same jobs are judged again
    fourth_here(folder, tflops=380)
    done, found = run(pytester, "gen4.json", "-k", "tflops")
    done.assert_outcomes(passed=1)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "pass"
    assert ledger.read_text().count('"attempt-submitted"') == begun == 5


@pytest.mark.parametrize("runtime", ["none", "docker"])
def test_open_items_end_the_run_before_anything_starts(
    pytester: pytest.Pytester, folder: Path, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    write(folder, "multi.json", first(multi=True))
    assert main(["cvs", "show", "multi.json"]) == 2
    shown = {line.strip() for line in capsys.readouterr().out.splitlines() if "--cvs-set" in line}
    local = (*LOCAL[:2], "--xlatune-container", f"runtime={runtime}")
    done = run_inside(pytester, "--cvs-config", "multi.json", *local)
    assert done.ret == 4
    text = done.stdout.str() + done.stderr.str()
    told = {each for each in shown if each in text}
    # without a container nothing is asked of its image
    is_of_image = {each for each in shown if each.startswith("config.container_image: ")}
    assert len(is_of_image) == 1
    assert told == (shown if runtime == "docker" else shown - is_of_image)
    assert len(told) >= 3
    assert not list(folder.glob(".xlatune/*/*"))


def test_from_cvs_is_a_cell_to_tune(tmp_path: Path) -> None:
    values = {
        "threshold_json": "none.json",
        "container.image": "example/jax-training:v26.4",
        "container.env.NCCL_IB_HCA": "mlx5_0",
        "container.env.NCCL_SOCKET_IFNAME": "eno1",
    }
    path = write(tmp_path, "gen4.json", fourth())
    fast = profile("fast", "--xla_gpu_autotune_level=0")
    sweep = Sweep.from_cvs(path, nodes=4, values=values, profiles=(fast,))
    assert (sweep.cell.parallelism, sweep.cell.devices) == ("FSDP=32", 32)
    assert sweep.cell.deployed["NCCL_SOCKET_IFNAME"] == "eno1"
    assert sweep.cell.deployed["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert sweep.launcher.describe().startswith("container docker mounts=")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "4 open items"),
        ({"cell": "other", "values": values}, "unknown cell 'other'"),
        ({"values": values}, "the number of nodes"),
    ]
    for given, words in refused:
        with pytest.raises(ConfigError, match=words):
            Sweep.from_cvs(path, **given)
    for runtime in ("podman", "pyxis"):
        said = Sweep.from_cvs(path, nodes=4, values=values, runtime=runtime).launcher.describe()
        assert ("/models:/models" in said, "--privileged" in said) == (True, runtime == "podman")
    for steps, said in ((None, "does not say how many steps"), (9, "a run has 9 steps")):
        data = fourth()
        data["train_params"]["maxtext_config"]["steps"] = steps
        write(tmp_path, "gen4.json", data)
        with pytest.raises(ConfigError, match=said):
            Sweep.from_cvs(path, nodes=4, values=values)


def calibrate(*args: str) -> int:
    words = ("--executor", "local", "--container", "runtime=none", "--jobs", "5")
    with quick_trials():
        return main(["cvs", "calibrate", *args, *words])


def test_calibrate_writes_floors_with_their_noise_and_runs_no_job_twice(
    pytester: pytest.Pytester, folder: Path
) -> None:
    fourth_here(folder, tflops=500)
    python = ("--launcher", f"python={sys.executable}")
    assert calibrate("gen4.json", "-o", "floors.json", *python) == 0
    cell = json.loads((folder / "floors.json").read_text())["BS=2,PRECISION=BF16,SL=8192"]
    # mean 819.977 less three times 3.04; 0.475 TFLOP a token
    assert cell["training.tokens_per_sec_per_gpu"]["value"] == pytest.approx(810.8, abs=0.5)
    assert cell["training.tflops_per_sec_per_gpu"]["value"] == pytest.approx(385.1, abs=0.3)
    assert "of 5 jobs; 2.60% of healthy jobs miss it" in cell["_comment"]
    assert "20" in cell["_comment"].partition(":")[0], "the date"
    (ledger,) = folder.glob(".xlatune/cvs-gen4/*/ledger.jsonl")
    assert calibrate("gen4.json", "-o", "floors.json", *python) == 2
    assert calibrate("gen4.json", "-o", "again.json", *python) == 0
    assert ledger.read_text().count('"attempt-submitted"') == 5
    # with these floors the file passes
    data = json.loads((folder / "gen4.json").read_text())
    write(folder, "gen4.json", {**data, "threshold_json": "floors.json"})
    done, found = run(pytester, "gen4.json")
    done.assert_outcomes(passed=5)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "pass"
