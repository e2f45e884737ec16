"""`xlatune cvs`: show the content and the open items of a configuration; measure its thresholds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_xlatune.cli import add_commands, show, write_files
from pytest_xlatune.cli.options import SESSION_OPTIONS, add_options, options_of
from pytest_xlatune.cli.running import trials_of
from pytest_xlatune.guests.cvs.calibrated import least_values
from pytest_xlatune.guests.cvs.launcher import container_settings
from pytest_xlatune.guests.cvs.reading import given_values, read_cvs_file, run_options
from pytest_xlatune.guests.cvs.values import CvsFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.redact import without_secrets
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.tasks.runs import calibrate

_ACTIONS = {
    "show": "show the content of a file, its open items, and what becomes of each key",
    "calibrate": "measure thresholds: the least values that healthy jobs of the file reach",
}


def add_cvs(parser: argparse.ArgumentParser) -> None:
    """Declare the actions `show` and `calibrate`, and their arguments."""
    actions = add_commands(parser, _ACTIONS, metavar="ACTION")
    show_parser, calibrate_parser = actions["show"], actions["calibrate"]
    for action in (show_parser, calibrate_parser):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("file", type=Path, metavar="FILE", help="a configuration of CVS")
        action.add_argument("--cvs-cluster", type=Path, metavar="FILE", help="CVS' cluster file")
        action.add_argument(
            "--cvs-set",
            action="append",
            default=[],
            metavar="PATH=VALUE",
            help="fill in a value of the file, e.g. container.env.NCCL_SOCKET_IFNAME=eno1",
        )
    show_parser.epilog = (
        "example:\n"
        "  xlatune cvs show config.json --cvs-set config.nnodes=4\n\n"
        "exit status 0: complete; 2: an item is open, or the file is no configuration of CVS"
    )
    show_parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes the run has")
    show_parser.set_defaults(run=_show)
    calibrate_parser.epilog = (
        "example:\n"
        "  xlatune cvs calibrate config.json -o new_threshold.json --nodelist 'node[001-004]'"
    )
    calibrate_parser.add_argument(
        *("-o", "--output"),
        type=Path,
        required=True,
        metavar="NEW",
        help="the new threshold file, in the form of generation 4",
    )
    calibrate_parser.add_argument(
        "--jobs", type=int, default=12, metavar="N", help="jobs of each cell (12)"
    )
    add_options(calibrate_parser, leave_out=SESSION_OPTIONS)
    calibrate_parser.set_defaults(run=_calibrate)


def _show(arguments: argparse.Namespace) -> int:
    """Show a file; return 2 if it has open items."""
    if arguments.nodes is not None and arguments.nodes < 1:
        raise ConfigError(f"--nodes {arguments.nodes}: expected 1 or more")
    file = read_cvs_file(
        arguments.file,
        cluster=arguments.cvs_cluster,
        values=given_values(arguments.cvs_set),
        nodes=arguments.nodes,
        needs_digest=True,
    )
    show(_show_lines(file))
    return 2 if file.open_items else 0


def _calibrate(arguments: argparse.Namespace) -> int:
    """Measure the thresholds of each cell of a file, and write them into a new file."""
    path, new_path = arguments.file, arguments.output
    if new_path.exists():
        raise ConfigError(f"{new_path} exists: name another file, or move it away")
    options = options_of(arguments)
    nodes, runtime, needs_digest = run_options(options.for_sweeps.values)
    file_arguments: dict[str, Any] = {
        "cluster": arguments.cvs_cluster,
        "values": given_values(arguments.cvs_set),
        "nodes": nodes,
    }
    file = read_cvs_file(path, **file_arguments, needs_digest=needs_digest)
    file.refuse_open()
    thresholds = {}
    for cell in file.cells:
        sweep = Sweep.from_cvs(path, cell=cell.name, runtime=runtime, **file_arguments)
        resolved = sweep.resolve(options.for_sweeps)
        study = resolved.calibration(arguments.jobs)
        resolved.check()
        with trials_of(resolved, options) as (runs, tick):
            campaign = runs.open(resolved, study)
            written = calibrate(campaign, tick).written
        thresholds[cell.name] = least_values(campaign, written=written)
    write_files({new_path: json.dumps(thresholds, indent=2, ensure_ascii=False) + "\n"})
    return 0


def _show_lines(file: CvsFile) -> Iterator[str]:
    """Yield the lines of `show`."""
    first = file.cells[0]
    yield f"{file.where}: CVS generation {file.generation}"
    yield f"  model {first.model}, {file.mode}, GPU {first.gpu or 'not named'}"
    yield f"  image {file.image or 'not named'}"
    for cell in file.cells:
        nodes = "nodes: not given" if cell.nodes is None else f"nodes: {cell.nodes}"
        axes = cell.parallelism or "axes: they depend on the number of nodes"
        yield (
            f"  cell {cell.name}: batch {cell.per_device_batch_size}, "
            f"length {cell.max_target_length}, {cell.precision}, {axes}, {nodes}, "
            f"{cell.steps} steps"
        )
        for metric, threshold in cell.thresholds.items():
            yield f"    {metric}: {threshold.words}"
        flags = " ".join(f"--{name}={value}" for name, value in cell.xla_flags.items())
        yield f"    XLA_FLAGS: {flags or 'none'}"
    for runtime in (file.container.runtime, "pyxis"):
        if dropped := container_settings(file.container, runtime)[1]:
            yield f"  not supported by {runtime}: {' '.join(dropped)}"
    for title, variables in (("environment", file.env), ("added by CVS", file.added)):
        words = " ".join(f"{name}={value}" for name, value in without_secrets(variables).items())
        yield f"  {title}: {words or 'none'}"
    yield from (f"  note: {note}" for note in file.notes)
    if file.open_items:
        yield "  open items, to be filled in before a run:"
        yield from (f"    {item.words}" for item in file.open_items)
    counts = ", ".join(f"{count} {name}" for name, count in file.leaf_counts.items())
    yield f"  {len(file.leaves)} leaves: {counts}"
    yield from (f"    {leaf.cls:9} {leaf.name}: {leaf.text}" for leaf in file.leaves)
