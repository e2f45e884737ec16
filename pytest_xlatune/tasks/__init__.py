"""Use cases, one in each file; pytest and the command line call them."""

from __future__ import annotations

import os
import time


def new_session_id() -> str:
    """Return an id that sorts by time and that no other session has."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
