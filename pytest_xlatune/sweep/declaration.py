"""A sweep as its file declares it, and combined with the user's options.

A `Sweep` declares a cell, except for what the user must state: the model, the parallelism and the
nodes are never guessed. `resolve` combines both, and one message names everything that is missing.
Nothing is submitted here, and no campaign is loaded.

A sweep file is Python, which checks no annotation: a number instead of a text would get into the
ledger and make it unreadable, and a text instead of a list would be read letter by letter. So every
value is checked against its annotation when a sweep is declared.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import field, structs
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.executors import ALLOCATION, EXECUTORS, LOCAL, SLURM
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell, with_python
from pytest_xlatune.launchers.container import configured
from pytest_xlatune.logs.formats import formats
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import parts
from pytest_xlatune.model.profile import Profile, check_unique
from pytest_xlatune.model.redact import is_secret
from pytest_xlatune.model.written import check_kinds, written
from pytest_xlatune.studies import Aim, Candidate, DeclaredStudy, Traits, check_declared
from pytest_xlatune.studies.derived import (
    Around,
    Crossed,
    Search,
    Singles,
    Slot,
    Stacks,
    slots_of,
)
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.studies.trials import STUDY, wave_order
from pytest_xlatune.sweep.checkouts import commits_of, hash_of, with_folder
from pytest_xlatune.sweep.deployed import NoEnv, context_of, with_sourced
from pytest_xlatune.sweep.groups import (
    GROUPS,
    NOTHING,
    CellSettings,
    DesignSettings,
    Limits,
    SettingsGroup,
    SiteSettings,
    UserOptions,
)
from pytest_xlatune.sweep.registry import KINDS
from pytest_xlatune.sweep.resolved import ResolvedSweep

LAUNCHER_FILES = EntryPointGroup("pytest_xlatune.launchers", kind="launcher")


class LauncherFile(ABC):
    """A trainer's own configuration file, which another distribution's launcher reads as a sweep.

    An entry point of `pytest_xlatune.launchers` names a subclass; it is instantiated without
    arguments.
    """

    @abstractmethod
    def declared(self, path: Path, **given: Any) -> dict[str, Any]:
        """Return the keywords of `Sweep` for a file: launcher, cell, study, ...

        Args:
            path: path of the file.
            given: keywords for this kind of file, and keywords of `Sweep`, which replace what the
                file says.

        Raises:
            ConfigError: the file is of another kind, or leaves out something that a sweep needs.
        """


# the name of a sweep or a config tag:  sparse-fp8
_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")


@written("compile check")
@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCheck:
    """Makes a study of batch sizes compile each size before it submits a trial.

    One step of the sweep's own trainer is compiled on this machine, for this machine's device.

    Attributes:
        memory_limit_gib: memory of one device in GiB.
    """

    memory_limit_gib: float


class Sweep(SettingsGroup):
    """A sweep as its file declares it.

    Attributes:
        name: a slug that names the folders of its trials and reports.
        launcher: how a trial is started.
        profiles: all declared profiles; the baseline is added automatically.
        cell: what is held fixed: model, parallelism, batch size, image, environment, protocol.
        design: how many trials of each kind, in which order; tolerances.
        site: where trials run: executor, nodes, resources, retries.
        limits: limits on cost in addition to the budget of trials.
        no_env: how to make the profile `baseline-no-env`, which sets every deployed flag back to
            its default; None makes none.
        derived: rules for waves whose profiles follow from earlier results or from evidence.
        config_tags: other configurations of the model: tag -> overrides for the launcher.
        study: a study that is not a tuning study, e.g. `Nodes()`; None for a tuning study.
        gate: the same as `study`, for a regression gate over the profiles.
        compile_check: how batch sizes are compiled before any trial; None: they are not.
    """

    name: str
    launcher: Launcher
    profiles: tuple[Profile, ...] = ()
    cell: CellSettings = field(default_factory=CellSettings)
    design: DesignSettings = field(default_factory=DesignSettings)
    site: SiteSettings = field(default_factory=SiteSettings)
    limits: Limits = field(default_factory=Limits)
    no_env: NoEnv | None = None
    derived: tuple[Singles | Stacks | Around | Crossed | Search, ...] = ()
    config_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    study: DeclaredStudy | None = None
    gate: Gate | None = None
    compile_check: CompileCheck | None = None

    def __post_init__(self) -> None:
        what = f"sweep {self.name!r}"
        if self.study is not None:
            check_declared(self.study, kinds=KINDS, what=f"{what}: study")
        if self.launcher is None:
            raise ConfigError(f"{what}: launcher is None; set one that starts the trials")
        check_kinds(self, what=what)
        for part in ("launcher", *GROUPS):
            check_kinds(getattr(self, part), what=f"{what}, {part}")
        EXECUTORS.check(self.site.executor, where=f"{what}, site")
        check_kinds(self.cell.protocol, what=f"{what}, protocol")
        check_kinds(self.site.resources, what=f"{what}, resources")
        check_kinds(self.site.resources.patience, what=f"{what}, patience")
        check_kinds(self.site.retry_policy, what=f"{what}, retry policy")
        if not _SLUG.fullmatch(self.name):
            raise ConfigError(f"sweep name {self.name!r}: expected lower case letters, digits, _ -")
        self._add_candidates()
        check_unique(self.profiles, where=what)
        self._check_study(what)
        for tag in self.config_tags:
            if not _SLUG.fullmatch(tag):
                raise ConfigError(
                    f"{what}: config tag {tag!r}: expected lower case letters, digits, _ -"
                )

    @classmethod
    def from_cvs(cls, path: str | Path, **given: Any) -> Sweep:
        """Return the sweep over a cell of a CVS file; the cell's settings are the deployed ones.

        Args:
            path: path of the file.
            given: `profiles` to tune (without them, the sweep tests the file's thresholds); `cell`,
                the name of one of its cells (not needed if it has one); `cluster`, a cluster file
                of CVS; `values`, path of a leaf -> value, for values that the file leaves out;
                `nodes`, the number of nodes of a run; `runtime`, which replaces the file's
                container runtime (`none` for no container); and further keywords of `Sweep`.

        Raises:
            ConfigError: it is no CVS file, leaves out something that a sweep needs, or has no such
                cell.
        """
        return cls.of_file(path, launcher="cvs", **given)

    @classmethod
    def of_file(cls, path: str | Path, *, launcher: str, **given: Any) -> Sweep:
        """Return the sweep over a configuration file of another distribution's launcher.

        Args:
            path: path of the file.
            launcher: the launcher's name, an entry point of `pytest_xlatune.launchers`.
            given: the keywords for such a file, and further keywords of `Sweep`.

        Raises:
            ConfigError: there is no such launcher, or it does not accept the file.
        """
        where = f"the sweep over {path}"
        file = LAUNCHER_FILES.load_as(launcher, LauncherFile, where=where)  # type: ignore[type-abstract]
        return cls(**file.declared(Path(path), **given))

    def _add_candidates(self) -> None:
        """Add the candidates of a gate to the profiles, because tests are made of profiles."""
        # by identity, because two equal profiles are an error that `check_unique` reports
        known = {id(profile) for profile in self.profiles}
        candidates = (candidate.profile for candidate in self.candidates)
        added = tuple(profile for profile in candidates if id(profile) not in known)
        structs.force_setattr(self, "profiles", (*self.profiles, *added))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates that the study names beside profiles; () if none."""
        return self.declared.candidates if self.declared is not None else ()

    def _check_study(self, what: str) -> None:
        if self.study is not None and self.gate is not None:
            raise ConfigError(
                f"{what} has study= and gate=, but a sweep has one study; leave one out"
            )
        if self.declared is None:
            if not (self.profiles or self.derived or self.no_env):
                raise ConfigError(f"{what} declares no profile, and no wave derives one")
            return
        for extra in ("derived", "no_env"):
            if getattr(self, extra):
                raise ConfigError(
                    f"{what}: a {self.kind} measures nothing but its profiles; leave {extra} out"
                )

    @property
    def declared(self) -> DeclaredStudy | None:
        """The declared study; None for a tuning study."""
        return self.study if self.gate is None else self.gate

    @property
    def kind(self) -> str:
        """The kind of its study in the registry."""
        return STUDY if self.declared is None else self.declared.kind

    @property
    def traits(self) -> Traits:
        """The traits of its kind of study."""
        return KINDS[self.kind].traits

    def wave_profiles(self, wave: str) -> tuple[Profile, ...]:
        """Return the profiles of a wave, in declared order.

        Raises:
            ConfigError: no profile belongs to it.
        """
        profiles = tuple(profile for profile in self.profiles if profile.wave == wave)
        if not profiles:
            known = {profile.wave for profile in self.profiles}
            raise ConfigError.unknown(
                "wave", wave, valid=known, where=f"sweep {self.name!r} (no profile is in it)"
            )
        return profiles

    @property
    def named_profiles(self) -> tuple[Profile, ...]:
        """The declared profiles, and the single values that a search may try."""
        searches = [rule for rule in self.derived if isinstance(rule, Search)]
        return (*self.profiles, *(single for search in searches for single in search.singles))

    def slots(self, *waves: str) -> tuple[Slot, ...]:
        """Return the slots of the derived waves, or only of these waves, in order."""
        slots_by_wave = slots_of(sorted(self.derived, key=lambda rule: wave_order(rule.wave)))
        return tuple(
            slot
            for slots in slots_by_wave.values()
            for slot in slots
            if not waves or slot.wave in waves
        )

    def find(self, profile_id: str) -> Profile:
        """Return the profile with this id.

        Raises:
            ConfigError: there is none; the message has the nearest id.
        """
        for profile in self.profiles:
            if profile.id == profile_id:
                return profile
        raise ConfigError.unknown(
            "profile",
            profile_id,
            valid=[profile.id for profile in self.profiles],
            where=f"sweep {self.name!r}",
        )

    def resolve(self, user_options: UserOptions = NOTHING) -> ResolvedSweep:
        """Return the sweep that can run: the declared settings with the user's on top.

        Args:
            user_options: the values from options, the environment and `xlatune.toml`.

        Raises:
            ConfigError: settings are missing (one message names all) or do not fit together.
        """
        formats()  # one that cannot be loaded is an error before a trial runs
        declared, site = user_options.applied_to(self.cell), user_options.applied_to(self.site)
        launcher = configured(
            self.launcher, site.launcher, site.container, where=user_options.file or "the options"
        )
        executor = site.chosen_executor
        nodelist = tuple(site.nodelist or ())
        if not (nodelist or site.nodes):
            nodelist = executor.own_nodes()
        slots = self._node_slots(site, nodelist)
        nodelist = slots[0] if slots else nodelist
        declared_nodes = 0 if user_options.values.get("nodelist") else site.resources.nodes
        nodes = site.nodes or declared_nodes or len(nodelist)
        self._refuse_missing(declared, site, nodes)
        if nodelist and nodes != len(nodelist):
            in_slots = f" for each of {len(slots)} slots" if slots else ""
            raise ConfigError(
                f"sweep {self.name!r}: {nodes} nodes were asked for, but the node list names "
                f"{len(nodelist)}{in_slots}: {','.join(nodelist)}"
            )
        options = {**site.resources.options, **site.slurm}
        if site.partition:
            options["partition"] = site.partition
        site = replace(site, resources=replace(site.resources, nodes=nodes, options=options))
        description = launcher.describe()
        # with relative paths, the cell is the same in another checkout of the project
        if user_options.root:
            description = description.replace(f"{user_options.root}/", "")
        fields = structs.asdict(declared)
        for name in ("step_pattern", "commits"):
            del fields[name]
        fields |= {
            "protocol": _protocol_of(declared),
            "parallelism": Parallelism.parse(declared.parallelism or ""),
            "deployed": dict(declared.deployed),
            "overrides": dict(declared.overrides),
            "nodelist": nodelist,
            "launcher": description,
        }
        cell = Cell(**fields)
        nodes_per_cell = self.traits.cell_nodes
        _refuse_unfit(cell, nodes_per_cell or nodes, what=f"sweep {self.name!r}")
        study_commits = None if self.declared is None else self.declared.commits
        compared = declared.commits or study_commits or ""
        launcher, cell, others = _with_commits(self, launcher, cell, compared)
        compares_cells = bool(others) or self.traits.aim is Aim.RANKS
        if not nodelist and (nodes_per_cell or (compares_cells and executor.names_nodes)):
            raise ConfigError(
                f"sweep {self.name!r} compares cells, so it needs the names of all nodes "
                "(--xlatune-nodelist 'node[001-008]'): the scheduler might give each cell others"
            )
        cell = with_sourced(cell, launcher)
        no_env_profile = self.no_env.profile(launcher, cell) if self.no_env else None
        added = () if no_env_profile is None or no_env_profile.is_baseline else (no_env_profile,)
        return ResolvedSweep(
            sweep=replace(
                self,
                launcher=launcher,
                profiles=(*added, *self.profiles),
                cell=declared,
                design=user_options.applied_to(self.design),
                site=site,
                limits=user_options.applied_to(self.limits),
            ),
            no_env="" if no_env_profile is None or added else no_env_profile.note,
            context=_context(cell, launcher) if self.derived else None,
            cell=cell,
            slots=slots,
            others=others,
            commits=compared,
            compile_check=self.compile_check,
        )

    def _node_slots(
        self, site: SiteSettings, nodelist: tuple[str, ...]
    ) -> tuple[tuple[str, ...], ...]:
        if site.slots == 1:
            return ()
        where = f"sweep {self.name!r}, {site.slots} slots"
        if not self.traits.has_slots:
            raise ConfigError(
                f"{where}: a study of {self.kind} has no slots, only a tuning sweep has; "
                "leave them out"
            )
        if not site.chosen_executor.names_nodes:
            raise ConfigError(
                f"{where}: the {site.executor} executor runs on this machine, which is one slot; "
                f"leave the slots out, or use --xlatune-executor {SLURM}"
            )
        if not nodelist:
            raise ConfigError(
                f"{where}: name the nodes of all slots (--xlatune-nodelist 'node[001-064]'), or "
                "start the sweep inside an salloc of all of them "
                f"(--xlatune-executor {ALLOCATION})"
            )
        try:
            return parts(nodelist, site.slots)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def _refuse_missing(self, cell: CellSettings, site: SiteSettings, nodes: int) -> None:
        missing = []
        if not cell.model_tag:
            missing.append("the model (--xlatune-model)")
        if not cell.parallelism:
            missing.append("the parallelism (--xlatune-parallelism, e.g. PP=8)")
        if site.chosen_executor.names_nodes and not nodes:
            scheduler = site.chosen_executor.scheduler or "the cluster"
            missing.append(
                f"the nodes in {scheduler} (--xlatune-nodelist 'node[001-008]', or --xlatune-nodes "
                f"N; for this machine alone --xlatune-executor {LOCAL})"
            )
        if missing:
            raise ConfigError(
                f"sweep {self.name!r} is missing {'; '.join(missing)}. The "
                "measurement depends on it, so none is guessed"
            )


def _protocol_of(cell: CellSettings) -> Protocol:
    """Return the protocol with the step pattern of the cell, or of the protocol itself."""
    pattern = cell.step_pattern or cell.protocol.step_pattern
    if pattern:
        step_pattern(pattern)  # it raises ConfigError if the text is no pattern
    return replace(cell.protocol, step_pattern=pattern)


def _refuse_unfit(cell: Cell, nodes: int, *, what: str) -> None:
    """Refuse devices that cannot be spread over the nodes; if unknown, the axes are checked.

    Raises:
        ConfigError: the message has both numbers.
    """
    size = cell.devices or math.prod(degree for _, degree in cell.parallelism.axes)
    if not nodes or size % nodes == 0 or (not cell.devices and nodes % size == 0):
        return
    if cell.devices:
        raise ConfigError(
            f"{what}: {size} devices cannot be spread over {nodes} nodes evenly; change devices "
            "or the nodes"
        )
    raise ConfigError(
        f"{what}: parallelism {cell.parallelism} multiplies to {size}, which neither divides "
        f"{nodes} nodes nor is a multiple of them; change a degree or the nodes. If the axes do "
        "fit the nodes' devices, name all axes and set CellSettings(devices=...)"
    )


def _with_commits(
    sweep: Sweep, launcher: Launcher, cell: Cell, compared: str
) -> tuple[Launcher, Cell, dict[str, Cell]]:
    """Return the launcher of all cells, the cell at its commit, and the other cells by name.

    The other cells are those of candidates. In a study of commits they are the cells of all
    commits in `compared`, and the cell is that of the first.

    Raises:
        ConfigError: there is no such commit, or the launcher cannot start a candidate.
    """
    study = sweep.declared
    if study is not None and study.commits is not None:
        commit_launcher, codes = commits_of(
            launcher,
            compared,
            where=f"sweep {sweep.name!r}",
            has_all=study.is_search(compared),
        )
        at_commits = {label: replace(cell, code=code) for label, code in codes.items()}
        return commit_launcher, next(iter(at_commits.values())), at_commits
    if not sweep.candidates and not isinstance(launcher, CheckoutLauncher):
        return launcher, cell, {}
    what = f"sweep {sweep.name!r}"
    if isinstance(launcher, CheckoutLauncher):
        launcher = with_folder(launcher)
        cell = replace(cell, code=hash_of(launcher, cell.code, where=f"{what}, cell"))
    launchers, others = dict[str, Launcher](), dict[str, Cell]()
    for candidate in sweep.candidates:
        candidate_cell, where = cell, f"{what}, candidate {candidate.profile.id!r}"
        if candidate.code:
            candidate_cell = replace(
                candidate_cell, code=hash_of(launcher, candidate.code, where=where)
            )
        if candidate.image:
            candidate_cell = replace(candidate_cell, image=candidate.image)
        if candidate.python:
            description = f"{cell.launcher} python={candidate.python}"
            candidate_cell = replace(candidate_cell, launcher=description)
            launchers[description] = with_python(launcher, candidate.python)
        if candidate.is_a_cell:
            others[candidate.profile.id] = candidate_cell
    if launchers:
        launcher = LauncherByCell(inner=launcher, others=launchers)
    return launcher, cell, others


def _context(cell: Cell, launcher: Launcher) -> Context:
    """Return what derived profiles are checked against, without secrets, which no rule needs."""
    context = context_of(cell, launcher)
    env = {name: value for name, value in context.env.items() if not is_secret(name)}
    return replace(context, env=env)


SWEEP_NAME = "SWEEP"  # name of the sweep in a sweep file


def _may_define_sweep(path: Path) -> bool:
    """Return whether the text of a file names SWEEP, or imports all names; it is not run."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True  # importing it raises the error
    return re.search(rf"\b{SWEEP_NAME}\b|\bimport \*", text) is not None


def load_sweep(path: Path | str) -> Sweep:
    """Import a sweep file and return its sweep.

    Raises:
        ConfigError: the file does not exist, cannot be imported, or declares no sweep.
    """
    path = Path(path)
    # a name that no other module can have
    name = f"xlatune_sweep_file:{path.absolute()}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        why = "" if path.exists() else ": there is no such file"
        raise ConfigError(
            f"{path} is not a sweep file{why}; name one such as sweeps/test_quickstart.py"
        )
    # Importing a file runs it: `xlatune plan trainer.py` would start the trainer.
    if not _may_define_sweep(path):
        raise ConfigError(
            f"{path} declares no {SWEEP_NAME} = Sweep(...), so it was not run; name a sweep file"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass in the file looks up its annotations there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    declared = getattr(module, SWEEP_NAME, None)
    if not isinstance(declared, Sweep):
        raise ConfigError(f"{path} declares no {SWEEP_NAME} = Sweep(...)")
    return declared
