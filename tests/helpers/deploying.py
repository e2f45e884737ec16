"""Cells with a winner, and repositories whose files deploy them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.redact import hide_assignments
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.report.measured_cell import MeasuredCell
from tests.helpers.repositories import Repository

ENV = "configs/tiny.env.sh"
YML = "configs/tiny.yml"
DEPLOYED = """\
# what is deployed
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"
export NCCL_ALGO=Ring
# the end
"""


def covered(
    recipe: Profile,
    *,
    parallelism: str = "FSDP=8",
    config_tag: str = "",
    text: str | None = DEPLOYED,
    yml: str | None = None,
    others: tuple[tuple[Profile, VerdictKind], ...] = (),
    written_s: float = 1e9,
) -> MeasuredCell:
    """A cell whose winner is `recipe`."""
    cell = Cell(model_tag="tiny", parallelism=Parallelism.parse(parallelism), config_tag=config_tag)
    files = []
    if text is not None:
        files.append(DeployedFile(path=ENV, text=hide_assignments(text), is_new=not text))
    if yml is not None:
        files.append(DeployedFile(path=YML, text=yml, is_shell=False))
    verdicts = [Verdict(arm=recipe.id, kind=VerdictKind.FASTER, delta=0.1, n=4, tgs=110.0)]
    for each, kind in others:
        slower = -0.1 if kind is VerdictKind.SLOWER else None
        verdict = Verdict(arm=each.id, kind=kind, delta=slower, n=4)
        if kind is VerdictKind.INVALID:
            reasons = (verbatim("out of memory: 9 GiB"),)
            verdict = replace(verdict, can_run=False, n=0, reasons=reasons)
        verdicts.append(verdict)
    return MeasuredCell(
        sweep="sweep",
        cell_digest=cell.digest,
        written_s=written_s,
        cells=(cell,),
        profiles=(recipe, *(each for each, _ in others)),
        conclusion=Conclusion(
            verdicts=tuple(verdicts),
            reference=Verdict(arm="baseline-deployed", kind=VerdictKind.SCREENED, tgs=100.0),
            complete=True,
        ),
        history=(),
        files=tuple(files),
    )


def repository(tmp_path: Path, files: dict[str, str]) -> Path:
    """A git repository with some files, as it would be on another machine."""
    root = tmp_path / "repository"
    Repository(root)
    (root / "configs").mkdir()
    for path, text in files.items():
        (root / path).write_bytes(text.encode())
    return root


def apply(root: Path, patch: str) -> None:
    (root / "recommended.patch").write_bytes(patch.encode())
    git = Repository(root).git
    git("apply", "--check", "recommended.patch")
    git("apply", "--whitespace=error-all", "recommended.patch")


AG, OVERLAP = profile("ag", "--xla_ag=1"), profile("overlap", "--xla_ag=8 --xla_o=2")
