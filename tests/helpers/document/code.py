"""What a document gives to a shell, to `git apply` or to a trainer: it is run, and compared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from pytest_xlatune.model.profile import Profile
from tests.helpers.document.figures import BASELINE, Books
from tests.helpers.document.lines import NUMBER, lines_of, rounds_to

# the head of a hunk:  @@ -6,3 +6,6 @@
HUNK = re.compile(r"@@ -([0-9]+)(?:,([0-9]+))? \+([0-9]+)(?:,([0-9]+))? @@")


def _says(line: str, expected: str) -> bool:
    """Whether a line is what is expected, its figures rounded."""
    percent = re.compile(rf"({NUMBER})(?= %)")
    pairs = zip(percent.findall(expected), percent.findall(line), strict=False)
    is_same = percent.sub("", line) == percent.sub("", expected)
    return is_same and all(rounds_to(float(value), shown) for value, shown in pairs)


class CodeCheck:
    """Code blocks of one cell's document."""

    def __init__(self, books: Books, *, label: str) -> None:
        self.books = books
        self.label = label
        found = books.profiles.get(books.winner)
        self.recipe = Profile.from_json(dict(found)) if found else None

    def complaints(self, language: str, lines: Sequence[str], *, section: str) -> Iterator[str]:
        files = self.books.files
        if section == "Inventory":
            known = {line for file in files for line in lines_of(file)}
            yield from (f"{line!r} is in no file" for line in lines if line not in known)
        elif self.recipe is None:
            yield "settings to deploy, and no winner"
        elif language == "diff":
            yield from self._patch(lines)
        elif language == "bash":
            yield from self._shell(lines)
        else:
            wanted = [f"{key}={value}" for key, value in self.recipe.overrides.items()]
            if list(lines) != wanted:
                yield f"keys {list(lines)}, the winner has {wanted}"

    def _shell(self, lines: Sequence[str]) -> Iterator[str]:
        """Source the lines on top of what is deployed: the winner's settings must come out."""
        recipe = self.recipe
        deployed: Mapping[str, Any] = self.books.cell["deployed"]
        best = self.books.rows[self.books.winner]
        comments = [
            f"# {self.books.winner}: measured on {self.label}, jobs {', '.join(best.jobs)}",
            *self._needs(),
            *self._effects(),
        ]
        for line in lines:
            if line.startswith("#") and not any(_says(line, each) for each in comments):
                yield f"{line!r}, expected {comments}"
            elif re.search("[0-9]", line) and not line.startswith(("#", "export ")):
                yield f"{line!r} does nothing that is known"
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join([*lines, "env -0"])],
            env={"PATH": "/usr/bin:/bin", **deployed},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            yield f"a shell refuses the lines: {done.stderr.strip()}"
            return
        found = dict(each.split("=", 1) for each in done.stdout.split("\0") if "=" in each)
        wanted = dict(recipe.env) if recipe else {}
        flags = " ".join(map(str, recipe.flags)) if recipe else ""
        if flags:
            wanted["XLA_FLAGS"] = " ".join(filter(None, (deployed.get("XLA_FLAGS"), flags)))
        shells_own = {"PWD", "SHLVL", "_", "OLDPWD", "PATH"}
        got = {name: found.get(name) for name in (found.keys() | wanted) - shells_own}
        expected = {**deployed, **wanted}
        if got != expected:
            yield f"sourced, the lines make {got}, the winner is {expected}"

    def _needs(self) -> Iterator[str]:
        """What is said of each of its settings, the gain in percent."""
        found = self.books.recipe
        for each in found.parts(BASELINE) if found else ():
            against = "" if each.without == BASELINE else f" against {each.without}"
            blocks = f", {each.blocks} block{'s' * (each.blocks > 1)}" if each.blocks else ""
            gain = "" if each.gain is None else f" ({100 * each.gain:+.9f} %{against}{blocks})"
            left = "" if each.is_deployed else "left out: "
            for names in permutations(each.names):
                yield f"# {left}{', '.join(names)}: {each.need}{gain}"

    def _effects(self) -> Iterator[str]:
        """That all its settings were in effect, where each of its trials says so."""
        results = [each.result for each in self.books.of(self.books.winner)]
        own = [each for one in results for each in one.get("settings") or ()]
        if {each["effect"] for each in own if not each.get("is_deployed")} == {"in effect"}:
            yield "# its settings in every trial: in effect"

    def _patch(self, lines: Sequence[str]) -> Iterator[str]:
        """Follow each hunk through the file that was recorded, line by line."""
        files = {file["path"]: lines_of(file) for file in self.books.files}
        path, shift = "", 0
        at = 0
        while at < len(lines):
            line = lines[at]
            at += 1
            head = HUNK.fullmatch(line)
            if line.startswith("diff --git "):
                path, shift = line.rpartition(" b/")[2], 0
                if path not in files or line != f"diff --git a/{path} b/{path}":
                    yield f"{line!r} names no file that was recorded"
                    return
            elif head is None:
                if line not in (f"--- a/{path}", f"+++ b/{path}"):
                    yield f"{line!r} is no line of a patch of {path}"
            else:
                start, before, new_start, after = (int(each or 1) for each in head.groups())
                body = list[str]()
                while at < len(lines) and lines[at][:1] in (" ", "+", "-", ""):
                    if re.match(r"(---|\+\+\+) [ab]/", lines[at]):
                        break
                    body.append(lines[at] or " ")
                    at += 1
                old = [each[1:] for each in body if each[0] in " -"]
                new = [each[1:] for each in body if each[0] in " +"]
                if old != files[path][start - 1 : start - 1 + before]:
                    yield f"{line}: {path} is another there"
                if (len(old), len(new), new_start) != (before, after, start + shift):
                    yield f"{line}: {len(old)} lines become {len(new)}, moved by {shift}"
                shift += after - before
                yield from self._added([each[1:] for each in body if each[0] == "+"], path)

    def _added(self, lines: Sequence[str], path: str) -> Iterator[str]:
        if path.endswith(".sh"):
            yield from self._shell(lines)
            return
        recipe = self.recipe
        keys = {line.split("#")[0].strip() for line in lines if line.strip()}
        wanted = {f"{key}: {value}" for key, value in (recipe.overrides if recipe else {}).items()}
        if not keys <= wanted:
            yield f"{path} gets {keys}, the winner has {wanted}"
