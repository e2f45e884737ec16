"""How the tests are spread over xdist's workers, what properties are tried on, and a container."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.containers import WAYS, PodmanSite, podman, rootfs

# A shell starts what it puts in the background deaf to Ctrl-C, and every child inherits that; the
# tests send Ctrl-C and mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property holds on a busy machine too, and what CI tries is what was tried before the commit.
# HYPOTHESIS_PROFILE=new tries new examples.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


class OneWorkerForTheLab(LoadScopeScheduling):  # type: ignore[misc]
    """One test at a time to whoever is free; all that need the Slurm lab to one worker, first.

    There is one lab on a machine: a second worker would only wait. The mark `xdist_group` with
    `--dist loadgroup` writes the group into the node id, which pytest 9.2 no longer allows.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith("tests/slurm/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWorkerForTheLab | None:
    if config.getvalue("dist") != "load":
        return None
    return OneWorkerForTheLab(config, log)


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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): a limit, where pytest-timeout is there")
