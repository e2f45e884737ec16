"""An older CVS file as generation 4: the same cell, its thresholds, what found no place."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Sweep
from pytest_xlatune.cli import main
from pytest_xlatune.guests.cvs.files import CvsGiven, read_cvs_file
from pytest_xlatune.guests.cvs.migration import migrated
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.groups import Said
from tests.guests.cvs.test_cvs_files import mutated
from tests.helpers.cvs_written import first, fourth, second, third, thresholds, write

FILLED = {
    **dict.fromkeys(("nccl_ib_hca", "nccl_socket_ifname"), "one0"),
    "nnodes": "4",
}


def filled(data: Any) -> Any:
    """Return a file with its open items filled in."""
    if isinstance(data, dict):
        made = {key: filled(each) for key, each in data.items()}
        made |= {key: value for key, value in FILLED.items() if key in made}
        return made
    if isinstance(data, list):
        return [filled(each) for each in data]
    return data.replace("<changeme>", "one0") if isinstance(data, str) else data


CASES = {
    "1 single": (first(), 1),
    "1 multi": (first(multi=True), 4),
    "2 single": (second(), 1),
    "2 multi": (second(multi=True), 4),
    "3-early": (third(early=True), 4),
    "3 single": (third(multi=False), 1),
    "3": (third(), 4),
}


def digests(path: Path, nodes: int) -> list[str]:
    """Return the digest of every cell of a file."""
    file = read_cvs_file(path, CvsGiven(nodes=nodes))
    return [
        Sweep.from_cvs(path, cell=each.name, nodes=nodes).resolve(LOCAL).cell.digest
        for each in file.cells
    ]


LOCAL = Said(values={"executor": "local"})


@pytest.mark.parametrize("name", CASES)
def test_the_new_file_is_the_same_cell(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, nodes = CASES[name]
    names = [each["name"] for each in third()["training"]["sweeps"]]
    write(tmp_path, "tiny_threshold.json", thresholds(*names))
    old, new = write(tmp_path, "old.json", filled(data)), tmp_path / "new.json"
    assert main(["cvs", "migrate", str(old), "-o", str(new), "--nodes", str(nodes)]) == 0
    assert digests(new, nodes) == digests(old, nodes)
    found = read_cvs_file(new, CvsGiven(nodes=nodes))
    assert found.generation == "4"
    assert found.open_items == ()
    assert found.accounting["unknown"] == 0
    (cell,) = found.cells
    assert cell.thresholds["training.tflops_per_sec_per_gpu"].value == 380
    said = capsys.readouterr().out
    assert "without a place in generation 4" in said
    if name.startswith("1"):
        assert "base_emb_dim" in said
    assert main(["cvs", "migrate", str(old), "-o", str(new)]) == 2
    assert "exists" in capsys.readouterr().err


def test_an_open_item_stays_open(tmp_path: Path) -> None:
    old, new = write(tmp_path, "old.json", first(multi=True)), tmp_path / "new.json"
    assert main(["cvs", "migrate", str(old), "-o", str(new)]) == 0
    paths = {each.path for each in read_cvs_file(new).open_items}
    assert paths == {"container.env.NCCL_IB_HCA", "container.env.NCCL_SOCKET_IFNAME"}
    assert json.loads(new.read_text())["container"]["env"]["NCCL_CROSS_NIC"] == "0"


def test_generation_4_is_no_older_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "four.json", fourth())
    assert main(["cvs", "migrate", str(path), "-o", str(tmp_path / "new.json")]) == 2
    assert "generation 4 already" in capsys.readouterr().err


def test_damaged_files_that_still_run_stay_the_same_cell(tmp_path: Path) -> None:
    """A property: whatever reaches a run reaches it through the new file too."""
    chance = random.Random(16)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    names = list(CASES)
    compared = 0
    for _ in range(400):
        data, nodes = CASES[chance.choice(names)]
        text = json.dumps(mutated(filled(data), chance))
        if "{paths.a}" in text or '"{a}"' in text:
            continue  # a placeholder that nothing fills is asked for in the new file again
        old.write_text(text)
        try:
            before = digests(old, nodes)
            made = migrated(read_cvs_file(old, CvsGiven(nodes=nodes)), threshold_name="t.json")
        except ConfigError:
            continue
        new.write_text(json.dumps(made.config))
        assert digests(new, nodes) == before, old.read_text()
        compared += 1
    assert compared > 100
