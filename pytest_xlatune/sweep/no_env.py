"""The other half of wave 1: what the image alone gives, with every deployed flag at its default.

What a profile appends wins over what is deployed, so a flag is undone by its default after it. The
defaults are the compiler's own: from the catalog by the target's jaxlib, or stated by the sweep. A
default that nobody knows is never guessed.

Variables stay as they are deployed, but for those whose value the sweep states: a profile appends
and cannot take away, whether an empty variable counts as unset is up to each library, what a
library takes for an unset one depends on its release and the fabric, and several of them are the
site (which adapters, which interface), without which the job would measure another network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.catalog.restoring import defaults_of
from pytest_xlatune.cells import Cell
from pytest_xlatune.deployed import deployed_env
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.profiles import (
    APPENDING,
    Flags,
    Profile,
    effective_values,
    parse_flags,
    restore_default,
)

NO_ENV_ID = "baseline-no-env"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEnv:
    """How deployed flags go back to their defaults.

    Attributes:
        jaxlib: the target's release, e.g. "0.7.2"; "" takes only defaults that no release changed.
        defaults: flag without dashes -> default, on top of the catalog: a vendor's fork may differ.
        keep: flags that stay as deployed, for they are the cell: `xla_force_host_platform_...`.
        variables: deployed variable -> the value that stands for its default, e.g.
            `{"NCCL_PROTO": "LL,LL128,Simple"}`; the others stay, and the note names them.
    """

    jaxlib: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def profile(self, launcher: Launcher, cell: Cell) -> Profile:
        """Return the profile `baseline-no-env`; an empty one says in its note why there is none.

        There is none where an env file is not on this machine, where nobody knows a default, and
        where appending cannot undo a flag.

        Raises:
            ConfigError: the deployed XLA_FLAGS are malformed, or a value is stated for a variable
                that nobody deploys.
        """
        files = [Path(name) for name in launcher.env_files_of(cell)]
        unread = [str(file) for file in files if not file.is_file()]
        if unread:
            return _none(f"{', '.join(unread)} cannot be read here, so what it sets is not known")
        deployed = dict(cell.deployed)
        base = {**cell.parallelism.variables, **deployed}
        deployed |= deployed_env(*files, base=base) if files else {}
        flags = parse_flags(deployed.get("XLA_FLAGS", ""), where="the deployed XLA_FLAGS")
        names = deployed.keys() - {"XLA_FLAGS"}
        for name in self.variables.keys() - names:
            raise ConfigError.unknown(
                "variable",
                name,
                valid=sorted(names),
                where="NoEnv(variables={...}) of what is deployed",
            )
        undone = tuple(flag for flag in flags if flag.name not in self.keep)
        if not undone and not self.variables:
            return _none("no XLA flag is deployed that could go back to its default")
        try:
            restored = self._restored(undone)
        except ConfigError as error:
            return _none(str(error))
        return Profile(
            id=NO_ENV_ID,
            flags=restored,
            env=dict(self.variables),
            wave="wave1",
            note=_note(sorted(names - self.variables.keys())),
        )

    def _restored(self, flags: Flags) -> Flags:
        names = [name for name in effective_values(flags) if name not in APPENDING]
        known = {**defaults_of(names, self.jaxlib), **self.defaults}
        missing = sorted(set(names) - known.keys())
        if missing:
            release = f"jaxlib {self.jaxlib}" if self.jaxlib else "every jaxlib"
            raise ConfigError(
                f"the default of {', '.join(missing)} in {release} is not known; "
                "state it in NoEnv(defaults={...}), name the target's jaxlib there, or list in "
                "`keep` what is part of the cell"
            )
        return restore_default(flags, known)


def _note(kept: Sequence[str]) -> str:
    said = "every deployed flag back to its default"
    return f"{said}; variables stay as deployed: {', '.join(kept)}" if kept else said


def _none(why: str) -> Profile:
    return Profile(id=NO_ENV_ID, wave="wave1", note=why)
