"""`xlatune import`: make a ledger from a CSV of jobs that were run by hand, and report on it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.report import documents_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.sweep.groups import CellSettings, SiteSettings
from pytest_xlatune.tasks.import_table import import_table, read_table, slug


def run_import(arguments: argparse.Namespace) -> Output:
    """Read a table into a ledger; return the report of the ledger."""
    options = options_of(arguments)
    check_exports(options.export)  # nothing is imported if none of them can be written
    path: Path = arguments.table
    settings = options.for_sweeps.applied_to(CellSettings())
    missing = [
        f"--{name}"
        for name, value in (("model", settings.model_tag), ("parallelism", settings.parallelism))
        if not value
    ]
    if missing or not settings.model_tag or not settings.parallelism:
        raise ConfigError(
            f"{path} does not say which cell its jobs measured: add {' and '.join(missing)}"
        )
    try:
        text = secure_files.read_named(path, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {why}; name a CSV of jobs") from None
    cell = Cell(
        model_tag=settings.model_tag,
        parallelism=Parallelism.parse(settings.parallelism),
        config_tag=settings.config_tag,
        per_device_batch_size=settings.per_device_batch_size,
        max_target_length=settings.max_target_length,
        nodelist=options.for_sweeps.applied_to(SiteSettings()).nodelist or (),
        launcher=f"imported from {path.name}",
        deployed={"XLA_FLAGS": arguments.deployed} if arguments.deployed else {},
    )
    tokens = arguments.tokens or cell.tokens_per_device_step
    rows = read_table(text, where=str(path), tokens=tokens)
    folder = import_table(
        rows,
        cell=cell,
        no_ops=arguments.no_op,
        sweep=slug(arguments.name or path.stem).replace(".", "-").replace("+", "-"),
        workdir=options.workdir,
        access=options.access,
        at_s=time.time(),
    )
    is_measured = any(row.tgs for row in rows)
    problems: list[str] = []
    return Output(
        documents=documents_of([folder], options, problems, writes=True),
        problems=problems,
        problem_status=Exit.INTERNAL,
        status=Exit.OK if is_measured else Exit.NOT_MEASURED,
    )
