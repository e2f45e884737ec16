"""The launcher of any command line with `{placeholders}`, for trainers without their own launcher.

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
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.launchers.program import (
    FOLDER,
    METRICS_FILE,
    ProgramLauncher,
    check_absolute,
    metrics_file_of,
    number,
)
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.redact import command_text_without_secrets, command_without_secrets
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

OVERRIDES = "{overrides}"
# placeholder -> returns its value; None if the cell does not set it
PLACEHOLDERS: Mapping[str, Callable[[Trial, Cell], str | None]] = {
    "model_tag": lambda _, cell: cell.model_tag,
    "config_tag": lambda _, cell: cell.config_tag,
    "parallelism": lambda _, cell: str(cell.parallelism),
    "per_device_batch_size": lambda _, cell: _number_or_none(cell.per_device_batch_size),
    "max_target_length": lambda _, cell: _number_or_none(cell.max_target_length),
    "steps": lambda trial, _: str(trial.protocol.steps),
    "dataset_type": lambda trial, _: trial.protocol.dataset_type,
    "profile": lambda trial, _: trial.profile.id,
    "trial": lambda trial, _: trial.id,
    "folder": lambda *_: FOLDER,
    "metrics_file": lambda *_: f"{FOLDER}/{METRICS_FILE}",
}


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
            if argument != OVERRIDES:
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
        scripts = [word for word in self.argv[1:] if word.endswith((".py", ".sh"))]
        paths = [
            path for path in (self.argv[0], *scripts) if path.startswith("/") and "{" not in path
        ]
        return (*ProgramLauncher.files(self, cell), *paths)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec with the filled-in command.

        Raises:
            ConfigError: a placeholder has no value, overrides have no placeholder, or a Python
                script is relative and there is no `cwd`.
        """
        program = _program(self.argv) if self.interpreter else ""
        if program.endswith(".py") and "{" not in program and not self.cwd:
            check_absolute(program, "script")
        overrides = {**cell.overrides, **trial.profile.overrides}
        if overrides and OVERRIDES not in self.argv:
            raise ConfigError(
                f"profile {trial.profile.id!r}: override {next(iter(overrides))!r} would be lost, "
                f"because the command has no argument {OVERRIDES}; add it: "
                f"{shlex.join(command_without_secrets(self.argv))}"
            )
        argv: list[str] = []
        for argument, redacted in zip(self.argv, command_without_secrets(self.argv), strict=True):
            if argument == OVERRIDES:
                argv += [f"{key}={value}" for key, value in overrides.items()]
            else:
                argv.append(_fill(argument, redacted, trial, cell))
        writes_metrics = any("metrics_file" in _placeholders(word) for word in self.argv)
        metrics_file = metrics_file_of(cell) if writes_metrics else ""
        return self.start(
            argv,
            trial=trial,
            cell=cell,
            metrics_file=metrics_file,
            interpreter=self.interpreter,
            program=_program(argv) if self.interpreter else "",
        )


def _program(argv: Sequence[str]) -> str:
    """Return the script or module that a Python command line runs; "" if unknown."""
    for at, word in enumerate(argv[1:], start=1):
        if word == "-m":
            return "".join(argv[at + 1 : at + 2])
        if word.endswith(".py"):
            return word
    return ""


def _number_or_none(value: float | None) -> str | None:
    return None if value is None else number(value)


def _fill(argument: str, redacted: str, trial: Trial, cell: Cell) -> str:
    """Return an argument with its placeholders filled in; `redacted` is shown in messages."""
    filled = []
    for literal, name, _, _ in string.Formatter().parse(argument):
        filled.append(literal)
        if name is not None:
            value = PLACEHOLDERS[name](trial, cell)
            if value is None:
                raise ConfigError(
                    f"command launcher: {redacted!r} needs the cell's {name}, which is not set; "
                    f"give Cell({name}=...)"
                )
            filled.append(value)
    return "".join(filled)


def _placeholders(argument: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(argument) if name is not None}


def _check_placeholders(argument: str, redacted: str) -> None:
    """Raise ConfigError for an unknown placeholder; `redacted` is shown in messages."""
    where = f"the command's argument {redacted!r}"
    try:
        parts = list(string.Formatter().parse(argument))
    except ValueError as error:
        raise ConfigError(
            f"{where}: {error}; write {{{{ and }}}} for braces that do not form a placeholder"
        ) from None
    for _, name, spec, conversion in parts:
        if name == "overrides":
            raise ConfigError(f"{where}: {OVERRIDES} must be a separate argument")
        if name is not None and (name not in PLACEHOLDERS or spec or conversion):
            placeholder = name
            placeholder += f"!{conversion}" if conversion else ""
            placeholder += f":{spec}" if spec else ""
            if placeholder not in redacted:  # it is in a secret, which the message must not show
                raise ConfigError(
                    f"{where}: a brace in the hidden part begins a placeholder that does not "
                    "exist; write {{ and }} for braces that do not form a placeholder"
                )
            raise ConfigError.unknown(
                "placeholder", placeholder, valid=(*PLACEHOLDERS, "overrides"), where=where
            )
