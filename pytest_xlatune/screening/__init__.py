"""What compiling alone settles: which profiles need no run, found out before any trial is queued.

    __init__    how a sweep says that its profiles are compiled first
    targets     devices that are not here, by name
    ways        a profile to the process that compiles it
    versions    what compiles
    compiling   those processes, and what they left behind
    step        the part of a campaign that does it, from the ledger where it can

What a program says is judged in the evidence room. Nothing here knows pytest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_xlatune.errors import ConfigError

CPU = "cpu"  # the target that is this machine's processor

# partitions x hosts x devices:  1x1x8
_TOPOLOGY = re.compile(r"[1-9]\d{0,4}(?:x[1-9]\d{0,4}){2}")
# a module's function:  programs.moe:step
_PROGRAM = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """How the profiles of a sweep are compiled before any of its trials is queued.

    Attributes:
        program: `module:function`, called with the devices, returns a jitted function and its
            arguments or their shapes; "" is the sweep's own trainer, one step of it on this
            machine.
        target: what `program` is compiled for: the name of a device (`targets`), the file of a
            GPU's target configuration, or "cpu". Has to be said where there is a program.
        topology: of the target: partitions x hosts x devices.
        python: the interpreter that has the JAX to compile with; "" is the one that runs this.
        folder: where the module of `program` is found; "" is the working directory.
        memory_limit_gib: of one device; None is what the target says.
        controls: so many of the profiles that are identical to the baseline are measured all the
            same, as A/A controls.

    Raises:
        ConfigError: a malformed program or topology, or one without the other.
    """

    program: str = ""
    target: str = ""
    topology: str = "1x1x1"
    python: str = ""
    folder: str = ""
    memory_limit_gib: float | None = None
    controls: int = 1

    def __post_init__(self) -> None:
        if self.program and not _PROGRAM.fullmatch(self.program):
            raise ConfigError(
                f"program {self.program!r}: expected module:function, e.g. programs:fsdp"
            )
        if not _TOPOLOGY.fullmatch(self.topology):
            raise ConfigError(
                f"topology {self.topology!r}: expected partitions x hosts x devices: 1x1x8"
            )
        if self.program and not self.target:
            raise ConfigError(
                f"program {self.program!r}: for which device is it compiled? Name a target, e.g. "
                f"h100, or {CPU}: the program of a CPU says nothing of a GPU's"
            )
        if self.target and not self.program:
            raise ConfigError(
                f"target {self.target!r}: only a trainer of this machine compiles by running; for "
                "another device name a program, module:function"
            )
        if self.controls < 0:
            raise ConfigError(f"controls is {self.controls}, expected 0 or more")
