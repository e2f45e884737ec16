"""An XLA that answers at once, as the one of an interpreter does; and the real one beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_xlatune.catalog.effect import ParsedText
from pytest_xlatune.model.profile import parse_flags
from pytest_xlatune.prepare.preflight import Target

DEFAULTS = {"xla_gpu_autotune_level": "4", "xla_gpu_enable_triton_gemm": "true"}
UNKNOWN = ("warp_drive", "bogus", "no_such")


def as_xla(target: Target, texts: Sequence[str]) -> list[ParsedText]:
    """Know all flags but those that end as UNKNOWN says, and all values but `maybe`."""
    target.jaxlib = "0.12.0"
    answers = []
    for text in texts:
        flags = parse_flags(text)
        bad = [each.name for each in flags if each.value == "maybe"]
        unknown = tuple(each.name for each in flags if each.name.endswith(UNKNOWN))
        if bad:
            said = f"Couldn't interpret value maybe for flag {bad[0]}"
            answers.append(ParsedText(options=None, refused=said))
        elif unknown:
            answers.append(ParsedText(options=None, unknown=unknown))
        else:
            asked = {each.name: each.value or "true" for each in flags}
            answers.append(ParsedText(options={**DEFAULTS, **asked}))
    return answers


@pytest.fixture(
    params=[
        pytest.param(as_xla, id="as XLA"),
        pytest.param(
            Target.__call__, id="XLA", marks=[pytest.mark.jax, pytest.mark.part("programs")]
        ),
    ]
)
def xla(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a stand-in what a text means; and XLA itself, of `make test-all`."""
    monkeypatch.setattr(Target, "__call__", request.param)
