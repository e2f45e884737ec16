"""Secrets of twelve kinds and more, a sweep that needs them all, and where they must not be found.

The trainer prints a digest of what it got, so that a test sees that each arrived, and ends the
profile `broken` with an exception that quotes all of them, as libraries do.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0Q1\n-----END PRIVATE KEY-----"

# what is planted, and where it stands -> the part that nothing may show
DEPLOYED = {
    "HF_TOKEN": ("plant-one-'\"$a", "plant-one-'\"$a"),
    "WANDB_API_KEY": ("plantTwo0123456789", "plantTwo0123456789"),
    "TRACKING": ("postgres://me:plant-three@db/x", "plant-three"),
    "https_proxy": ("http://me:plant-four@proxy:3128", "plant-four"),
    "WHEELS": ("https://plant-five@example.org/simple", "plant-five"),
    "MIRROR": ("ghp_plantSix0123456789012345678", "ghp_plantSix0123456789012345678"),
    "SSH_PRIVATE_KEY": (KEY, "MIIEvQIBADANBgkqhkiG9w0Q1"),
    "STORE": ("https://me:plant%2Dfourteen%21@store/x", "plant%2Dfourteen%21"),
    "MODEL": ("https://hub/x?X-Amz-Signature=plantFifteen15&se=2", "plantFifteen15"),
}
SOURCED = {
    "AWS_SECRET_ACCESS_KEY": ("plant/eight+0123456789", "plant/eight+0123456789"),
    "CONFIG": ('{"api_key": "plant-nine-9"}', "plant-nine-9"),
}
INHERITED = ("SITE_TOKEN", "plant-ten-1010")
OVERRIDE = ("hf_access_token", "plant-eleven-11")
WORD = ("--password", "plant-twelve-12")
HEADER = ("--header", "X-Api-Key: plant/sixteen")
SHELL = ("--then", "export HUB_TOKEN=plant-seventeen; upload --api-key plant-eighteen")
WORDS = (*WORD, *HEADER, *SHELL)
PROFILE = ("API_KEY", "plant-thirteen-13")

NAMES = (*DEPLOYED, *SOURCED, INHERITED[0], PROFILE[0])
HIDDEN = (
    *(hidden for _, hidden in (*DEPLOYED.values(), *SOURCED.values())),
    *(value for _, value in (INHERITED, OVERRIDE, WORD, PROFILE)),
    *("plant/sixteen", "plant-seventeen", "plant-eighteen"),
    # as a library writes them
    *("plant-fourteen!", "plant%2Fsixteen", "plant-one-%27%22%24a", "plant-one-\\'\"$a"),
)

TRAINER = f"""\
import hashlib, os, sys
values = [os.environ.get(name, "") for name in {NAMES!r}] + sys.argv[1:]
if os.environ.get("SLURM_PROCID", "0") == "0":
    print("Show all environment variables:")
    print(f"XLA_FLAGS={{os.environ.get('XLA_FLAGS', '')}}", flush=True)
    print("got", hashlib.sha256(repr(values).encode()).hexdigest())
    is_broken = "--xla_broken" in os.environ.get("XLA_FLAGS", "")
    for step in range(3 if is_broken else 12):
        print(f"completed step: {{step}}, seconds: 0.512, TFLOP/s/device: 0.1, "
              f"Tokens/s/device: 1000.{{step}}, total_weights: 512, loss: 7.1", flush=True)
    if is_broken:
        from urllib.parse import quote, unquote
        said = [each.replace("\\n", " ") for each in values]
        print("LookupError: 401: " + "; ".join(map(quote, said)))
        print("KeyError: " + "x" * 188 + " " + values[1])  # the end of a quotation falls within
        raise RuntimeError("401: " + "; ".join((*map(unquote, said), *map(repr, values))))
"""

_PLAIN = {"XLA_FLAGS": "--xla_deployed=1", **{name: value for name, (value, _) in DEPLOYED.items()}}
SWEEP = f"""\
import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    CellSettings, CommandLauncher, DesignSettings, Protocol, SiteSettings, Sweep, profile,
)

HERE = Path(__file__).parent
SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="FSDP=2",
        deployed={_PLAIN!r},
        overrides={dict([OVERRIDE])!r},
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(
        argv=(sys.executable, str(HERE / "trainer.py"), "{{overrides}}", *{WORDS!r}),
        env_files=(str(HERE / "site.env.sh"),),
        inherit=("PATH", "HOME", "SLURM_*", "SITE_*"),
    ),
    profiles=(
        profile("secretive", "--xla_a=1", env={dict([PROFILE])!r}),
        profile("broken", "--xla_broken=1"),
    ),
    site=SiteSettings(executor="EXECUTOR"),
    design=DesignSettings(screen_baselines=1, budget=8),
)


@pytest.mark.wave2
def test_flag(measure, profile, cell):
    settings = {{"cell": cell, "sweep": SWEEP, "profile": profile}}
    assert measure(profile).not_slower and not settings, settings
"""


def write(folder: Path, *, executor: str) -> None:
    """Write the sweep, its trainer and the env file that nodes source."""
    (folder / "trainer.py").write_text(TRAINER, encoding="utf-8")
    (folder / "test_sweep.py").write_text(SWEEP.replace("EXECUTOR", executor), encoding="utf-8")
    lines = (f"export {name}='{value}'\n" for name, (value, _) in SOURCED.items())
    (folder / "site.env.sh").write_text("".join(lines), encoding="utf-8")


def digest_of(*, has_profile: bool, inherited: str = INHERITED[1]) -> str:
    """What the trainer prints where every secret reached it."""
    values = [value for value, _ in (*DEPLOYED.values(), *SOURCED.values())]
    values += [inherited, PROFILE[1] if has_profile else "", "=".join(OVERRIDE), *WORDS]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def shown_in(text: str) -> list[str]:
    """Return the secrets that a text shows, however JSON or a shell spells them."""
    plain = text.replace("\\\\", "\\").replace('\\"', '"').replace("'\"'\"'", "'")
    return [each for each in HIDDEN if each in text or each in plain]


def leaks(root: Path) -> dict[str, list[str]]:
    """Return the files of a run that show a secret; a trainer's own log is the trainer's."""
    ours = (path for path in _files(root) if not path.name.startswith("log."))
    found = {path: shown_in(path.read_bytes().decode(errors="replace")) for path in ours}
    return {str(path.relative_to(root)): said for path, said in found.items() if said}


def open_ones(root: Path) -> list[str]:
    """Return the files below a folder of ledgers that another user could read."""
    names = ("ledger.jsonl", "xlatune.log", "spec.json", "outcome.json", "started.json")
    files = [
        path
        for path in _files(root)
        if path.name in names or path.suffix in (".sh", ".txt", ".out", ".err")
    ]
    folders = {path.parent for path in files}
    everyone = (path for path in (*files, *folders) if stat.S_IMODE(path.stat().st_mode) & 0o077)
    return sorted(str(path.relative_to(root)) for path in everyone)


def logs(root: Path, profile: str) -> Iterator[str]:
    """Give the trainers' logs of a profile."""
    for path in root.rglob("log.0.txt"):
        if path.parent.name.startswith(profile):
            yield path.read_text(encoding="utf-8")


def _files(root: Path) -> Iterable[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())
