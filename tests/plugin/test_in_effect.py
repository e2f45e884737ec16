"""A sweep whose settings do not reach the program, or of which nothing shows that they do."""

from __future__ import annotations

import json

import pytest

from pytest_xlatune.model.errors import Exit
from tests.helpers.words import in_words
from tests.plugin.conftest import SWEEP_FILE, Folder

PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("same", "--xla_same=1"),
        profile("other", "--xla_other=1"),
"""
# one profile, so that a block needs a second baseline
ONE = SWEEP_FILE.replace("block_baselines=1", "block_baselines=2")
PROGRAM = "argv=(sys.executable, "
# it hands on what is deployed, and nothing that was appended
DROPS = """export XLA_FLAGS="${{XLA_FLAGS%% --xla_deployed*}} --xla_deployed=1"; exec "$@\""""


def test_settings_that_do_not_arrive_stop_a_sweep_after_two_profiles(folder: Folder) -> None:
    between = f"argv=('bash', '-c', {DROPS!r}, 'wrapper', sys.executable, "
    folder.write(profiles=PROFILES, text=SWEEP_FILE.replace(PROGRAM, between))
    done = folder.run()
    assert done.ret == Exit.NOT_MEASURED
    ended = [each["result"] for each in folder.events("trial-ended")]
    dropped = [each["trial"]["profile"]["id"] for each in ended if each["status"] == "dropped"]
    assert len(dropped) == len(set(dropped)) == 2
    (stop,) = (each for each in folder.events("decided") if each["next"] == "stop")
    assert stop["cls"] == "flags-not-effective"
    for each in dropped:
        assert each in in_words(stop["found"])
    done.stdout.fnmatch_lines(["*flags-not-effective*the sweep stops*"])


@pytest.mark.parametrize("names", [("GAIN",), ("GAIN", "OTHER")], ids=["alone", "beside another"])
def test_what_nothing_shows_wins_nothing_however_fast_it_is(
    folder: Folder, names: tuple[str, ...]
) -> None:
    env = dict.fromkeys(names, "1")
    folder.write(profiles=f'        profile("ring", env={env}),\n', text=ONE)
    trainer = folder.path / "trainer.py"
    text = trainer.read_text(encoding="utf-8")
    trainer.write_text(
        text.replace("speed = 1000.0", "speed = 1100.0 if 'GAIN' in os.environ else 1000.0"),
        encoding="utf-8",
    )
    done = folder.run("--junitxml=junit.xml")
    (path,) = folder.path.glob("reports/pretend/leaderboard.json")
    board = json.loads(path.read_text(encoding="utf-8"))
    (ring,) = board["conclusion"]["verdicts"]
    markdown = folder.read("reports/pretend/leaderboard.md")
    assert done.ret == Exit.NOT_MEASURED, done.stdout.str()
    assert (ring["kind"], ring["effect"]) == ("FASTER", "asked")
    assert ring["unproved"] == [*names]
    ours = [each for each in board["trials"] if each["trial"]["profile"]["id"] == "ring"]
    for trial in ours:
        own = [each for each in trial["settings"] if not each["is_deployed"]]
        assert [(each["name"], each["effect"]) for each in own] == [
            (each, "asked") for each in names
        ]
    tuning = folder.read("reports/pretend-tuning.md")
    for view in (markdown, tuning, done.stdout.str(), folder.read("junit.xml")):
        assert "asked" in view
        assert "★" not in view
    shown = ", ".join(f"`{each}`" for each in names)
    assert f"nothing shows that {shown} was" in markdown
    assert "`SiteSettings(unseen=...)`" in markdown
    assert not (folder.path / "reports" / "pretend-tuning.patch").exists()


@pytest.mark.parametrize("is_told", [False, True], ids=["stops", "told to go on"])
def test_a_sweep_whose_flags_no_xla_reads_stops_after_two_profiles(
    folder: Folder, *, is_told: bool
) -> None:
    """XLA is asked to write its options down; where a trainer drops XLA_FLAGS it writes none."""
    wrapper = 'exec env -i PATH="$PATH" "$@"'
    between = f"argv=('bash', '-c', {wrapper!r}, 'wrapper', sys.executable, "
    text = SWEEP_FILE.replace(PROGRAM, between)
    if is_told:
        text = text.replace('executor="local"', 'executor="local", unseen=("xla_*",)')
    folder.write(profiles=PROFILES, text=text)
    trainer = folder.read("trainer.py").replace('print(f"XLA_FLAGS={flags}", flush=True)\n', "")
    (folder.path / "trainer.py").write_text(trainer, encoding="utf-8")
    done = folder.run()
    ended = [each["result"] for each in folder.events("trial-ended")]
    arms = [each["trial"]["profile"]["id"] for each in ended]
    stops = [each for each in folder.events("decided") if each["next"] == "stop"]
    if is_told:
        assert not stops
        assert {"fast", "same", "other"} <= {*arms}
        assert any(each["trial"]["block"] for each in ended)
        return
    assert done.ret == Exit.NOT_MEASURED
    (stop,) = stops
    assert stop["cls"] == "flags-unverified"
    ran = [each for each in arms if each != "baseline-deployed"]
    assert len(ran) == len({*ran}) == 2
    for each in (*ran, "set XLA_FLAGS anew?", 'unseen=("xla_*",)'):
        assert each in in_words(stop["found"])
    done.stdout.fnmatch_lines(["*flags-unverified*the sweep stops*"])
    # a session that is started again looks at one trial more, and stops on it
    folder.run()
    assert len(folder.events("trial-ended")) <= len(ended) + 2
