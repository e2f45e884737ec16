"""Find and read the files of an XLA dump: the step's program and the files beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TextIO

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.hlo import MAX_LINE, PROGRAM_FILE, Program, read_hlo, shape_bytes
from pytest_xlatune.model.channels import DUMP_FOLDER, Options
from pytest_xlatune.model.errors import ConfigError, ParseError

# a file or folder of a module:  module_0008.jit_train_step.config.pbtxt    module_0003.jit_other
_NUMBERED = re.compile(r"module_(\d{1,9})\.(.*)")
# in the first line of a program:  entry_computation_layout={(f32[8]{0}, s32[])->(f32[8]{0})},
_SIGNATURE = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, [a-z_]+=|\n|$)")
_PART = 0.25  # a step has at least this share of the largest state, as in `workers.rotate`
_MOST_NAMES = 10  # modules that a message names
# most characters of a file beside a program; beside a program of 300 MB it has 1 << 25
_MAX_SMALL = 1 << 28


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
        report = options = None
        if (match := PROGRAM_FILE.fullmatch(path.name)) is not None:
            report = _text(path.with_name(f"{path.stem}-memory-usage-report.txt"))
            # all files in libtpu's dump have its build in their names
            names = filter(None, (match["module"], match["build"], "debug_options"))
            options = _text(path.with_name(".".join(names)))
        with _open(path) as file:
            return read_hlo(
                # a line without end is cut at the length that the reader refuses
                iter(lambda: file.readline(MAX_LINE + 1), ""),
                str(path),
                memory_bytes=read_memory_report(report),
                options=read_debug_options(options),
            )
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None


def _step_in(folder: Path) -> Path:
    """Return the program of the training step, whatever its function is called.

    A step takes the whole state and returns it. The program that creates the state takes almost
    nothing, although its text may be ten times as large; an evaluation returns almost nothing. Of
    the programs that do both, the one with the largest text is the step: others copy the state, or
    apply gradients to it.
    """
    files = [Path(entry) for entry in os.scandir(folder) if entry.is_file()]
    programs = [path for path in files if PROGRAM_FILE.fullmatch(path.name)]
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


def _open(path: Path) -> TextIO:
    # a foreign file is refused for its content, not for its encoding
    return path.open(encoding="utf-8", errors="replace")


def _text(path: Path) -> str | None:
    """Return the text of a file beside a program; None if there is none."""
    if not path.is_file():
        return None
    with _open(path) as file:
        text = file.read(_MAX_SMALL + 1)
    if len(text) > _MAX_SMALL:
        raise ParseError(f"{path}: more than {_MAX_SMALL} characters; is it of this dump?")
    return text


# the total up to 0.8:  Total bytes used: 367005318 (350.00MiB)
# later, for each memory space, with gaps between buffers:  Total bytes: 377495198 (360.01MiB)
_TOTAL = re.compile(r"^Total bytes(?: used)?: (\d{1,18})\b", re.MULTILINE)
# an option in a dump, and in the block debug_options of a module's configuration:
# xla_dump_to: "/tmp/dump"          xla_gpu_autotune_level: 4
_OPTION = re.compile(r'^ {0,4}(xla_\w+): "?(.*?)"?$', re.MULTILINE)
# an option of the program:  env_option_overrides {\n  key: "xla_gpu_autotune_level"\n  value {\n...
_OVERRIDE = re.compile(r'^  key: "(xla_\w+)"\s+value \{\s+\w+_field: "?(.*?)"?$', re.MULTILINE)
# options about the dump and the host, not about the program
_OWN = ("xla_dump_", "xla_force_host_platform_device_count")


def read_memory_report(text: str | None) -> int | None:
    """Return the total bytes in a `*-memory-usage-report.txt`; None if it has none."""
    sizes = [int(size_bytes) for size_bytes in _TOTAL.findall(text or "")]
    if text and "Memory Space: vmem" in text:
        sizes = sizes[:1]  # the spaces of a TPU are separate; its programs run out of the first
    return sum(sizes) if sizes else None


def read_debug_options(text: str | None) -> dict[str, str] | None:
    """Return the options in a program's `*.debug_options` file, which omits those at a default.

    A list has one line for each value; its values are joined by commas.
    """
    if text is None:
        return None
    return {name: value for name, value in _options(text).items() if not name.startswith(_OWN)}


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in _OPTION.findall(text):
        options[name] = f"{options[name]},{value}" if name in options else value
    # the program's own options override the others when the module is compiled
    return options | dict(_OVERRIDE.findall(text))


# Files with options, the best first. --xla_dump_to writes the first two whatever
# --xla_dump_hlo_module_re says: for every module on a GPU (jaxlib 0.6.2 to 0.11.2), and on a CPU
# only with 0.10.2.
_OPTIONS = ("*.config.pbtxt", "*/compile_options.textproto", "*.debug_options")
_MOST_WITNESSES = 4  # most witnesses of the devices of a dump
# the platform in a topology:  platform_name: "cuda"
_PLATFORM = re.compile(r'^platform_name: "(\w{1,20})"', re.MULTILINE)


def seen_options(folder: Path) -> Options | None:
    """Return the options that XLA wrote during a trial; None if it wrote none.

    They are those of the training step if its module has them, including the program's own
    `jax.jit(compiler_options=...)`; otherwise those of the last module that has some.
    """
    with contextlib.suppress(OSError):
        if (path := _options_in(folder)) is not None:
            is_whole = path.suffix != ".debug_options"
            return Options(values=_options(_text(path) or ""), is_whole=is_whole)
    return None


def _options_in(folder: Path) -> Path | None:
    """Return the best file with options: that of the step's module, else of the last one."""
    for pattern in _OPTIONS:
        if files := [path for path in folder.glob(pattern) if path.is_file()]:
            return max(files, key=_place)
    return None


def _place(path: Path) -> tuple[bool, int, str]:
    name = path.parent.name if path.suffix == ".textproto" else path.name
    module = _NUMBERED.fullmatch(name)
    number, name = (int(module[1]), module[2]) if module else (-1, path.name)
    return "train_step" in name, number, name


def seen_devices(folder: Path) -> dict[str, str]:
    """Return witness -> device for which the modules of a dump were compiled.

    `module jit_x` and `topology of jit_x` are separate witnesses. A witness with several devices
    does not show where the steps ran, and is left out.
    """
    with contextlib.suppress(OSError):
        return {witness: device for witness, (device, _) in _devices_in(folder).items()}
    return {}


def _devices_in(folder: Path) -> dict[str, tuple[str, Path]]:
    """Return the first witnesses, each with its one device and a file that shows it."""
    devices: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in sorted(folder.glob("*"), key=_place):
        program = PROGRAM_FILE.fullmatch(path.name)
        module = _NUMBERED.fullmatch(program["module"] if program else path.name)
        topology = path / "topology.textproto"  # beside each module since jaxlib 0.10
        if module and program:
            # the build of libtpu does not show the chip
            device = _device(program["target"] or "tpu")
            devices[f"module {module[2]}"].setdefault(device, path)
        elif module and "train_step" in module[2] and topology.is_file():
            platform = _PLATFORM.search(_text(topology) or "")
            device = platform[1].lower() if platform else ""
            devices[f"topology of {module[2]}"].setdefault(device, topology)
    with_one_device = {
        witness: next(iter(files.items()))
        for witness, files in devices.items()
        if len(files) == 1 and "" not in files
    }
    return dict(itertools.islice(with_one_device.items(), _MOST_WITNESSES))


def _device(target: str) -> str:
    """Return the device of a target in the name of a program's file: sm_9.0a is cuda sm_9.0."""
    if target.startswith("sm_"):  # sm_9.0 and sm_9.0a are one device in different releases
        return f"cuda {target.rstrip('af')}"
    return f"rocm {target}" if target.startswith("gfx") else target


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
