"""The folder of a sweep over a trainer that only pretends, as the tests of the plugin have it."""

from __future__ import annotations

from tests.plugin.conftest import folder as folder  # noqa: PLC0414 - a fixture of here too
