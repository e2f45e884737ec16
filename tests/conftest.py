"""How the tests are spread over xdist's workers, what properties are tried on, and a container."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.containers import WAYS, PodmanSite, podman, rootfs

Once = Callable[[str, Callable[[Path], object]], Path]

# A shell starts what it puts in the background deaf to Ctrl-C, and every child inherits that; the
# tests send Ctrl-C and mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property holds on a busy machine too. New examples are tried in every run, those of one number;
# HYPOTHESIS_PROFILE=same tries the same ones every time.
settings.register_profile(
    "new",
    deadline=None,
    derandomize=False,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("same", settings.get_profile("new"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "new"))


@pytest.hookimpl(tryfirst=True)  # hypothesis reads its options in the same hook
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): a limit, where pytest-timeout is there")
    # xdist gives its workers the options of the session that starts them
    if config.option.hypothesis_seed is None and not settings().derandomize:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    if seed is None:
        return "hypothesis: the same examples as every time"
    return f"hypothesis seed: {seed}, repeat with --hypothesis-seed={seed}"


class OneWorkerForTheLab(LoadScopeScheduling):  # type: ignore[misc]
    """One test at a time to a free worker; all that need the Slurm lab to one worker, first.

    There is one lab on a machine: a second worker would only wait. The mark `xdist_group` with
    `--dist loadgroup` writes the group into the node id, which pytest 9.2 no longer allows.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith("tests/slurm/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWorkerForTheLab | None:
    if config.getvalue("dist") != "load":
        return None
    return OneWorkerForTheLab(config, log)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """Make a folder once a run: the worker that asks first makes it, the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    root = own if worker_id == "master" else own.parent

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / f"once-{name}", root / f"once-{name}.done"
        with FileLock(root / f"once-{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


def _missing(why: str) -> None:
    if os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(f"CI runs containers and does not skip them, but {why}")
    pytest.skip(f"no container to test with: {why}")


@pytest.fixture(scope="session")
def podman_site() -> Iterator[PodmanSite]:
    if shutil.which("podman") is None:
        _missing("podman is not installed (Debian's packages podman and runc)")
    name = f"localhost/xlatune-test-{uuid.uuid4().hex[:8]}"
    made = podman(
        "import", "--change", "ENV XLA_FLAGS=--xla_from_image=1", "-", name, stdin=rootfs()
    )
    if made.returncode:
        _missing(f"podman makes no image: {made.stderr.decode()[-300:]}")
    said = ""
    for program, args in WAYS:
        words = [*program.split()[1:], "run", "--rm", "--network=host", "-v/usr:/usr:ro", *args]
        done = podman(*words, name, "true")
        if done.returncode == 0:
            shown = podman("image", "inspect", "--format", "{{.Digest}}", name)
            digest = shown.stdout.decode().strip()
            yield PodmanSite(image=f"{name}@{digest}", program=program, args=args)
            break
        said += f"{program}: {done.stderr.decode()[-200:]} "
    else:
        podman("rmi", "--force", name)
        _missing(f"podman runs nothing here: {said}")
    podman("rmi", "--force", name)
