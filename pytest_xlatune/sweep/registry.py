"""All kinds of studies: class, document, name of the report, markers.

A new study adds one entry here, and its markers to `markers.py`. Ledgers and reports name a study
by its kind, sweep files by a declaration of that kind, and tests by a marker. Classes and functions
are given by name and imported on first use.

Other distributions add a study by an entry point of `pytest_xlatune.studies`: its name is that of
the kind, and its object a `StudyKind`. It is loaded when a sweep file or a ledger names the kind,
so pytest knows its markers only from then on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.sweep.markers import MARKERS

if TYPE_CHECKING:
    from pytest_xlatune.model.record import Json
    from pytest_xlatune.report.document import Document
    from pytest_xlatune.report.measured_cell import MeasuredCell
    from pytest_xlatune.studies import Study, Traits


class StudyKind(NamedTuple):
    """One kind of study.

    Attributes:
        study: its class, as `module:name`.
        document: the function that makes the document for a `MeasuredCell`, as `module:name`.
        file_name: name of its report files, without suffix.
        markers: markers of the tests that run it -> a phrase on what each selects.
    """

    study: str
    document: str
    file_name: str
    markers: Mapping[str, str] = {}

    @property
    def cls(self) -> type[Study]:
        """The class of its studies; this imports it."""
        study_class: type[Study] = _named(self.study)
        return study_class

    @property
    def traits(self) -> Traits:
        """The traits of its studies; this imports the class."""
        return self.cls.traits

    @property
    def is_declared(self) -> bool:
        """Whether a sweep file can declare it as `Sweep(study=...)`; this imports the class."""
        return bool(self.markers) and not (self.traits.about_cell or self.traits.is_deployed)

    def document_of(self, subject: MeasuredCell) -> Document:
        """Return the document for a conclusion."""
        document: Document = _named(self.document)(subject)
        return document


OTHER_STUDIES = EntryPointGroup("pytest_xlatune.studies", kind="study")
# functions that are called with each kind of another distribution when it is loaded
ON_LOADED: list[Callable[[StudyKind], None]] = []


class _Kinds(dict[str, StudyKind]):
    """Kinds by name: ours, and those of other distributions, which are loaded on first use."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in OTHER_STUDIES

    def __missing__(self, name: str) -> StudyKind:
        if name not in OTHER_STUDIES:
            raise KeyError(name)
        kind = OTHER_STUDIES.load_as(name, StudyKind, where="the registry of studies")
        self[name] = kind
        for callback in ON_LOADED:
            callback(kind)
        return kind

    def get(self, name: str, default: Any = None) -> Any:
        """Return the kind with this name, including those of other distributions."""
        try:
            return self[name]
        except KeyError:
            return default


_CELL_DOCUMENT = "study_documents:cell_document"
# kind -> its class below `studies`, the function of its document below `report`, and the name of
# its reports
_OURS = {
    "tuning": ("tuning:TuningStudy", "leaderboard:leaderboard", "leaderboard"),
    "gate": ("gate:GateStudy", "study_documents:gate", "gate"),
    "network": ("network_check:NetworkStudy", _CELL_DOCUMENT, "network"),
    "nodes": ("node_check:NodeStudy", _CELL_DOCUMENT, "nodes"),
    "batch": ("batch_size:BatchStudy", _CELL_DOCUMENT, "batch"),
    "commits": ("commit_check:CommitStudy", _CELL_DOCUMENT, "commits"),
    "calibration": ("calibration:CalibrationStudy", "study_documents:calibration", "calibration"),
    "evidence": ("evidence_run:EvidenceStudy", "study_documents:evidence", "evidence"),
    "imported": ("imported:ImportedStudy", "study_documents:imported", "leaderboard"),
}
KINDS: dict[str, StudyKind] = _Kinds(
    (
        name,
        StudyKind(
            f"pytest_xlatune.studies.{study}",
            f"pytest_xlatune.report.{document}",
            file_name,
            MARKERS.get(name, {}),
        ),
    )
    for name, (study, document, file_name) in _OURS.items()
)


def kind_names() -> list[str]:
    """Return the names of all kinds, including other distributions'; nothing is imported."""
    loaded = [*KINDS]
    return [*loaded, *(name for name in OTHER_STUDIES if name not in loaded)]


def markers() -> dict[str, str]:
    """Return marker -> phrase for all known kinds, sorted by name."""
    return dict(sorted(pair for kind in KINDS.values() for pair in kind.markers.items()))


def kind_of(name: str) -> StudyKind:
    """Return the kind of a study by its name, e.g. `gate-1f3a5c7e`.

    Raises:
        LedgerError: the kind is not known here.
    """
    kind = name.partition("-")[0]
    if kind not in KINDS:
        raise LedgerError(
            f"the ledger has a study {name!r}, but known are {', '.join(sorted(kind_names()))}. "
            "Was it written by another version?"
        )
    return KINDS[kind]


# (name, JSON text) -> a study that this process uses
_IN_USE = weakref.WeakValueDictionary[tuple[str, str], "Study"]()


def study_of(name: str, declared: Json) -> Study:
    """Return the study with this name and JSON data: the one in use, if there is one.

    Raises:
        LedgerError: the kind is not known here.
    """
    key = name, _text_of(declared)
    study = _IN_USE.get(key)
    if study is None:
        study = _IN_USE[key] = kind_of(name).cls.from_json(declared)
    return study


def put_in_use(study: Study, declared: Json) -> None:
    """Make `study_of` return this study, with its cached conclusions, for its own JSON data."""
    with contextlib.suppress(LedgerError):  # the kind is unknown, so no ledger has such a study
        # a study with secrets differs, because they are not in the JSON data
        if kind_of(study.name).cls.from_json(declared) == study:
            _IN_USE[study.name, _text_of(declared)] = study


def _text_of(declared: Json) -> str:
    return json.dumps(declared, sort_keys=True)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
