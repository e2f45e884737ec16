"""How the tests are spread over xdist's workers, and containers to test with.

Podman comes with Debian's packages podman and runc, which CI installs with those of the Slurm lab
(`make slurm-packages`). The image needs no registry: a few links that lead into the machine's own
/usr, which is mounted into the container.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from pytest_xlatune.cells import Cell, LaunchSpec, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.profiles import Profile

# A shell starts what it puts in the background deaf to Ctrl-C, and every child inherits that; the
# tests send Ctrl-C and mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
FOLDERS = ("dev", "proc", "sys", "tmp", "usr", "etc")
# A machine in a sandbox may set no higher limits than its own, and mixes both kinds of cgroups.
WAYS = (
    ("podman", ()),
    ("podman --runtime runc", ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")),
)


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


def podman(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["podman", *words], input=stdin, capture_output=True, check=False, timeout=60
    )


@dataclass(frozen=True)
class PodmanSite:
    """How podman is called on this machine, and the image, which sets XLA_FLAGS."""

    image: str
    program: str
    args: tuple[str, ...]

    def launcher(self, *argv: str, mounts: tuple[str, ...] = ()) -> ContainerLauncher:
        return ContainerLauncher(
            inner=CommandLauncher(argv=argv),
            runtime="podman",
            program=self.program,
            args=self.args,
            mounts=("/usr:/usr:ro", sys.base_prefix, sys.prefix, *mounts),
        )

    def spec(self, of: Profile, *argv: str) -> LaunchSpec:
        cell = Cell(
            model_tag="m",
            parallelism=Parallelism.parse("FSDP=1"),
            image=self.image,
            deployed={"EMPTY": "", "SOME_TOKEN": "hunter2"},
        )
        trial = Trial(
            cell_digest=cell.digest,
            profile=of,
            protocol=Protocol(),
            study="tuning",
            stage=Stage.SCREEN,
        )
        return self.launcher(*argv).launch(trial, cell)


def _rootfs() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return made.getvalue()


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
        "import", "--change", "ENV XLA_FLAGS=--xla_from_image=1", "-", name, stdin=_rootfs()
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
