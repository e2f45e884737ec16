"""A sweep whose settings do not reach the program, or of which nothing shows that they do."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.errors import Exit
from tests.helpers.words import in_words
from tests.plugin.conftest import SWEEP_FILE, Folder

PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("same", "--xla_same=1"),
        profile("other", "--xla_other=1"),
"""
# it hands on what is deployed, and nothing that was appended
DROPS = """export XLA_FLAGS="${{XLA_FLAGS%% --xla_deployed*}} --xla_deployed=1"; exec "$@\""""
# XLA is asked to write its options down; behind this it writes none
EMPTIES = 'exec env -i PATH="$PATH" "$@"'


@pytest.mark.parametrize(
    ("wrapper", "cls", "words"),
    [
        pytest.param(DROPS, "flags-not-effective", (), id="settings that do not arrive"),
        pytest.param(
            EMPTIES, "flags-unverified", ("set XLA_FLAGS anew?", 'unseen=("xla_*",)'),
            id="flags that no XLA reads",
        ),
    ],
)  # fmt: skip
def test_a_sweep_whose_flags_are_lost_stops_after_two_profiles(
    folder: Folder, wrapper: str, cls: str, words: tuple[str, ...]
) -> None:
    folder.write(profiles=PROFILES)
    between = f"argv=('bash', '-c', {wrapper!r}, 'wrapper', sys.executable, "
    folder.edit("test_sweep.py", ("argv=(sys.executable, ", between))
    if wrapper is EMPTIES:
        folder.edit("trainer.py", ('print(f"XLA_FLAGS={flags}", flush=True)\n', ""))
    done = folder.run()
    stops = [event for event in folder.events("decided") if event["next"] == "stop"]
    measured = len(folder.results)
    arms = [result["trial"]["profile"]["id"] for result in folder.results]
    ran = [arm for arm in arms if arm != "baseline-deployed"]
    assert done.ret == Exit.NOT_MEASURED
    assert len(ran) == len({*ran}) == 2
    (stop,) = stops
    assert stop["cls"] == cls
    for word in (*ran, *words):
        assert word in in_words(stop["found"])
    done.stdout.fnmatch_lines([f"*{cls}*the sweep stops*"])
    # a session that is started again looks at one trial more, and stops on it
    folder.run()
    assert len(folder.results) <= measured + 2


def test_what_nothing_shows_wins_nothing_however_fast_it_is(folder: Folder) -> None:
    # one profile, so that a block needs a second baseline
    text = SWEEP_FILE.replace("block_baselines=1", "block_baselines=2")
    folder.write(profiles='        profile("ring", env={"GAIN": "1"}),\n', text=text)
    gain = "speed = 1100.0 if 'GAIN' in os.environ else 1000.0"
    folder.edit("trainer.py", ("speed = 1000.0", gain))
    done = folder.run("--junitxml=junit.xml")
    assert done.ret == Exit.NOT_MEASURED, done.stdout.str()
    board = folder.json("reports/pretend/leaderboard.json")
    (ring,) = board["conclusion"]["verdicts"]
    assert (ring["kind"], ring["effect"], ring["unproved"]) == ("FASTER", "asked", ["GAIN"])
    for trial in board["trials"]:
        if trial["trial"]["profile"]["id"] == "ring":
            own = [each for each in trial["settings"] if not each["is_deployed"]]
            assert [(each["name"], each["effect"]) for each in own] == [("GAIN", "asked")]
    markdown = folder.read("reports/pretend/leaderboard.md")
    tuning, junit = folder.read("reports/pretend-tuning.md"), folder.read("junit.xml")
    for view in (markdown, tuning, done.stdout.str(), junit):
        assert "asked" in view
        assert "★" not in view
    assert "nothing shows that `GAIN` was" in markdown
    assert not (folder.path / "reports/pretend-tuning.patch").exists()
