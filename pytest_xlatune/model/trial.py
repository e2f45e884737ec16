"""What a study compares and runs: arm, trial, rotation, design of a confirmation, launch spec.

Pure values with plain fields: nothing is parsed out of a text. A trial's identity is a digest of
its cell, arm, profile, protocol, study, stage, block and position, never a test's node id.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.profile import BASELINE_ID, Flag, Flags, Profile
from pytest_xlatune.model.record import Record, digest, used
from pytest_xlatune.model.redact import command_without_secrets
from pytest_xlatune.model.rotation import RotationSpec

# by each of these XLA runs the kernels that an earlier run chose. The first and the last are in
# every release from 0.4.35 on, the one in the middle in 0.8.3 to 0.11.0
AUTOTUNE_CACHE = "xla_gpu_per_fusion_autotune_cache_dir"
AUTOTUNE_PINS = (
    "xla_gpu_load_autotune_results_from",
    "xla_gpu_experimental_autotuner_cache_dir",
    AUTOTUNE_CACHE,
)


class Arm(Record, frozen=True, kw_only=True):
    """What a study compares: a profile in one cell, or a cell as deployed.

    Attributes:
        id: a slug; the profile's id where arms are profiles.
        cell_digest: in which cell it is measured.
        profile: applied on top of the deployed; the baseline where arms are cells.
    """

    id: str
    cell_digest: str
    profile: Profile

    def __hash__(self) -> int:
        return hash((self.id, self.cell_digest))


class ConfirmDesign(Record, frozen=True, kw_only=True, order=True):
    """The layout that a confirming trial was planned in; it never changes once a trial has it.

    Error rates are spent on a layout, so that neither a restart nor a larger budget may refill it.

    Attributes:
        look: 1 of the blocks that decide, another of spare ones.
        looks: 1, how often the blocks are looked at.
        arms: finalists that enter the first block, an alias included.
        blocks: that decide.
        baselines: trials of the reference in each block.
        widths: arms of each deciding block in turn; () is `arms` in all of them.
    """

    look: int = 1
    looks: int = 1
    arms: int
    blocks: int
    baselines: int
    widths: tuple[int, ...] = ()


# The arm of every rotation: it measures several profiles, and none of them alone.
ROTATION = "rotation"


class Rotation(Record, frozen=True, kw_only=True):
    """What a trial is in which programs take turns.

    Attributes:
        number: which rotation of its study, from 1; 0 is a look that measures no contrast.
        spec: the programs, their order, the steps of a turn.
        deadline_s: wall seconds after which the job is killed; 0 is the protocol's deadline. It is
            no part of the identity.
        died_of: the programs that earlier attempts died of. They are neither compiled nor run. They
            are no part of the identity.
        suspect: the profile that may have ended the attempt before; "" is none. It has the first
            turn of all profiles, so that no other one follows it. It is no part of the identity.
    """

    number: int
    spec: RotationSpec
    deadline_s: int = 0
    died_of: tuple[str, ...] = ()
    suspect: str = ""

    @property
    def as_run(self) -> RotationSpec:
        """The spec of its next attempt."""
        spec = self.spec.without(self.died_of) if self.died_of else self.spec
        return spec.begun_by(self.suspect) if self.suspect else spec

    @property
    def is_look(self) -> bool:
        """Whether the baseline runs alone, to see if the step's program can be found at all."""
        return len(self.spec.programs) == 1

    @property
    def is_of_baseline(self) -> bool:
        """Whether all its programs are the cell as deployed, so that it is a job of that too."""
        return all(program.is_baseline for program in self.spec.programs)

    @property
    def steps(self) -> int:
        """Steps of the trainer that hold the whole order once, those before the first turn too."""
        return self.spec.first_step + len(self.spec.order) * self.spec.turn_steps


# it has no slots, because they leave no place for an identity that is worked out once
class Trial(Record, frozen=True, kw_only=True, dict=True):
    """One measured run of one arm.

    Attributes:
        arm: id of the arm; "" becomes the profile's id.
        cell_digest: in which cell.
        profile: applied on top of the deployed.
        protocol: the cell's, unless the study asks for another (an evidence run).
        study: name of the study that proposed it.
        stage: the study's own word, e.g. "wave2", "again" for a second run, or "confirm".
        block: from 1; 0 is measured once to rank, and no block.
        position: which one of the trials of this arm in this stage and block, from 0.
        design: the design of the blocks that it belongs to; None where it is in none.
        rotation: the programs that take turns in it; None of a trial of one profile. Its arm is
            `ROTATION`, its profile the baseline, and its protocol has as many steps as the order.
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
        """The identity: readable, then the digest."""
        return f"{self.arm}-{self.stage}{self.block or ''}.{self.position}-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """10 hexadecimal digits of everything that matters.

        A profile's note and wave do not: rewording a note re-measures nothing.
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
            "design": used(self.design.to_json(), "widths") if self.design else None,
        }
        if self.rotation is not None:
            spec = used(self.rotation.spec.to_json(), "memory_limit_bytes")
            planned = {"deadline_s": 0, "died_of": [], "suspect": "", "spec": spec}
            identity["rotation"] = used(self.rotation.to_json() | planned, "suspect")
        return digest(identity, length=10)

    @property
    def deadline_s(self) -> int:
        """Wall seconds after which it is killed: a rotation takes longer than other trials."""
        rotation_s = self.rotation.deadline_s if self.rotation is not None else 0
        return rotation_s or self.protocol.deadline_s

    @property
    def autotune_folder(self) -> str:
        """The folder of the kernels that the trials of this cell share; "" is none.

        A profile that names a flag of autotuning's results itself is asked for just that.
        """
        flag_names = {flag.name for flag in self.profile.flags}
        if not self.protocol.autotune_cache or not flag_names.isdisjoint(AUTOTUNE_PINS):
            return ""
        return f"{self.protocol.autotune_cache.rstrip('/')}/{self.cell_digest}"

    @property
    def pins(self) -> Flags:
        """The flags by which it runs the GPU kernels of the cell's first trial; () are none."""
        folder = self.autotune_folder
        return (Flag(name=AUTOTUNE_CACHE, value=folder),) if folder else ()

    @property
    def compile_folder(self) -> str:
        """The folder of compiled programs that the trials of this cell share; "" is none.

        A program is found by a key that holds its flags. An evidence run compiles what it dumps,
        and a rotation each of its programs: with programs that an earlier rotation compiled, both
        would draw the same luck, and no test could see it.
        """
        kept = self.protocol.compile_cache
        if not kept or not self.autotune_folder or self.compiles_anew:
            return ""
        return f"{kept.rstrip('/')}/{self.cell_digest}"

    @property
    def compiles_anew(self) -> bool:
        """Whether its programs must be compiled in it, and not come out of a cache."""
        return self.protocol.dump or self.rotation is not None

    @property
    def is_baseline(self) -> bool:
        """Whether this trial measures the cell as deployed under the baseline's own name."""
        return self.arm == BASELINE_ID and self.rotation is None

    @property
    def called(self) -> str:
        """What a line calls it: its arm, or a rotation by its number."""
        if self.rotation is None:
            return self.arm
        return "look" if self.rotation.is_look else f"rotation {self.rotation.number}"

    @property
    def is_screened(self) -> bool:
        """Whether this trial measures its arm once, to rank it: it is scored and in no block."""
        return not self.block and self.protocol.is_scored and self.rotation is None


class CompiledMemory(Record, frozen=True, kw_only=True):
    """What compiling says of the memory that a cell takes of one device.

    Attributes:
        needed_bytes: bytes that the step's program needs on a device; None is unknown.
        limit_bytes: that the device's pool has; None is unknown.
        is_refused: whether compiling, or the step that did it, ended for want of memory.
        said: why nothing is known, or how it ended; "" otherwise.
        by: what compiled it.
    """

    needed_bytes: int | None = None
    limit_bytes: int | None = None
    is_refused: bool = False
    said: str = ""
    by: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where that is unknown."""
        if self.is_refused:
            return False
        if self.needed_bytes is None or self.limit_bytes is None:
            return None
        return self.needed_bytes <= self.limit_bytes

    @property
    def text(self) -> str:
        """What it says, for people."""
        figures = ""
        if self.needed_bytes is not None and self.limit_bytes is not None:
            figures = f"{self.needed_bytes / 2**30:.4g} of {self.limit_bytes / 2**30:.4g} GiB"
        return "; ".join(filter(None, (figures, self.said)))


class LaunchSpec(Record, frozen=True, kw_only=True):
    """What the payload on the node does: plain data, written to `spec.json`.

    Attributes:
        argv: the command; never passed through a shell by us.
        env: variables set for it, byte for byte.
        first_env: variables of rank 0 alone, on top of `env`: what makes one process talk.
        unset: variables taken away from what it inherits.
        inherit: names of the node's variables that it may inherit; others are not passed on.
        files: name -> text, written into the trial's folder before the start.
        cwd: working directory; "" is the trial's folder.
        metrics_file: MaxText's metrics file inside the trial's folder; "" is none.
        tells_options: whether XLA is asked to write its options into the trial's folder.
        probe: the command that tells the trainer's environment, started as `argv` is; one process
            of each node runs it, beside the start of the trainer where it only reads files, else
            after a trainer that ended well. () is none.
        is_probe_dear: whether that command takes a container of its own.
        paths: of the trainer and its configuration, by the node's names.
        node_health: the site's command that tells what a node's own log says; one process of each
            node runs it once the trainer is over. () is none.
        folders: made before the start, by the node's names, where they are missing.
        last_step: step id after which the trial is complete.
        deadline_s: wall seconds after which the process group is killed.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    first_env: dict[str, str] = msgspec.field(default_factory=dict)
    unset: tuple[str, ...] = ()
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
