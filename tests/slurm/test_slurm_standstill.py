"""Trials that stand still on a real cluster: what ends them, as what, and what is run again."""

from __future__ import annotations

from tests.slurm.on_lab import TRIALS, Faults, declare, processes_with

OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
CRASH = "Fatal Python error: Segmentation fault"


def test_a_fatal_line_ends_a_trial_whose_processes_stay(faults: Faults) -> None:
    faults.write(
        declare(
            victim={"SAY": CRASH, "STAYS": "1", "ONCE": str(faults.path / "once"), "UNTIL": "3"},
            huge={"SAY": OOM, "STAYS": "1", "MEMSTATS": "1"},
        ),
        patience="after_fatal_s=2",
    )
    said = faults.run()
    assert "1 passed, 1 xfailed" in said, said
    # which of the two came first depends on the digest of the cell
    assert sorted(faults.decided()) == [("drop", "oom-gpu"), ("retry", "segfault")]
    assert sorted(each["evidence"] for each in faults.project.events("decided")) == [CRASH, OOM]
    cut = faults.project.events("attempt-cut-short")
    assert sorted(each["fatal"]["text"] for each in cut) == [CRASH, OOM]
    # neither the phase's limit (600 s) nor the trial's (300 s) was waited for
    assert all(2 <= each["still_s"] < 60 for each in cut)
    assert faults.states() == ["cancelled", "completed"]
    assert sorted(faults.project.measured) == ["baseline-deployed", "victim"]
    assert len(faults.project.submitted) == TRIALS + 1
    assert not processes_with(f"{faults.path}/trainer.py")


def test_a_hang_ends_as_its_phase_says(faults: Faults) -> None:
    once = str(faults.path / "once")
    faults.write(
        declare(
            silent={"STAYS": "1"},
            compiling={"STAYS": "1", "MEMSTATS": "1"},
            victim={"STAYS": "1", "UNTIL": "4", "ONCE": once},
        ),
        patience="before_memstats_s=10, compiling_s=5, training_s=5, after_fatal_s=1",
    )
    said = faults.run()
    assert "1 passed, 2 xfailed" in said, said
    assert sorted(faults.decided()) == [
        ("drop", "hang-init"),
        ("drop", "hang-silent-oom"),
        ("retry", "hang-init"),
        ("retry", "hang-init"),
        ("retry", "hang-mid-training"),
    ]
    assert all(each["fatal"] is None for each in faults.project.events("attempt-cut-short"))
    assert faults.states() == ["cancelled", "completed"]
    assert sorted(faults.project.measured) == ["baseline-deployed", "victim"]
    assert len(faults.project.submitted) == 1 + 3 + 1 + 2
    # what each rank did then is noted on its own node
    (folder,) = faults.path.glob("work/*/*/*/silent-*.1")
    assert sorted(each.name for each in folder.glob("hang*")) == ["hang.1.json", "hang.json"]
