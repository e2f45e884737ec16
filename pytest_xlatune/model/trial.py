"""What a study compares and runs: arm, trial, rotation, design of a confirmation, launch spec.

Pure values with plain fields. The identity of a trial is a digest of its cell, arm, profile,
protocol, study, stage, block and position; the name of a test is no part of it.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.profile import BASELINE_ID, Flag, Flags, Profile
from pytest_xlatune.model.record import Record, digest, without_empty
from pytest_xlatune.model.redact import command_without_secrets
from pytest_xlatune.model.rotation import RotationSpec

# With each of these flags, XLA runs the kernels that an earlier run chose. The first and the last
# exist since 0.4.35, the middle one in 0.8.3 to 0.11.0.
AUTOTUNE_CACHE = "xla_gpu_per_fusion_autotune_cache_dir"
AUTOTUNE_PINS = (
    "xla_gpu_load_autotune_results_from",
    "xla_gpu_experimental_autotuner_cache_dir",
    AUTOTUNE_CACHE,
)


class Arm(Record, frozen=True, kw_only=True):
    """What a study compares: a profile in one cell, or a deployed cell.

    Attributes:
        id: a slug; the profile's id if arms are profiles.
        cell_digest: the cell in which it is measured.
        profile: the settings on top of the deployed ones; the baseline if arms are cells.
    """

    id: str
    cell_digest: str
    profile: Profile

    def __hash__(self) -> int:
        return hash((self.id, self.cell_digest))


class ConfirmDesign(Record, frozen=True, kw_only=True, order=True):
    """The layout of blocks in which a confirming trial was planned; it never changes for a trial.

    A layout spends the error rate of the sweep, so a restart or a larger budget must not change it.

    Attributes:
        look: 1 for the blocks that decide, another number for spare blocks.
        looks: how often the blocks are analysed: 1.
        arms: number of arms that enter the first block, the baseline's alias included.
        blocks: number of blocks that decide.
        baselines: number of reference trials in each block.
        widths: number of arms in each deciding block; () if each has `arms`.
    """

    look: int = 1
    looks: int = 1
    arms: int
    blocks: int
    baselines: int
    widths: tuple[int, ...] = ()

    @property
    def all_widths(self) -> tuple[int, ...]:
        """The number of arms in each deciding block, in the order of the blocks."""
        return self.widths or (self.arms,) * self.blocks


# the arm id of every rotation, because a rotation measures several profiles
ROTATION = "rotation"


class Rotation(Record, frozen=True, kw_only=True):
    """The programs and limits of a trial in which programs take turns.

    Attributes:
        number: number of the rotation in its study, from 1; 0 for the look, which runs the baseline
            alone.
        spec: the programs, their order, and the steps of a turn.
        deadline_s: seconds of wall time after which the job is killed; 0 means the protocol's
            deadline. Not part of the identity.
        died_of: ids of programs that ended earlier attempts and no longer run. Not part of the
            identity.
        suspect: the profile that may have ended the previous attempt; "" if none. It gets the first
            turn of all profiles, so that no other profile precedes it. Not part of the identity.
    """

    number: int
    spec: RotationSpec
    deadline_s: int = 0
    died_of: tuple[str, ...] = ()
    suspect: str = ""

    @property
    def as_run(self) -> RotationSpec:
        """The spec of the next attempt."""
        spec = self.spec.without(self.died_of) if self.died_of else self.spec
        return spec.with_first(self.suspect) if self.suspect else spec

    @property
    def is_look(self) -> bool:
        """Whether the baseline runs alone, to test whether the step's program can be found."""
        return len(self.spec.programs) == 1

    @property
    def is_of_baseline(self) -> bool:
        """Whether all programs are the deployed cell; the job is then also a baseline trial."""
        return all(program.is_baseline for program in self.spec.programs)

    @property
    def steps(self) -> int:
        """Number of steps before the first turn and in one pass through the order."""
        return self.spec.first_step + len(self.spec.order) * self.spec.turn_steps


# not slotted, because its identity is cached
class Trial(Record, frozen=True, kw_only=True, dict=True, gc=True):
    """One measured run of one arm.

    Attributes:
        arm: id of the arm; "" is replaced by the profile's id.
        cell_digest: the digest of its cell.
        profile: the settings on top of the deployed ones.
        protocol: the cell's protocol, or that of an evidence run.
        study: name of the study that proposed it.
        stage: the study's name for the stage, e.g. "wave2", "again" for a second run, or "confirm".
        block: number of the block, from 1; 0 for a trial outside blocks.
        position: its number among the trials of this arm in this stage and block, from 0.
        design: the design of its blocks; None outside blocks.
        rotation: the programs that take turns; None for a trial of one profile. The arm is then
            `ROTATION`, the profile the baseline, and the protocol has as many steps as the order.
    """

    arm: str = ""
    cell_digest: str
    profile: Profile
    protocol: Protocol
    study: str
    stage: str
    block: int = 0
    position: int = 0
    design: ConfirmDesign | None = None
    rotation: Rotation | None = None

    def __post_init__(self) -> None:
        if not self.arm:
            msgspec.structs.force_setattr(self, "arm", self.profile.id)

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """The identity: a readable part, then the digest."""
        return f"{self.arm}-{self.stage}{self.block or ''}.{self.position}-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """10 hexadecimal digits over all fields that identify the trial.

        A profile's note and wave do not count, so that rewording a note does not repeat a trial.
        """
        profile = self.profile.to_json() | {"wave": "", "note": ""}
        for remark in ("is_control", "origin"):
            del profile[remark]
        identity = {
            "arm": self.arm,
            "cell": self.cell_digest,
            "profile": profile,
            "protocol": self.protocol.identity,
            "study": self.study,
            "stage": self.stage,
            "block": self.block,
            "position": self.position,
            "design": without_empty(self.design.to_json(), "widths") if self.design else None,
        }
        if self.rotation is not None:
            spec = without_empty(self.rotation.spec.to_json(), "memory_limit_bytes")
            planned = {"deadline_s": 0, "died_of": [], "suspect": "", "spec": spec}
            identity["rotation"] = without_empty(self.rotation.to_json() | planned, "suspect")
        return digest(identity, length=10)

    @property
    def deadline_s(self) -> int:
        """Seconds of wall time after which the trial is killed; a rotation has its own deadline."""
        rotation_s = self.rotation.deadline_s if self.rotation is not None else 0
        return rotation_s or self.protocol.deadline_s

    @property
    def autotune_folder(self) -> str:
        """The folder of GPU kernels that the trials of this cell share; "" if none.

        A profile that sets a flag of the autotuning cache itself does not share it.
        """
        flag_names = {flag.name for flag in self.profile.flags}
        if not self.protocol.autotune_cache or not flag_names.isdisjoint(AUTOTUNE_PINS):
            return ""
        return f"{self.protocol.autotune_cache.rstrip('/')}/{self.cell_digest}"

    @property
    def pins(self) -> Flags:
        """The flags that make a trial run the GPU kernels of the cell's first trial; () if none."""
        folder = self.autotune_folder
        return (Flag(name=AUTOTUNE_CACHE, value=folder),) if folder else ()

    @property
    def compiles_anew(self) -> bool:
        """Whether its programs must be compiled, and must not come from a cache."""
        return self.protocol.dump or self.rotation is not None

    @property
    def is_baseline(self) -> bool:
        """Whether this trial measures the deployed cell under the baseline's own id."""
        return self.arm == BASELINE_ID and self.rotation is None

    @property
    def label(self) -> str:
        """Its name in a line of text: its arm, or e.g. `rotation 2`."""
        if self.rotation is None:
            return self.arm
        return "look" if self.rotation.is_look else f"rotation {self.rotation.number}"

    @property
    def is_screened(self) -> bool:
        """Whether this trial measures its arm once, to rank it: scored, and outside blocks."""
        return not self.block and self.protocol.is_scored and self.rotation is None


class CompiledMemory(Record, frozen=True, kw_only=True):
    """The memory of one device that a cell needs, according to the compiler.

    Attributes:
        needed_bytes: bytes that the step's program needs on a device; None if unknown.
        limit_bytes: bytes of the device's memory pool; None if unknown.
        is_refused: whether the compilation, or the step that it belongs to, ran out of memory.
        said: why nothing is known, or how the compilation ended; "" otherwise.
    """

    needed_bytes: int | None = None
    limit_bytes: int | None = None
    is_refused: bool = False
    said: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the program fits into the memory; None if unknown."""
        if self.is_refused:
            return False
        if self.needed_bytes is None or self.limit_bytes is None:
            return None
        return self.needed_bytes <= self.limit_bytes

    @property
    def text(self) -> str:
        """The result as text for people."""
        figures = ""
        if self.needed_bytes is not None and self.limit_bytes is not None:
            figures = f"{self.needed_bytes / 2**30:.4g} of {self.limit_bytes / 2**30:.4g} GiB"
        return "; ".join(filter(None, (figures, self.said)))


class LaunchSpec(Record, frozen=True, kw_only=True):
    """What the payload on the node does: plain data, written to `spec.json`.

    Attributes:
        argv: the command; it is never passed through a shell.
        env: variables that are set for the command, byte for byte.
        first_env: variables of rank 0 alone, on top of `env`, so that only one process prints more.
        inherit: names of the node's variables that the command may inherit; no others are passed.
        files: name -> text of files that are written into the trial's folder before the start.
        cwd: working directory; "" for the trial's folder.
        metrics_file: MaxText's metrics file inside the trial's folder; "" if none.
        tells_options: whether XLA writes its options into the trial's folder.
        probe: the command that reports the trainer's environment, run like `argv` by one process of
            each node. It runs while the trainer starts if it only reads files, otherwise after a
            trainer that ended well. () if none.
        is_probe_dear: whether that command needs a container of its own.
        paths: the paths of the trainer and its configuration on the node.
        node_health: the site's command that reports a node's own log; one process of each node runs
            it after the trainer has ended. () if none.
        folders: folders on the node that are made before the start if they are missing.
        last_step: id of the step after which the trial is complete.
        deadline_s: seconds of wall time after which the process group is killed.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    first_env: dict[str, str] = msgspec.field(default_factory=dict)
    inherit: tuple[str, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str = ""
    metrics_file: str = ""
    tells_options: bool = False
    probe: tuple[str, ...] = ()
    is_probe_dear: bool = False
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    node_health: tuple[str, ...] = ()
    last_step: int = 14
    deadline_s: int = 2700

    def __repr__(self) -> str:
        return f"LaunchSpec({' '.join(command_without_secrets(self.argv))!r:.200})"
