"""The options of CVS files; pytest loads only this module until one of the options is given.

An entry point of `pytest11` names it, like a plugin of another distribution.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of CVS files."""
    group = parser.getgroup("cvs", "configurations of AMD's cluster validation suite")
    group.addoption("--cvs-config", metavar="FILE", help="Run this configuration of CVS")
    group.addoption(
        "--cvs-cluster", metavar="FILE", help="The cluster file of CVS: node names, user"
    )
    group.addoption(
        "--cvs-set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="Fill in a value of the file, e.g. container.env.NCCL_SOCKET_IFNAME=eno1",
    )
    group.addoption(
        "--cvs-jobs", metavar="N", type=int, help="Jobs of each cell (default: 5; 4 at least)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the file of `--cvs-config`.

    Raises:
        UsageError: `-p no:xlatune` has switched off the plugin that runs sweeps.
    """
    if not config.option.cvs_config:
        return
    from pytest_xlatune import plugin
    from pytest_xlatune.guests.cvs import items

    if not config.pluginmanager.is_registered(plugin):
        raise pytest.UsageError("--cvs-config runs a sweep, so leave `-p no:xlatune` out")
    plugin.load_collect(config)
    config.pluginmanager.register(items, "xlatune-cvs")
