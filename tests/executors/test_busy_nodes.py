"""A session looks at its site again where another process began meanwhile, and asks XLA once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.plugin import session as session_room
from pytest_xlatune.plugin.session import Session
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.preflight import Preflight


@pytest.mark.parametrize(
    ("pending", "taken"),
    [
        pytest.param((), {"fast"}, id="all but what was measured"),
        pytest.param(("lost",), {"fast"}, id="all but that where one is to run again"),
        pytest.param(("lost", "new"), set(), id="all where one is new: it may be a twin"),
    ],
)
def test_xla_is_asked_about_what_no_trial_has_shown(
    monkeypatch: pytest.MonkeyPatch, pending: tuple[str, ...], taken: set[str]
) -> None:
    planned = {each: SimpleNamespace(trial=SimpleNamespace(arm=each)) for each in ("fast", "lost")}
    view = SimpleNamespace(
        state=SimpleNamespace(trials=planned, notes=()),
        pending=tuple(SimpleNamespace(arm=each) for each in pending),
    )
    verdicts = (
        Verdict(arm="fast", kind=VerdictKind.SCREENED, n=1),
        Verdict(arm="lost", kind=VerdictKind.INVALID, n=1),
    )
    nothing: Any = SimpleNamespace(workdir=None)
    session, seen = Session(nothing, "me", config=nothing), list[tuple[list[str], set[str]]]()
    profiles = [profile(name, "--xla_a=1") for name in ("fast", "lost", "new")]
    sweep: Any = SimpleNamespace(name="pretend", profiles=profiles, named_profiles=profiles)
    one: Any = SimpleNamespace(
        profiles=set(),
        sweep=SimpleNamespace(
            cell=None, sweep=SimpleNamespace(launcher=SimpleNamespace(interpreter=""))
        ),
    )
    session._selections["pretend"] = one
    campaign = SimpleNamespace(
        view=lambda: view,
        conclude=lambda: SimpleNamespace(verdicts=verdicts),
        folder=None,
    )

    def look_at_flags(these: list[Profile], *_: object, taken: set[str], **__: Any) -> Preflight:
        seen.append(([each.id for each in these], taken))
        return Preflight()

    monkeypatch.setattr(session, "campaign", lambda _: campaign)
    monkeypatch.setattr(preflight, "look", lambda _: Preflight())
    monkeypatch.setattr(session_room, "site_of", lambda *_, **__: None)
    monkeypatch.setattr(session_room, "context_of", lambda *_: None)
    monkeypatch.setattr(session_room, "look_at_flags", look_at_flags)
    session.preflight(sweep)
    assert seen == [(["fast", "lost", "new"], taken)]
