"""The command line: `xlatune COMMAND ...`. A command and what it prints are one file here.

Only the file of the command that is asked for is loaded, and it imports what it needs where it
needs it: `xlatune steps` is done before numpy is read from disk. Each file has `add_NAME`, which
declares the arguments of a command and sets `run` to the function that runs it.

Exit statuses: those of `model.errors`, where wrong usage is 2 and an interrupt 130. `flags lint`
and `flags diff` end with 1 where they find something.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_xlatune import __version__, owned
from pytest_xlatune.model.errors import (
    ConfigError,
    Exit,
    XlatuneError,
    help_lines,
    hide_secrets_of,
    of_command,
    shown,
)

if TYPE_CHECKING:
    from pytest_xlatune.model.record import Json
    from pytest_xlatune.report.document import Document
    from pytest_xlatune.sweep.groups import RunSettings
    from pytest_xlatune.sweep.resolved import ResolvedSweep

# command -> its file, and its line in the list of all
COMMANDS = {
    "steps": ("read_logs", "show the steps and the score of logs, of any run"),
    "triage": ("read_logs", "show what went wrong in a log, root cause first"),
    "megascale": ("megascale", "show why a multi-slice TPU job hangs, by the digests in its logs"),
    "compare": ("read_logs", "compare two directories of logs, one job per log, or two ledgers"),
    "hlo": ("hlo", "show what the compiler made of a program, or how two differ"),
    "drill": ("drill", "show where the time of a step went, from its traces"),
    "compile-check": ("sweep_file", "compile a sweep's profiles; nothing is measured"),
    "shrink": ("sweep_file", "reduce a profile that fails to the fewest settings that still do"),
    "evidence": (
        "sweep_file",
        "run profiles once more with profiler and dump; they are not scored",
    ),
    "network": ("network", "show why the network between slices is slow, by traces"),
    "flags": ("flags", "explain settings, and find faults in profiles"),
    "import": ("import_", "read a CSV of jobs that were run by hand into a ledger"),
    "report": ("ledgers", "show and write the reports of measured cells"),
    "conclude": ("ledgers", "compute every verdict of a ledger again"),
    "history": ("ledgers", "list all that was measured: dates, cells, winners, costs"),
    "show": ("ledgers", "show the course of one cell over its sweeps and gates"),
    "calibrate": ("sweep_file", "run trials that measure how noisy a sweep's cell is"),
    "study": ("study", "run the study that a sweep file declares, without pytest"),
    "gate": ("gate", "write the test file of a commit gate, and a CI job that runs it"),
    "cvs": ("cvs", "read configurations of AMD's cluster validation suite"),
    "watch": ("watch", "show all cells below a folder as they run; it changes nothing"),
    "jobs": ("ledgers", "list the jobs in the ledgers, or end them"),
    "init": ("init", "write a sweep file, from options or by asking"),
    "plan": ("sweep_file", "show what a sweep would run; nothing is submitted"),
}
# what to type, below the help of each command
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "steps": ("xlatune steps slurm-4711.out", "xlatune steps run/log.0.txt --json"),
    "triage": ("xlatune triage slurm-4711.out",),
    "megascale": ("xlatune megascale worker-0.log",),
    "network": ("xlatune network traces/ --link 200",),
    "compare": (
        "xlatune compare baseline/ candidate/ --gate 0.01",
        "xlatune compare .xlatune/pp8/CELL later/.xlatune/pp8/CELL",
    ),
    "hlo": ("xlatune hlo dump/", "xlatune hlo before/ after/"),
    "drill": (
        "xlatune drill trace/",
        "xlatune drill before/ -- after/",
        "xlatune drill base/ -- overlap/ -- unrolled/ --top 30 --full-names",
        "xlatune drill trace/ --csv > rows.csv",
        "xlatune drill trace/ --program dump/ --timeline step.json.gz --pgle step.pbtxt",
        "xlatune drill before/ -- after/ --by-path --collectives",
    ),
    "compile-check": ("xlatune compile-check sweeps/test_mine.py --keep dumps/",),
    "shrink": (
        "xlatune shrink sweeps/test_mine.py:everything",
        "xlatune shrink sweeps/test_mine.py:everything --trials 20",
    ),
    "evidence": ("xlatune evidence sweeps/test_mine.py overlap-2",),
    "flags": ("xlatune flags list", "xlatune flags lint --xla_a=1"),
    "import": ("xlatune import jobs.csv --model llama3.1-405b --parallelism FSDP=8",),
    "report": ("xlatune report", "xlatune report pp8 --zh", "xlatune report --export csv,bmf"),
    "conclude": ("xlatune conclude .xlatune/pp8/CELL --json",),
    "history": ("xlatune history", "xlatune history /shared/tuning --json"),
    "show": ("xlatune show 'llama2-70b FSDP=8'", "xlatune show pp8 .xlatune"),
    "calibrate": (
        "xlatune calibrate sweeps/test_mine.py --jobs 8",
        "xlatune calibrate sweeps/test_mine.py --nodelist 'node[001-064]' --slots 8",
        "xlatune calibrate sweeps/test_mine.py --allocations 4 --starts 3",
    ),
    "study": (
        "xlatune study nodes sweeps/test_nodes.py --nodelist 'node[001-032]' --model llama2-70b",
        "xlatune study nodes sweeps/test_nodes.py --plan",
        "xlatune study commits sweeps/test_commits.py --commits main..HEAD",
    ),
    "gate": ("xlatune gate init --help",),
    "cvs": ("xlatune cvs show config.json", "xlatune cvs show --help"),
    "watch": ("xlatune watch", "xlatune watch pp8 --once"),
    "jobs": ("xlatune jobs", "xlatune jobs --cancel"),
    "init": (
        "xlatune init sweeps/test_mine.py",
        "xlatune init test_me.py --command 'python3 /me.py {steps}' --model m --parallelism DP=4",
    ),
    "plan": ("xlatune plan sweeps/test_mine.py --budget 65",),
}
_WIDTH = 78
_FORMER = {"screen": "compile-check"}  # names that commands had
AGAINST = "--against"  # of `drill`
TRIAL = "SWEEP:PROFILE or a trial's id for one that `evidence` recorded"  # of `drill`, `hlo`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    hide_secrets_of(os.environ)
    name = given[0] if given else ""
    if name in _FORMER:
        return complain([f"`xlatune {name}` is called `xlatune {_FORMER[name]}` now"])
    if name == "drill":  # argparse drops the `--` between the variants
        given = [AGAINST if each == "--" else each for each in given]
    if name in ("flags", "init"):  # a word that begins with a blank is no option for argparse
        given = [f" {each}" if each.startswith("--xla_") else each for each in given]
    arguments = argparse.Namespace()
    try:
        try:
            _parser(name).parse_args(given, arguments)
            if any(each.startswith("XLATUNE_") for each in os.environ):
                from pytest_xlatune.sweep.settings import refuse_misspelt

                refuse_misspelt(os.environ)  # of every command, one that reads no setting too
            exit_code: int = arguments.run(arguments)
            return exit_code
        finally:
            sys.stdout.flush()  # a reader that has gone is told here, not when Python ends
    except XlatuneError as error:
        return complain([_as_typed(str(error), arguments)], status=error.exit)
    except KeyboardInterrupt:
        return complain(["interrupted"], status=Exit.INTERRUPTED)
    except OSError as error:
        if error.filename is not None:  # not the output, which has no name here
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            said = f"{os.fsdecode(error.filename)}: {error.strerror}"
            return complain([said], status=Exit.INTERNAL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # `xlatune steps ... | head`: head has what it wants
            return 0
        return complain([f"the output cannot be written: {error.strerror}"], status=Exit.INTERNAL)


def _as_typed(message: str, arguments: argparse.Namespace) -> str:
    """Name the command's own options as they are typed here: without the `xlatune-` of pytest."""

    def typed(found: re.Match[str]) -> str:
        is_ours = f"xlatune_{found[1].replace('-', '_')}" in arguments
        return f"--{found[1]}" if is_ours else found[0]

    # --xlatune-budget
    return re.sub(r"--xlatune-([a-z]+(?:-[a-z]+)*)", typed, message)


# invalid choice: 'step' (choose from 'steps', 'triage')       unrecognized arguments: --jsn
_WRONG_CHOICE = re.compile(r"invalid choice: '(?P<said>[^']*)' \(choose from (?P<known>.*)\)")
_WRONG_OPTION = re.compile(r"unrecognized arguments: (?P<said>--[\w-]+)")


class _Commands(argparse.ArgumentParser):
    """A parser that names the nearest command or option where one is mistyped."""

    command: argparse.ArgumentParser | None = None  # the one that was asked for

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        import difflib

        known: list[str] = []
        if (match := _WRONG_CHOICE.search(message)) is not None:
            known = re.findall(r"[\w-]+", match["known"])
        elif (match := _WRONG_OPTION.search(message)) is not None and self.command is not None:
            known = [*self.command._option_string_actions]  # noqa: SLF001 - help lacks some
        near = difflib.get_close_matches(match["said"], known, n=1) if match else []
        more = f"; did you mean {near[0]}?" if near else ""
        if message.endswith(("required: COMMAND", "required: ACTION")):
            more = f"; `{self.prog} --help` lists them"
        # its usage, not that of all commands
        one = (self.command or self) if message.startswith("unrecognized") else self
        argparse.ArgumentParser.error(one, shown(message + more))


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the one that is asked for has its arguments."""
    parser = _Commands(
        prog="xlatune",
        description="Sweeps of XLA flags and NCCL variables: logs, ledgers, plans.",
        epilog="\n".join(
            [
                "`xlatune COMMAND --help` has examples.",
                "",
                "exit statuses:",
                *help_lines(of_command_line=True),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    lines = {each: line for each, (_, line) in COMMANDS.items()}
    added = add_commands(parser, lines, metavar="COMMAND")
    if name in added:
        parser.command = added[name]
        with _without_threads():
            module = import_module(f"{__name__}.{COMMANDS[name][0]}")
        getattr(module, f"add_{name.replace('-', '_')}")(added[name])
    if name in EXAMPLES:
        own = textwrap.wrap(added[name].epilog or "", _WIDTH)
        examples = ["examples:", *(f"  {each}" for each in EXAMPLES[name])]
        added[name].epilog = "\n".join([*examples, *([""] if own else []), *own])
        added[name].formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def _without_threads() -> Iterator[None]:
    """Load the file of a command; where that loads numpy, start no threads for linear algebra.

    It would start one for each core, which costs more than to read a small capture, and no command
    needs them. What the user says stands, and what the command starts later inherits nothing.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


def add_commands(
    parser: argparse.ArgumentParser, lines: Mapping[str, str], *, metavar: str
) -> dict[str, argparse.ArgumentParser]:
    """Add commands, one of which must be given: name -> line in the list, and head of its help."""
    # with its name given, argparse formats no usage to find it, for which it loads shutil
    added = parser.add_subparsers(required=True, metavar=metavar, prog=parser.prog)
    return {
        name: added.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        for name, line in lines.items()
    }


# options of what runs, and of what writes reports
OF_A_SESSION = frozenset({"notify-file", "negative"})
OF_A_RUN = OF_A_SESSION | {"log-level", "reports", "export", "access", "ask-above"}


def add_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] = (),
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Add the options of a sweep to a command; `only` some of them, or not those left out.

    Help shows those that are named by `only`, else those of every day, and where the others are.
    """
    from pytest_xlatune.sweep.groups import EVERY, FLAG, OPTIONS, is_daily

    for option in OPTIONS:
        if (not only or option.name in only) and option.name not in leave_out:
            shown = option.help if only or is_daily(option.flag) else argparse.SUPPRESS
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=shown
            )
    if not only:
        more = f"All other settings are options here too; `{EVERY}` lists them, as {FLAG}NAME."
        parser.epilog = f"{parser.epilog} {more}" if parser.epilog else more


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def options_of(arguments: argparse.Namespace) -> RunSettings:
    """Return the options of a sweep as the command line, the environment and files say them.

    Raises:
        ConfigError: one is misspelt or malformed.
    """
    from pytest_xlatune.sweep.settings import resolve_options

    options = resolve_options(vars(arguments), os.environ, {}, root=Path.cwd(), prefix="--")
    owned.trust_group(options.workdir if options.access == "group" else None)
    return options


def resolved_sweep(path: Path, options: RunSettings) -> ResolvedSweep:
    """Return the sweep that a file declares, resolved with options.

    Raises:
        ConfigError: there is no such sweep, or it does not fit the options.
    """
    from pytest_xlatune.sweep.declaration import load_sweep

    return load_sweep(path).resolve(options.said, workdir=options.workdir)


def show(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        print(line, flush=True)


def show_json(document: Json) -> None:
    """Print one JSON document."""
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def show_document(document: Document) -> None:
    """Print a report as wide as the terminal."""
    import shutil

    from pytest_xlatune.report.render import terminal

    width = shutil.get_terminal_size().columns
    print("\n".join(terminal(document, width=width)), end="\n\n")


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add `--html` to a command."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too")


def check_page(path: Path | None) -> None:
    """Find out before anything is read that a page can be written; None asks for none.

    Raises:
        ConfigError: jinja2 is not installed, or a folder has that name.
    """
    if path is None:
        return
    from pytest_xlatune.tasks.publish import NO_JINJA, has_pages

    if not has_pages():
        raise ConfigError(NO_JINJA)
    if path.is_dir():
        raise ConfigError(f"--html {path} is a folder; name a file in it: {path / 'page.html'}")


def write_files(texts: Mapping[Path, str]) -> None:
    """Write files for a person, their folders too, and name them.

    Raises:
        ConfigError: one cannot be written.
    """
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"{path} cannot be written: {why}; name another place") from None
    show(f"written: {path}" for path in texts)


def write_page(document: Document, path: Path, *, source: str) -> None:
    """Write a document as a page; `source` is where its figures come from.

    Raises:
        ConfigError: the file cannot be written.
    """
    from pytest_xlatune.report.page import document_page, html
    from pytest_xlatune.tasks.publish import write_all

    try:
        write_all({path: html(document_page(document, source=source))})
    except OSError as error:
        raise ConfigError(f"{path}: the page cannot be written: {error.strerror}") from None


@contextmanager
def jobs_of(folder: Path) -> Iterator[None]:
    """End the jobs of a cell that no process waits for behind the block; say so at an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        say_interrupted()
        raise
    finally:
        end_jobs(folder)


def say_interrupted(*, keep: bool = False) -> None:
    """Say at once what an interrupt does: ending jobs may take a minute."""
    done = ": jobs run on, and the next run goes on with them"
    if not keep:
        done = (
            ". Jobs that no other session waits for are ended now, which may take a minute. "
            "Ctrl-C again leaves them running: the next run goes on with them"
        )
    complain([f"interrupted{done}"])


def end_jobs(folder: Path) -> None:
    """End the jobs of a cell that no process waits for; an interrupt leaves them running."""
    from pytest_xlatune.campaign.jobs import cancel_unwaited

    try:
        ended = ", ".join(each.job_id for each in cancel_unwaited(folder))
    except KeyboardInterrupt:
        show(["xlatune: jobs that still run are left alone; run again to go on"])
    else:
        show([f"xlatune: ended {ended}, for no session waits for them"] if ended else [])


def complain(problems: Iterable[str], *, status: Exit = Exit.USAGE) -> int:
    """Say on stderr what could not be done; return the exit code, 0 where there is nothing."""
    code = 0
    for problem in problems:
        print(f"xlatune: {shown(problem)}", file=sys.stderr)
        code = of_command(status)
    return code
