"""`xlatune init`: write a sweep file from options, and from answers to questions about the rest.

`tasks/templates/init.toml` has the questions, each of which is an option too. A log of the trainer,
or one trial of its command, answers some of them.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import did_you_mean
from pytest_xlatune.cli.show import Output, show
from pytest_xlatune.executors import LOCAL, SLURM
from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.logs.triage import ended_by, primary
from pytest_xlatune.model.cell import Axis, Parallelism, check_model_tag
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import NoScore
from pytest_xlatune.model.profile import Flag, parse_flags
from pytest_xlatune.model.text import duration, to_integer
from pytest_xlatune.prepare.compile_check import run_in
from pytest_xlatune.report.document import Document, brief, lines
from pytest_xlatune.studies.calibration import JOBS
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import UserOptions
from pytest_xlatune.tasks.files import TEMPLATES, UnreadableLogError, filled_in
from pytest_xlatune.tasks.read_logs import TOKENS, logs_of, positive, read_one, steps_document


class InitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a sweep file: a question is asked for it if its option is not given.

    `tasks/templates/init.toml` has the questions, and says what each field means.
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


_INIT = msgspec.toml.decode(TEMPLATES.joinpath("init.toml").read_bytes(), type=_Init)
KINDS, STUDIES, QUESTIONS = _INIT.kinds, _INIT.studies, _INIT.questions
_SIZE_PLACEHOLDER = "{per_device_batch_size}"  # in a command; becomes the batch size
_GPU_FLAG = "--xla_gpu_enable_latency_hiding_scheduler=true"
_CPU_FLAG = "--xla_cpu_multi_thread_eigen=false"
_TRIAL_LIMIT_S = 600  # the most seconds of the trial that `--try` runs
_MAX_ID_CHARS = 64


def add_init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", type=Path, metavar="SWEEP_FILE", help="the file to write, named test_NAME.py"
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="a log of your trainer: init reads answers from it and asks only the rest",
    )
    parser.add_argument(
        "--try",
        dest="is_tried",
        action="store_true",
        help="run the command once on this machine, as one trial of 15 steps and 10 minutes at "
        "most, and show what its output says",
    )
    parser.add_argument(
        "--study",
        choices=tuple(STUDIES),
        help="write a study of nodes, network, batch sizes or commits in place of a sweep of flags",
    )
    for name, question in QUESTIONS.items():
        example = f", e.g. {question.example}" if question.example else ""
        default = f" ({question.default})" if question.default else ""
        kinds = f": {', '.join(KINDS)}" if name == "kind" else ""
        text = f"{question.text}{kinds}{example}{default}".replace("%", "%%")
        choices = tuple(KINDS) if name == "kind" else None
        metavar = "FILE" if name == "env_file" else name.upper()
        parser.add_argument(_option_of(name), metavar=metavar, help=text, choices=choices)
    parser.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> Output:
    path: Path = arguments.file
    if path.exists():
        raise ConfigError(f"{path} exists; name a new file, nothing is overwritten")
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise ConfigError(
            f"{path}: pytest reads only files that are named test_*.py; name it test_{path.stem}.py"
        )
    suggested = _suggested(arguments.log) if arguments.log is not None else {}
    options = {name: text for name, text in vars(arguments).items() if text is not None}
    ask = input if sys.stdin.isatty() else None
    try:
        answered = suggested | answers(suggested | options, ask)
    except EOFError:
        raise ConfigError("the input ended before the last question") from None
    if arguments.study:
        answered["study"] = arguments.study
    sweep_name = path.stem.removeprefix("test_")
    documents: list[Document] = []
    problem = ""
    if arguments.is_tried:
        show(["one trial of the command runs now, 10 minutes at most ..."])
        problem, documents = _try_sweep(answered, name=sweep_name)
    planned = run = shlex.quote(str(path))
    has_size = answered.get("per_device_batch_size") or answered["kind"] != "trainer"
    if arguments.study == "commits":
        planned, run = f"{planned} --commits main..HEAD", f"{run} --xlatune-commits main..HEAD"
    elif arguments.study == "batch" and not has_size:
        planned, run = f"{planned} --pdbs 8", f"{run} --xlatune-pdbs 8"
    next_steps = [
        f"xlatune plan {planned}    the trials, their cost, and what they can show",
        f"pytest {run}          runs it",
        *_notes(answered),
    ]
    documents.append(brief("What to do next", lines(*next_steps)))
    if problem:
        problem += f". {path} is written all the same: correct it, or remove it and run init again"
    return Output(
        files={path: _sweep_file(answered, name=sweep_name)},
        problems=(problem,) if problem else (),
        documents=documents,
    )


def _option_of(name: str) -> str:
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
    for name, question in QUESTIONS.items():
        if name == "flags" and options.get("study"):
            continue
        if question.kinds and answered.get("kind") not in question.kinds:
            if options.get(name):
                kinds = " or ".join(question.kinds)
                raise ConfigError(f"{_option_of(name)} belongs to --kind {kinds}")
            continue
        default = question.default
        if name == "flags":
            # a GPU flag would only show noise on a machine without a GPU
            default = _GPU_FLAG if answered["nodelist"] else _CPU_FLAG
        if name == "model" and ask is not None:
            default = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path.cwd().name).strip("._+-")
        answer = options.get(name)
        if answer is None and ask is not None:
            hint = default or (question.example and f"e.g. {question.example}")
            lists = [f"  {kind:<14} {what}" for kind, what in KINDS.items() if name == "kind"]
            text = "\n".join([question.text, *lists])
            answer = ask(f"{text}{f' [{hint}]' if hint else ''}: ").strip()
        answered[name] = str(answer or "") or default
        if answered[name]:
            _CHECKS.get(name, str)(answered[name])
        elif not question.is_optional:
            missing.append(_option_of(name))
    if missing:
        raise ConfigError(f"{', '.join(missing)}: an answer is needed; give it as an option")
    if "command" in answered and not answered["nodelist"]:
        _check_python(read_command(answered["command"]))
    return answered


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


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError.unknown("kind", kind, valid=KINDS, where="--kind")


def _check_env_file(path: str) -> None:
    if not (path.startswith("/") or Path(_absolute(path)).is_file()):
        raise ConfigError(f"--env-file {path} is no file here; write the whole path")


# question -> a function that refuses an answer that no sweep can use
_CHECKS: Mapping[str, Callable[[str], object]] = {
    "kind": _check_kind,
    "command": read_command,
    "env_file": _check_env_file,
    "model": check_model_tag,
    "parallelism": Parallelism.parse,
    "nodelist": expand,
    "flags": parse_flags,
}


_PYTHON = re.compile(r"python[\d.]*")
# imports of a script:  import jax    from jax.sharding import Mesh
_IMPORTS_JAX = re.compile(r"^[ \t]*(?:from|import)[ \t]+jax\b", re.MULTILINE)
_EXIT_NO_JAX = 7
_FIND_JAX = (
    "import importlib.util, sys\n"
    f"sys.exit(0 if importlib.util.find_spec('jax') else {_EXIT_NO_JAX})"
)


def _check_python(words: tuple[str, ...]) -> None:
    """Refuse a Python without JAX for a script that imports JAX, because each trial would fail.

    Raises:
        ConfigError: the Python of the command has no JAX, and its script imports JAX.
    """
    python = shutil.which(words[0])
    if python is None or not _PYTHON.fullmatch(Path(python).name):
        return
    for script in map(Path, words[1:]):
        if script.suffix != ".py" or not script.is_file():
            continue
        text = script.read_text(encoding="utf-8", errors="replace")
        if not _IMPORTS_JAX.search(text):
            continue
        process = subprocess.run([python, "-c", _FIND_JAX], check=False)
        if process.returncode == _EXIT_NO_JAX:
            raise ConfigError(
                f"{python} has no JAX, and {script.name} imports it; name the trainer's Python by "
                f"its path, e.g. {QUESTIONS['command'].example}"
            )


def _sweep_file(answered: Mapping[str, str], *, name: str) -> str:
    """Return the text of a sweep file.

    Raises:
        ConfigError: an answer that this kind of trainer or study needs is missing.
    """
    nodes = expand(answered["nodelist"]) if answered["nodelist"] else ()
    kind, study = answered["kind"], answered.get("study", "")
    env_file = answered.get("env_file", "")
    env_files = f", env_files={(_absolute(env_file),)!r}" if env_file else ""
    match kind:
        case "trainer":
            words = read_command(answered["command"])
            # a module may be in this folder
            cwd = f", cwd={str(Path.cwd())!r}" if "-m" in words else ""
            launcher = f"CommandLauncher(argv={words!r}{cwd}{env_files})"
        case "maxtext":
            keys = ", ".join(f"{key}={answered[key]!r}" for key in ("config", "python", "module"))
            launcher = f"MaxTextLauncher({keys}{env_files})"
        case _:
            if not nodes:
                raise ConfigError("maxtext-slurm: --nodelist must name the nodes of its jobs")
            sbatch = ("-w", answered["nodelist"])
            checkout = answered["checkout"]
            launcher = f"MaxTextSlurmLauncher(checkout={checkout!r}, sbatch={sbatch!r})"
    imports = {"CellSettings", "Protocol", "SiteSettings", "Sweep", "standard_tests"}
    imports.add(launcher.partition("(")[0])
    if study:
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
        flags = parse_flags(answered["flags"])
        rows = [f"        profile({_profile_id(flag)!r}, {str(flag)!r})," for flag in flags]
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
        slug=re.sub(r"[^a-z0-9]", "-", name.lower()).strip("-") or "sweep",
        model=answered["model"],
        parallelism=answered["parallelism"],
        names="\n".join(f"    {name}," for name in sorted(imports)),
        cell="\n".join(_cell_lines(answered)),
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


def _profile_id(flag: Flag) -> str:
    """Return an id of a flag's name and value, e.g. `multi-thread-eigen-false`."""
    short = re.sub(r"^xla_(?:[cg]pu_)?", "", f"{flag.name}-{flag.value or ''}".lower())
    # if it is too long, the beginning is cut off, because the end has the value
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-")[-_MAX_ID_CHARS:].strip("-")


def _cell_lines(answered: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of the cell that are known, and comments for the others."""
    if flags := answered.get("xla_flags"):
        yield f"        deployed={{'XLA_FLAGS': {flags!r}}},"
    else:
        yield '        # deployed={"XLA_FLAGS": "..."},  # what a job has without any profile'
    if answered["kind"] != "trainer":
        return
    if pattern := answered.get("step_pattern"):
        yield f"        step_pattern={pattern!r},"
    else:
        yield "        # if its step lines are not like `completed step: 7, seconds: 0.512, ...`:"
        yield '        # step_pattern=r"iter (?P<step>\\d+).* took (?P<ms>[\\d.]+) ms",'
    if sizes := [f"        {name}={answered[name]}," for name in TOKENS if answered.get(name)]:
        yield from sizes
    else:
        yield "        # if its step lines have no Tokens/s/device: sequences per device and length"
        yield "        # per_device_batch_size=8, max_target_length=64,"


def _notes(answered: Mapping[str, str]) -> Iterator[str]:
    """Yield a note about a program that is not here, and about each flag that no XLA has."""
    command = answered.get("command")
    program = read_command(command)[0] if command else answered.get("python")
    if program and not answered["nodelist"] and shutil.which(program) is None:
        yield f"note: this machine has no program {program}; correct it in the file"
    known = history().flags
    for flag in parse_flags(answered.get("flags", "")):
        hint = "" if flag.name in known else did_you_mean(flag.name, known, dashes="--")
        if hint:
            yield f"note: the catalog knows no jaxlib with --{flag.name}{hint} Correct the file"


def _suggested(path: Path) -> dict[str, str]:
    """Return answers that a log has, and other settings for the sweep file.

    Raises:
        UnreadableLogError: the log cannot be read, or its trainer is not known.
    """
    log = read_one(logs_of(path)[0], is_any=True)
    report = log.report
    config = {**report.asked, **report.config}
    sizes = {name: positive(config.get(name, "")) for name in TOKENS}
    found = {
        "kind": "maxtext-slurm" if report.asked else "maxtext" if report.config else "trainer",
        "model": config.get("model_name", ""),
        "parallelism": _parallelism(config),
        "step_pattern": log.fits,
        **{name: f"{size:g}" for name, size in sizes.items() if size is not None},
        "xla_flags": report.xla_flags or "",
    }
    return {name: answer for name, answer in found.items() if answer}


def _parallelism(config: Mapping[str, str]) -> str:
    """Return the axes above 1; "" if there are none, or if MaxText chooses one (-1)."""
    sizes: dict[str, int] = {}
    for axis in sorted(Axis, key=lambda axis: axis is not Axis.PP):
        parts = [to_integer(config.get(f"{net}_{axis}_parallelism", "1")) for net in ("dcn", "ici")]
        if any(part is None or part < 1 for part in parts):
            return ""
        sizes[axis.name] = math.prod(part or 1 for part in parts)
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1)


def _try_sweep(answered: dict[str, str], *, name: str) -> tuple[str, list[Document]]:
    """Run the baseline once, as the first trial of the sweep; note in `answered` what it shows.

    Return why a trial of the sweep would have no score ("" if it would), and what its log shows.

    Raises:
        ConfigError: its program does not run here, or a trial could not be started with it.
    """
    if answered["kind"] != "trainer" or answered["nodelist"]:
        raise ConfigError(
            "--try runs the --command of --kind trainer on this machine; leave it out with other "
            "kinds"
        )
    with TemporaryDirectory() as scratch:
        file, folder = Path(scratch) / "test_trial.py", Path(scratch) / "trial"
        file.write_text(_sweep_file({**answered, "study": ""}, name=name), encoding="utf-8")
        resolved = load_sweep(file).resolve(UserOptions())
        trial = resolved.calibration(JOBS).trials[0]
        spec = resolved.sweep.launcher.launch(trial, resolved.cell)
        outcome = run_in(folder, replace(spec, deadline_s=_TRIAL_LIMIT_S))
        if not outcome.is_started:
            return f"the trial did not start: {outcome.reason}", []
        took_s = (outcome.end_s or 0.0) - (outcome.start_s or 0.0)
        head = f"one trial took {duration(took_s)}, its end: {ended_by(outcome)}"
        try:
            tokens = resolved.cell.tokens_per_device_step
            log = read_one(folder / log_name(), tokens=tokens, is_any=True)
        except UnreadableLogError as error:
            return f"{head}, and its output {error.reason}", []
    answered.setdefault("trial_s", f"{took_s:.1f}")
    answered.setdefault("step_pattern", log.fits)
    problem, cause = "", primary(log.findings)
    if isinstance(log.score, NoScore):
        why = f"; {cause.cls}: {cause.text}" if cause is not None else ""
        problem = f"{head}, and has no score: {sentence(log.score.reason)}{why}"
    return problem, [steps_document(log, title=head)]
