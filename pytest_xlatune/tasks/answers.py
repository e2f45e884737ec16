"""Wait for the answers that a test needs: its part of a conclusion, and a verdict to assert on.

    def test_single_flag(measure, profile):
        measured = measure(profile)
        assert measured.not_slower, measured.paragraph

    def test_gate(measure, profile):
        assert measure(profile).no_regression

A test waits only for its own part of a conclusion: it asks the study a question until there is an
answer. Each function of this module that waits raises `CampaignStopped` if the sweep was stopped.
The module knows neither pytest nor any study in particular.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_xlatune.campaign import Campaign, View
from pytest_xlatune.model.errors import Exit, NotMeasured
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.trial import Arm
from pytest_xlatune.report import claims
from pytest_xlatune.report.claims import Claim
from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.studies import NOT_YET, Answer, Answered, Ask, Question
from pytest_xlatune.studies.derived import Slot
from pytest_xlatune.tasks.run_record import record_of_study


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile's verdict, for assertions.

    Attributes:
        verdict: the verdict.
        record: the environment, time and commands of its trials, as one line of JSON; "" if they
            are not known.
        claims: the claims that a test made; if the test fails, they decide the exit status.
    """

    verdict: Verdict
    record: str = field(default="", compare=False, repr=False)
    claims: list[Claim] = field(default_factory=list, compare=False, repr=False)

    def _claimed(self, claim: Claim) -> Claim:
        self.claims.append(claim)
        return claim

    def __repr__(self) -> str:
        return f"<{self.verdict.arm}: {self.words}>"

    @property
    def tgs(self) -> float | None:
        """The mean Tokens/s/device of its trials; None if no trial has a score."""
        return self.verdict.tgs

    @property
    def delta(self) -> float | None:
        """The relative change against the reference, 0.034 for +3.4 %; None if there is none."""
        return self.verdict.delta

    @property
    def n(self) -> int:
        """The number of trials behind it."""
        return self.verdict.n

    @property
    def faster(self) -> Claim:
        """Claim that fresh trials show it faster than the baseline; a single run never does."""
        return self._claimed(claims.faster(self.verdict))

    def faster_by(self, margin: float) -> Claim:
        """Claim a gain of more than `margin`; 0.02 is +2 %."""
        return self._claimed(claims.faster_by(self.verdict, margin))

    @property
    def no_regression(self) -> Claim:
        """Claim that the gate passes, by its margin; "cannot tell" fails."""
        return self._claimed(claims.no_regression(self.verdict))

    @property
    def not_slower(self) -> bool:
        """Whether no fresh trials show it slower; a single run of the screen never does."""
        return self.verdict.kind is not VerdictKind.SLOWER

    @property
    def cannot_run(self) -> bool:
        """Whether the profile itself cannot run here, as with NaN, or computes another loss."""
        return self.verdict.kind is VerdictKind.INVALID

    @property
    def exit(self) -> Exit:
        """The exit status of a run in which an assertion on this verdict failed."""
        if self.verdict.unproved and self.verdict.kind is not VerdictKind.SLOWER:
            return Exit.NOT_MEASURED
        failed = [claim for claim in self.claims if not claim]
        is_open = bool(failed) and all(claim.is_undecided for claim in failed)
        return Exit.CANNOT_TELL if is_open else Exit.NEGATIVE

    @property
    def words(self) -> str:
        """The verdict in a few words, as in tables."""
        return words(self.verdict)

    @property
    def paragraph(self) -> str:
        """The report's paragraph about this profile, for the message of a failed assertion."""
        return paragraph(self.verdict)

    def properties(self) -> list[tuple[str, str]]:
        """Return the properties for junit: short strings, and all of them as one JSON string."""
        verdict = self.verdict
        # all values are texts: one numpy float in the properties of a report ends an xdist worker
        figures = {
            "profile": verdict.arm,
            "tgs": verdict.tgs and f"{verdict.tgs:.3f}",
            "metric": verdict.figure and verdict.figure.metric.name,
            "figure": verdict.figure and f"{verdict.figure.value:.6g}",
            "delta_pct": verdict.delta is not None and f"{100 * verdict.delta:+.3f}",
            "ci95": verdict.ci95
            and f"[{100 * verdict.ci95[0]:+.3f}, {100 * verdict.ci95[1]:+.3f}]",
            "n": str(verdict.n),
            "verdict": str(verdict.kind),
            "effect": verdict.effect and str(verdict.effect),
            "unproved": ",".join(verdict.unproved),
            "words": self.words,
            "jobs": ",".join(verdict.job_ids),
            "record": self.record,
        }
        named = [(f"xlatune.{name}", text) for name, text in figures.items() if text]
        return [*named, ("xlatune", json.dumps(verdict.to_json()))]


Tick = Callable[[], None]


def baseline(campaign: Campaign, tick: Tick) -> Measured:
    """Return the baseline's verdict after all selected waves, or after all trials of a gate.

    Raises:
        NotMeasured: no baseline trial has a score.
    """
    return _measured(campaign, Question(about=Ask.REFERENCE), tick)


def screened(campaign: Campaign, profile: Profile, tick: Tick) -> Measured:
    """Return a profile's verdict from the screen after its wave.

    Raises:
        NotMeasured: the sweep could not measure it.
    """
    question = Question(about=Ask.SCREENED, name=profile.id, wave=profile.wave)
    return _measured(campaign, question, tick)


def derived(campaign: Campaign, slot: Slot, tick: Tick) -> Profile | None:
    """Return the profile in a slot of a derived wave, after that wave; None for an empty slot."""
    return _profile(campaign, Question(about=Ask.SLOT, name=slot.name, wave=slot.wave), tick)


def finalist(campaign: Campaign, number: int, tick: Tick) -> Profile | None:
    """Return finalist `number`, counted from 0 in the order of the sweep file, after all blocks.

    Return None if there are fewer finalists. They are not counted by rank, because ranks may change
    between runs.
    """
    return _profile(campaign, Question(about=Ask.RANKED, number=number), tick)


def winners(
    campaign: Campaign, tick: Tick, *, most: int = 1, is_confirming: bool = True
) -> list[Profile]:
    """Return at most `most` profiles that are proved faster, the recommended one first.

    It waits for all blocks. If this run does not confirm, the ledger decides, without waiting.
    """
    about = Ask.BEST if is_confirming else Ask.PROVEN
    questions = (Question(about=about, number=number) for number in range(most))
    profiles = (_profile(campaign, question, tick) for question in questions)
    return [profile for profile in profiles if profile is not None]


def confirmed(campaign: Campaign, arm: Profile | Arm, tick: Tick) -> Measured:
    """Return the final verdict on an arm, e.g. on a finalist or on the candidate of a gate.

    Raises:
        NotMeasured: the sweep could not measure it.
    """
    return _measured(campaign, Question(about=Ask.CONFIRMED, name=arm.id), tick)


def concluded(campaign: Campaign, tick: Tick) -> Conclusion:
    """Return the conclusion of the study after its last trial."""
    campaign.wait(lambda view: not view.pending, on_turn=tick)
    return campaign.conclude()


def ask(campaign: Campaign, question: Question, tick: Tick) -> Answer:
    """Wait as long as the answer of the study is "not yet"; return its answer then."""
    answer = NOT_YET

    def is_ready(view: View) -> bool:
        nonlocal answer
        answer = campaign.study.answer(view.history, question)
        return answer.state is not Answered.NOT_YET

    campaign.wait(is_ready, on_turn=tick)
    return answer


def _profile(campaign: Campaign, question: Question, tick: Tick) -> Profile | None:
    answer = ask(campaign, question, tick)
    return answer.arm.profile if answer.arm is not None else None


def _measured(campaign: Campaign, question: Question, tick: Tick) -> Measured:
    answer = ask(campaign, question, tick)
    if answer.verdict is None:
        raise NotMeasured(f"{question.name} is not part of this study")
    measured = Measured(answer.verdict, _record(campaign.view()))
    if answer.state is Answered.UNMEASURED:
        raise NotMeasured(measured.paragraph)
    return measured


@functools.lru_cache(maxsize=1)  # made for each test, it would take half of a session's CPU time
def _record(view: View) -> str:
    """Return the record of a study as one line of JSON without empty fields, for junit."""
    if not view.study.cells:
        return ""
    record = record_of_study(view.state, view.study).to_json()
    return json.dumps({name: value for name, value in record.items() if value})
