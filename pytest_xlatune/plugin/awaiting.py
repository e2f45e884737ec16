"""What a test waits for: its part of a conclusion, and no more.

Each answer is the same in the run that measures and in every later one: a wave's verdicts are those
of the screen, taken when the wave is over, and the finalists' are those of the confirmation. This
module knows nothing of pytest.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_xlatune.campaign.campaign import Campaign, View
from pytest_xlatune.cells import Stage
from pytest_xlatune.errors import XlatuneError
from pytest_xlatune.plugin.measured import Measured
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.results import Conclusion, VerdictKind
from pytest_xlatune.studies.derived import Slot
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.studies.tuning_layout import wave_order

Tick = Callable[[], None]
_EVIDENCE_WAVE = "wave1_5"  # where an evidence run stands that a wave waits for


class NotMeasured(XlatuneError):  # noqa: N818 - it is no error of the harness
    """Nobody could measure the profile; the message says why."""


def baseline(campaign: Campaign, tick: Tick) -> Measured:
    """Return the baseline's line once the first selected wave is over, in a gate all trials.

    Raises:
        NotMeasured: no baseline trial has a score.
        CampaignStopped: the sweep was stopped.
    """
    view = campaign.view()
    planned = [*view.pending, *(each.trial for each in view.history)]
    stage = Stage.SCREEN if any(each.stage is Stage.SCREEN for each in planned) else Stage.CONFIRM
    group = next((trial.group for trial in view.pending if trial.stage is stage), None)
    campaign.wait(lambda view: view.is_over(stage, group), on_turn=tick)
    return _measured(campaign, BASELINE_ID, screened_only=stage is Stage.SCREEN)


def screened(campaign: Campaign, profile: Profile, tick: Tick) -> Measured:
    """Return a profile's verdict of the screen once its wave is over.

    Raises:
        NotMeasured: nobody could measure it.
        CampaignStopped: the sweep was stopped.
    """
    campaign.wait(lambda view: _is_over(view, profile.wave), on_turn=tick)
    return _measured(campaign, profile.id, screened_only=True)


def derived(campaign: Campaign, slot: Slot, tick: Tick) -> Profile | None:
    """Return the profile of a derived wave's slot once the wave is over; None: it stayed empty.

    Raises:
        CampaignStopped: the sweep was stopped.
    """
    view = campaign.wait(lambda view: _is_over(view, slot.wave), on_turn=tick)
    study = campaign.study
    return study.slots_of(view.history).get(slot.name) if isinstance(study, TuningStudy) else None


def finalist(campaign: Campaign, number: int, tick: Tick) -> Profile | None:
    """Return finalist `number`, from 0 in rank order, once all blocks are over; None: no such.

    Raises:
        CampaignStopped: the sweep was stopped.
    """
    campaign.wait(lambda view: not view.pending, on_turn=tick)
    finalists = campaign.conclude().finalists
    if number >= len(finalists):
        return None
    return _profile(campaign, finalists[number])


def winner(campaign: Campaign, tick: Tick) -> Profile | None:
    """Return the profile that is proved fastest, once all blocks are over; None: no profile is.

    Raises:
        CampaignStopped: the sweep was stopped.
    """
    campaign.wait(lambda view: not view.pending, on_turn=tick)
    return _fastest(campaign, campaign.conclude())


def proven(campaign: Campaign, _: Tick) -> Profile | None:
    """Return the profile that the ledger proves fastest, without measuring; None: none does yet."""
    return _fastest(campaign, campaign.study.whole().conclude(campaign.view().history))


def confirmed(campaign: Campaign, profile: Profile, tick: Tick) -> Measured:
    """Return the verdict on a finalist, or on a candidate of a gate, once all blocks are over.

    Raises:
        NotMeasured: nobody could measure it.
        CampaignStopped: the sweep was stopped.
    """
    campaign.wait(lambda view: not view.pending, on_turn=tick)
    return _measured(campaign, profile.id, screened_only=False)


def _fastest(campaign: Campaign, conclusion: Conclusion) -> Profile | None:
    faster = (each for each in conclusion.verdicts if each.kind is VerdictKind.FASTER)
    first = next(faster, None)
    return None if first is None else _profile(campaign, first.profile)


def _profile(campaign: Campaign, profile_id: str) -> Profile:
    study = campaign.study
    known = study.profiles
    if isinstance(study, TuningStudy):
        known = study.profiles_of(campaign.view().history)
    return next(each for each in known if each.id == profile_id)


def _is_over(view: View, wave: str) -> bool:
    """Whether no screening trial of a wave is to come, nor of one before, which it may read."""
    return not any(
        wave_order(_EVIDENCE_WAVE if trial.stage is Stage.EVIDENCE else trial.group)
        <= wave_order(wave)
        for trial in view.pending
        if trial.stage is not Stage.CONFIRM
    )


def _measured(campaign: Campaign, profile_id: str, *, screened_only: bool) -> Measured:
    verdict = campaign.conclude(screened_only=screened_only).verdict(profile_id)
    if verdict is None:
        raise NotMeasured(f"{profile_id} is not part of this study")
    measured = Measured(verdict)
    # a candidate with another loss was measured: its gate fails on it
    is_told = isinstance(campaign.study, GateStudy) and verdict.n > 0
    if verdict.kind is VerdictKind.INVALID and verdict.can_run and not is_told:
        raise NotMeasured(measured.paragraph)
    return measured
