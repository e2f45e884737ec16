"""Waiting for what another process does: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 180.0


def until(look: Callable[[], T | None]) -> T:
    """Return the first truthy value of `look`; fail after a limit that a busy machine keeps."""
    end_s = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < end_s, f"nothing came within {LIMIT_S:.0f} s"
        time.sleep(0.02)
    return found
