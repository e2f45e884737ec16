"""Which node slots share a switch, by Slurm's topology."""

from __future__ import annotations

import pytest

from pytest_xlatune.executors.slurm._commands import Reply
from pytest_xlatune.executors.slurm.nodes import shared_note
from tests.helpers.played import AWAY, Scripted

SLOTS = (("node001", "node002"), ("node003", "node004"), ("node005", "node006"))
DISTURB = "Their trials may disturb each other"
OVER_SEVERAL = (
    "no two slots share a leaf switch, but traffic inside slot 1 goes through switches above. "
    "Trials may disturb each other there"
)
# as Slurm 22.05 prints it: a switch above the leaves names all nodes below it
SPINE = "SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[001-006] Switches={}\n"
LEAF = "SwitchName={} Level=0 LinkSpeed=1 Nodes={}\n"


def topology(**leaves: str) -> str:
    return "".join(
        [*(LEAF.format(*each) for each in leaves.items()), SPINE.format(",".join(leaves))]
    )


@pytest.mark.parametrize(
    ("printed", "note"),
    [
        (
            topology(leaf1="node[001-004]", leaf2="node[005-006]"),
            "slots 1 and 2 share leaf1. Their trials may disturb each other",
        ),
        (
            topology(leaf1="node[001-003]", leaf2="node[004-006]"),
            f"slots 1 and 2 share leaf1; slots 2 and 3 share leaf2. {DISTURB}",
        ),
        (topology(leaf1="node[001-002]", leaf2="node[003-004]", leaf3="node[005-006]"), ""),
        (
            topology(
                leaf1="node001", leaf2="node002", leaf3="node[003-004]", leaf4="node[005-006]"
            ),
            OVER_SEVERAL,
        ),
        (
            "BlockName=b1 BlockIndex=0 Nodes=node[001-006] BlockSize=6\n",
            "slots 1, 2 and 3 share b1. Their trials may disturb each other",
        ),
    ],
    ids=["one leaf for two", "two leaves", "apart", "over several", "block"],
)
def test_slots_of_one_switch_are_named(printed: str, note: str) -> None:
    slurm = Scripted(scontrol=Reply(code=0, out=printed))
    assert shared_note(SLOTS, run=slurm) == note


@pytest.mark.parametrize(
    "reply",
    [
        AWAY,
        Reply(code=0, out=""),
        Reply(code=0, out=LEAF.format("leaf1", "node[001-004]")),
        Reply(code=0, out=LEAF.format("leaf1", "node[001-")),
    ],
    ids=["away", "no topology", "a node is missing", "garbled"],
)
def test_switches_that_are_not_known_are_told(reply: Reply) -> None:
    said = shared_note(SLOTS, run=Scripted(scontrol=reply))
    assert said.startswith("`scontrol show topology` does not tell which slots share a switch (")
    assert said.endswith("Those that do may disturb each other")
