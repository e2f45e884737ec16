"""Containers to test with: podman, and an image that needs no registry.

Podman comes with Debian's packages podman and runc, which CI installs with those of the Slurm lab
(`make slurm-packages`). The image is a few links that lead into the machine's own /usr, which is
mounted into the container.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

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
PROGRAM = "podman --runtime runc"
ARGS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


def podman(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["podman", *words], input=stdin, capture_output=True, check=False, timeout=240
    )


@dataclass(frozen=True)
class PodmanSite:
    """The image, which sets XLA_FLAGS, and trials in it."""

    image: str

    def spec(self, of: Profile, *argv: str) -> LaunchSpec:
        cell = Cell(
            model_tag="m",
            parallelism=Parallelism.parse("FSDP=1"),
            image=self.image,
            deployed={"EMPTY": "", "SOME_TOKEN": "hunter2"},
        )
        launcher = ContainerLauncher(
            inner=CommandLauncher(argv=argv),
            runtime="podman",
            program=PROGRAM,
            args=ARGS,
            mounts=("/usr:/usr:ro", sys.base_prefix, sys.prefix),
        )
        return launcher.launch(make_trial(cell, of), cell)


@contextlib.contextmanager
def made_site() -> Iterator[PodmanSite]:
    """Make an image that podman runs here, and remove it at the end; or skip."""
    if shutil.which("podman") is None:
        _missing("podman is not installed (Debian's packages podman and runc)")
    name = f"localhost/xlatune-test-{uuid.uuid4().hex[:8]}"
    sets = "ENV XLA_FLAGS=--xla_from_image=1"
    made = podman("import", "--change", sets, "-", name, stdin=rootfs())
    if made.returncode:
        _missing(f"podman makes no image: {made.stderr.decode()[-300:]}")
    try:
        digest = podman("image", "inspect", "--format", "{{.Digest}}", name).stdout.decode().strip()
        words = [*PROGRAM.split()[1:], "run", "--rm", "--network=host", "-v/usr:/usr:ro", *ARGS]
        done = podman(*words, name, "true")
        if done.returncode:
            _missing(f"podman runs nothing here: {done.stderr.decode()[-200:]}")
        yield PodmanSite(image=f"{name}@{digest}")
    finally:
        podman("rmi", "--force", name)


def _missing(why: str) -> None:
    if os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(f"CI runs containers and does not skip them, but {why}")
    pytest.skip(f"no container to test with: {why}")


def rootfs() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, target in ROOT.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.SYMTYPE if target else tarfile.DIRTYPE, 0o755
            entry.linkname = target
            tar.addfile(entry)
    return made.getvalue()
