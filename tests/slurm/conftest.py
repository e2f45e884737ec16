"""The lab for the tests: one per machine, the first test process starts it, one test at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from tests.slurm import lab
from tests.slurm.on_lab import Faults, Project, Trials
from tests.slurm.sample import SAMPLE

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
def lab_in_use(one_at_a_time: FileLock) -> Iterator[ModuleType]:
    """A lab that is up; the last test process to leave stops it, unless a person started it."""
    require()
    guard = FileLock(f"{lab.FOLDER}.lock")
    me = lab.FOLDER / lab.USERS / str(os.getpid())
    # in the middle of another process's test the lab may look dead, and must not be started afresh
    with one_at_a_time, guard:
        is_up = lab.is_up()
        started_by_tests = me.parent.exists() or not is_up
        before = lab.has_accounting()
        others = [user.name for user in me.parent.iterdir()] if me.parent.exists() else []
        if not is_up or (started_by_tests and not lab.is_configured_so()):
            lab.start()
        else:
            lab.mend()  # of a process that was killed in the middle of a test
        if started_by_tests:
            lab.note_users([me.name, *others])
    yield lab
    with one_at_a_time, guard:
        if me.exists():
            me.unlink()
            if not any(Path("/proc", user.name).exists() for user in me.parent.iterdir()):
                lab.stop()
        elif lab.has_accounting() != before:  # a person's
            lab.restart(accounting=before)


@pytest.fixture(scope="session")
def one_at_a_time() -> FileLock:
    return FileLock(f"{lab.FOLDER}.test.lock")


@pytest.fixture(scope="session")
def accounting(lab_in_use: ModuleType) -> None:
    """Asks that the lab has slurmdbd, by being asked for."""
    require(accounting=True)


@pytest.fixture(name="lab")
def lab_to_oneself(
    request: pytest.FixtureRequest,
    lab_in_use: ModuleType,
    one_at_a_time: FileLock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ModuleType]:
    """The lab to oneself, all nodes idle; whatever a test did to it is mended afterwards."""
    wants_accounting = "accounting" in request.fixturenames
    with one_at_a_time:
        if lab_in_use.has_accounting() != wants_accounting:
            lab_in_use.restart(accounting=wants_accounting)
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
    made = Project(tmp_path)
    yield made
    made.end()
    if made.events("campaign-opened"):
        lost, doubled = made.losses()
        record_property("lost", lost)
        record_property("doubled", doubled)


@pytest.fixture
def faults(project: Project) -> Iterator[Faults]:
    """A sweep with a pretending trainer on two nodes; `on_lab.py` says what it can be told."""
    made = Faults(project)
    yield made
    made.go.touch()
