"""`xlatune cvs`: what a CVS configuration says, and what it needs before it can run."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.cli import (
    OF_A_SESSION,
    add_commands,
    add_json,
    add_options,
    complain,
    options_of,
    show,
    show_json,
    write_files,
)
from pytest_xlatune.cli.running import jobs_of
from pytest_xlatune.guests.cvs.files import (
    CvsGiven,
    dropped_of,
    given_of,
    given_values,
    read_cvs_file,
    text_of,
    thresholds_of,
)
from pytest_xlatune.guests.cvs.reading import CvsFile
from pytest_xlatune.guests.cvs.written import least_values, with_least_values
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.redact import without_secrets
from pytest_xlatune.prepare.compilers import check_sweep
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.tasks import new_session_id
from pytest_xlatune.tasks.live import Feed
from pytest_xlatune.tasks.runs import Runs, calibrate

_WIDTH = 100
_LINES = {
    "show": "show what files say, their open items, and what each key becomes",
    "calibrate": "measure thresholds: jobs of the file against itself, with their noise",
}


def add_cvs(parser: argparse.ArgumentParser) -> None:
    """Declare the commands and their arguments."""
    added = add_commands(parser, _LINES, metavar="ACTION")
    one = added["show"]
    one.epilog = (
        "examples:\n"
        "  xlatune cvs show mi300x_singlenode_llama3_1_70b.json\n"
        "  xlatune cvs show config.json --cluster cluster.json --json\n"
        "  xlatune cvs show config.json --cvs-set config.nnodes=4\n\n"
        "exit status 0: complete; 2: something is open, or a file is no CVS file"
    )
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a configuration, thresholds or cluster file of CVS",
    )
    one.add_argument(
        "--leaves", action="store_true", help="list each value of the file with what becomes of it"
    )
    add_json(one)
    _add_given(one)
    one.set_defaults(run=_show)

    third = added["calibrate"]
    third.epilog = (
        "example:\n"
        "  xlatune cvs calibrate config.json -o new_threshold.json --nodelist 'node[001-004]'\n\n"
        "A threshold is the mean less three standard deviations of a job, with the number of\n"
        "jobs, the date, and how often a healthy job misses it. Jobs that were measured are reused."
    )
    third.formatter_class = argparse.RawDescriptionHelpFormatter
    third.add_argument("file", type=Path, metavar="FILE", help="a configuration")
    third.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="NEW",
        help="a new file for the thresholds; of generation 1 the configuration with the "
        "thresholds in it",
    )
    third.add_argument("--jobs", type=int, default=12, metavar="N", help="jobs of each cell (12)")
    third.add_argument("--yes", dest="xlatune_yes", action="store_true", help=_YES)
    _add_given(third, has_nodes=False)
    add_options(third, leave_out=OF_A_SESSION)
    third.set_defaults(run=_calibrate)


def _add_given(parser: argparse.ArgumentParser, *, has_nodes: bool = True) -> None:
    parser.add_argument(
        "--cluster", "--cvs-cluster", type=Path, metavar="FILE", help="CVS' cluster file"
    )
    parser.add_argument(
        "--cvs-set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="fill in a value of the file, e.g. container.env.NCCL_SOCKET_IFNAME=eno1",
    )
    if has_nodes:
        parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes the run has")


def _given(arguments: argparse.Namespace) -> CvsGiven:
    if arguments.nodes is not None and arguments.nodes < 1:
        raise ConfigError(f"--nodes {arguments.nodes}: expected 1 or more")
    return CvsGiven(
        cluster=arguments.cluster, values=given_values(arguments.cvs_set), nodes=arguments.nodes
    )


def _show(arguments: argparse.Namespace) -> int:
    given, documents, problems, status = _given(arguments), [], [], 0
    for path in arguments.files:
        try:
            found = read_cvs_file(path, given)
        except ConfigError as error:
            problems.append(str(error))
            documents.append({"schema": 1, "file": str(path), "error": str(error)})
            continue
        documents.append(found.to_json())
        status = 2 if found.open_items else status
        if not arguments.json:
            show(_lines(found, is_full=arguments.leaves))
    if arguments.json and (len(arguments.files) > 1 or not problems):
        show_json(documents if len(arguments.files) > 1 else documents[0])
    return complain(problems) or status


def _calibrate(arguments: argparse.Namespace) -> int:
    """Run the jobs of each cell, and write the thresholds that they show."""
    path, new = arguments.file, arguments.output
    if new.exists():
        raise ConfigError(f"{new} exists: name another file, or move it away")
    options = options_of(arguments)
    given, runtime = given_of(
        options.said.values, cluster=arguments.cluster, values=given_values(arguments.cvs_set)
    )
    file = read_cvs_file(path, given)
    session, found, written = new_session_id(), {}, ""
    for cell in file.cells:
        sweep = Sweep.from_cvs(
            path,
            cell=cell.name,
            cluster=given.cluster,
            values=given.values,
            nodes=given.nodes,
            runtime=runtime,
        )
        resolved = sweep.resolve(options.said)
        study = resolved.calibration(arguments.jobs)
        check_sweep(resolved)
        folder = options.workdir / resolved.folder
        feed = Feed(folder, session_id=session)
        with jobs_of(folder), Runs(options, session=session) as runs:
            campaign = runs.open(resolved, study)
            written = calibrate(
                campaign,
                lambda feed=feed: show(  # type: ignore[misc]
                    landed.line for landed in feed.landed() if landed.line
                ),
            ).written
        found[cell.name] = least_values(campaign)
        show(f"{cell.name}: {each.words}" for each in found[cell.name])
    source = path if file.generation == "1" else thresholds_of(path, file)
    text = with_least_values(
        text_of(source) if source else "", file, found, where=str(source or new), written=written
    )
    write_files({new: text})
    return 0


_YES = "run although it costs more node-hours than --ask-above"


def _lines(found: CvsFile, *, is_full: bool) -> Iterator[str]:
    yield f"{found.where}: CVS generation {found.generation}, {found.kind}"
    if found.kind == "config":
        yield from _facts(found)
    if found.kind == "threshold":
        yield from _demands(found)
    if found.kind == "cluster":
        yield f"  nodes: {', '.join(found.nodes) or 'none'}"
    for note in found.notes:
        yield from _wrapped(f"  note: {note}")
    if found.open_items:
        yield "  open items, to be filled in before a run:"
        for item in found.open_items:
            sample = f" (the file's sample: {item.sample})" if item.sample else ""
            yield f"    {item.path}: {item.wanted}{sample}"
            yield f"      {item.how}"
    counts = found.accounting
    total = counts.pop("leaves")
    yield f"  {total} leaves: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    for leaf in found.leaves:
        if is_full or leaf.cls in ("different", "unknown"):
            yield from _wrapped(f"    {leaf.cls:9} {leaf.name}: {leaf.text}")


def _facts(found: CvsFile) -> Iterator[str]:
    yield f"  model {found.model}, {found.mode}, GPU {found.gpu or 'not said'}"
    yield f"  image {found.image or 'not said'}"
    for cell in found.cells:
        nodes = "nodes: yours" if cell.nodes is None else f"nodes: {cell.nodes}"
        axes = cell.parallelism or "axes: by the number of nodes"
        yield (
            f"  cell {cell.name}: batch {cell.per_device_batch_size}, "
            f"length {cell.max_target_length}, {cell.precision}, {axes}, {nodes}, "
            f"{cell.steps} steps"
        )
        for metric, each in cell.thresholds.items():
            yield f"    {metric}: {each.words}"
    for runtime in (found.container.runtime, "apptainer"):
        if dropped := dropped_of(found, runtime):
            yield from _wrapped(f"  not taken by {runtime}: {' '.join(dropped)}")
    flags = " ".join(f"--{name}={value}" for name, value in found.xla_flags.items())
    yield from _wrapped(f"  XLA_FLAGS: {flags or 'none'}")
    env = " ".join(f"{name}={value}" for name, value in without_secrets(found.env).items())
    yield from _wrapped(f"  environment: {env or 'none'}")
    yield from _wrapped("  added by CVS: " + " ".join(f"{k}={v}" for k, v in found.added.items()))


def _demands(found: CvsFile) -> Iterator[str]:
    """Yield the cells of a threshold file; metrics that are only recorded share a line."""
    for cell in found.cells:
        yield f"  cell {cell.name}:"
        for metric, each in cell.thresholds.items():
            if each.kind != "info":
                yield f"    {metric}: {each.words}"
        if recorded := [name for name, each in cell.thresholds.items() if each.kind == "info"]:
            yield from _wrapped(f"    recorded only: {', '.join(recorded)}")


def _wrapped(line: str) -> list[str]:
    text = line.lstrip()
    indent = " " * (len(line) - len(text))
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
