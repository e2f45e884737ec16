"""The sentences of a document: what follows from the ledger is taken away, no digit may be left."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from math import expm1

from tests.document.complaints import Complaints
from tests.document.estimates import ALPHA
from tests.document.evidence import EvidenceCheck
from tests.document.figures import ALIAS, BASELINE, BOUNDED, Books, Row
from tests.document.lines import NUMBER, in_line
from tests.document.slots import SlotCheck

SHOWN_OF_THE_SCREEN = 8 + 5
# a sentence whose figures are a definition
BUBBLE = (
    "S stages, M microbatches and V repeats leave a bubble of (S-1)/(M V + S-1), twice the S-1 "
    "where activations are forwarded with a delay. Predicted is what the bubble alone changes; "
    "smaller microbatches cost something of their own."
)


class Prose:
    """The sentences about one cell. `literals` are what may stand between backticks."""

    def __init__(
        self,
        books: Books,
        found: Complaints,
        *,
        evidence: EvidenceCheck,
        literals: AbstractSet[str],
    ) -> None:
        self.books = books
        self.found = found
        self.evidence = evidence
        self.literals = literals
        self.slots = SlotCheck(books, found)
        self.known = {BUBBLE}  # sentences that are right as they stand
        self.left_out = 0  # profiles of the screen that are said to be in no table

    def check(self, text: str) -> None:
        """Take away what follows from the ledger, sentence by sentence; no digit may be left."""
        if text in self.known:
            return
        books, fit = self.books, self.books.fit
        best = books.rows[books.winner] if books.winner else Row(kind="")
        low, high = best.ci95 or (None, None)
        measured = "o measured profile beats the baseline by more than {bound} %"
        rest = self.found.said(
            text,
            f"★ `{books.winner}` is faster than `{BASELINE}` by {{delta}} % (95 % interval "
            "[{low}, {high}], n = {n})",
            delta=best.delta,
            low=low,
            high=high,
            n=best.n,
            percent=True,
        )
        for template, value in (
            ("o profile beats the baseline by more than {bound} % (M, at 95 %)", books.bound),
            (f"{measured} (95 %)", books.bound),
            (
                "o measured profile beats the baseline by more than {bound} % (M, at 95 %)",
                books.bound,
            ),
            ("bounded at {bound} %", BOUNDED),
            ("which is below {bound} %", BOUNDED),
            ("MDE80, the smallest effect it finds with 80 % power: {bound} %", books.mde80),
            ("Sigma, the noise of one job's score between jobs: {bound} %", books.sigma),
        ):
            rest = self.found.said(rest, template, bound=value, percent=True)
        if books.outlook is not None:
            rest = books.outlook.said(rest, self.found)
        rest = self.found.said(rest, "Alpha spent: {a} of {of}", a=books.alpha_spent, of=ALPHA)
        if fit is not None:
            rest = rest.replace(f"Method: {fit.method}", "")
        for name in books.stopping if fit else ():
            at, least = fit.arms[name].value if fit else 0.0, fit.lower(name) if fit else 0.0
            template = f"stop rule reached: {name} is at {{at}} %, at least {{least}} %"
            rest = self.found.said(rest, template, at=expm1(at), least=expm1(least), percent=True)
        if fit is not None and ALIAS in fit.arms:
            low, high = map(expm1, fit.interval(ALIAS))
            template = "A/A control: the baseline against itself is between {low} % and {high} %"
            rest = self.found.said(rest, template, low=low, high=high, percent=True)
        if books.window.note:
            rest = rest.replace(books.window.note, "")
        template = "the window of all trials starts at step {first}"
        rest = self.found.said(rest, template, first=books.window.first_step)
        rest = self.tried(rest)
        rest = self.slots.said(self.between(rest))
        rest, problems = self.evidence.prose(rest)
        for each in problems:
            self.found.wrong(each)
        for literal in re.findall("`([^`]*)`", rest):
            if re.search("[0-9]", literal) and literal not in self.literals:
                self.found.wrong(f"`{literal}` is in no line of the ledger")
        bare = re.sub("`[^`]*`", "", rest)
        for name in sorted(books.profiles, key=len, reverse=True):
            bare = bare.replace(name, "")
        if re.search("[0-9]", bare):
            self.found.wrong(f"figures that nobody computes: {bare.strip()!r}")

    def tried(self, text: str) -> str:
        """Take away why the winner was tried: words of the ledger, with figures of the screen."""
        start = "Why it was tried: "
        if not text.startswith(start) or not self.books.winner:
            return text
        note = self.books.profiles[self.books.winner]["note"].rstrip(".")
        if text != f"{start}{in_line(note)}.":
            return text
        # what led when the wave was filled:  good+fair +5.1 %
        for name, shown in re.findall(rf"(?:of|showed|,) (\S+) ({NUMBER}) %", note):
            led = self.books.screened.get(name)
            # a window that moved since was another one then
            if not self.books.window.is_moved:
                self.found.change(shown, expm1(led.value) if led else None)
        return ""

    def between(self, text: str) -> str:
        """Take away how many of the screen are not shown."""
        rest = self.found.said(
            text.replace("profiles", "profile"),
            "{n} more profile between these",
            n=sum(r.kind == "SCREENED" for r in self.books.verdicts.values()) - SHOWN_OF_THE_SCREEN,
        )
        if rest != text.replace("profiles", "profile"):
            self.left_out = int(text.split(maxsplit=1)[0])
            return rest
        return text
