"""A launch with the rotation's worker in front: which words, variables and files it takes. Pure.

`workers/rotate.py` compiles the step once a program and lets the programs take turns below the
trainer's own interpreter; nothing is installed there. It gets in one of two ways, and both are
files of the attempt's folder:

* where the launcher starts Python itself, its script stands in front of the trainer's words:
  `python FOLDER/xlatune_rotate.py FOLDER/rotation.json -- train.py steps=40`
* where a shell or a container's own program starts it, as `sitecustomize.py` in a folder that
  PYTHONPATH names first; it then runs the `sitecustomize` that it hides.

The text of the worker is put in by `executors.folder`, when the attempt is handed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from pytest_xlatune.model.rotation import RotationSpec

SPEC_FILE = "rotation.json"
WORKER_FILE = "xlatune_rotate.py"  # the text of `workers.rotate`
SITE_FOLDER = "xlatune_site"
SITE_FILE = f"{SITE_FOLDER}/sitecustomize.py"  # the same text
WORKERS = (WORKER_FILE, SITE_FILE)
VARIABLE = "XLATUNE_ROTATION"  # names the spec to a worker that is loaded as `sitecustomize`
_PATH = "PYTHONPATH"
# a program out of a cache would be the one that an earlier rotation compiled
ANEW = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


class Rotates(StrEnum):
    """How programs can take turns in what a launcher starts."""

    PYTHON = "python"  # it starts Python itself: the worker stands in front
    WRAPPED = "wrapped"  # something else does, which must pass PYTHONPATH on
    NO = "no"


def in_front(
    argv: Sequence[str], *, interpreter: str, program: str, folder: str
) -> tuple[str, ...] | None:
    """Return a command line of Python with the worker in front; None where it is none.

    Options of the interpreter stay its own: `python -u train.py` becomes `python -u WORKER ...`.

    Args:
        argv: the command line of the trial.
        interpreter: its first word, where that is a Python.
        program: the script or the module that it runs.
        folder: the folder of the attempt, as `argv` names it.
    """
    if not interpreter or not program or argv[0] != interpreter:
        return None
    words = list(argv[1:])
    at = next((at for at, word in enumerate(words) if word in ("-m", program)), None)
    if at is None:
        return None
    worker = (f"{folder}/{WORKER_FILE}", f"{folder}/{SPEC_FILE}", "--")
    return (interpreter, *words[:at], *worker, *words[at:])


def files_of(spec: RotationSpec, *, worker: str) -> dict[str, str]:
    """Return the files of an attempt: the spec, and the worker's place for its text."""
    text = msgspec.json.format(json.dumps(spec.to_json()), indent=1)
    return {SPEC_FILE: f"{text}\n", worker: ""}


def variables(env: Mapping[str, str], *, folder: str) -> dict[str, str]:
    """Return the variables that load the worker into each Python, on top of `env`."""
    path = ":".join(filter(None, (f"{folder}/{SITE_FOLDER}", env.get(_PATH, ""))))
    return {_PATH: path, VARIABLE: f"{folder}/{SPEC_FILE}"}


def exports(variable: str) -> str:
    """Return the same as lines of bash; `variable` holds the folder."""
    return (
        f'export {_PATH}="${variable}/{SITE_FOLDER}${{{_PATH}:+:${_PATH}}}"\n'
        f'export {VARIABLE}="${variable}/{SPEC_FILE}"\n'
    )


def needs_shell(inherit: Sequence[str]) -> bool:
    """Whether PYTHONPATH comes from the node, so that only a shell there can put ours in front."""
    return any(
        pattern == _PATH or (pattern.endswith("*") and _PATH.startswith(pattern[:-1]))
        for pattern in inherit
    )
