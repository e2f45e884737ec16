"""What compiling alone says of profiles: which need no run, and why. Pure: starts no compiler.

Two programs may be equal and run differently: what acts at run time only (flags that no table of
HLO knows, variables, overrides) is kept beside the program, and only where both are equal is a
profile the baseline, or another profile, under another name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_xlatune.evidence.difference import Change, difference, size
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.proof import is_seen
from pytest_xlatune.profiles import Profile, effective_values
from pytest_xlatune.records import Record, digest

LIMITS = (
    "What compiling cannot say: what acts at run time only (stream priority, command buffers, NCCL "
    "variables), how fast a program is, what autotuning on a real device would choose, and "
    "anything outside of the largest compiled module."
)


class Class(StrEnum):
    """What compiling says of a profile."""

    IDENTICAL = "identical to the baseline"
    SCHEDULE = "same program, other schedule"
    PROGRAM = "other program"
    UNSEEN = "acts at run time only"
    REFUSED = "flag refused"
    FAILED = "does not compile"
    MEMORY = "needs too much memory"


# what is known without a run: an identical profile is an A/A control at best
SETTLED = frozenset({Class.IDENTICAL, Class.REFUSED, Class.FAILED, Class.MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What came out of compiling a profile."""

    profile: Profile
    program: Program | None  # None: the compiler made none
    said: str = ""  # its last word where something went wrong
    refused: bool = False  # a flag was unknown to it, or its value
    is_interrupted: bool = False  # from outside: no program, and nothing of the profile is known
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened(Record):
    """A profile, judged."""

    profile: str
    cls: Class
    sentence: str
    twin: str | None = None  # an earlier profile that is the same program and setting
    took_s: float = 0.0
    setting: str = ""  # digest of program and run-time settings; "" where there is no program
    later: tuple[str, ...] = ()  # settings that may act at run time only

    @property
    def is_settled(self) -> bool:
        """Whether measuring it would only measure noise, or fail."""
        return self.cls in SETTLED or self.twin is not None


@dataclass(slots=True, kw_only=True)
class Screen:
    """Judges profiles in their order, each against the baseline and those before it.

    Attributes:
        baseline: the cell as deployed.
        memory_limit_bytes: of one device; None is unknown.
    """

    baseline: Program
    memory_limit_bytes: int | None = None
    _seen: dict[str, str] = field(default_factory=dict)

    def judge(self, compiled: Compiled) -> Screened:
        """Say what compiling this profile settles."""
        found, twin, setting = compiled.program, None, ""
        later: dict[str, str | None] = {}
        if found is None:
            cls = Class.REFUSED if compiled.refused else Class.FAILED
            sentence = compiled.said
        else:
            later = self._run_time(compiled.profile, found)
            cls, sentence = self._compare(compiled.profile, found, later)
            setting = digest([found.digest, sorted(later.items())])
            if cls is not Class.IDENTICAL:
                name = compiled.profile.id
                first = self._seen.setdefault(setting, name)
                twin = None if first == name else first
            sentence += f"; then: {compiled.said}" if compiled.said else ""
        return Screened(
            profile=compiled.profile.id,
            cls=cls,
            sentence=sentence,
            twin=twin,
            took_s=compiled.took_s,
            setting=setting,
            later=tuple(sorted(later)),
        )

    def _compare(
        self, profile: Profile, found: Program, unseen: Mapping[str, str | None]
    ) -> tuple[Class, str]:
        needed, limit = found.memory_bytes, self.memory_limit_bytes
        if needed is not None and limit is not None and needed > limit:
            return Class.MEMORY, f"{size(needed)} of {size(limit)}"
        changed = difference(self.baseline, found)
        if changed.change is not Change.IDENTICAL:
            cls = Class.SCHEDULE if changed.change is Change.SCHEDULE else Class.PROGRAM
            return cls, changed.text
        if unseen:
            return Class.UNSEEN, f"same program; {', '.join(sorted(unseen))} may act later"
        if profile.flags and self._differing(found) == set():
            return Class.IDENTICAL, "every option is as deployed: a default, or silently dropped"
        return Class.IDENTICAL, "keep one such profile as an A/A control, or none"

    def _run_time(self, profile: Profile, found: Program) -> dict[str, str | None]:
        """Return the settings that may act without changing the program."""
        asked = effective_values(profile.flags)
        differing = self._differing(found)
        set_to: dict[str, str | None] = dict(asked)
        if differing is not None and found.options is not None:
            set_to = {name: found.options.get(name) for name in differing}
            # XLA prints a list that was emptied as it prints a default: not at all
            set_to |= {name: value for name, value in asked.items() if not value}
        return {
            **{f"--{name}": value for name, value in set_to.items() if not is_seen(name)},
            **profile.env,
            **profile.overrides,
        }

    def _differing(self, found: Program) -> set[str] | None:
        """Return the options that differ from the baseline's; None where XLA printed none."""
        old, new = self.baseline.options, found.options
        if old is None or new is None:
            return None
        return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def summary_lines(screened: Sequence[Screened]) -> list[str]:
    """Render how much a screening settled, and what it cannot say."""
    counts = Counter(str(each.cls) for each in screened)
    settled = sum(each.is_settled for each in screened)
    return [
        f"{settled} of {len(screened)} profiles need no run ("
        + ", ".join(f"{count} {cls}" for cls, count in counts.most_common())
        + f"), in {sum(each.took_s for each in screened):.0f} s",
        LIMITS,
    ]


def screened_line(screened: Screened, width: int = 0) -> str:
    """Render one judged profile."""
    twin = f"the same as {screened.twin}: " if screened.twin else ""
    cls = "" if screened.sentence.startswith(screened.cls) else f"{screened.cls}: "
    return f"{screened.profile:{width}}  {twin}{cls}{screened.sentence}"
