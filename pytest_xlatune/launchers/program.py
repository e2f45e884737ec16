"""A program in a trial's folder: the directory and environment that all launchers give it.

The environment of a trial consists of the following; later values win: the node's variables named
in `inherit`; the cell's deployed environment; the env files, sourced in order; the profile. A
profile's flags are appended to the XLA_FLAGS so far. Without env files the environment is composed
here, and no shell is involved. Env files must be sourced on the node: `profile.env.sh` is written
into the folder, and a few lines of bash source one file after the other and then exec the program.

This module must not know what the program is, nor read an env file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pytest_xlatune.launchers import Launcher, rotated
from pytest_xlatune.launchers.rotated import Rotates
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
from pytest_xlatune.model.trial import LaunchSpec, Trial

# Variables that a program needs from its node; jax.distributed finds its peers by SLURM's, and
# before 2025-10 crashed if some of them were missing.
INHERIT = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_*"),
)

PROFILE_FILE = "profile.env.sh"
METRICS_FILE = "metrics.jsonl"
PROBE_FILE = "xlatune_environment.py"  # has the text of `workers.probe_environment`

# Stands for the attempt's folder until its path is known. It has blanks, so a flag's value that
# contains it is put between double quotes. The path that replaces it may then have blanks, and
# quotes, which are escaped for XLA.
FOLDER = "<folder of the attempt>"
_FOLDER_WORD = "{xlatune.folder}"  # replaces FOLDER in a variable
# replaces FOLDER between double quotes; see `executors.payload`
QUOTED_WORD = "{xlatune.quoted_folder}"

# for every program of the trainer, because the step may have any name
_EVIDENCE_FLAGS = (
    Flag(name="xla_dump_to", value=f"{FOLDER}/{DUMP_FOLDER}"),
    Flag(name="xla_dump_hlo_as_text"),
    Flag(name="xla_dump_hlo_module_re", value="^(jit|pmap)_"),
)
# a cached executable is dumped without its HLO before and after optimisation
EVIDENCE_ENV = {"JAX_ENABLE_COMPILATION_CACHE": "false"}

# JAX keeps its compiled programs there
_COMPILED = "JAX_COMPILATION_CACHE_DIR"
# seconds; quicker programs are compiled in each start, since XLA writes its options beside them
_CACHED_FROM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1"}
# otherwise JAX would replace the folder that a flag names for XLA's tuned kernels
_KERNELS_AS_ASKED = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}

# When a dump is asked for, XLA writes its options for every module, some kilobytes each. Only the
# smallest programs that JAX compiles for itself are dumped, because on a CPU jaxlib writes options
# only beside a dumped program (up to 0.9, 0.11.2, 0.12.0).
_SMALL = "^jit_(convert_element_type|broadcast_in_dim|_?threefry_seed)$"
_ASKS_OPTIONS = (
    Flag(name="xla_dump_to", value=f"{FOLDER}/{OPTIONS_FOLDER}"),
    Flag(name="xla_dump_hlo_module_re", value=_SMALL),
)
_OF_A_DUMP = "xla_dump_"
# with these, NCCL and RCCL print each variable that they read, once
ASKS_NCCL = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV"}

# The path of a folder between XLA's double quotes; variables keep bash from interpreting the
# characters. Otherwise an apostrophe in the work directory's name dropped every profile.
_QUOTED = """\
xlatune_backslash='\\' xlatune_quote='"'
xlatune_quoted=${{{folder}//"$xlatune_backslash"/"$xlatune_backslash$xlatune_backslash"}}
xlatune_quoted=${{xlatune_quoted//"$xlatune_quote"/"$xlatune_backslash$xlatune_quote"}}
"""
# Only the node knows the result of env files, so the log shows the program's initial flags.
_SHOW = """\
: "${XLA_FLAGS=}"  # a sourced file may have said `set -u`
printf 'XLA_FLAGS=%s\\n' "${XLA_FLAGS//$'\\n'/ }" >&2
"""
# Rank 0 shows the settings in effect. If XLA_FLAGS begins with a file name, XLA reads that file.
_WITNESS = """\
if [[ ${{SLURM_PROCID:-${{NODE_RANK:-0}}}} == 0 && -n ${{{folder}-}} ]]; then
{quoted}  [[ ${{XLA_FLAGS-}} == *{of_a_dump}* || ${{XLA_FLAGS-}} =~ ^[[:space:]]*[^-[:space:]] ]] ||
    export XLA_FLAGS={flags}"${{XLA_FLAGS:+ $XLA_FLAGS}}"
  [[ -v NCCL_DEBUG ]] || export {nccl}
{channels}fi
"""
# a syntax error in a sourced file would not stop bash, so `bash -n` checks it first
_SOURCE = """\
bash -n {file} || {{ echo "xlatune: this env file cannot be read: "{file} >&2; exit 78; }}
. {file}
"""
# The array protects the command from `set --` in env files; `set -e` stops at a variable that bash
# refuses to set. Exit code 78 is EX_CONFIG of sysexits.h.
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
    """Where a program runs, and what its environment consists of.

    Attributes:
        env_files: absolute paths of deployed shell files, sourced by bash in this order;
            `{model_tag}` is replaced by the cell's.
        inherit: names of the node's variables that are passed on; `SLURM_*` means this prefix.
        cwd: absolute working directory of the program; "" for the attempt's folder.
        in_shell: whether the environment is composed by a shell even without env files, on top of
            what an image sets; a container needs this.
    """

    env_files: tuple[str, ...] = ()
    inherit: tuple[str, ...] = INHERIT
    cwd: str = ""
    in_shell: bool = False

    def __post_init__(self) -> None:
        for kind, path in [*(("env file", file) for file in self.env_files), ("cwd", self.cwd)]:
            if path:
                check_absolute(path, kind)
        for name in ("XLA_FLAGS", *CHANNELS):
            if any(fnmatchcase(name, pattern) for pattern in self.inherit):
                raise ConfigError(
                    f"launcher: `inherit` lets {name} through, so what a trial is measured on "
                    "would depend on the shell the sweep was started from; put its text into the "
                    "cell's `deployed`"
                )

    @property
    def rotates(self) -> Rotates:
        """Programs can take turns: Python runs the worker first, or loads it by PYTHONPATH."""
        return Rotates.PYTHON if self.interpreter else Rotates.WRAPPED

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the env files of a cell."""
        return tuple(for_model(path, cell) for path in self.env_files)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that must exist where trials run."""
        return tuple(path for path in (*self.env_files_of(cell), self.cwd) if path)

    def where(self) -> str:
        """Return what differs from a plain folder, for `describe`; "" if nothing does."""
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
        interpreter: str = "",
        program: str = "",
    ) -> LaunchSpec:
        """Return the spec that runs `argv` with the trial's environment.

        `FOLDER` in `argv` stands for the attempt's folder. `interpreter` is the trainer's, and
        `program` the script or module that it runs, as far as known.

        Raises:
            ConfigError: XLA would stop before the end of the deployed XLA_FLAGS, and so never reach
                the profile.
        """
        deployed = cell.deployed.get("XLA_FLAGS", "")
        parse_flags(deployed, where="the deployed XLA_FLAGS")
        asks = (interpreter or "python3", f"{FOLDER}/{PROBE_FILE}", "trainer", program)
        is_evidence, first = trial.protocol.dump, dict[str, str]()
        flags = (*trial.pins, *trial.profile.flags, *(_EVIDENCE_FLAGS if is_evidence else ()))
        env = cache_env(trial) | trial.profile.env | (EVIDENCE_ENV if is_evidence else {})
        argv, worker = _with_worker(argv, trial, interpreter=interpreter, program=program)
        is_loaded = rotated.SITE_FILE in worker
        needs_shell = is_loaded and rotated.needs_shell(self.inherit)
        if self.env_files or self.cwd or self.in_shell or needs_shell:
            witness = witness_script() if is_watched(trial) else ""
            loads = rotated.exports("xlatune_folder") if is_loaded else ""
            script = _fragment(trial, flags, env) + loads + witness
            command, files = self._wrapped(argv, cell), {PROFILE_FILE: script}
            probe = self._wrapped(asks, cell)
            # an env file may hold a recipe of some cells alone, so it asks which cell this is
            asked = cell.guard_variables if self.env_files else {}
            composed = {**asked, **cell.deployed}
        else:
            command, files = tuple(map(_here, argv)), {}
            probe = tuple(map(_here, asks))
            composed = on_top(cell.deployed, env)
            if is_loaded:
                composed |= rotated.variables(composed, folder=_FOLDER_WORD)
            if flags:
                composed["XLA_FLAGS"] = _here(append_flags(deployed, flags))
            first = self._witness_env(composed) if is_watched(trial) else {}
        return LaunchSpec(
            argv=command,
            env=composed,
            first_env=first,
            inherit=self.inherit,
            files={**files, **worker},
            metrics_file=metrics_file,
            tells_options=is_watched(trial) and ("XLA_FLAGS" in first or bool(files)),
            probe=probe,
            paths=self.files(cell),
            folders=kept_folders(trial),
            last_step=trial.protocol.last_step,
            deadline_s=trial.deadline_s,
        )

    def _witness_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what makes rank 0 show its options; {} if the user asks for them already."""
        has_debug = "NCCL_DEBUG" in env or any(fnmatchcase("NCCL_DEBUG", p) for p in self.inherit)
        asked = {} if has_debug else dict(ASKS_NCCL)
        asked |= {name: to for name, to in logging_env(env).items() if name not in env}
        text = env.get("XLA_FLAGS", "")
        if _OF_A_DUMP not in text:
            asks = format_flags(_ASKS_OPTIONS).replace(FOLDER, QUOTED_WORD)
            # first, because XLA stops reading at what it cannot read
            asked["XLA_FLAGS"] = " ".join(filter(None, (asks, text)))
        return asked

    def _wrapped(self, argv: Sequence[str], cell: Cell) -> tuple[str, ...]:
        script = _WRAPPER.format(
            token=FOLDER,
            cwd=shlex.quote(self.cwd or "."),
            sources="".join(
                _SOURCE.format(file=shlex.quote(path)) for path in self.env_files_of(cell)
            ),
            profile_file=PROFILE_FILE,
        )
        # --norc, because a bash that believes to be started by sshd reads ~/.bashrc even with -c
        return ("bash", "--norc", "--noprofile", "-c", script, "xlatune", *argv)


def _with_worker(
    argv: Sequence[str], trial: Trial, *, interpreter: str, program: str
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the command of a trial and the files of its rotation, if it is one."""
    if trial.rotation is None:
        return argv, {}
    spec = trial.rotation.as_run
    command = rotated.in_front(argv, interpreter=interpreter, program=program, folder=FOLDER)
    if command is None:
        return argv, rotated.files_of(spec, worker=rotated.SITE_FILE)
    return command, rotated.files_of(spec, worker=rotated.WORKER_FILE)


def cache_env(trial: Trial) -> dict[str, str]:
    """Return the variables with which JAX keeps its programs, and XLA its kernels."""
    env = dict(_KERNELS_AS_ASKED) if trial.pins else {}
    if trial.rotation is not None:
        env |= rotated.ANEW
    return env | ({_COMPILED: trial.compile_folder, **_CACHED_FROM} if trial.compile_folder else {})


def kept_folders(trial: Trial) -> tuple[str, ...]:
    """Return the folders that the trials of a cell share."""
    return tuple(filter(None, (trial.autotune_folder, trial.compile_folder)))


def check_absolute(path: str, kind: str) -> None:
    """Raise ConfigError for a relative path, because a trial runs in a folder of its own.

    Raises:
        ConfigError: the message has the path and its purpose.
    """
    if not PurePosixPath(path).is_absolute():
        raise ConfigError(
            f"launcher: the {kind} {path!r} is relative, but a trial runs in a folder of its own; "
            "give an absolute path, e.g. str(Path(__file__).parent / ...)"
        )


def metrics_file_of(cell: Cell) -> str:
    """Return the metrics file relative to the folder; "" if it cannot be trusted.

    Every process of MaxText appends its own steps to the same file, so on several nodes the logs of
    the ranks are better.
    """
    return METRICS_FILE if len(cell.nodelist) <= 1 else ""


def number(value: float) -> str:
    """Write a number as a trainer's argument: `7` for 7.0, every digit otherwise."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def _fragment(trial: Trial, flags: Sequence[Flag], env: dict[str, str]) -> str:
    exports = shell_exports(flags, env)
    # the token contains blanks, so it is inside single quotes: close, expand, open again
    quoted = _QUOTED.format(folder="xlatune_folder") if FOLDER in exports else ""
    exports = quoted + exports.replace(FOLDER, "'\"$xlatune_quoted\"'")
    return f"# profile {trial.profile.id}, applied after every env file\n{exports}{_SHOW}"


def is_watched(trial: Trial) -> bool:
    """Return whether a trial must show its settings in effect; an evidence run dumps anyway.

    A rotation does not: XLA would dump the options of the program compiled last.
    """
    rotation = trial.rotation
    is_of_one_program = rotation is None or rotation.is_of_baseline
    return trial.protocol.is_scored and not trial.protocol.dump and is_of_one_program


def witness_script(folder: str = "xlatune_folder") -> str:
    """Return the bash lines that make rank 0 show its settings in effect.

    `folder` is the variable with the folder to write to; if it is unset, nothing is asked for.
    """
    flags = shlex.quote(format_flags(_ASKS_OPTIONS)).replace(FOLDER, "'\"$xlatune_quoted\"'")
    nccl = " ".join(f"{name}={value}" for name, value in ASKS_NCCL.items())
    channels = "".join(
        f"  [[ ! -v {channel} || -v {name} ]] || export {name}={value}\n"
        for channel in CHANNELS
        for name, value in logging_env([channel]).items()
    )
    return _WITNESS.format(
        folder=folder,
        quoted="".join(
            f"  {line}" for line in _QUOTED.format(folder=folder).splitlines(keepends=True)
        ),
        of_a_dump=_OF_A_DUMP,
        flags=flags,
        nccl=nccl,
        channels=channels,
    )


def _here(text: str) -> str:
    return text.replace(f"{FOLDER}/", "").replace(FOLDER, ".")


def for_model(path: str, cell: Cell) -> str:
    """Return a path with `{model_tag}` replaced by the cell's."""
    return path.replace("{model_tag}", cell.model_tag)
