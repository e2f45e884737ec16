"""Who has a slot of a derived wave, and why: shares of a step and places, from the ledger."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from tests.document.complaints import Complaints
from tests.document.figures import Books

# wave2: candidates by the evidence of base-e.0-f551: 1 fast (idle, 3.1 % of a step)
SENTENCE = re.compile(r"(wave[0-9]+(?:_[0-9]+)?): (candidates|cut|left out)(.*)", re.DOTALL)
SHARE = re.compile(r"([\w -]+?)(?: alone)?, ([0-9.]+) % of a step")


class SlotCheck:
    """The sentences about slots of one cell."""

    def __init__(self, books: Books, found: Complaints) -> None:
        self.books = books
        self.found = found

    @cached_property
    def rules(self) -> dict[str, dict[str, Any]]:
        """The rule of single settings of each wave, as last declared."""
        opened = [each for each in self.books.lines if each["event"] == "campaign-opened"]
        studies = [json.loads(each["declared"]) for each in opened if each["study"] == "tuning"]
        return {each["wave"]: each for each in (studies[-1].get("singles", []) if studies else ())}

    @cached_property
    def shares(self) -> dict[str, float]:
        told = [
            line["shares"]["of_step"]
            for line in self.books.lines
            if line["event"] == "evidence-recorded" and line.get("shares")
        ]
        return dict(told[-1]) if told else {}

    def said(self, text: str) -> str:
        """Take away a sentence about slots, after its figures were held against the ledger."""
        match = SENTENCE.fullmatch(text.strip())
        if match is None or (match[2] != "left out" and match[1] not in self.rules):
            return text
        wave, kind, rest = match.groups()
        if kind == "left out":
            # the words of a rule of the catalog, which quote settings
            return ""
        for parts, share in SHARE.findall(rest):
            named = parts.strip(" (;").split(" and ")
            value = sum(self.shares[each] for each in named if each in self.shares)
            self.found.number(share, 100 * value)
        rest = SHARE.sub("", rest)
        if kind == "cut":
            slots = int(self.rules[wave]["slots"])
            rest = self.found.said(rest.replace("slots", "slot"), "it has {n} slot", n=slots)
        for trial in sorted({str(line.get("trial_id", "")) for line in self.books.lines} - {""}):
            rest = rest.replace(trial, "")
        candidates = [each["id"] for each in self.rules[wave]["candidates"]]
        places = re.findall(r"\b([0-9]+) (\S+?)(?=[,; ]|$)", rest) if kind == "candidates" else []
        if [int(number) for number, _ in places] != list(range(1, len(places) + 1)):
            self.found.wrong(f"places are not in order: {rest.strip()!r}")
        for number, name in places:
            if name not in candidates:
                self.found.wrong(f"{name} is no candidate of {wave}")
            rest = rest.replace(f"{number} {name}", "", 1)
        for name in sorted(candidates, key=len, reverse=True):
            rest = rest.replace(name, "")
        return rest
