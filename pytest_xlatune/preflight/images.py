"""Whether an image file still is what the cell says: its SHA-256, computed once for each content.

The digest of an image by name is looked after by the runtime that starts it; a file can be written
over. Tens of gigabytes take a while to read, so that what was found is kept beside the ledger and
is good for as long as size and time of change are the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pytest_xlatune.cells import Cell

_KNOWN = "images.json"
_MARK = "@sha256:"


def image_file(cell: Cell) -> str:
    """Return the path of the cell's image without its digest; "" where it is no file."""
    return cell.image.partition("@")[0] if cell.image.startswith("/") else ""


def image_faults(cell: Cell, folder: Path) -> tuple[str, ...]:
    """Return what is wrong with the content of an image file that is pinned; `folder` is kept in.

    A file that cannot be read here is none of this: the nodes are asked whether they see it.
    """
    name, mark, pinned = cell.image.partition(_MARK)
    if not mark or not image_file(cell):
        return ()
    try:
        found = _sha256(Path(name), folder / _KNOWN)
    except OSError:
        return ()
    if found == pinned:
        return ()
    wrong = (
        f"image {name} has the digest sha256:{found}, expected sha256:{pinned}: another image lies "
        "there now. Put the old one back, or name the new digest (that is another cell)"
    )
    return (wrong,)


def _sha256(path: Path, known: Path) -> str:
    stat = path.stat()
    seen = [str(path), stat.st_size, stat.st_mtime_ns]
    try:
        kept = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if kept.get("seen") == seen:
        return str(kept["sha256"])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    # whoever comes at the same time writes the same
    known.write_text(json.dumps({"seen": seen, "sha256": found}), encoding="utf-8")
    return found
