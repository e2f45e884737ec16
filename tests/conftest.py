"""How the tests are spread over xdist's workers, what properties are tried on, and a container."""

from __future__ import annotations

import gc
import importlib.util
import os
import secrets
import signal
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from tests.helpers.containers import PodmanSite


# A shell starts what it puts in the background deaf to Ctrl-C, and every child inherits that; the
# tests send Ctrl-C and mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A user's Python holds back what it writes into a file; with this variable ours would not.
os.environ.pop("PYTHONUNBUFFERED", None)
# It keeps what it has compiled, too: without that a session in a process of its own costs twice.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Most tests are of sweeps whose trials are jobs of their own; those of rotations ask for them.
os.environ.setdefault("XLATUNE_ROTATE", "off")

# A sweep needs less than the tests do: after `make sweep` alone pytest starts here all the same,
# because `pytest --help` and `pytest --markers` load this file.
HAS_HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None
collect_ignore_glob = [] if HAS_HYPOTHESIS else ["*"]
LEFT_OUT = (
    "tests: left out, because hypothesis is not installed here. `make test` installs what they "
    "need; a sweep is named, as in `pytest sweeps/test_quickstart.py`"
)

# what `make test-all` runs besides `make test`, in three parts of at most a quarter of an hour each
PARTS = ("slurm", "sweeps", "programs")
DEAREST = (
    *("tests/slurm/", "tests/plugin/", "tests/guests/", "tests/launchers/", "tests/project/"),
    "tests/cli/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("test", *PARTS),
        help="of the project's own tests: those of `make test`, which have no mark `part`; "
        "or those of one part of `make test-all`. All where it is not given",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that is asked for."""
    asked = config.option.part
    left: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    for item in items:
        marks = [mark.args[0] for mark in item.iter_markers("part")]
        assert set(marks) <= {*PARTS}, f"{item.nodeid}: no such part, {marks}"
        is_asked = asked is None or (asked in marks[:1] if asked != "test" else not marks)
        is_asked = is_asked or (asked == "slurm" and not marks and _is_property(item))
        (kept if is_asked else left).append(item)
    # what takes long begins first, so that no worker is left with it at the end
    kept.sort(key=lambda item: (_place(item), item.path))
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


def _is_property(item: pytest.Item) -> bool:
    from hypothesis import is_hypothesis_test

    return isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have the collector of garbage leave alone what is collected: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _place(item: pytest.Item) -> int:
    found = (at for at, folder in enumerate(DEAREST) if item.nodeid.startswith(folder))
    return next(found, len(DEAREST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip where a mark names a program that is not installed."""
    if item.get_closest_marker("jax") and importlib.util.find_spec("jax") is None:
        pytest.skip("needs JAX")


@pytest.hookimpl(tryfirst=True)  # hypothesis reads its options in the same hook
def pytest_configure(config: pytest.Config) -> None:
    """Try new examples in every run, those of one number, also on a busy machine.

    `make test` tries a third of them; `make test-slurm` tries all, on the worker beside the lab.
    """
    config.addinivalue_line("markers", "timeout(seconds): a limit, where pytest-timeout is there")
    if not HAS_HYPOTHESIS:
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "ours",
        deadline=None,
        derandomize=False,  # not in CI either
        max_examples=33 if config.option.part == "test" else 100,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("ours")
    # xdist gives its workers the options of the session that starts them
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    if not HAS_HYPOTHESIS:
        return LEFT_OUT
    seed = config.option.hypothesis_seed
    return f"hypothesis seed: {seed}, repeat with --hypothesis-seed={seed}"


class OneWorkerForTheLab(LoadScopeScheduling):  # type: ignore[misc]
    """One file at a time to a free worker: its tests share what is dear to make.

    All that need the Slurm lab go to one worker: there is one lab on a machine, and a second worker
    would only wait. The mark `xdist_group` with `--dist loadgroup` writes the group into the node
    id, which pytest 9.2 no longer allows.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith(DEAREST[0]) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWorkerForTheLab | None:
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False  # they are in order
    return OneWorkerForTheLab(config, log)


@pytest.fixture(autouse=True)
def _secrets_of_one_test() -> Iterator[None]:
    """Forget after a test which values no message may show: another one's are words like others."""
    yield
    if (redact := sys.modules.get("pytest_xlatune.model.redact")) is not None:
        redact._kept.clear()


@pytest.fixture(scope="session")
def loaded() -> None:
    """All modules of the product, for sessions of pytest inside a test: ask for it first."""
    from tests.helpers.sessions import load_everything

    load_everything()


@pytest.fixture(scope="session")
def podman_site() -> Iterator[PodmanSite]:
    from tests.helpers.containers import made_site

    with made_site() as site:
        yield site
