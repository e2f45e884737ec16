"""A confirmation that is prolonged, joined late or begun without finalists."""

from __future__ import annotations

from pytest_xlatune.cells import Trial
from pytest_xlatune.results import TrialResult, VerdictKind
from tests.studies.answers import cluster, drive, study, verdict


def test_a_second_stage_spends_the_rest_of_alpha_once() -> None:
    sweep = study(6, budget=60, second_blocks=4)
    run = cluster({"p1": 0.006}, sigma=0.006)
    screened = [run(trial) for trial in sweep.propose([])]
    first = [run(trial) for trial in sweep.propose(screened)]
    middle = sweep.conclude([*screened, *first])
    assert middle.alpha_spent == 0.04
    assert "alpha 0.04" in verdict(middle, middle.finalists[0]).method
    second = sweep.propose([*screened, *first])
    assert {t.group.split("-")[0] for t in second} == {"2of2"}
    assert {t.block for t in second} == {6, 7, 8, 9}
    done = drive(sweep, run, [*screened, *first])
    after = sweep.conclude(done)
    assert after.alpha_spent == 0.05
    assert "alpha 0.01" in verdict(after, after.finalists[0]).method
    assert len(done) <= 60
    # what was spent at once is not there to be spent again
    spent = drive(study(6, budget=60), run)
    assert study(6, budget=90, second_blocks=4).propose(spent) == ()


def test_who_comes_after_the_finalists_were_fixed_is_told_and_not_confirmed() -> None:
    run = cluster({"p1": 0.02, "p9": 0.05})
    done = drive(study(8, budget=60), run)
    later = study(10, budget=80)
    done = drive(later, run, done)
    conclusion = later.conclude(done)
    assert verdict(conclusion, "p9").kind is VerdictKind.SCREENED
    assert "p9" not in conclusion.finalists
    assert conclusion.alpha_spent == 0.05
    assert any(note.startswith("p9 would be confirmed by now") for note in conclusion.notes)
    assert not any(
        "would be confirmed" in note for note in study(8, budget=60).conclude(done).notes
    )


def test_what_the_first_look_decided_stays_decided() -> None:
    """A winner of the first stage is not lost to noise in the blocks that others asked for."""
    sweep = study(6, budget=60, second_blocks=4)

    def fading(trial: Trial) -> TrialResult:
        effects = {"p1": 0.05 if trial.block < 6 else -0.05, "p2": 0.004}
        return cluster(effects, sigma=0.01)(trial)

    done = drive(sweep, fading)
    assert any(r.trial.group.startswith("2of2") for r in done)
    found = verdict(sweep.conclude(done), "p1")
    assert found.kind is VerdictKind.FASTER
    assert found.reasons[0].startswith("faster by at least +")
    assert found.reasons[1] == "decided at the first look, with alpha 0.04"


def test_a_run_without_any_finalist_leaves_their_blocks_alone() -> None:
    run = cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = drive(study(), run)[:-4]
    assert {t.profile.id for t in study().propose(done)} & {"p7", "p8", "p9"}
    assert study(selected=frozenset({"p3"})).propose(done) == ()
