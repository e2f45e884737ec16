"""The command that brings somebody else's table into a ledger: its parser, no printing."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.commands import Commands
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.settings.options import Options

if TYPE_CHECKING:
    from pytest_xlatune.cli.inspecting import Shown


def add_import(commands: Commands) -> Iterator[tuple[argparse.ArgumentParser, bool]]:
    """Add the command; yield its parser and whether it takes the options of a sweep."""
    table = commands.add_parser("import", what="a CSV of jobs that somebody ran, into a ledger")
    table.add_argument("table", type=Path, metavar="TABLE", help="job,profile,flags,tgs,status")
    table.add_argument("--name", default="", metavar="NAME", help="of the sweep; the file's own")
    table.add_argument(
        "--no-op",
        action="append",
        default=[],
        metavar="PROFILE",
        help="a profile that is known to do nothing: a control",
    )
    table.add_argument("--deployed", metavar="FLAGS", help="the XLA_FLAGS deployed; may be ''")
    table.add_argument(
        "--jaxlib",
        default="",
        metavar="VERSION",
        help="the release; with --deployed, what the catalog knows to do nothing is a control",
    )
    table.add_argument("--tokens", type=float, metavar="N", help="per device and step")
    table.set_defaults(show=_import)
    yield table, True


def _import(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cells import Cell, Parallelism  # noqa: PLC0415
    from pytest_xlatune.cli.flagging import deployed_ground  # noqa: PLC0415
    from pytest_xlatune.cli.inspecting import Shown  # noqa: PLC0415
    from pytest_xlatune.executors.hostlist import expand  # noqa: PLC0415
    from pytest_xlatune.importing import import_table, read_table, slug  # noqa: PLC0415
    from pytest_xlatune.publishing.publish import document_of, publish, read_known  # noqa: PLC0415
    from pytest_xlatune.report import terminal  # noqa: PLC0415

    path: Path = arguments.table
    missing = [
        f"--{name}"
        for name, value in (("model", options.model), ("parallelism", options.parallelism))
        if not value
    ]
    if missing or not options.model or not options.parallelism:
        raise ConfigError(f"{path}: {' and '.join(missing)} must say which cell this was")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a CSV of jobs") from None
    rows = read_table(text, where=str(path))
    cell = Cell(
        model_tag=options.model,
        parallelism=Parallelism.parse(options.parallelism),
        config_tag=options.config_tag or "",
        per_device_batch_size=options.pdbs,
        max_target_length=options.max_target_length,
        nodelist=expand(options.nodelist) if options.nodelist else (),
        launcher=f"imported from {path.name}",
        deployed={"XLA_FLAGS": arguments.deployed} if arguments.deployed else {},
    )
    ground = None
    if arguments.jaxlib:
        if arguments.deployed is None:
            raise ConfigError(
                f"--jaxlib {arguments.jaxlib} without --deployed: what does nothing depends on "
                "what is deployed; give its XLA_FLAGS, or --deployed '' where there are none"
            )
        ground = deployed_ground(arguments.deployed, jaxlib=arguments.jaxlib)
    folder = import_table(
        rows,
        cell=cell,
        no_ops=arguments.no_op,
        sweep=slug(arguments.name or path.stem).replace(".", "-").replace("+", "-"),
        workdir=options.workdir,
        at_s=time.time(),
        tokens=arguments.tokens,
        ground=ground,
    )
    known = read_known(folder)
    yield Shown(text="\n".join(terminal.render(document_of(known), width=100)) + "\n")
    for written in publish(folder, options.reports):
        yield Shown(text=f"written: {written}")
