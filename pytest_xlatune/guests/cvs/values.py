"""The content of a CVS configuration, as plain values that are the same for both generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_xlatune.guests.cvs.keys import CLASSES, Leaf
from pytest_xlatune.guests.cvs.source import whole_as_int
from pytest_xlatune.guests.cvs.thresholds import Demand
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

SINGLE, DISTRIBUTED = "single", "distributed"
NO_CONTAINER = "none"  # the name of the runtime for a run without a container
# the beginning of the names of metrics that CVS judges; a file may leave it out
PREFIX = "training."
TFLOPS, TOKENS = "tflops_per_sec_per_gpu", "tokens_per_sec_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenItem:
    """A value that the user must fill in before the file can run.

    Attributes:
        path: the path of the leaf, as messages write it.
        sample: the example in the file; "" if there is none.
        wanted: a phrase that says what is needed.
    """

    path: str
    sample: str
    wanted: str

    @property
    def words(self) -> str:
        """The path and what is needed, with the option that sets the value."""
        sample = f" (the file's sample: {self.sample})" if self.sample else ""
        option = f"--cvs-set '{self.path}={self.sample or 'VALUE'}'"
        return f"{self.path}: {self.wanted}{sample}: {option}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsCell:
    """One combination of settings that the file runs: one of its sweeps, or the whole file.

    Attributes:
        name: the name of the sweep; `default` if the file has none.
        model, gpu: the model and the GPU, as the file names them.
        maxtext: every MaxText key that the trainer gets -> its typed value.
        steps: the steps of a run; None if the file does not give them.
        nodes: the number of nodes; None if neither the file nor the user gives it.
        gpus_per_node: the number of devices of a node.
        parallelism: the axes, e.g. `FSDP=16`; "" if they depend on an unknown number of nodes.
        xla_flags: name of a flag, without dashes -> its value.
        thresholds: metric -> the demand on it.
    """

    name: str
    model: str
    gpu: str
    maxtext: Mapping[str, Json]
    steps: int | None
    nodes: int | None
    gpus_per_node: int
    parallelism: str
    xla_flags: Mapping[str, str]
    thresholds: Mapping[str, Demand]

    @property
    def per_device_batch_size(self) -> float | None:
        """Sequences of a device in a step; None if the file does not give them."""
        size = self.maxtext.get("per_device_batch_size")
        return whole_as_int(size) if isinstance(size, int | float) else None

    @property
    def max_target_length(self) -> int | None:
        """Tokens of a sequence; None if the file does not give them."""
        length = self.maxtext.get("max_target_length")
        return int(length) if isinstance(length, int | float) else None

    @property
    def precision(self) -> str:
        """The quantization, or the type of the numbers if there is none."""
        return str(self.maxtext.get("quantization") or self.maxtext.get("dtype") or "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The settings with which the file starts its container.

    Attributes:
        runtime: the name of the runtime, or `NO_CONTAINER`.
        mounts: `/path:/inside`, perhaps with a mode.
        args: further options of the runtime.
    """

    runtime: str
    mounts: tuple[str, ...]
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsFile:
    """All that a configuration sets.

    Attributes:
        where: the name of the file in messages.
        generation: the generation of CVS, `1` or `4`.
        mode: `single` or `distributed`.
        image: the name of the container's image; "" if the file names none.
        cells: the combinations to run, at least one.
        env: the variables that the file sets and that the trainer gets.
        added: the variables that CVS adds to every run of this mode.
        scripts: the possible paths of the trainer's script; the first that exists is started.
        container: the settings of the container.
        enforce: whether a run fails if a threshold is not met.
        token_file: the path of the token for Hugging Face, which is never read here; "" if the
            file names none.
        leaves: all values of the file, and what becomes of each.
        open_items: the values that are still to be filled in.
        notes: remarks on the file for the user, in sentences.
    """

    where: str
    generation: str
    mode: str
    image: str
    cells: tuple[CvsCell, ...]
    env: Mapping[str, str]
    added: Mapping[str, str]
    scripts: tuple[str, ...]
    container: Container
    enforce: bool = True
    token_file: str = ""
    leaves: tuple[Leaf, ...] = ()
    open_items: tuple[OpenItem, ...] = ()
    notes: tuple[str, ...] = ()

    def refuse_open(self) -> None:
        """Refuse a file with open items.

        Raises:
            ConfigError: the message lists every open item and the option that sets it.
        """
        if self.open_items:
            lines = "".join(f"\n  {item.words}" for item in self.open_items)
            raise ConfigError(
                f"{self.where}: {len(self.open_items)} open items; fill them in:{lines}"
            )

    @property
    def leaf_counts(self) -> dict[str, int]:
        """Class of a leaf -> the number of leaves of this class."""
        counts = dict.fromkeys(CLASSES, 0)
        for leaf in self.leaves:
            counts[leaf.cls] += 1
        return counts
