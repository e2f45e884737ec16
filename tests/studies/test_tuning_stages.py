"""A confirmation that is prolonged, joined late or begun without finalists."""

from __future__ import annotations

from dataclasses import replace

from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from tests.studies.answers import cluster, drive, study, verdict


def test_a_second_stage_spends_the_rest_of_alpha_once() -> None:
    # nothing counts as level, so that the first look leaves something to tell
    sweep = study(6, budget=60, second_blocks=4, equivalence=1e-4)
    run = cluster({"p1": 0.006}, sigma=0.006)
    screened = [run(trial) for trial in sweep.propose([])]
    first = [run(trial) for trial in sweep.propose(screened)]
    middle = sweep.conclude([*screened, *first])
    assert middle.alpha == 0.04
    assert "alpha 0.04" in verdict(middle, middle.tuning.finalists[0]).method
    second = sweep.propose([*screened, *first])
    assert {(t.design.look, t.design.looks) for t in second if t.design} == {(2, 2)}
    assert {t.block for t in second} == {6, 7, 8, 9}
    done = drive(sweep, run, [*screened, *first])
    after = sweep.conclude(done)
    assert after.alpha == 0.05
    assert "alpha 0.01" in verdict(after, after.tuning.finalists[0]).method
    assert verdict(after, after.tuning.finalists[0]).n == 9, "the last look is at all blocks"
    assert len(done) <= 60
    # what was spent at once is not there to be spent again
    spent = drive(study(6, budget=60), run)
    assert study(6, budget=90, second_blocks=4).propose(spent) == ()
    undecided = study(6, budget=90, second_blocks=4, equivalence=1e-4)
    assert VerdictKind.INCONCLUSIVE in {each.kind for each in undecided.conclude(spent).verdicts}
    assert undecided.propose(spent) == ()


def test_who_comes_after_the_finalists_were_fixed_is_told_and_not_confirmed() -> None:
    run = cluster({"p1": 0.02, "p8": -0.05, "p9": 0.05})
    done = drive(study(8, budget=60), run)
    later = study(10, budget=80)
    done = drive(later, run, done)
    conclusion = later.conclude(done)
    assert verdict(conclusion, "p9").kind is VerdictKind.SCREENED
    assert "p9" not in conclusion.tuning.finalists
    assert conclusion.alpha == 0.05
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
    assert any(r.trial.design and r.trial.design.look == 2 for r in done)
    found = verdict(sweep.conclude(done), "p1")
    assert found.kind is VerdictKind.FASTER
    assert found.reasons[0].startswith("faster by at least +")
    assert found.reasons[1] == "decided at the first look, with alpha 0.04"


def test_a_run_without_any_finalist_leaves_their_blocks_alone() -> None:
    run = cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = drive(study(), run)[:-4]
    assert {t.profile.id for t in study().propose(done)} & {"p7", "p8", "p9"}
    assert study(selected=frozenset({"p3"})).propose(done) == ()


def test_where_the_first_look_tells_every_finalist_no_second_stage_follows() -> None:
    """What cannot be told of the control asks for none either."""
    sweep = study(6, budget=60, second_blocks=4, equivalence=1e-4)
    hurt = {f"p{at}": -0.05 for at in range(1, 6)}
    done = drive(sweep, cluster({"p0": 0.05} | hurt, sigma=0.002))
    arms = {r.trial.profile.id for r in done if r.trial.block}
    assert arms == {"p0", "baseline-aa", "baseline-deployed"}
    assert not any(r.trial.design and r.trial.design.look == 2 for r in done)
    conclusion = sweep.conclude(done)
    assert verdict(conclusion, "p0").kind is VerdictKind.FASTER
    assert (conclusion.alpha, conclusion.complete) == (0.04, True)


def test_a_second_stage_that_has_begun_is_finished_whatever_is_asked_later() -> None:
    sweep = study(6, budget=60, second_blocks=4, equivalence=1e-4)
    run = cluster({"p1": 0.004}, sigma=0.006)
    done = [run(trial) for trial in sweep.propose([])]
    done += [run(trial) for trial in sweep.propose(done)]
    second = sweep.propose(done)
    lenient = replace(sweep, equivalence=0.5)
    assert lenient.propose(done) == (), "by that margin the first look tells all"
    begun = [*done, run(second[0])]
    assert lenient.propose(begun) == second[1:]
    assert lenient.conclude(begun).alpha == 0.05
