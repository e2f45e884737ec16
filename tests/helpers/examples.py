"""How many examples a property is tried on, where a hundred are too many or too few."""

from __future__ import annotations

from hypothesis import settings


def tried(most: int) -> int:
    """Return the `max_examples` of a property: fewer where the profile says fewer than 100."""
    return max(1, most * settings().max_examples // 100)
