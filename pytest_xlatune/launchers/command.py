"""Launchers that start a program: its working directory, its environment, and any command line.

The environment of a trial consists of four parts, of which a later one replaces values of an
earlier one: the node's variables named in `inherit`; the cell's deployed environment; the env
files, sourced in order; the profile. A profile's flags are appended to the XLA_FLAGS so far.

Without env files the environment is composed here, and no shell is involved. Env files must be
sourced on the node: `profile.env.sh` is written into the attempt's folder, and a few lines of bash
source one file after the other and then exec the program. This module reads no env file.

`CommandLauncher` is for trainers without their own launcher:

    CommandLauncher(argv=("train.sh", "--steps={steps}", "{overrides}"))

    {model_tag} {config_tag} {parallelism}              from the cell
    {per_device_batch_size} {max_target_length}         from the cell; an error if not set
    {steps} {dataset_type}                              from the protocol
    {profile} {trial}                                   ids
    {folder}                                            the attempt's folder
    {metrics_file}                                      a file in it for MaxText's metrics
    {overrides}   a separate argument, replaced by the cell's and then the profile's `key=value`
    {{ }}         braces

Such a command has no known option for the profiler, so its evidence trial gives only the XLA dump.

The worker of a rotation, `workers/rotate.py`, compiles the step once for each program and lets the
programs take turns. It runs in the trainer's own interpreter, where nothing of ours is installed,
so its files are in the attempt's folder. If the launcher starts Python itself, the worker comes
before the trainer's words: `python FOLDER/xlatune_rotate.py FOLDER/rotation.json -- train.py`. If a
shell or a container's program starts Python, the worker is `sitecustomize.py` in the first folder
of PYTHONPATH. `executors.folder` inserts its text when the attempt is submitted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from string import Formatter

import msgspec

from pytest_xlatune.launchers import Launcher, Rotates
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import CHANNELS, DUMP_FOLDER, logging_env, on_top
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    OPTIONS_FOLDER,
    Flag,
    append_flags,
    format_flags,
    parse_flags,
    shell_exports,
)
from pytest_xlatune.model.redact import command_text_without_secrets, command_without_secrets
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

# Variables that a program needs from its node. jax.distributed finds its peers by SLURM's
# variables; releases before 2025-10 crash if some of these are missing.
INHERIT = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_*"),
)

PROFILE_FILE = "profile.env.sh"
METRICS_FILE = "metrics.jsonl"
PROBE_FILE = "xlatune_environment.py"  # has the text of `workers.probe_environment`
SPEC_FILE = "rotation.json"
WORKER_FILE = "xlatune_rotate.py"  # has the text of `workers.rotate`
SITE_FOLDER = "xlatune_site"
SITE_FILE = f"{SITE_FOLDER}/sitecustomize.py"  # has the same text
WORKERS = (WORKER_FILE, SITE_FILE)
# the variable with the path of the spec, for a worker that is loaded as `sitecustomize`
VARIABLE = "XLATUNE_ROTATION"

# Written in place of the attempt's folder until its path is known. It has blanks, so a flag's value
# that contains it is put between double quotes. The path may then have blanks too.
FOLDER = "<folder of the attempt>"
# replaces FOLDER for `executors.payload`, which inserts the path on the node
_FOLDER_WORD = "{xlatune.folder}"

# flags of an evidence run; they match every program of the trainer, because the step may have any
# name
_EVIDENCE_FLAGS = (
    Flag(name="xla_dump_to", value=f"{FOLDER}/{DUMP_FOLDER}"),
    Flag(name="xla_dump_hlo_as_text"),
    Flag(name="xla_dump_hlo_module_re", value="^(jit|pmap)_"),
)
# Turns JAX's cache off: XLA dumps no HLO before and after optimisation of a cached program, and a
# rotation would get the program that an earlier rotation compiled.
_COMPILE_ANEW = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
# keeps JAX from replacing the folder that a flag names for XLA's tuned kernels
_KEEP_KERNEL_FOLDER = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}

# Flags with which XLA writes its options to a file. With a dump it writes them for every module,
# some kilobytes each. The pattern selects only the smallest programs that JAX compiles for itself.
# It must select some, because on a CPU jaxlib (up to 0.9, 0.11.2, 0.12.0) writes options only
# beside a dumped program.
_SMALL_PROGRAMS = "^jit_(convert_element_type|broadcast_in_dim|_?threefry_seed)$"
_DUMP_OPTIONS_FLAGS = (
    Flag(name="xla_dump_to", value=f"{FOLDER}/{OPTIONS_FOLDER}"),
    Flag(name="xla_dump_hlo_module_re", value=_SMALL_PROGRAMS),
)
_DUMP_FLAG_PREFIX = "xla_dump_"
# with these variables, NCCL and RCCL print each variable that they read, once
_NCCL_SHOWS_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV"}

# Prints the program's flags to the log, because only the node knows the result of the env files.
_SHOW_FLAGS = """\
: "${XLA_FLAGS=}"  # a sourced file may have said `set -u`
printf 'XLA_FLAGS=%s\\n' "${XLA_FLAGS//$'\\n'/ }" >&2
"""
# loads the worker of a rotation into every Python
_LOAD_WORKER = f"""\
export PYTHONPATH="$xlatune_folder/{SITE_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"
export {VARIABLE}="$xlatune_folder/{SPEC_FILE}"
"""
# Makes rank 0 show its settings in effect. It adds no flags if a dump is already requested, or if
# XLA_FLAGS begins with a file name, because XLA then reads only that file.
_WITNESS = """\
if [[ ${{SLURM_PROCID:-${{NODE_RANK:-0}}}} == 0 && -n ${{{folder}-}} ]]; then
  [[ ${{XLA_FLAGS-}} == *{dumps}* || ${{XLA_FLAGS-}} =~ ^[[:space:]]*[^-[:space:]] ]] ||
    export XLA_FLAGS={flags}"${{XLA_FLAGS:+ $XLA_FLAGS}}"
  [[ -v NCCL_DEBUG ]] || export {nccl}
{channels}fi
"""
# Sources one env file. `bash -n` checks it first, because bash would go on after a syntax error.
_SOURCE = """\
bash -n {file} || {{ echo "xlatune: this env file cannot be read: "{file} >&2; exit 78; }}
. {file}
"""
# Sources the env files and the profile, then execs the command. The command is kept in an array,
# because an env file may say `set --`. `set -e` stops at a variable that bash refuses to set. Exit
# code 78 is EX_CONFIG of sysexits.h.
_WRAPPER = """\
xlatune_folder=$PWD
xlatune_argv=("${{@//"{token}"/"$PWD"}}")
cd -- {cwd} || exit 78
{sources}set -e
. "$xlatune_folder/{profile_file}"
exec "${{xlatune_argv[@]}}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLauncher(Launcher):
    """The base of launchers that start a program.

    Attributes:
        env_files: absolute paths of deployed shell files, sourced by bash in this order;
            `{model_tag}` is replaced by that of the cell.
        inherit: names of the node's variables that are passed on; `SLURM_*` means all with this
            prefix.
        cwd: absolute working directory of the program; "" means the attempt's folder.
        in_shell: whether a shell composes the environment even without env files. A container
            needs this, because its image also sets variables.
    """

    env_files: tuple[str, ...] = ()
    inherit: tuple[str, ...] = INHERIT
    cwd: str = ""
    in_shell: bool = False

    def __post_init__(self) -> None:
        for path in self.env_files:
            check_absolute(path, "env file")
        if self.cwd:
            check_absolute(self.cwd, "cwd")
        for name in ("XLA_FLAGS", *CHANNELS):
            if self._inherits(name):
                raise ConfigError(
                    f"launcher: `inherit` passes {name} on, so the flags of a trial would depend "
                    "on the shell that the sweep was started from; put its text into the cell's "
                    "`deployed`"
                )

    def _inherits(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.inherit)

    @property
    def rotates(self) -> Rotates:
        """How programs can take turns: Python runs the worker first, or loads it by PYTHONPATH."""
        return Rotates.PYTHON if self.interpreter else Rotates.WRAPPED

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the env files of a cell."""
        return tuple(for_model(path, cell) for path in self.env_files)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that must exist where trials run."""
        return (*self.env_files_of(cell), *filter(None, [self.cwd]))

    def where(self) -> str:
        """Return the attributes that are not default, for `describe`; "" if all are default."""
        parts = [f"env_file={shlex.quote(path)}" for path in self.env_files]
        if self.inherit != INHERIT:
            parts.append(f"inherit={','.join(self.inherit)}")
        if self.cwd:
            parts.append(f"cwd={shlex.quote(self.cwd)}")
        return " ".join(parts)

    def start(
        self,
        argv: Sequence[str],
        *,
        trial: Trial,
        cell: Cell,
        metrics_file: str = "",
        program: str = "",
    ) -> LaunchSpec:
        """Return the spec that runs `argv` with the trial's environment.

        Args:
            argv: the command line; `FOLDER` in it means the attempt's folder.
            trial: the trial.
            cell: the cell of the trial.
            metrics_file: see `LaunchSpec`.
            program: the script or module that the interpreter runs; "" if unknown.

        Raises:
            ConfigError: XLA would stop before the end of the deployed XLA_FLAGS, and so never reach
                the profile.
        """
        deployed = cell.deployed.get("XLA_FLAGS", "")
        parse_flags(deployed, where="the deployed XLA_FLAGS")
        probe: Sequence[str] = (
            *(self.interpreter or "python3", f"{FOLDER}/{PROBE_FILE}"),
            *("trainer", program),
        )
        flags = (*trial.pins, *trial.profile.flags)
        flags += _EVIDENCE_FLAGS if trial.protocol.dump else ()
        env, files, first_env = trial_env(trial), rotation_files(trial), dict[str, str]()
        # Options of the interpreter stay in place: `python -u train.py` becomes `python -u WORKER`.
        places = [at for at, word in enumerate(argv[1:], 1) if word in ("-m", program)]
        loads_worker = bool(files) and not (places and program and argv[0] == self.interpreter)
        if files and not loads_worker:
            files[WORKER_FILE] = files.pop(SITE_FILE)
            worker = (f"{FOLDER}/{WORKER_FILE}", f"{FOLDER}/{SPEC_FILE}", "--")
            argv = (*argv[: places[0]], *worker, *argv[places[0] :])
        is_witness = shows_settings(trial)
        if self.env_files or self.cwd or self.in_shell or loads_worker:
            # FOLDER has blanks, so it is between single quotes, which the variable must not be
            exports = shell_exports(flags, env).replace(FOLDER, "'\"$xlatune_folder\"'")
            files[PROFILE_FILE] = (
                f"# profile {trial.profile.id}, applied after every env file\n"
                f"{exports}{_SHOW_FLAGS}{_LOAD_WORKER if loads_worker else ''}"
                f"{witness_script() if is_witness else ''}"
            )
            argv, probe = self._in_wrapper(argv, cell), self._in_wrapper(probe, cell)
            # an env file may have a recipe for some cells only, and tests which cell this is
            guards = cell.guard_variables if self.env_files else {}
            composed = {**guards, **cell.deployed}
        else:
            argv, probe = tuple(map(_relative, argv)), tuple(map(_relative, probe))
            composed = on_top(cell.deployed, env)
            if flags:
                composed["XLA_FLAGS"] = _relative(append_flags(deployed, flags))
            first_env = self._witness_env(composed) if is_witness else {}
            is_witness = "XLA_FLAGS" in first_env
        return LaunchSpec(
            argv=tuple(argv),
            env=composed,
            first_env=first_env,
            inherit=self.inherit,
            files=files,
            metrics_file=metrics_file,
            tells_options=is_witness,
            probe=tuple(probe),
            paths=self.files(cell),
            folders=tuple(filter(None, [trial.autotune_folder])),
            last_step=trial.protocol.last_step,
            deadline_s=trial.deadline_s,
        )

    def _witness_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables that make rank 0 show its settings, except those set by the user."""
        has_debug = "NCCL_DEBUG" in env or self._inherits("NCCL_DEBUG")
        witness_env = {} if has_debug else dict(_NCCL_SHOWS_SETTINGS)
        witness_env |= {name: value for name, value in logging_env(env).items() if name not in env}
        flags = env.get("XLA_FLAGS", "")
        if _DUMP_FLAG_PREFIX not in flags:
            dump_flags = format_flags(_DUMP_OPTIONS_FLAGS).replace(FOLDER, _FOLDER_WORD)
            # ours come first, because XLA stops reading at a word that it cannot read
            witness_env["XLA_FLAGS"] = f"{dump_flags} {flags}".rstrip()
        return witness_env

    def _in_wrapper(self, argv: Sequence[str], cell: Cell) -> tuple[str, ...]:
        """Return the command that sources the env files and the profile, then execs `argv`."""
        files = map(shlex.quote, self.env_files_of(cell))
        script = _WRAPPER.format(
            token=FOLDER,
            cwd=shlex.quote(self.cwd or "."),
            sources="".join(_SOURCE.format(file=file) for file in files),
            profile_file=PROFILE_FILE,
        )
        # --norc, because bash reads ~/.bashrc even with -c if it believes that sshd started it
        return ("bash", "--norc", "--noprofile", "-c", script, "xlatune", *argv)


def trial_env(trial: Trial) -> dict[str, str]:
    """Return the profile's variables, and those that set where JAX and XLA cache programs."""
    kept = _KEEP_KERNEL_FOLDER if trial.pins else {}
    uncached = _COMPILE_ANEW if trial.compiles_anew else {}
    return {**kept, **trial.profile.env, **uncached}


def rotation_files(trial: Trial) -> dict[str, str]:
    """Return the spec of a rotation, and a file for the worker's text, still empty; {} if none."""
    if trial.rotation is None:
        return {}
    text = msgspec.json.format(json.dumps(trial.rotation.as_run.to_json()), indent=1)
    return {SPEC_FILE: f"{text}\n", SITE_FILE: ""}


def check_absolute(path: str, kind: str) -> None:
    """Raise ConfigError for a relative path, because each trial runs in another folder.

    Raises:
        ConfigError: the path is relative; the message names the path and its `kind`.
    """
    if not PurePosixPath(path).is_absolute():
        raise ConfigError(
            f"launcher: the {kind} {path!r} is relative, but each trial runs in another folder; "
            "give an absolute path, e.g. str(Path(__file__).parent / ...)"
        )


def metrics_file_of(cell: Cell) -> str:
    """Return the metrics file relative to the attempt's folder; "" if it cannot be trusted.

    Every process of MaxText appends its steps to the same file, so on several nodes the logs of the
    ranks are used instead.
    """
    return METRICS_FILE if len(cell.nodelist) <= 1 else ""


def sizes_of(cell: Cell) -> dict[str, str]:
    """Return batch size and length as arguments of a trainer, those that the cell sets."""
    sizes = {name: getattr(cell, name) for name in ("per_device_batch_size", "max_target_length")}
    return {
        name: str(int(size)) if float(size).is_integer() else repr(size)
        for name, size in sizes.items()
        if size is not None
    }


def shows_settings(trial: Trial) -> bool:
    """Return whether a trial is made to show its settings in effect.

    An evidence run is not, because it dumps them anyway. Neither is a rotation, because XLA would
    dump only the options of the program that it compiled last.
    """
    rotation = trial.rotation
    has_one_program = rotation is None or rotation.is_of_baseline
    return trial.protocol.is_scored and not trial.protocol.dump and has_one_program


def witness_script(folder: str = "xlatune_folder") -> str:
    """Return the bash lines that make rank 0 show its settings in effect.

    `folder` is the name of the variable with the folder to write to; if the variable is unset, the
    lines do nothing.
    """
    channels = "".join(
        f"  [[ ! -v {channel} || -v {name} ]] || export {name}={value}\n"
        for channel in CHANNELS
        for name, value in logging_env([channel]).items()
    )
    return _WITNESS.format(
        folder=folder,
        dumps=_DUMP_FLAG_PREFIX,
        flags=shlex.quote(format_flags(_DUMP_OPTIONS_FLAGS)).replace(FOLDER, f"'\"${folder}\"'"),
        nccl=" ".join(f"{name}={value}" for name, value in _NCCL_SHOWS_SETTINGS.items()),
        channels=channels,
    )


def _relative(text: str) -> str:
    """Return a text with FOLDER replaced by the path relative to the attempt's folder."""
    return text.replace(f"{FOLDER}/", "").replace(FOLDER, ".")


def for_model(path: str, cell: Cell) -> str:
    """Return a path with `{model_tag}` replaced by that of the cell."""
    return path.replace("{model_tag}", cell.model_tag)


_OVERRIDES = "{overrides}"
_PLACEHOLDERS = (
    *("model_tag", "config_tag", "parallelism", "per_device_batch_size", "max_target_length"),
    *("steps", "dataset_type", "profile", "trial", "folder", "metrics_file"),
)


@written("command launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLauncher(ProgramLauncher):
    """Start `argv` with its placeholders filled in, without a shell.

    Attributes:
        argv: the command line, one argument an entry.

    Raises:
        ConfigError: an unknown placeholder or an unmatched brace; raised at construction.
    """

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        ProgramLauncher.__post_init__(self)
        if not self.argv:
            raise ConfigError("command launcher: argv is empty; name the program to start")
        for argument, redacted in zip(self.argv, command_without_secrets(self.argv), strict=True):
            if argument != _OVERRIDES:
                _check_placeholders(argument, redacted)

    def __repr__(self) -> str:
        return f"CommandLauncher({command_text_without_secrets(self.describe())!r})"

    def describe(self) -> str:
        """Return the command line as written, and its working directory."""
        return f"command {shlex.join(self.argv)} {self.where()}".rstrip()

    @property
    def interpreter(self) -> str:
        """The program, if its name is that of a Python interpreter; else ""."""
        name = self.argv[0].rpartition("/")[2]
        return self.argv[0] if name.startswith("python") else ""

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run: the program, and scripts among its arguments."""
        words = (self.argv[0], *(word for word in self.argv[1:] if word.endswith((".py", ".sh"))))
        paths = (word for word in words if word.startswith("/") and "{" not in word)
        return (*ProgramLauncher.files(self, cell), *paths)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec with the filled-in command.

        Raises:
            ConfigError: a placeholder has no value, overrides have no placeholder, or a Python
                script is relative and there is no `cwd`.
        """
        shown = command_without_secrets(self.argv)
        overrides = {**cell.overrides, **trial.profile.overrides}
        if overrides and _OVERRIDES not in self.argv:
            raise ConfigError(
                f"profile {trial.profile.id!r}: override {next(iter(overrides))!r} would be lost, "
                f"because the command has no argument {_OVERRIDES}; add it: {shlex.join(shown)}"
            )
        values = {
            "model_tag": cell.model_tag,
            "config_tag": cell.config_tag,
            "parallelism": str(cell.parallelism),
            **sizes_of(cell),
            "steps": str(trial.protocol.steps),
            "dataset_type": trial.protocol.dataset_type,
            "profile": trial.profile.id,
            "trial": trial.id,
            "folder": FOLDER,
            "metrics_file": f"{FOLDER}/{METRICS_FILE}",
        }
        argv: list[str] = []
        for argument, redacted in zip(self.argv, shown, strict=True):
            if argument == _OVERRIDES:
                argv += [f"{key}={value}" for key, value in overrides.items()]
                continue
            try:
                argv.append(argument.format_map(values))
            except KeyError as error:
                raise ConfigError(
                    f"command launcher: {redacted!r} needs the cell's {error.args[0]}, which is "
                    f"not set; give Cell({error.args[0]}=...)"
                ) from None
        program = _program(argv) if self.interpreter else ""
        if program.endswith(".py") and not (self.cwd or program.startswith(FOLDER)):
            check_absolute(program, "script")
        writes_metrics = any("{metrics_file}" in word for word in self.argv)
        return self.start(
            argv,
            trial=trial,
            cell=cell,
            metrics_file=metrics_file_of(cell) if writes_metrics else "",
            program=program,
        )


def _program(argv: Sequence[str]) -> str:
    """Return the script or module that a Python command line runs; "" if unknown."""
    for word, following in zip(argv[1:], (*argv[2:], ""), strict=True):
        if word == "-m" or word.endswith(".py"):
            return following if word == "-m" else word
    return ""


def _check_placeholders(argument: str, redacted: str) -> None:
    """Raise ConfigError for an unknown placeholder; `redacted` is shown in messages."""
    where = f"the command's argument {redacted!r}"
    stray = ConfigError(f"{where}: write {{{{ and }}}} for braces that do not form a placeholder")
    try:
        fields = list(Formatter().parse(argument))
    except ValueError:
        raise stray from None
    for _, name, format_spec, conversion in fields:
        if name is None or (name in _PLACEHOLDERS and not (format_spec or conversion)):
            continue
        if name == "overrides":
            raise ConfigError(f"{where}: {_OVERRIDES} must be a separate argument")
        if not name or f"{{{name}}}" not in redacted:  # no message shows one in a secret
            raise stray
        valid = (*_PLACEHOLDERS, "overrides")
        raise ConfigError.unknown("placeholder", name, valid=valid, where=where)
