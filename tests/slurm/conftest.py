"""The lab for the tests: a session has it to itself, and starts it where nobody has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from tests.slurm import lab
from tests.slurm.faults import SAMPLE
from tests.slurm.on_lab import Faults, Project, Trials

HERE = Path(__file__).parent


def require(*, accounting: bool = False) -> None:
    """Skip where the lab cannot run; in CI that is an error, for there it must."""
    if why := lab.missing(accounting=accounting):
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the Slurm tests and does not skip them, but {why}")
        pytest.skip(f"no Slurm to test on: {why}")


@pytest.hookimpl(tryfirst=True)  # before the tests of other parts are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but a sample to `make test-all`.

    The tests that need slurmdbd are the last, so that the lab is started afresh for them once.
    """
    for item in items:
        is_told = item.get_closest_marker("part") or item.nodeid.rpartition("/")[2] in SAMPLE
        if item.path.parent == HERE and not is_told:
            item.add_marker(pytest.mark.part("slurm"))
    items.sort(key=lambda item: "accounting" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def lab_in_use() -> Iterator[ModuleType]:
    """A lab that is up, and this session's alone; it stays up where a person has started it."""
    require()
    with FileLock(f"{lab.FOLDER}.lock"):
        was_up, had_accounting = lab.is_up(), lab.has_accounting()
        if was_up and lab.is_configured_so():
            lab.mend()
        else:
            lab.start()
        yield lab
        if not was_up:
            lab.stop()
        elif lab.has_accounting() != had_accounting:
            lab.start(accounting=had_accounting)


@pytest.fixture(scope="session")
def accounting(lab_in_use: ModuleType) -> None:
    """Asks that the lab has slurmdbd, by being asked for."""
    require(accounting=True)


@pytest.fixture(name="lab")
def mended_lab(
    request: pytest.FixtureRequest, lab_in_use: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The lab, all nodes idle; whatever a test did to it is mended afterwards."""
    wants_accounting = "accounting" in request.fixturenames
    if lab_in_use.has_accounting() != wants_accounting:
        lab_in_use.start(accounting=wants_accounting)
    for name, value in lab_in_use.environment().items():
        monkeypatch.setenv(name, value)
    yield lab_in_use
    lab_in_use.mend()


@pytest.fixture
def trials(lab: ModuleType, tmp_path: Path) -> Trials:
    return Trials(tmp_path)


@pytest.fixture
def project(
    lab: ModuleType, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[Project]:
    """A user's folder; no trial of its sessions may be lost, and none run to its end twice."""
    made = Project(tmp_path)
    yield made
    made.end()
    lost, doubled = made.losses()
    record_property("lost", lost)
    record_property("doubled", doubled)
    assert (lost, doubled) == (0, 0)


@pytest.fixture
def faults(project: Project) -> Iterator[Faults]:
    """A sweep with a pretending trainer on two nodes; `on_lab.py` says what it can be told."""
    made = Faults(project)
    yield made
    made.go.touch()
