"""Add the worker of a rotation to a launch: words, variables and files.

The worker, `workers/rotate.py`, compiles the step once for each program and lets the programs take
turns. It runs in the trainer's own interpreter, where nothing of ours is installed, so its files
are in the attempt's folder. It is started in one of two ways:

* if the launcher starts Python itself, the worker comes before the trainer's words:
  `python FOLDER/xlatune_rotate.py FOLDER/rotation.json -- train.py steps=40`
* if a shell or a container's program starts Python, the worker is `sitecustomize.py` in the first
  folder of PYTHONPATH; it then runs the `sitecustomize` that it hides.

`executors.folder` inserts the text of the worker when the attempt is submitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from pytest_xlatune.model.rotation import RotationSpec

SPEC_FILE = "rotation.json"
WORKER_FILE = "xlatune_rotate.py"  # has the text of `workers.rotate`
SITE_FOLDER = "xlatune_site"
SITE_FILE = f"{SITE_FOLDER}/sitecustomize.py"  # has the same text
WORKERS = (WORKER_FILE, SITE_FILE)
# the variable with the path of the spec, for a worker that is loaded as `sitecustomize`
VARIABLE = "XLATUNE_ROTATION"
# bash lines that load the worker into every Python
WORKER_EXPORTS = f"""\
export PYTHONPATH="$xlatune_folder/{SITE_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"
export {VARIABLE}="$xlatune_folder/{SPEC_FILE}"
"""


class Rotates(StrEnum):
    """How programs can take turns in what a launcher starts."""

    PYTHON = "python"  # it starts Python itself, so the worker comes first
    WRAPPED = "wrapped"  # another program starts Python and must pass PYTHONPATH on
    NO = "no"


def with_worker(
    argv: Sequence[str], spec: RotationSpec, *, interpreter: str, program: str, folder: str
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the command line of a rotation, and the files of its attempt.

    In a Python command line, the worker comes before the program; options of the interpreter stay
    in place: `python -u train.py` becomes `python -u WORKER ...`.

    Args:
        argv: the command line of the trial.
        spec: the rotation.
        interpreter: the first word of `argv` if that is a Python; else "".
        program: the script or module that the command line runs; "" if unknown.
        folder: the folder of the attempt, as the command line writes it.
    """
    program_words = [place for place, word in enumerate(argv[1:], 1) if word in ("-m", program)]
    if not program_words or not program or argv[0] != interpreter:
        return argv, files_of(spec, worker=SITE_FILE)
    first = program_words[0]
    worker = (f"{folder}/{WORKER_FILE}", f"{folder}/{SPEC_FILE}", "--")
    return (*argv[:first], *worker, *argv[first:]), files_of(spec, worker=WORKER_FILE)


def files_of(spec: RotationSpec, *, worker: str) -> dict[str, str]:
    """Return the files of an attempt: the spec, and a file for the worker's text, still empty."""
    text = msgspec.json.format(json.dumps(spec.to_json()), indent=1)
    return {SPEC_FILE: f"{text}\n", worker: ""}
