"""What recorded evidence says about a winner."""

from __future__ import annotations

from pytest_xlatune.model.record import Real, Record


class EvidenceFact(Record, frozen=True, kw_only=True):
    """A difference between the baseline and the winner that evidence shows.

    Attributes:
        kind: "HLO", "step", "kernel family", "overlap" or "network".
        text: the sentence or the figure.
        artifacts: the files or folders that show it, below the work directory.
        jobs: the jobs that wrote the artifacts.
    """

    kind: str
    text: str
    artifacts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Explanation(Record, frozen=True, kw_only=True):
    """What recorded evidence says about a winner, against `baseline-deployed`.

    Attributes:
        profile: the id of the profile that has the evidence; "" if there is none.
        facts: the facts in the order HLO, step, families, overlap, network.
        is_identical: whether the two programs are the same; None if a dump is missing.
        moved: the relative change of a step's time between the traces; None if a trace is missing.
        problems: one sentence for each artifact that could not be read.
    """

    profile: str = ""
    facts: tuple[EvidenceFact, ...] = ()
    is_identical: bool | None = None
    moved: Real | None = None
    problems: tuple[str, ...] = ()
