"""Find and read the files of an XLA dump: the step's program and the files beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path
from typing import TextIO

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.hlo import (
    MAX_LINE,
    Program,
    join_lists,
    read_debug_options,
    read_hlo,
    shape_bytes,
)
from pytest_xlatune.model.channels import DUMP_FOLDER, Options
from pytest_xlatune.model.errors import ConfigError, ParseError

# the program of a module: module_0001.jit_train_step.sm_9.0a_gpu_after_optimizations.txt
# module_0000.jit_train_step.cpu_after_optimizations.txt
# module_0000.jit_train_step.cl_1014260217.after_optimizations.txt    (libtpu, with its build)
_PROGRAM = re.compile(
    r"(?P<module>.*?)(?P<device>\.(?:(?:sm_|gfx)[\w.]+?_gpu|cpu)_|\.cl_\d{1,19}\.)"
    r"after_optimizations\.txt"
)
# a file or folder of a module:  module_0008.jit_train_step.config.pbtxt    module_0003.jit_other
_NUMBERED = re.compile(r"module_(\d{1,9})\.(.*)")
# in the first line of a program:  entry_computation_layout={(f32[8]{0}, s32[])->(f32[8]{0})},
_SIGNATURE = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, [a-z_]+=|\n|$)")
_PART = 0.25  # least share of its arguments that a step returns, as in `workers.rotate`
_MOST_NAMES = 10

_MAX_SMALL = 1 << 28  # most characters of a file beside a program; a 300 MB program has 1 << 25


def _step_in(folder: Path) -> Path:
    """Return the program of the training step, whatever its function is called.

    A step takes the whole state and returns it. The program that creates the state takes almost
    nothing, although its text may be ten times as large; an evaluation returns almost nothing. Of
    the programs that do both, the one with the largest text is the step: others copy the state, or
    apply gradients to it.

    Raises:
        ParseError: the folder has no compiled program.
    """
    files = [Path(entry) for entry in os.scandir(folder) if entry.is_file()]
    programs = [path for path in files if _PROGRAM.fullmatch(path.name)]
    if not programs:
        matches = (_NUMBERED.fullmatch(path.name) for path in files)
        names = sorted({match[2].partition(".")[0] for match in matches if match})
        seen = f"of the modules {', '.join(names[:_MOST_NAMES])}" if names else "none of a dump"
        raise ParseError(
            f"{folder}: no *_after_optimizations.txt among {len(files)} files, {seen}; expected "
            "the folder of --xla_dump_to. With a hit in the compilation cache nothing is dumped: "
            "set JAX_ENABLE_COMPILATION_CACHE=false"
        )
    states = {path: _state_bytes(path) for path in programs}
    least = _PART * max(states.values())
    steps = [path for path in programs if states[path] >= least]
    return max(steps, key=lambda path: (path.stat().st_size, path.name))


def _state_bytes(program: Path) -> int:
    """Return how many bytes a program both takes and returns; 0 if its first line lacks them."""
    with _open(program) as file:
        signature = _SIGNATURE.search(file.readline(MAX_LINE))
    return min(map(shape_bytes, signature.groups())) if signature else 0


def read_program(path: Path) -> Program:
    """Read the step's program from a dump's folder, a folder with one, or a text file.

    Raises:
        ConfigError: there is no such file or folder, or it cannot be opened.
        ParseError: there is no program in it, or it cannot be read.
    """
    dump = path / DUMP_FOLDER  # as in an attempt's folder, or in that of a maxtext-slurm job
    path = dump if dump.is_dir() else path
    try:
        if path.is_dir():
            path = _step_in(path)
        elif not path.is_file():
            raise ConfigError(absent(path, "the folder of --xla_dump_to, or a program's text"))
        with _open(path) as file:
            return read_hlo(
                # a line without end is cut at the length that the reader refuses
                iter(lambda: file.readline(MAX_LINE + 1), ""),
                str(path),
                memory=_module_text(path, "{device}after_optimizations-memory-usage-report.txt"),
                options=_module_text(path, ".debug_options"),
            )
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None


def dumped_options(folder: Path) -> dict[str, str] | None:
    """Return the step's options from a folder of `--xla_dump_to`; None if none are dumped.

    They lack options at their default, and options about the dump and the host.
    """
    try:
        text = _module_text(_step_in(folder), ".debug_options")
    except (OSError, ParseError):
        return None  # an attempt that died early left no complete dump
    return None if text is None else read_debug_options(text)


# Files that --xla_dump_to writes whatever --xla_dump_hlo_module_re says: for every module on a GPU
# (jaxlib 0.6.2 to 0.11.2), and on a CPU only with 0.10.2.
_CONFIG, _COMPILE = ".config.pbtxt", "compile_options.textproto"
# an option in the block debug_options:      xla_gpu_autotune_level: 4
_INNER = re.compile(r'^ {2,4}(xla_\w+): "?(.*?)"?$', re.MULTILINE)
# an option of the program:  env_option_overrides {\n  key: "xla_gpu_autotune_level"\n  value {\n...
_OVERRIDE = re.compile(r'^  key: "(xla_\w+)"\s+value \{\s+\w+_field: "?(.*?)"?$', re.MULTILINE)


def seen_options(folder: Path) -> Options | None:
    """Return the options that XLA wrote during a scored trial; None if it wrote none.

    They are those of the training step if its module has them, including the program's own
    `jax.jit(compiler_options=...)`; otherwise those of the last module that has some.
    """
    try:
        path = _options_in(folder)
        if path is None:
            return None
        with _open(path) as file:
            text = file.read(_MAX_SMALL)
    except OSError:
        return None
    if path.name.endswith(".debug_options"):
        return Options(values=read_debug_options(text))
    # the program's own options override the others when the module is compiled
    values = join_lists(_INNER.findall(text)) | dict(_OVERRIDE.findall(text))
    return Options(values=values, is_whole=True)


# the platform in a topology:  platform_name: "cuda"
_PLATFORM = re.compile(r'^platform_name: "(\w{1,20})"', re.MULTILINE)
_TOPOLOGY = "topology.textproto"  # beside each module since jaxlib 0.10
_MOST_WITNESSES, _TOPOLOGY_BYTES = 4, 1 << 12


def seen_devices(folder: Path) -> dict[str, str]:
    """Return witness -> device for which the modules of a dump were compiled.

    `module jit_x` and `topology of jit_x` are separate witnesses. A witness with several devices
    does not show where the steps ran, and is left out.
    """
    try:
        return {name: device for name, (device, _) in _devices_in(folder).items()}
    except OSError:
        return {}


def _devices_in(folder: Path) -> dict[str, tuple[str, Path]]:
    """Return witness -> (device, file)."""
    told: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir(), key=_place) if folder.is_dir() else ():
        program = _PROGRAM.fullmatch(path.name)
        module = _NUMBERED.fullmatch(program["module"] if program else path.name)
        topology = path / _TOPOLOGY
        if module and program:
            witness, device, file = f"module {module[2]}", _device(program["device"]), path
        elif module and "train_step" in module[2] and topology.is_file():
            witness, device, file = f"topology of {module[2]}", _platform(topology), topology
        else:
            continue
        told.setdefault(witness, {}).setdefault(device, file)
    alike = {
        witness: next(iter(devices.items()))
        for witness, devices in told.items()
        if len(devices) == 1 and "" not in devices
    }
    return dict(itertools.islice(alike.items(), _MOST_WITNESSES))


def _device(name: str) -> str:
    """Return the device in the name of a program's file: .sm_9.0a_gpu_ is cuda sm_9.0."""
    target = name.strip("._").removesuffix("_gpu")
    if target.startswith("sm_"):  # sm_9.0 and sm_9.0a are one device in different releases
        return f"cuda {target.rstrip('af')}"
    if target.startswith("cl_"):  # libtpu's build does not show the chip
        return "tpu"
    return f"rocm {target}" if target.startswith("gfx") else target


def _platform(path: Path) -> str:
    with path.open("rb") as file:
        match = _PLATFORM.search(file.read(_TOPOLOGY_BYTES).decode("utf-8", "replace"))
    return match[1].lower() if match else ""


def keep_options(folder: Path) -> None:
    """Delete all files except those that `seen_options` and `seen_devices` read.

    The trainer may have put a link there, whose target is not touched.
    """
    if folder.is_symlink():
        return
    kept = {_options_in(folder), *(path for _, path in _devices_in(folder).values())}
    for entry in sorted(folder.rglob("*"), reverse=True):  # a folder comes after its content
        with contextlib.suppress(OSError):
            if entry.is_dir() and not entry.is_symlink():
                entry.rmdir()
            elif entry not in kept:
                entry.unlink()


def _options_in(folder: Path) -> Path | None:
    """Return the best file with options: that of the step's module, else of the last one."""
    for pattern in (f"*{_CONFIG}", f"*/{_COMPILE}", "*.debug_options"):
        files = sorted(filter(Path.is_file, folder.glob(pattern)), key=_place)
        if files:
            return files[-1]
    return None


def _place(path: Path) -> tuple[bool, int, str]:
    module = _NUMBERED.fullmatch(path.parent.name if path.name == _COMPILE else path.name)
    number, name = (int(module[1]), module[2]) if module else (-1, path.name)
    return "train_step" in name, number, name


def _open(path: Path) -> TextIO:
    # a foreign file is refused for its content, not for its encoding
    return path.open(encoding="utf-8", errors="replace")


def _module_text(program: Path, end: str) -> str | None:
    """Return the text of the module's file with the ending `end`; None if there is none."""
    match = _PROGRAM.fullmatch(program.name)
    if match is None:
        return None
    device = match["device"]
    # all files in libtpu's dump have its build in their names
    build = device.removesuffix(".") if device.endswith(".") and "{" not in end else ""
    path = program.with_name(match["module"] + build + end.format(device=device))
    if not path.is_file():
        return None
    with _open(path) as file:
        text = file.read(_MAX_SMALL + 1)
    if len(text) > _MAX_SMALL:
        raise ParseError(f"{path}: more than {_MAX_SMALL} characters; is it of this dump?")
    return text
