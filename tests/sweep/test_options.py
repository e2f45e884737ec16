"""Options: command line, then environment, then ini; a wrong value names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import CellSettings, DesignSettings, Limits, Sweep
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.settings import resolve_options

ROOT = Path("/project")


def test_what_comes_first_wins() -> None:
    def budget(command_line: dict[str, Any], environ: dict[str, str], ini: dict[str, str]) -> Any:
        return resolve_options(command_line, environ, ini, root=ROOT).said.values.get("budget")

    line, environ, ini = {"xlatune_budget": "3"}, {"XLATUNE_BUDGET": "2"}, {"xlatune_budget": "1"}
    assert budget(line, environ, ini) == 3
    assert budget({"xlatune_budget": None}, environ, ini) == 2
    assert budget({}, {"XLATUNE_BUDGET": ""}, ini) == 1
    assert budget({}, {}, {"xlatune_budget": ""}) is None


def test_directories_are_relative_to_the_root() -> None:
    options = resolve_options({}, {"XLATUNE_WORKDIR": "/scratch/x"}, {}, root=ROOT)
    assert (options.workdir, options.reports) == (Path("/scratch/x"), ROOT / "reports")


def test_switches_are_off_unless_given() -> None:
    options = resolve_options({"no_xlatune": True, "xlatune_fresh": False}, {}, {}, root=ROOT)
    assert (options.is_off, options.fresh, options.keep_jobs) == (True, False, False)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("budget", "many", r"--xlatune-budget: found 'many', expected a whole number above 0$"),
        ("nodes", "0", r"--xlatune-nodes: found '0'.*a whole number above 0"),
        ("slots", "1.5", r"--xlatune-slots: found '1.5'.*a whole number above 0"),
        ("pdbs", "x", r"--xlatune-pdbs: found 'x'"),
        ("pdbs", "0", r"--xlatune-pdbs: found '0'.*a number above 0"),
        ("pdbs", "nan", r"--xlatune-pdbs: found 'nan'.*a number above 0"),
        ("slurm", "account", r"--xlatune-slurm: found 'account'.*key=value,key=value"),
        ("executor", "slrum", r"unknown value 'slrum' in --xlatune-executor; did you mean 'slurm'"),
        ("negative", "pass", r"unknown value 'pass' in --xlatune-negative"),
    ],
)
def test_a_wrong_value_names_its_place(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_options({f"xlatune_{key}": text}, {}, {}, root=ROOT)
    with pytest.raises(ConfigError, match=f"XLATUNE_{key.upper()}"):
        resolve_options({}, {f"XLATUNE_{key.upper()}": text}, {}, root=ROOT)
    with pytest.raises(ConfigError, match=f"ini key xlatune_{key}"):
        resolve_options({}, {}, {f"xlatune_{key}": text}, root=ROOT)


def test_a_misspelt_variable_is_not_passed_over() -> None:
    others = {"XLATUNE_MACHINE_LOCK": "x", "XLATUNE_NOTIFY_URL": "x", "XLATUNE_OWN": "x"}
    resolve_options({}, others, {}, root=ROOT)
    with pytest.raises(ConfigError, match=r"variable 'XLATUNE_MODLE'.*mean 'XLATUNE_MODEL'"):
        resolve_options({}, {**others, "XLATUNE_MODLE": "x"}, {}, root=ROOT)


def test_scheduler_options_are_pairs() -> None:
    options = resolve_options({"xlatune_slurm": "account=a, qos=x=y"}, {}, {}, root=ROOT)
    assert options.said.values["slurm"] == {"account": "a", "qos": "x=y"}


@pytest.mark.parametrize(
    ("group", "said", "message"),
    [
        (
            Sweep,
            {"buget": 30},
            r"keyword 'buget' in Sweep\(...\); did you mean 'budget'",
        ),
        (
            Sweep,
            {"budget": 30},
            r"budget belongs to DesignSettings; write Sweep\(design=DesignSettings\(budget=...\)\)",
        ),
        (DesignSettings, {"buget": 30}, r"'buget' in DesignSettings.*did you mean 'budget'"),
        (
            CellSettings,
            {"nodelist": ("n1",)},
            r"write Sweep\(site=SiteSettings\(nodelist=...\)\)",
        ),
        (Limits, {"node_hour": 1}, r"'node_hour' in Limits.*did you mean 'node_hours'"),
    ],
)
def test_an_unknown_keyword_is_told_where_it_belongs(
    group: Any, said: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        group(**said)
