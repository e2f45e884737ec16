"""The command line: `xlatune COMMAND ...`. A command and what it prints are one file here.

Only the file of the command that is asked for is loaded, and it imports what it needs where it
needs it: `xlatune steps` is done before numpy is read from disk. Each file has `add_NAME`, which
declares the arguments of a command and sets `run` to the function that runs it.

Exit statuses: those of `model.exits`, where wrong usage is 2 and an interrupt 130. `flags lint` and
`flags diff` end with 1 where they find something.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune import __version__
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.exits import Exit, help_lines, of_command

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
    "compare": ("read_logs", "compare two directories of logs, one job per log"),
    "hlo": ("hlo", "show what the compiler made of a program, or how two differ"),
    "drill": ("drill", "show where the time of a step went, from its traces"),
    "compile-check": ("sweep_file", "compile a sweep's profiles; nothing is measured"),
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
    "compare": ("xlatune compare baseline/ candidate/ --gate 0.01",),
    "hlo": ("xlatune hlo dump/", "xlatune hlo before/ after/"),
    "drill": ("xlatune drill trace/", "xlatune drill before/ -- after/"),
    "compile-check": ("xlatune compile-check sweeps/test_mine.py --keep dumps/",),
    "evidence": ("xlatune evidence sweeps/test_mine.py overlap-2",),
    "flags": ("xlatune flags list", "xlatune flags lint --xla_a=1"),
    "import": ("xlatune import jobs.csv --model llama3.1-405b --parallelism FSDP=8",),
    "report": ("xlatune report", "xlatune report pp8 --zh"),
    "conclude": ("xlatune conclude .xlatune/pp8/CELL --json",),
    "history": ("xlatune history", "xlatune history /shared/tuning --json"),
    "show": ("xlatune show 'llama2-70b FSDP=8'", "xlatune show pp8 .xlatune"),
    "calibrate": ("xlatune calibrate sweeps/test_mine.py --jobs 8",),
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
        "xlatune init test_mine.py --command 'train.py {steps}' --model me --parallelism DP=4",
    ),
    "plan": ("xlatune plan sweeps/test_mine.py --budget 65",),
}
_WIDTH = 78
_FORMER = {"screen": "compile-check"}  # names that commands had
AGAINST = "--against"  # of `drill`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    name = given[0] if given else ""
    if name in _FORMER:
        return complain([f"`xlatune {name}` is called `xlatune {_FORMER[name]}` now"])
    if name == "drill":  # argparse drops the `--` between the variants
        given = [AGAINST if each == "--" else each for each in given]
    if name == "flags":  # a word that begins with a blank is no option for argparse
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
            raise
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


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the one that is asked for has its arguments."""
    parser = argparse.ArgumentParser(
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
        module = import_module(f"{__name__}.{COMMANDS[name][0]}")
        getattr(module, f"add_{name.replace('-', '_')}")(added[name])
    if name in EXAMPLES:
        own = textwrap.wrap(added[name].epilog or "", _WIDTH)
        examples = ["examples:", *(f"  {each}" for each in EXAMPLES[name])]
        added[name].epilog = "\n".join([*examples, *([""] if own else []), *own])
        added[name].formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def add_commands(
    parser: argparse.ArgumentParser, lines: Mapping[str, str], *, metavar: str
) -> dict[str, argparse.ArgumentParser]:
    """Add commands, one of which must be given: name -> line in the list, and head of its help."""
    added = parser.add_subparsers(required=True, metavar=metavar)
    return {
        name: added.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        for name, line in lines.items()
    }


# options of what runs, and of what writes reports
OF_A_SESSION = frozenset({"notify-file", "notify-variable", "negative"})
OF_A_RUN = OF_A_SESSION | {"log-level", "reports", "access", "ask-above"}


def add_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] = (),
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Add the options of a sweep to a command; `only` some of them, or not those left out."""
    from pytest_xlatune.sweep.groups import OPTIONS

    for option in OPTIONS:
        if (not only or option.name in only) and option.name not in leave_out:
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.help
            )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def options_of(arguments: argparse.Namespace) -> RunSettings:
    """Return the options of a sweep as the command line, the environment and files say them.

    Raises:
        ConfigError: one is misspelt or malformed.
    """
    from pytest_xlatune.sweep.settings import resolve_options

    return resolve_options(vars(arguments), os.environ, {}, root=Path.cwd(), prefix="--")


def resolved_sweep(path: Path, options: RunSettings) -> ResolvedSweep:
    """Return the sweep that a file declares, resolved with options.

    Raises:
        ConfigError: there is no such sweep, or it does not fit the options.
    """
    from pytest_xlatune.sweep.declaration import load_sweep

    return load_sweep(path).resolve(options.said)


def show(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        print(line, flush=True)


def show_json(document: Json) -> None:
    """Print one JSON document."""
    import json

    print(json.dumps(document, indent=2, allow_nan=False))


def show_document(document: Document, *, width: int | None = None) -> None:
    """Print a report as wide as the terminal."""
    import shutil

    from pytest_xlatune.report.render import terminal

    width = width or shutil.get_terminal_size().columns
    print("\n".join(terminal(document, width=width)), end="\n\n")


def complain(problems: Iterable[str], *, status: Exit = Exit.USAGE) -> int:
    """Say on stderr what could not be done; return the exit code, 0 where there is nothing."""
    code = 0
    for problem in problems:
        print(f"xlatune: {problem}", file=sys.stderr)
        code = of_command(status)
    return code
