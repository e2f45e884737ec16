"""Let XLA parse texts of XLA_FLAGS, each in a separate process, and return the results.

    python -P xla_lint.py < TEXTS

TEXTS is a JSON list of strings. The last line of the output is JSON with the jaxlib release, the
names of its options and, for each text, the options as protobuf's text format writes them, or XLA's
message of refusal. XLA parses only once in a process and may abort, so each text gets a fork of
this process. This file imports jaxlib and nothing of ours.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

# The library's file has the description of all options; since jaxlib 0.7, `--help` is cut at 15 kB,
# which are 90 of 350 flags. The description begins with the name of its source file.
_MARK = b"\x0a\x0dxla/xla.proto"
_MOST = 1 << 18  # most bytes from the mark; the description of jaxlib 0.12 has about 1 << 15
# a name in it, after its length:  \x0a\x0bxla_dump_to
_NAME = re.compile(rb"\x0a(.)(xla_\w+)", re.DOTALL)
_OUTPUT_BYTES = 1 << 14  # bytes of XLA's output that are returned


def main() -> None:
    """Let XLA parse all texts on standard input, and print the results."""
    texts = json.load(sys.stdin)
    # up to jaxlib 0.6, a refusal aborts with a core dump
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.pop("XLA_FLAGS", None)
    import jaxlib
    from jaxlib import version, xla_client

    answers = [_answer(text, xla_client) for text in texts]
    document = {
        "jaxlib": version.__version__,
        "names": _option_names(Path(jaxlib.__file__).parent),
        "answers": answers,
    }
    sys.stdout.write(f"\n{json.dumps(document)}\n")


def _answer(text: str, xla_client: Any) -> dict[str, Any]:
    """Return how XLA parses a text in a separate process, and what it printed."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as stderr_file:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(stderr_file.fileno(), 2)
                os.environ["XLA_FLAGS"] = text
                build_options = xla_client.CompileOptions().executable_build_options
                with os.fdopen(write_end, "w") as pipe:
                    pipe.write(repr(build_options.debug_options))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            options = pipe.read()
        _, status = os.waitpid(child, 0)
        stderr_file.seek(0)
        output = stderr_file.read(_OUTPUT_BYTES).decode("utf-8", "replace")
    return {
        "options": options if status == 0 else None,
        "output": output,
        "exit_code": os.waitstatus_to_exitcode(status),
    }


def _option_names(folder: Path) -> list[str]:
    """Return the names of XLA's options in the description that the library contains."""
    libraries = sorted(folder.rglob("*.so*"), key=lambda path: -path.stat().st_size)
    for library in libraries[:3]:
        with library.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            at = view.find(_MARK)
            if at >= 0:
                names = _NAME.findall(view[at : at + _MOST])
                return sorted({name[: ord(size)].decode() for size, name in names})
    return []


if __name__ == "__main__":
    main()
