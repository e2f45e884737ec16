"""What a scheduler calls a job: it takes no name that its own commands cannot read back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.executors import JOB_NAME_PREFIX, request_for, slurm
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import Trial

CELL = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=2"))


def trial_of(name: str, position: int = 0) -> Trial:
    return Trial(
        cell_digest=CELL.digest,
        profile=Profile(id=name),
        protocol=Protocol(),
        study="tuning",
        stage="wave1_5",
        position=position,
    )


def job_name_of(name: str) -> str:
    request = request_for(
        trial_of(name), 1, run="first", folder=Path("/work"), nodelist=(), resources=Resources()
    )
    return request.job_name


# an id:  overlap-2+ag-1g.2g
@given(st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,63}", fullmatch=True))
def test_every_profile_has_a_job_name_that_slurm_takes(name: str) -> None:
    assert slurm._JOB_NAME.fullmatch(job_name_of(name))


def test_names_that_differ_in_what_is_replaced_stay_apart() -> None:
    names = {job_name_of(each) for each in ("a+b", "a_b", "a+b+c", "a_b+c")}
    assert len(names) == 4


def test_our_jobs_are_known_by_their_names() -> None:
    assert job_name_of("a").startswith(JOB_NAME_PREFIX)
