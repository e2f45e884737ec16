"""Lint profiles: the catalog's rules, and what the XLA of an interpreter makes of their flags.

Starts the interpreter once, with a fork for each text; reads what the worker wrote and what XLA
said. What follows is judged in the catalog. Only jaxlib is loaded there and no device is touched.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pytest_xlatune.catalog.effect import Answer, examine
from pytest_xlatune.catalog.ground import Ground, Objection
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import Profile
from pytest_xlatune.records import Record

if TYPE_CHECKING:
    from pytest_xlatune.evidence.options import Schema

_WORKER = Path(__file__).with_name("workers") / "linting.py"
_TIMEOUT_S = 120.0
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
# the same line from jaxlib 0.4 to 0.12:
# F1120 08:41:35.850612   18489 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_a --b
_UNKNOWN = re.compile(r"parse_flags_from_env\.cc:\d+\] Unknown flags? in XLA_FLAGS: (.*)")
# command_line_flags.cc:93] Couldn't interpret value nota for flag xla_cpu_enable_fast_math.
# Illegal value for --xla_gpu_enable_command_buffer 'BOGUS'
_BAD_VALUE = re.compile(r"(Couldn't interpret value .*? for flag \w+|Illegal value for --.*)")


# what XLA itself says better than a table of releases
_SETTLED = frozenset({"unknown-flag", "no-op", "adds-up"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted(Record):
    """What was found.

    Attributes:
        objections: to what is deployed first, then in the profiles' order.
        unchecked: one sentence for each thing that nothing here can tell.
        jaxlib: the release that was asked; "" where none was.
    """

    objections: tuple[Objection, ...] = ()
    unchecked: tuple[str, ...] = ()
    jaxlib: str = ""


def lint(profiles: Sequence[Profile], ground: Ground, target: Target | None = None) -> Linted:
    """Return everything that is wrong with profiles, and with what is deployed below them.

    Args:
        profiles: in their order.
        ground: what is deployed, and what is known of the target.
        target: the XLA that reads the flags; None leaves it at the tables of the catalog.

    Raises:
        ConfigError: the target cannot be asked.
    """
    if target is None:
        why = "no XLA was asked: names and defaults are those of the catalog's tables"
        return Linted(objections=check(profiles, ground), unchecked=(why,), jaxlib=ground.jaxlib)
    found = examine(profiles, ground.deployed, target, env=ground.env)
    known = dataclasses.replace(ground, jaxlib=target.jaxlib)
    ruled = [each for each in check(profiles, known) if each.rule not in _SETTLED]
    order = {each.id: at for at, each in enumerate(profiles)}
    return Linted(
        objections=tuple(
            sorted((*ruled, *found.objections), key=lambda each: order.get(each.profile, -1))
        ),
        unchecked=found.unchecked,
        jaxlib=target.jaxlib,
    )


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
        from pytest_xlatune.evidence.options import read_schema  # noqa: PLC0415 - numpy

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
    from pytest_xlatune.evidence.options import read_options  # noqa: PLC0415 - numpy

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
