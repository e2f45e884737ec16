"""What the installed plugin costs a pytest run that has nothing to do with it.

    python benchmarks/plugin_import.py [--runs 21]

Each row is a process of its own, the rows in turn, so that a machine that gets slower slows all of
them; the figures are CPU time (user and system), medians. `empty run` is pytest on a folder with
one empty test, with the plugin and with `-p no:xlatune`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from costs import used
from tabulate import tabulate

PLAIN = [sys.executable, "-c", "import pytest, xdist.plugin"]
PLUGIN = [sys.executable, "-c", "import pytest, xdist.plugin, pytest_xlatune.plugin"]
RUN = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "test_nothing.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
        rows = {
            "import pytest, xdist": PLAIN,
            "... and the plugin": PLUGIN,
            "empty run, -p no:xlatune": [*RUN, "-p", "no:xlatune"],
            "empty run, plugin loaded": RUN,
        }
        took: dict[str, list[float]] = {name: [] for name in rows}
        for argv in rows.values():
            used(argv, folder)  # compiles the modules
        for _ in range(runs):
            for name, argv in rows.items():
                took[name].append(1000 * used(argv, folder).cpu_s)
    names = list(rows)
    table = []
    for name, base in zip(names, [None, names[0], None, names[2]], strict=True):
        pairs = zip(took[name], took[base or name], strict=True)
        more = statistics.median(after - before for after, before in pairs) if base else None
        table.append([name, statistics.median(took[name]), min(took[name]), more])
    headers = ["", "CPU ms, median", "min", "over the row above, median of pairs"]
    print(tabulate(table, headers=headers, floatfmt=".1f", missingval="-"))


if __name__ == "__main__":
    main()
