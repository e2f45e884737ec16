"""What a sweep file declares, and what the user's inputs make of it.

A `Sweep` holds everything about a cell but what only the user knows: the model, the parallelism and
the node slot are never guessed. `resolve` puts both together and names everything that is missing
at once. Nothing is submitted or read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_xlatune.campaign.limits import Limits
from pytest_xlatune.catalog.ground import Ground
from pytest_xlatune.cells import Cell, Parallelism, Protocol, Resources
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.hidden import is_secret
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.configured import configured
from pytest_xlatune.preflight.flags import ground_of
from pytest_xlatune.profiles import Profile, check_unique
from pytest_xlatune.recovery import RetryPolicy
from pytest_xlatune.screening import Screening
from pytest_xlatune.stats.capacity import Plan
from pytest_xlatune.studies.derived import Around, Slot, Stacks, slots_of
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.studies.singles import Singles
from pytest_xlatune.studies.tuning_layout import wave_order
from pytest_xlatune.sweep.inputs import ExecutorName, Inputs, inputs_of
from pytest_xlatune.sweep.kinds import check_kinds
from pytest_xlatune.sweep.no_env import NO_ENV_ID, NoEnv
from pytest_xlatune.sweep.resolved import ResolvedSweep

__all__ = ["Inputs", "ResolvedSweep", "Sweep", "inputs_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep as its file declares it.

    Attributes:
        name: a slug; names the folders of its trials and of its reports.
        launcher: how a trial is started.
        profiles: all declared profiles; the baseline is measured by itself and not among them.
        no_env: how the profile `baseline-no-env` is made: every deployed flag back to its default.
        derived: waves whose profiles follow from what earlier ones found, or from evidence.
        config_tags: the model's other configurations: tag -> what the launcher is told of it.
        model_tag, parallelism, config_tag, per_device_batch_size, max_target_length, image,
        deployed, overrides, devices, protocol: see `cells.Cell`; None is asked of the user.
        resources: what a scheduler is asked for.
        executor: "slurm", or "local" for this machine.
        nodelist: the pinned nodes; None is asked of the user where the executor is Slurm.
        retry_policy: the site's rules on top of the playbook.
        budget: trials in all; seed: of the order.
        screen_baselines: in each wave's queue; 0 lets the planner choose from the budget.
        finalists, blocks, block_baselines: K, r and c0 of the confirmation; 0 as above.
        second_blocks, sigma_prior, equivalence, loss_tolerance: see `studies.tuning.TuningStudy`;
        without a `sigma_prior` a calibration of the very cell is it.
        gate: what makes it a regression gate of the profiles instead of a sweep of them.
        env_file: the file that recipes go into, absolute or below the directory that pytest is
            started in; "" is the last env file of the launcher.
        limits: what the sweep may cost beside its trials.
        screening: how the profiles are compiled before any trial is queued; None is not at all.
    """

    name: str
    launcher: Launcher
    profiles: tuple[Profile, ...]
    no_env: NoEnv | None = None
    derived: tuple[Singles | Stacks | Around, ...] = ()
    config_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    model_tag: str | None = None
    parallelism: str | None = None
    config_tag: str = ""
    per_device_batch_size: float | None = None
    max_target_length: int | None = None
    image: str = ""
    deployed: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    devices: int = 0
    protocol: Protocol = field(default_factory=Protocol)
    resources: Resources = field(default_factory=Resources)
    executor: ExecutorName = "slurm"
    nodelist: tuple[str, ...] | None = None
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    budget: int = 50
    seed: int = 0
    screen_baselines: int = 0
    finalists: int = 0
    blocks: int = 0
    block_baselines: int = 0
    second_blocks: int = 0
    sigma_prior: float | None = None
    equivalence: float = 0.01
    loss_tolerance: float = 0.02
    gate: Gate | None = None
    env_file: str = ""
    limits: Limits = field(default_factory=Limits)
    screening: Screening | None = None

    def __post_init__(self) -> None:
        what = f"sweep {self.name!r}"
        check_kinds(self, what=what)
        for part in ("launcher", "protocol", "resources", "limits"):
            check_kinds(getattr(self, part), what=f"{what}, {part}")
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise ConfigError(f"sweep name {self.name!r}: expected lower case letters, digits, _ -")
        check_unique(self.profiles, where=f"sweep {self.name!r}")
        for tag in self.config_tags:
            # a tag:  sparse-fp8
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", tag):
                raise ConfigError(
                    f"sweep {self.name!r}: config tag {tag!r}: expected lower case letters, "
                    "digits, _ -"
                )

    @property
    def waves(self) -> tuple[str, ...]:
        """The waves that have a profile, in declared order."""
        return tuple(dict.fromkeys(each.wave for each in self.profiles))

    def wave_profiles(self, wave: str) -> tuple[Profile, ...]:
        """Return the profiles of a wave, in declared order.

        Raises:
            ConfigError: no profile belongs to it.
        """
        found = tuple(each for each in self.profiles if each.wave == wave)
        if not found:
            raise ConfigError.unknown(
                "wave", wave, valid=self.waves, where=f"sweep {self.name!r} (no profile is in it)"
            )
        return found

    def slots(self, *waves: str) -> tuple[Slot, ...]:
        """Return the slots of the derived waves, of these ones if any is named, in order."""
        found = slots_of(sorted(self.derived, key=lambda rule: wave_order(rule.wave)))
        return tuple(
            slot for slots in found.values() for slot in slots if not waves or slot.wave in waves
        )

    def find(self, profile_id: str) -> Profile:
        """Return the profile of this id.

        Raises:
            ConfigError: there is none; names the nearest.
        """
        for each in self.profiles:
            if each.id == profile_id:
                return each
        raise ConfigError.unknown(
            "profile",
            profile_id,
            valid=[each.id for each in self.profiles],
            where=f"sweep {self.name!r}",
        )

    def finalist_count(self, *, budget: int | None = None) -> int:
        """Return how many profiles the confirmation takes, whatever the cell; 0 where it has none.

        Raises:
            ConfigError: the profiles do not fit the budget.
        """
        sweep = self
        if self.no_env is not None:
            # it counts as a profile; what is in it is not known here
            restored = Profile(id=NO_ENV_ID, wave="wave1", env={"RESTORED": "1"})
            sweep = replace(self, no_env=None, profiles=(restored, *self.profiles))
        anywhere = Cell(model_tag=self.name, parallelism=Parallelism.parse("FSDP=1"))
        resolved = ResolvedSweep(
            sweep=sweep,
            cell=anywhere,
            resources=self.resources,
            executor=self.executor,
            budget=budget or self.budget,
            seed=self.seed,
        )
        try:
            layout = resolved.tuning().layout
        except ConfigError as error:
            # the cell here is nobody's, and no message is to name it
            text = str(error).replace(f"the sweep of {anywhere.label}", f"sweep {self.name!r}")
            raise ConfigError(text) from None
        return layout.finalists if isinstance(layout, Plan) else 0

    def resolve(self, inputs: Inputs) -> ResolvedSweep:
        """Put the user's inputs on top and return the sweep that can run.

        Raises:
            ConfigError: an input is missing (all of them are named at once) or does not fit.
        """
        inputs = inputs.of(self.name)
        launcher = configured(
            self.launcher, inputs.launcher, inputs.container, where=inputs.where or "the options"
        )
        model_tag = inputs.model_tag or self.model_tag
        parallelism = inputs.parallelism or self.parallelism
        executor = inputs.executor or self.executor
        nodelist = inputs.nodelist if inputs.nodelist is not None else self.nodelist
        nodes = inputs.nodes or self.resources.nodes or len(nodelist or ())
        missing = [
            text
            for absent, text in (
                (not model_tag, "the model (--xlatune-model)"),
                (not parallelism, "the parallelism (--xlatune-parallelism, e.g. PP=8)"),
                (
                    executor == "slurm" and not nodes,
                    "the node slot (--xlatune-nodelist 'node[001-008]', or --xlatune-nodes N)",
                ),
            )
            if absent
        ]
        if missing or not model_tag or not parallelism:
            raise ConfigError(
                f"sweep {self.name!r} is missing {'; '.join(missing)}. These are never guessed: "
                "they decide what is measured"
            )
        if nodelist and nodes != len(nodelist):
            raise ConfigError(
                f"sweep {self.name!r}: {nodes} nodes were asked for, but the node list names "
                f"{len(nodelist)}: {','.join(nodelist)}"
            )
        options = {**self.resources.options, **inputs.scheduler_options}
        if inputs.partition:
            options["partition"] = inputs.partition
        cell = Cell(
            model_tag=model_tag,
            parallelism=Parallelism.parse(parallelism),
            config_tag=self.config_tag if inputs.config_tag is None else inputs.config_tag,
            per_device_batch_size=(
                self.per_device_batch_size
                if inputs.per_device_batch_size is None
                else inputs.per_device_batch_size
            ),
            max_target_length=inputs.max_target_length or self.max_target_length,
            nodelist=tuple(nodelist or ()),
            image=self.image if inputs.image is None else inputs.image,
            launcher=_below(launcher.describe(), inputs.root),
            deployed={**self.deployed, **inputs.deployed},
            overrides={**self.overrides, **inputs.overrides},
            devices=inputs.devices or self.devices,
            protocol=self.protocol,
        )
        resources = Resources(
            nodes=nodes,
            tasks_per_node=self.resources.tasks_per_node,
            time_limit_s=self.resources.time_limit_s,
            queue_limit_s=self.resources.queue_limit_s,
            patience=self.resources.patience,
            options=options,
        )
        restored = self.no_env.profile(launcher, cell) if self.no_env else None
        added = () if restored is None or restored.is_baseline else (restored,)
        return ResolvedSweep(
            sweep=replace(self, launcher=launcher, profiles=(*added, *self.profiles)),
            no_env="" if restored is None or added else restored.note,
            ground=_ground(cell, launcher) if self.derived else None,
            cell=cell,
            resources=resources,
            executor=executor,
            settings=inputs.places,
            budget=self.budget if inputs.budget is None else inputs.budget,
            seed=self.seed if inputs.seed is None else inputs.seed,
            limits=inputs.limits.over(self.limits),
            screening=self._screening(inputs),
        )

    def _screening(self, inputs: Inputs) -> Screening | None:
        if inputs.screening == "off" or self.gate is not None:
            return None
        return self.screening or (Screening() if inputs.screening == "on" else None)


def _ground(cell: Cell, launcher: Launcher) -> Ground:
    """Return what derived profiles are held against; what is secret decides no rule."""
    ground = ground_of(cell, launcher)
    env = {name: value for name, value in ground.env.items() if not is_secret(name)}
    return replace(ground, env=env)


def _below(text: str, root: Path | None) -> str:
    """Name paths below the project relative to it: the cell is the same in another checkout."""
    return text.replace(f"{root}/", "") if root else text
