"""Print how long a CVS file is read: process time by the API, the median of fifty reads each.

    python benchmarks/cvs_reading.py

The files are those that the tests write, of every generation; the bar is 20 ms a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_xlatune.guests.cvs.files import read_cvs_file
from tests.helpers.cvs_written import first, fourth, second, third, write

READS = 50
FILES = {
    "1": first(multi=True),
    "2": second(multi=True),
    "3-early": third(early=True),
    "3": third(),
    "4": fourth(),
}


def main() -> None:
    """Read each file and print its figure."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in FILES.items():
            path = write(Path(folder), f"gen{name}.json", data)
            took = []
            for _ in range(READS):
                begun = time.process_time()
                read_cvs_file(path)
                took.append(time.process_time() - begun)
            print(f"generation {name}: {1000 * median(took):.2f} ms")


if __name__ == "__main__":
    main()
