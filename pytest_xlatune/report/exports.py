"""Write a report in the formats of other programs: github-action-benchmark and CSV.

    text of the JSON report -> exported() -> Exported -> Export.texts()

A format is made only from the JSON report, so it has the same figures and the same secrets are
hidden. It has the verdicts and the trials, which every study has, without figures that are absent
or not finite. Users of github-benchmark set `tool: customBiggerIsBetter` in
https://github.com/benchmark-action/github-action-benchmark.

Other distributions add formats: an entry point of `pytest_xlatune.exports` names an `Export`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import TGS, Figure
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import Json, read_json
from pytest_xlatune.model.result import Conclusion, Score, TrialResult, Verdict
from pytest_xlatune.model.text import interval, percent, printable

EXPORTS = EntryPointGroup(
    "pytest_xlatune.exports",
    kind="format",
    ours={
        "github-benchmark": "pytest_xlatune.report.exports:GithubExport",
        "csv": "pytest_xlatune.report.exports:CsvExport",
    },
)
_FIGURE_COLUMNS = ("step_s", "delta", "ci95_low", "ci95_high", "mde80", "n")  # of an arm's row


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON report that was read again, with the names of its sweep and study."""

    sweep: str
    study: str  # the kind of the study, e.g. "tuning" or "nodes"
    written: str  # when the report was written, ISO 8601
    cell_digest: str  # of the cell, or of the first cell if there are several
    cell: Cell  # with secrets hidden
    profiles: tuple[Profile, ...]  # those that were compared
    conclusion: Conclusion  # the verdicts and their reference
    trials: tuple[tuple[str, TrialResult], ...]  # id and result, in the order of the report

    @property
    def arms(self) -> tuple[Verdict, ...]:
        """The reference, if there is one, and every arm with a verdict, each once."""
        by_arm = {verdict.arm: verdict for verdict in self.conclusion.verdicts}
        if (reference := self.conclusion.reference) is not None:
            by_arm[reference.arm] = reference
        return tuple(by_arm.values())

    def is_reference(self, arm: str) -> bool:
        """Return whether the other arms are compared with this arm."""
        reference = self.conclusion.reference
        return reference is not None and reference.arm == arm


def formats(text: str) -> tuple[str, ...]:
    """Return the names in a list such as `csv,github-benchmark`.

    Raises:
        ConfigError: there is no such format.
    """
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        EXPORTS.check(name, where="the list")
    return names


class Export:
    """A format; a subclass is called without arguments, and overrides `texts`.

    If the client library of another program writes the format, the subclass overrides `connect` and
    `log` in place of `texts`.

    Attributes:
        name: the name of the format, and of the extra that installs the client.
        title: the name of the program, as its users write it.
        remedy: what to set if the client cannot be used.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    remedy: ClassVar[str] = ""

    def connect(self) -> None:
        """Import the client and check that it can be used; raise any error if it cannot."""

    def log(self, report: Exported, *, key: str) -> Json:
        """Give the figures to the client; return where it keeps them. See `texts` for `key`."""
        raise NotImplementedError

    def check(self) -> None:
        """Check, before anything is measured, that the client can be used; ask no server.

        Raises:
            ConfigError: it cannot be used.
        """
        try:
            with warnings.catch_warnings(action="ignore"):
                self.connect()
        except Exception as error:  # noqa: BLE001 - a client can raise errors of any class
            is_missing = isinstance(error, ModuleNotFoundError)
            remedy = f"install pytest-xlatune[{self.name}]" if is_missing else self.remedy
            raise ConfigError(
                f"export {self.name}: the client of {self.title} cannot be used "
                f"({_first_line(error)}); {remedy}, or take {self.name} out of --xlatune-export"
            ) from None

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:
        """Return suffix of a file name -> text of the file; the suffix is e.g. `.mlflow.json`.

        Args:
            report: the report as it was written.
            key: a text that is the same for every report of a ledger, and differs between ledgers.

        Raises:
            LedgerError: the program or server refuses the figures; the reports are already written.
        """
        try:
            with warnings.catch_warnings(action="ignore"):  # pytest may turn them into errors
                places = {"schema": 1, **self.log(report, key=key)}
        except Exception as error:  # noqa: BLE001 - a client can raise errors of any class
            raise LedgerError(
                f"{self.title} did not accept the figures: {_first_line(error)}; the reports are "
                f"complete: mend the cause, then run `xlatune report --export {self.name}`"
            ) from None
        return {f".{self.name}.json": json.dumps(places, indent=2, sort_keys=True) + "\n"}


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its class if it has no text."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def export_of(name: str) -> Export:
    """Return a format by its name, ours or that of another distribution.

    Raises:
        ConfigError: there is no such format, or it cannot be loaded.
    """
    export: Export = EXPORTS.load(name, where="--xlatune-export")()
    return export


def check_exports(names: Sequence[str]) -> None:
    """Check, before the sweep runs, that each format can be written.

    Raises:
        ConfigError: one of them cannot be written.
    """
    for name in names:
        export_of(name).check()


def exported(text: str, *, sweep: str, study: str) -> Exported:
    """Return the JSON report that a text holds.

    Raises:
        LedgerError: the text is not a JSON report.
    """
    data: Json = read_json(text)
    trials = []
    for trial in data["trials"]:
        fields = dict(trial)
        trial_id = fields.pop("id")
        trials.append((trial_id, TrialResult.from_json(fields)))
    return Exported(
        sweep=sweep,
        study=study,
        written=data["written"],
        cell_digest=data["cell_digest"],
        cell=Cell.from_json(data["cell"]),
        profiles=tuple(map(Profile.from_json, data["profiles"])),
        conclusion=Conclusion.from_json(data["conclusion"]),
        trials=tuple(trials),
    )


def _figure_row(scored: Verdict | Score | None) -> dict[str, object]:
    """Return the figure of an arm or a trial; None if it has none, or one that is not finite."""
    figure = scored.figure if scored is not None else None
    if figure is None and scored is not None and scored.tgs is not None:
        figure = Figure(metric=TGS, value=scored.tgs)
    if figure is None or not math.isfinite(figure.value):
        return {"metric": "", "unit": "", "figure": None}
    unit = figure.metric.unit or "Tokens/s/device"
    return {"metric": figure.metric.name, "unit": unit, "figure": figure.value}


def figures(row: Mapping[str, object]) -> dict[str, float]:
    """Return name -> value of the finite figures in a row of `arm_row`; changes are fractions.

    The figure by which the arm is judged is named after its metric.
    """
    values = {str(row["metric"]): row["figure"]}
    values |= {column: row[column] for column in _FIGURE_COLUMNS}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, float | int) and math.isfinite(value)
    }


class GithubExport(Export):
    """The format `github-benchmark`: an entry for each arm with a figure; larger is better."""

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:  # noqa: ARG002 - no server
        """Return the entries of the arms."""
        entries = []
        for verdict in report.arms:
            row = _figure_row(verdict)
            # the action divides by the previous figure
            if not isinstance(row["figure"], float) or row["figure"] <= 0:
                continue
            texts = [f"{verdict.kind} {percent(verdict.delta)}"]
            if report.is_reference(verdict.arm):
                texts = ["reference"]
            elif verdict.ci95 is not None:
                texts.append(f"95 % {interval(verdict.ci95)}")
            entries.append(
                {
                    # without sweep, image and commit, so that the action compares across all these
                    "name": f"{report.cell.label}: {verdict.arm}",
                    "unit": row["unit"],
                    "value": row["figure"],
                    "extra": ", ".join((*texts, f"n = {verdict.n}")),
                }
            )
        return {".github-benchmark.json": json.dumps(entries, indent=2, allow_nan=False) + "\n"}


class CsvExport(Export):
    """The format `csv`: one table with a row for each arm, and one with a row for each trial."""

    def texts(self, report: Exported, *, key: str) -> Mapping[str, str]:  # noqa: ARG002 - no server
        """Return the two tables."""
        common = study_row(report)
        arms = [{**common, **arm_row(report, verdict)} for verdict in report.arms]
        trials = [{**common, **_trial_row(*trial)} for trial in report.trials]
        return {".arms.csv": _table(arms), ".trials.csv": _table(trials)}


def study_row(report: Exported) -> dict[str, str]:
    """Return the columns that name the study."""
    return {
        "written": report.written,
        "sweep": report.sweep,
        "study": report.study,
        "cell": report.cell.label,
        "cell_digest": report.cell_digest,
    }


def arm_row(report: Exported, verdict: Verdict) -> dict[str, object]:
    """Return the columns of an arm; the value of an absent figure is None."""
    low, high = verdict.ci95 or (None, None)
    settings = {profile.id: profile.settings_text for profile in report.profiles}
    return {
        "complete": report.conclusion.complete,
        "arm": verdict.arm,
        "is_reference": report.is_reference(verdict.arm),
        "verdict": str(verdict.kind),
        **_figure_row(verdict),
        "step_s": verdict.step_s,
        "delta": verdict.delta,
        "ci95_low": low,
        "ci95_high": high,
        "n": verdict.n,
        "mde80": verdict.mde80,
        "method": sentence(verdict.method),
        "reasons": "; ".join(map(sentence, verdict.reasons)),
        "job_ids": " ".join(verdict.job_ids),
        "settings": settings.get(verdict.arm, ""),
    }


def _trial_row(trial_id: str, result: TrialResult) -> dict[str, object]:
    trial, score, outcome = result.trial, result.score, result.outcome
    return {
        "trial": trial_id,
        "arm": trial.arm,
        "stage": trial.stage,
        "block": trial.block,
        "status": str(result.status),
        **_figure_row(score),
        "step_s": score.step_s if score else None,
        "n_steps": score.n_steps if score else None,
        "loss": score.loss if score else None,
        "start_s": outcome.start_s if outcome else None,
        "end_s": outcome.end_s if outcome else None,
        "nodes": " ".join(outcome.nodes) if outcome else "",
        "reason": sentence(result.reason),
        "job_ids": " ".join(result.job_ids),
    }


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV; "" if there are no rows. An absent value is an empty field."""
    if not rows:
        return ""
    file = io.StringIO(newline="")
    # \r\n is the line end of RFC 4180, and makes Python quote a \r within a text too
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return printable(file.getvalue())
