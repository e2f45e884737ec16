"""Ask the questions of `xlatune init`, check the answers, and make the text of a sweep file."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_xlatune.catalog.context import Context, Level
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import did_you_mean, objections
from pytest_xlatune.executors import LOCAL, SLURM
from pytest_xlatune.model.cell import Parallelism, check_model_tag
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.profile import Flag, Profile, parse_flags
from pytest_xlatune.tasks.files import filled_in


class InitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a sweep file: a question is asked for it if its option is not given.

    `templates/init.toml` has the questions, and says what each field means.
    """

    text: str
    default: str = ""
    kinds: tuple[str, ...] = ()
    example: str = ""
    is_optional: bool = False


class _Init(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kinds: dict[str, str]
    studies: dict[str, tuple[str, int]]
    questions: dict[str, InitQuestion]


_INIT = msgspec.toml.decode(
    Path(__file__).with_name("templates").joinpath("init.toml").read_bytes(), type=_Init
)
KINDS, STUDIES, QUESTIONS = _INIT.kinds, _INIT.studies, _INIT.questions
_SIZE_PLACEHOLDER = "{per_device_batch_size}"  # in a command; becomes the batch size
_GPU_FLAG = "--xla_gpu_enable_latency_hiding_scheduler=true"
_CPU_FLAG = "--xla_cpu_multi_thread_eigen=false"


def option_of(name: str) -> str:
    """Return the option that answers a question."""
    return f"--{name.replace('_', '-')}"


def answers(options: Mapping[str, object], ask: Callable[[str], str] | None) -> dict[str, str]:
    """Return an answer to each question that applies.

    Args:
        options: name of an option -> its value; None if the user did not give the option.
        ask: shows a text and returns the typed answer; None if no person is present.

    Raises:
        ConfigError: no person is present and options are missing; or an answer does not fit.
    """
    answered: dict[str, str] = {}
    missing: list[str] = []
    for name in QUESTIONS:
        question = QUESTIONS[name]
        if name == "flags" and options.get("study"):
            continue
        if question.kinds and answered.get("kind") not in question.kinds:
            if options.get(name):
                kinds = " or ".join(question.kinds)
                raise ConfigError(f"{option_of(name)} belongs to --kind {kinds}")
            continue
        if name == "flags":
            # a GPU flag would only show noise on a machine without a GPU
            default = _GPU_FLAG if answered["nodelist"] else _CPU_FLAG
            question = msgspec.structs.replace(question, default=default)
        if name == "model" and ask is not None:
            folder = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path.cwd().name).strip("._+-")
            question = msgspec.structs.replace(question, default=folder)
        answer = options.get(name)
        if answer is None and ask is not None:
            try:
                answer = ask(_shown(name, question)).strip()
            except EOFError:
                raise ConfigError("the input ended before the last question") from None
        answered[name] = str(answer or "") or question.default
        _check(name, answered[name])
        if not (answered[name] or question.is_optional):
            missing.append(option_of(name))
    if missing:
        raise ConfigError(f"{', '.join(missing)}: an answer is needed; give it as an option")
    if not answered["nodelist"]:  # nodes may have another Python at the same path
        _check_python(answered)
    return answered


def _shown(name: str, question: InitQuestion) -> str:
    text = question.text
    if name == "kind":
        text += "".join(f"\n  {kind:<14} {what}" for kind, what in KINDS.items()) + "\n"
    hint = question.default or (question.example and f"e.g. {question.example}")
    return f"{text}{f' [{hint}]' if hint else ''}: "


def _check(name: str, answer: str) -> None:
    """Refuse an answer that no sweep can use.

    Raises:
        ConfigError: the answer does not fit; an empty answer is not checked.
    """
    if not answer:
        return
    match name:
        case "kind" if answer not in KINDS:
            raise ConfigError.unknown("kind", answer, valid=KINDS, where="--kind")
        case "command":
            read_command(answer)
        case "env_file" if not (answer.startswith("/") or Path(_absolute(answer)).is_file()):
            raise ConfigError(f"--env-file {answer} is no file here; write the whole path")
        case "model":
            check_model_tag(answer)
        case "parallelism":
            Parallelism.parse(answer)
        case "nodelist":
            expand(answer)
        case "flags":
            parse_flags(answer)
        case _:
            pass


_SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "cd"})


def read_command(command: str) -> tuple[str, ...]:
    """Return the words of a command line, which runs without a shell and in a trial's own folder.

    Files in the current folder have absolute paths.

    Raises:
        ConfigError: it has no {steps}, needs a shell, or names a script that does not exist.
    """
    where = f"--command {command!r}"
    try:
        words = tuple(map(_absolute, shlex.split(command)))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; write it as in a shell") from None
    if not any("{steps}" in word for word in words):
        raise ConfigError(
            f"{where} has no {{steps}}; put it where the trainer takes the number of steps, e.g. "
            f"{QUESTIONS['command'].example}"
        )
    if not _SHELL_WORDS.isdisjoint(words) or "=" in words[0]:
        raise ConfigError(
            f"{where} needs a shell, and the command runs without one; put the line into a script, "
            "and variables into `deployed` of the sweep file"
        )
    for word in words:
        if word.endswith((".py", ".sh")) and word[0] not in "/-" and "{" not in word:
            raise ConfigError(
                f"{where}: {word} is no file in this folder, and each trial runs in another "
                "folder; write the whole path"
            )
    return words


def _absolute(word: str) -> str:
    """Return a word in which the path of an existing file, perhaps after `--name=`, is absolute."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    if value.startswith("~/"):
        path = path.expanduser()
    elif path.is_absolute() or not (path.is_file() or (path.is_dir() and "/" in value)):
        return word
    return f"{option}{equals}{path.absolute()}"


_PYTHON = re.compile(r"python[\d.]*")
_FAIL_WITHOUT_JAX = "import importlib.util, sys; sys.exit(importlib.util.find_spec('jax') is None)"
_PYTHON_TIMEOUT_S = 60


# imports of a script:  import jax    from jax.sharding import Mesh
_IMPORTS_JAX = re.compile(r"^[ \t]*(?:from|import)[ \t]+jax\b", re.MULTILINE)


def _check_python(answered: Mapping[str, str]) -> None:
    """Refuse a Python without JAX for a script that imports JAX, because each trial would fail.

    Raises:
        ConfigError: the Python of the command has no JAX, and its script imports JAX.
    """
    words = read_command(answered["command"]) if "command" in answered else ()
    for script in map(Path, words[1:]):
        if script.suffix != ".py" or not script.is_file():
            continue
        text = script.read_text(encoding="utf-8", errors="replace")
        if _IMPORTS_JAX.search(text) and not _has_jax(words[0]):
            raise ConfigError(
                f"{shutil.which(words[0])} has no JAX, and {script.name} imports it; name the "
                f"trainer's Python by its path, e.g. {QUESTIONS['command'].example}"
            )


def _has_jax(program: str) -> bool:
    """Return whether a Python has JAX; True if the program is no Python or does not run here."""
    path = shutil.which(program)
    if path is None or not _PYTHON.fullmatch(Path(program).name):
        return True
    try:
        process = subprocess.run(
            [path, "-c", _FAIL_WITHOUT_JAX], timeout=_PYTHON_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return process.returncode == 0


# settings of the cell that `suggest_sweep` reads from a log
_SETTINGS_IN_LOG = ("step_pattern", "per_device_batch_size", "max_target_length")
# comments of a sweep file for trainers with other step lines; docs/how-to/trainer.md has them too
_TOKEN_SETTINGS = (
    "        # if its step lines have no Tokens/s/device: sequences per device, and their length",
    "        # per_device_batch_size=8, max_target_length=64,",
)
STEP_LINE_SETTINGS = (
    "        # if its step lines are not like `completed step: 7, seconds: 0.512, ...`:",
    '        # step_pattern=r"iter (?P<step>\\d+).* took (?P<ms>[\\d.]+) ms",',
    *_TOKEN_SETTINGS,
)


def sweep_file(answered: Mapping[str, str], *, name: str) -> str:
    """Return the text of a sweep file.

    Raises:
        ConfigError: a name, the parallelism, the nodes or a flag is malformed.
    """
    slug = re.sub(r"[^a-z0-9]", "-", name.lower()).strip("-") or "sweep"
    Parallelism.parse(answered["parallelism"])
    nodes = expand(answered["nodelist"]) if answered["nodelist"] else ()
    kind = answered["kind"]
    if kind == "maxtext-slurm" and not nodes:
        raise ConfigError("maxtext-slurm: --nodelist must name the nodes of its jobs")
    launcher, launcher_class = _LAUNCHERS[kind](answered)
    imports = {"CellSettings", "Protocol", "SiteSettings", "Sweep", "standard_tests"}
    imports.add(launcher_class)
    if study := answered.get("study"):
        if study in ("nodes", "network") and not nodes:
            raise ConfigError(f"--study {study}: --nodelist must name the nodes")
        if study == "batch" and kind == "trainer" and _SIZE_PLACEHOLDER not in answered["command"]:
            raise ConfigError(
                f"--study batch: --command must hold {_SIZE_PLACEHOLDER}, which becomes the size, "
                f"e.g. --batch={_SIZE_PLACEHOLDER}"
            )
        study_class, budget = STUDIES[study]
        compared = [f"    study={study_class}(),", f"    design=DesignSettings(budget={budget}),"]
        imports |= {study_class, "DesignSettings"}
        if study == "commits":
            launcher = f"CheckoutLauncher(repository={_repository()!r}, inner={launcher})"
            imports.add("CheckoutLauncher")
    else:
        rows = [
            f"        profile({name!r}, {str(flag)!r}),"
            for name, flag in _profiles(parse_flags(answered["flags"]))
        ]
        compared = ["    profiles=(", *rows, "    ),"]
        imports.add("profile")
    # submit.sh of maxtext-slurm runs on this machine, and submits the job by itself
    submits = bool(nodes) and kind != "maxtext-slurm"
    site = f'executor="{SLURM if submits else LOCAL}"'
    if submits:
        site += f", nodelist={nodes!r}"
    if answered.get("trial_s"):
        site += f", trial_s={answered['trial_s']}"
    return filled_in(
        "sweep.py.txt",
        slug=slug,
        model=answered["model"],
        parallelism=answered["parallelism"],
        names="\n".join(f"    {name}," for name in sorted(imports)),
        cell="\n".join([_deployed_line(answered), *_step_line_settings(answered)]),
        launcher=launcher,
        compared="\n".join(compared),
        site=site,
    )


def _repository() -> str:
    """Return the root of the git repository with the current folder, whose commits are compared.

    Raises:
        ConfigError: the current folder is in no repository.
    """
    here = Path.cwd()
    root = next((path for path in (here, *here.parents) if (path / ".git").exists()), None)
    if root is None:
        raise ConfigError(f"--study commits: {here} is in no git repository; go to the trainer's")
    return str(root)


_MAX_VALUE_CHARS, _MAX_NAME_CHARS = 24, 39  # an id may have 64 characters


def _profiles(flags: Sequence[Flag]) -> list[tuple[str, Flag]]:
    """Return each flag with an id of its name and value, e.g. `multi-thread-eigen-false`."""
    return [
        (
            _slug(f"{_slug(flag.name)[:_MAX_NAME_CHARS]}-{_slug(flag.value)[:_MAX_VALUE_CHARS]}"),
            flag,
        )
        for flag in flags
    ]


def _slug(text: str | None) -> str:
    short = re.sub(r"^xla_(?:[cg]pu_)?", "", text or "")
    return re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")


def _step_line_settings(answered: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings by which step lines are read, or comments for the user to fill in."""
    if answered["kind"] != "trainer":
        return
    from_log = {name: answered[name] for name in _SETTINGS_IN_LOG if answered.get(name)}
    if not from_log:
        yield from STEP_LINE_SETTINGS
    for name, text in from_log.items():
        yield f"        {name}={text!r}," if name == "step_pattern" else f"        {name}={text},"
    if from_log.keys() == {"step_pattern"}:
        yield from _TOKEN_SETTINGS


def _deployed_line(answered: Mapping[str, str]) -> str:
    if flags := answered.get("xla_flags"):
        return f"        deployed={{'XLA_FLAGS': {flags!r}}},"
    return '        # deployed={"XLA_FLAGS": "..."},  # what a job has without any profile'


def _trainer_launcher(answered: Mapping[str, str]) -> tuple[str, str]:
    words = read_command(answered["command"])
    cwd = f", cwd={str(Path.cwd())!r}" if "-m" in words else ""  # a module may be in this folder
    return f"CommandLauncher(argv={words!r}{cwd}{_env_files(answered)})", "CommandLauncher"


def _env_files(answered: Mapping[str, str]) -> str:
    path = answered.get("env_file", "")
    return f", env_files={(_absolute(path),)!r}" if path else ""


def _maxtext_launcher(answered: Mapping[str, str]) -> tuple[str, str]:
    arguments = ", ".join(f"{key}={answered[key]!r}" for key in ("config", "python", "module"))
    return f"MaxTextLauncher({arguments}{_env_files(answered)})", "MaxTextLauncher"


def _maxtext_slurm_launcher(answered: Mapping[str, str]) -> tuple[str, str]:
    sbatch = ("-w", answered["nodelist"])
    arguments = f"checkout={answered['checkout']!r}, sbatch={sbatch!r}"
    return f"MaxTextSlurmLauncher({arguments})", "MaxTextSlurmLauncher"


# kind of trainer -> a function of the answers that returns the launcher as code, and its class
_LAUNCHERS: Mapping[str, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    "trainer": _trainer_launcher,
    "maxtext": _maxtext_launcher,
    "maxtext-slurm": _maxtext_slurm_launcher,
}


def notes_on_flags(answered: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each flag that no known XLA has, and for each value that XLA refuses."""
    known = history().flags
    for name, flag in _profiles(parse_flags(answered.get("flags", ""))):
        hint = "" if flag.name in known else did_you_mean(flag.name, known, dashes="--")
        if hint:
            yield f"note: the catalog knows no jaxlib with --{flag.name}{hint} Correct the file"
        tried = Profile(id=name, flags=(flag,))
        for objection in objections(tried, Context(is_complete=False)):
            if objection.level is Level.FAULT:
                yield f"note: {objection.text}. Correct the file"


def required_run_option(answered: Mapping[str, str]) -> str:
    """Return an option that a run of the study needs, with an example value; "" if none."""
    study = answered.get("study")
    if study == "commits":
        return "commits main..HEAD"
    has_size = answered.get("per_device_batch_size") or answered["kind"] != "trainer"
    return "pdbs 8" if study == "batch" and not has_size else ""


def notes_on_program(answered: Mapping[str, str]) -> Iterator[str]:
    """Yield a note about a program that does not exist here, and about a Python without JAX."""
    if "command" in answered:
        program = read_command(answered["command"])[0]
    elif "python" in answered:
        program = answered["python"]
    else:
        return
    path = shutil.which(program)
    if path is None and not answered["nodelist"]:
        yield f"note: this machine has no program {program}; correct it in the file"
    if path is not None and not _has_jax(program):
        yield f"note: {path} has no JAX; if the trainer needs it, name the Python that has it"
