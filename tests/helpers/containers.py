"""Containers to test with: podman, and an image that needs no registry.

Podman comes with Debian's packages podman and runc, which CI installs with those of the Slurm lab
(`make slurm-packages`). The image is a few links that lead into the machine's own /usr, which is
mounted into the container.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.probes import make_trial

# name -> where a link leads; a folder has no such place
ROOT = {
    **{name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")},
    **dict.fromkeys(("dev", "proc", "sys", "tmp", "usr", "etc"), ""),
}
# A machine in a sandbox may set no higher limits than its own, and mixes both kinds of cgroups.
WAYS = (
    ("podman", ()),
    ("podman --runtime runc", ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")),
)


def podman(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["podman", *words], input=stdin, capture_output=True, check=False, timeout=240
    )


class NoImageError(Exception):
    """Podman makes no image on this machine."""


@dataclass(frozen=True)
class PodmanSite:
    """How podman is called on this machine, and the image, which sets XLA_FLAGS."""

    image: str
    program: str
    args: tuple[str, ...]

    def launcher(self, *argv: str) -> ContainerLauncher:
        return ContainerLauncher(
            inner=CommandLauncher(argv=argv),
            runtime="podman",
            program=self.program,
            args=self.args,
            mounts=("/usr:/usr:ro", sys.base_prefix, sys.prefix),
        )

    def spec(self, of: Profile, *argv: str) -> LaunchSpec:
        cell = Cell(
            model_tag="m",
            parallelism=Parallelism.parse("FSDP=1"),
            image=self.image,
            deployed={"EMPTY": "", "SOME_TOKEN": "hunter2"},
        )
        return self.launcher(*argv).launch(make_trial(cell, of), cell)


@contextlib.contextmanager
def made_image(change: str) -> Iterator[str]:
    """Make an image with a line of a Dockerfile; name it with its digest; remove it at the end.

    Raises:
        NoImageError: podman makes none here.
    """
    name = f"localhost/xlatune-test-{uuid.uuid4().hex[:8]}"
    made = podman("import", "--change", change, "-", name, stdin=rootfs())
    if made.returncode:
        raise NoImageError(made.stderr.decode()[-300:])
    try:
        shown = podman("image", "inspect", "--format", "{{.Digest}}", name)
        yield f"{name}@{shown.stdout.decode().strip()}"
    finally:
        podman("rmi", "--force", name)


def rootfs() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, target in ROOT.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.SYMTYPE if target else tarfile.DIRTYPE, 0o755
            entry.linkname = target
            tar.addfile(entry)
    return made.getvalue()
