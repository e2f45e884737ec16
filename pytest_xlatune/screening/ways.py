"""Ways to compile: a profile to a launch spec whose process dumps the program.

Either the sweep's own trainer for one step, on this machine; or a user's function for a device that
may not be here, in a process of `workers.screening`. Nothing is started here.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_xlatune.cells import Cell, LaunchSpec, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import DUMP_FOLDER, INHERIT
from pytest_xlatune.profiles import Flag, Profile, append_flags
from pytest_xlatune.screening import CPU, Screening
from pytest_xlatune.screening.targets import Target, find_target

Way = Callable[[Profile], LaunchSpec]

DEADLINE_S = 900
_WORKER = Path(__file__).parents[1] / "workers" / "screening.py"
_MAX_SOURCE = 1 << 20  # bytes of a file that says what is compiled


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """How the profiles of one cell are compiled, and what the results rest on.

    Attributes:
        way: how one is compiled.
        python: the interpreter that compiles; "" where nobody knows.
        place: for which device, in words.
        target: the device that is not here; None is this machine.
        sources: the files that say what is compiled, whoever made them.
        memory_limit_bytes: of one device; None is unknown.
    """

    way: Way
    python: str
    place: str
    target: Target | None = None
    sources: tuple[Path, ...] = ()
    memory_limit_bytes: int | None = None

    @property
    def lacks_device(self) -> bool:
        """Whether it compiles for a device that is not here: nothing is autotuned."""
        return self.target is not None


def compiler_of(screening: Screening, *, launcher: Launcher, cell: Cell, executor: str) -> Compiler:
    """Return how a sweep's profiles are compiled.

    Raises:
        ConfigError: no such target; or a trainer that would have to run on another machine.
    """
    limit = screening.memory_limit_gib
    limit_bytes = None if limit is None else int(limit * 2**30)
    if not screening.program:
        if executor != "local":
            raise ConfigError(
                "screening: only a trainer of this machine compiles by running; these trials run "
                f"by {executor}. Name a program, module:function, and the target to compile it for"
            )
        named = (Path(each) for each in launcher.files(cell))
        interpreter = launcher.interpreter
        return Compiler(
            way=by_trainer(launcher, cell),
            # one that is not here is in a container, whose image the spec names
            python=interpreter if interpreter and shutil.which(interpreter) else "",
            place="this machine, by one step of the trainer",
            sources=tuple(path for path in named if _is_source(path)),
            memory_limit_bytes=limit_bytes,
        )
    target = None if screening.target == CPU else find_target(screening.target)
    python = screening.python or sys.executable
    if shutil.which(python) is None:
        raise ConfigError(
            f"screening: {python} is not on this machine; name an interpreter that has the JAX to "
            "compile with"
        )
    folder = Path(screening.folder or Path.cwd())
    module = screening.program.partition(":")[0].replace(".", "/")
    # the file of a module, or that of a package
    files = (folder / f"{module}.py", folder / module / "__init__.py")
    return Compiler(
        way=by_function(
            screening.program,
            target=target,
            topology=screening.topology,
            deployed=cell.deployed,
            python=python,
            folder=folder,
        ),
        python=python,
        place=f"{screening.topology} {target.name if target else CPU}",
        target=target,
        sources=tuple(path for path in files if _is_source(path)),
        memory_limit_bytes=target.memory_bytes if limit_bytes is None and target else limit_bytes,
    )


def by_trainer(launcher: Launcher, cell: Cell) -> Way:
    """Compile by running the cell's trainer for one step on this machine."""
    protocol = dataclasses.replace(
        cell.protocol, steps=1, profiler="", eval_interval=0, deadline_s=DEADLINE_S
    )

    def spec(profile: Profile) -> LaunchSpec:
        trial = Trial(
            cell_digest=cell.digest,
            profile=profile,
            protocol=protocol,
            study="screening",
            stage=Stage.EVIDENCE,
        )
        return launcher.launch(trial, cell)

    return spec


def by_function(
    program: str,
    *,
    target: Target | None = None,
    topology: str = "1x1x1",
    deployed: Mapping[str, str] | None = None,
    python: str = sys.executable,
    folder: Path | None = None,
) -> Way:
    """Compile a user's `module:function`, as `workers.screening` describes it.

    Args:
        program: `module:function`.
        target: a GPU that is not here; None is the CPU.
        topology: partitions x hosts x devices.
        deployed: environment below every profile, XLA_FLAGS included.
        python: an interpreter with JAX, and for a GPU with the plugin's wheel of its version.
        folder: where its module is found; None is the working directory.

    Raises:
        ConfigError: malformed program or topology.
    """
    Screening(program=program, target=target.name if target else CPU, topology=topology)
    # a CPU has as many devices as it is told; a GPU compiler that has no device cannot autotune
    devices = math.prod(map(int, topology.split("x")))
    own = Flag(name="xla_force_host_platform_device_count", value=str(devices))
    own = own if target is None else Flag(name="xla_gpu_autotune_level", value="0")
    base = dict(deployed or {})

    def spec(profile: Profile) -> LaunchSpec:
        dump = (
            Flag(name="xla_dump_to", value=f"{{xlatune.folder}}/{DUMP_FOLDER}"),
            Flag(name="xla_dump_hlo_as_text"),
        )
        where = str(target.path) if target else CPU
        return LaunchSpec(
            argv=(python, "-P", str(_WORKER), program, where, topology),
            env={
                **base,
                **profile.env,
                "XLA_FLAGS": append_flags(base.get("XLA_FLAGS", ""), (own, *profile.flags, *dump)),
                "JAX_ENABLE_COMPILATION_CACHE": "false",
            },
            inherit=(*INHERIT, "PYTHONPATH"),
            cwd=str((folder or Path.cwd()).absolute()),
            deadline_s=DEADLINE_S,
        )

    return spec


def _is_source(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MAX_SOURCE
