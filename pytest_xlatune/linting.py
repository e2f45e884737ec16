"""Ask the XLA of an interpreter what it makes of flags: one process, a fork for each text.

Starts the interpreter, reads what the worker wrote and what XLA said. What follows is judged in the
catalog. Only jaxlib is loaded there, no device is touched, and about 30 texts take a second.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_xlatune.catalog.effect import Answer
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.evidence.options import Schema, read_options, read_schema

_WORKER = Path(__file__).with_name("lint_worker.py")
_TIMEOUT_S = 120.0
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
# the same line from jaxlib 0.4 to 0.12:
# F1120 08:41:35.850612   18489 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_a --b
_UNKNOWN = re.compile(r"parse_flags_from_env\.cc:\d+\] Unknown flags? in XLA_FLAGS: (.*)")
# command_line_flags.cc:93] Couldn't interpret value nota for flag xla_cpu_enable_fast_math.
# Illegal value for --xla_gpu_enable_command_buffer 'BOGUS'
_BAD_VALUE = re.compile(r"(Couldn't interpret value .*? for flag \w+|Illegal value for --.*)")


@dataclass(slots=True, kw_only=True)
class Target:
    """The XLA of one interpreter; call it with texts of XLA_FLAGS.

    Attributes:
        python: the interpreter, a path or a name on PATH.
        environ: of this process; a few variables are passed on.
        jaxlib: its release; "" before the first call.
    """

    python: str
    environ: Mapping[str, str]
    jaxlib: str = ""

    def __call__(self, texts: Sequence[str]) -> list[Answer]:
        """Return what XLA makes of each text.

        Raises:
            ConfigError: there is no such interpreter, or no jaxlib that answers.
        """
        document = self._run(texts)
        self.jaxlib = document["jaxlib"]
        schema = read_schema(base64.b64decode(document["description"]))
        return [_answer(each, schema) for each in document["answers"]]

    def _run(self, texts: Sequence[str]) -> dict[str, Any]:
        path = shutil.which(self.python, path=self.environ.get("PATH"))
        if path is None:
            raise ConfigError(f"{self.python} is not on this machine; name the target's own Python")
        kept = {name: self.environ[name] for name in _KEPT if name in self.environ}
        with TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.json"
            try:
                done = subprocess.run(
                    [path, "-P", str(_WORKER), str(result)],
                    env=kept,
                    input=json.dumps(list(texts)),
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_TIMEOUT_S,
                    check=False,
                )
                document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                said = str(error) if isinstance(error, subprocess.TimeoutExpired) else done.stderr
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise ConfigError(f"the XLA of {path} cannot be asked: {last[:300]}") from None
        return document


def _answer(found: Mapping[str, Any], schema: Schema) -> Answer:
    said: str = found["said"]
    if found["options"] is not None:
        return Answer(options=read_options(base64.b64decode(found["options"]), schema))
    unknown = _UNKNOWN.search(said)
    if unknown:
        names = tuple(word.lstrip("-").partition("=")[0] for word in unknown[1].split())
        return Answer(options=None, unknown=names)
    bad = _BAD_VALUE.search(said)
    lines = said.strip().splitlines() or [f"exit code {found['exit_code']}"]
    return Answer(options=None, refused=bad[0] if bad else lines[0][:300])
