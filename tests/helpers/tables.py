"""Tables of examples: what names a row is the id of its test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def rows(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test for each row: a tuple of what `names` lists, or the one value that it names."""
    lists = "," in names
    return pytest.mark.parametrize(
        [name.strip() for name in names.split(",")],
        [pytest.param(*(row if lists else (row,)), id=name) for name, row in table.items()],
    )
