"""Devices that are not here, by name: what XLA asks of a GPU in order to compile for it.

A target configuration is the text of XLA's `GpuTargetConfigProto`. Those that come with the package
hold the fields that every jaxlib from 0.6 on reads, for each refuses the fields of a later one; the
file of a real dump (`*.gpu_target_config.pbtxt`) holds all that its own jaxlib knows, and is to be
preferred. No AMD device is among them: the ROCm compiler does not load without a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.errors import ConfigError

_FOLDER = Path(__file__).with_name("devices")
_SUFFIX = ".txtpb"
# in a target configuration:  device_memory_size: 84942979072
_MEMORY = re.compile(r"\bdevice_memory_size: *(\d{1,18})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to compile for: the name or the path that was given, and its configuration."""

    name: str
    path: Path
    text: str

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device, None where the configuration does not tell."""
        found = _MEMORY.search(self.text)
        return int(found.group(1)) if found else None


def named_targets() -> Mapping[str, Path]:
    """Return the devices that come with the package, by name."""
    return {path.name.removesuffix(_SUFFIX): path for path in sorted(_FOLDER.glob(f"*{_SUFFIX}"))}


def find_target(said: str) -> Target:
    """Return the device of this name, or of this file.

    Raises:
        ConfigError: neither; names the nearest.
    """
    known = named_targets()
    path = known.get(said.lower(), Path(said))
    if not path.is_file():
        if re.fullmatch(r"\w+", said):
            raise ConfigError.unknown("target", said, valid=known, where="screening")
        raise ConfigError(
            f"{said}: no such target configuration; keep a *.gpu_target_config.pbtxt of a dump, or "
            f"name one of {', '.join(known)}"
        )
    return Target(
        name=said, path=path.absolute(), text=path.read_text(encoding="utf-8", errors="replace")
    )
