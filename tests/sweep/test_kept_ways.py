"""Which way the profiles of a sweep go is what its ledger began with: rotations, or jobs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.words import sentence
from pytest_xlatune.studies import History
from pytest_xlatune.studies.trials import TURNS
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.sweep.settings import resolve_options
from tests.helpers.answers import drive, knobs
from tests.helpers.turn_answers import NCCL, Machine

KEPT = "profiles take turns, as earlier sessions of this ledger let them"
STAY = "no profile rotates: earlier sessions of this ledger measured them as jobs"


def resolved(how: str = "", *, in_file: str = "auto", count: int = 6) -> ResolvedSweep:
    made = Sweep(
        name="pp8",
        launcher=CommandLauncher(argv=("python", "train.py", "{steps}")),
        profiles=(*knobs(count), NCCL),
        cell=CellSettings(model_tag="m", parallelism="FSDP=8"),
        site=SiteSettings(executor="local"),
        design=DesignSettings(rotate=in_file),  # type: ignore[arg-type]
    )
    said = resolve_options({"xlatune_rotate": how or None}, {}, {}, root=Path("/nowhere")).said
    return made.resolve(said)


@cache
def history(name: str) -> History:
    """Return a ledger's trials after a first session."""
    if name == "nothing":
        return ()
    if name in ("jobs", "a job that was planned", "variables alone", "the baseline alone"):
        done = drive(resolved("off").tuning(), Machine())
        arms = {"variables alone": {NCCL.id}, "the baseline alone": {BASELINE_ID}}
        kept = tuple(each for each in done if each.trial.arm in arms.get(name, {each.trial.arm}))
        if name != "a job that was planned":
            return kept
        trial = next(each.trial for each in kept if each.trial.arm == "p1")
        return (TrialResult(trial=trial, status=TrialStatus.PLANNED),)

    def fails(trial: Trial) -> bool:
        return name == "a failed rotation" and trial.stage == TURNS

    machine = Machine(finds=name != "a failed look", fails=fails)
    done = drive(resolved("on").tuning(), machine)
    ends = {"a look": 1, "a rotation": 2}
    if name == "a rotation that runs":
        return (done[0], TrialResult(trial=done[1].trial, status=TrialStatus.RUNNING))
    return tuple(done[: ends.get(name)])


def left(study: TuningStudy, done: History) -> int:
    return len(drive(study, Machine(), done)) - len(done)


@pytest.mark.parametrize("begun", ["a look", "a rotation", "a rotation that runs", "rotations"])
@pytest.mark.parametrize("how", ["", "auto", "on"])
def test_a_sweep_that_began_with_rotations_goes_on_with_them(begun: str, how: str) -> None:
    done, sweep = history(begun), resolved(how)
    study = sweep.tuning(earlier=done)
    assert sweep.other_way(study, done) == ()
    assert [each.id for each in study.propose(done)] == [
        each.id for each in resolved("on").study().propose(done)
    ]
    told = [sentence(each) for each in study.goes_on()]
    assert [each.partition(";")[0] for each in told] == ([] if how == "on" else [KEPT])
    assert told == [sentence(each) for each in study.outline(done)][: len(told)]
    if begun != "a rotation that runs":
        assert (left(study, done) == 0) is (begun == "rotations")


@pytest.mark.parametrize("begun", ["a failed look", "a failed rotation"])
@pytest.mark.parametrize("how", ["", "auto", "on", "off"])
def test_a_sweep_whose_profiles_became_jobs_goes_on_with_those(begun: str, how: str) -> None:
    done, sweep = history(begun), resolved(how)
    study = sweep.tuning(earlier=done)
    assert sweep.other_way(study, done) == ()
    assert how == "off" or left(study, done) == 0


@pytest.mark.parametrize(("how", "in_file"), [("", "off"), ("", "auto"), ("auto", "on")])
def test_a_sweep_of_jobs_stays_one(how: str, in_file: str) -> None:
    done, sweep = history("jobs"), resolved(how, in_file=in_file)
    study = sweep.tuning(earlier=done)
    assert sweep.other_way(study, done) == ()
    assert left(study, done) == 0
    told = [sentence(each) for each in study.goes_on()]
    assert told == ([STAY] if "auto" in (how, in_file) else [])


@pytest.mark.parametrize(
    ("begun", "how", "in_file", "said"),
    [
        ("jobs", "on", "off", "rotate is on (--xlatune-rotate), but its ledger has 6 profiles"),
        ("jobs", "", "on", "rotate is on (the sweep file), but its ledger has 6 profiles"),
        ("rotations", "off", "on", "rotate is off (--xlatune-rotate), but its ledger has 5 rot"),
        ("a rotation", "off", "off", "rotate is off (--xlatune-rotate), but its ledger has 1 rot"),
        ("a rotation that runs", "off", "off", "but its ledger has 1 rotation, whose profiles"),
    ],
)
def test_the_other_way_is_refused_with_what_it_costs(
    begun: str, how: str, in_file: str, said: str
) -> None:
    done, sweep = history(begun), resolved(how, in_file=in_file)
    (why,) = sweep.other_way(sweep.study(earlier=done), done)
    assert said in why
    assert " more; say auto to go on as it began, or --xlatune-fresh to begin anew" in why
    # of a session that began before the other one's first trial was there
    (why,) = sweep.other_way(sweep.study(), done)
    assert said in why


@pytest.mark.parametrize(
    "begun",
    ["nothing", "a job that was planned", "variables alone", "the baseline alone"],
)
def test_what_measured_no_profile_either_way_holds_none_of_them(begun: str) -> None:
    done = history(begun)
    for how, rotates in (("on", True), ("off", False), ("", False)):  # rotations would take longer
        sweep = resolved(how)
        study = sweep.tuning(earlier=done)
        assert sweep.other_way(study, done) == ()
        assert study.goes_on() == ()
        assert any(each.rotation for each in study.propose(done)) is rotates


def test_a_look_alone_may_be_left_behind() -> None:
    done, sweep = history("a look"), resolved("off")
    study = sweep.tuning(earlier=done)
    assert sweep.other_way(study, done) == ()
    assert not any(each.rotation for each in study.propose(done))


def test_another_cell_has_begun_nothing_here() -> None:
    done = tuple(
        replace(each, trial=replace(each.trial, cell_digest="0" * 12)) for each in history("jobs")
    )
    sweep = resolved("on")
    assert sweep.other_way(sweep.study(earlier=done), done) == ()


def test_auto_keeps_its_first_choice_whatever_was_measured_since() -> None:
    """Seen: the look told how long a program compiles, and the next session began anew as jobs."""
    sweep = resolved("auto")
    done = history("a rotation")
    assert sweep.study().propose(()) != ()
    for earlier in (done, done[:1]):
        study = sweep.study(earlier=earlier)
        assert any(each.rotation for each in study.propose(earlier))
        declared = study.to_json()
        # a second process of that session, which was asked when nothing was there yet
        assert sweep.study().as_begun(declared).to_json() == declared
    plain = resolved("off").study()
    assert sweep.study().as_begun(plain.to_json()).to_json() == plain.to_json()
