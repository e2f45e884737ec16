"""Nodes and devices that are not what they were: nothing compares across the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import Request, Resumed
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import OPTIONS_FOLDER, profile
from pytest_xlatune.model.result import Conclusion, Outcome, State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.run_record import record_of_study
from tests.helpers import scripted
from tests.helpers.assessed import assess
from tests.helpers.tables import rows

OLD, NEW = ("node001", "node002"), ("node001", "node009")
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=OLD)


def swept(folder: Path, change: int, *, fails: bool) -> Campaign:
    """Run a sweep whose trials are all alike, and 20 % faster from trial number `change` on."""
    count = 0

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        nonlocal count
        count += 1
        if fails and count == change:
            return scripted.log(steps=3), NODE_FAIL
        is_new = count >= change
        speed = 1000 * (1.2 if is_new else 1.0) * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)
        same = OLD if count % 2 else OLD[::-1]  # the same nodes, in another order
        nodes = NEW if is_new and not fails else same
        return scripted.log(speed), replace(scripted.OK, nodes=nodes, start_s=count, end_s=None)

    executor = scripted.FakeExecutor(script)
    executor.revival = Resumed(nodes=("node002",))
    made = scripted.campaign(folder, executor)
    scripted.run(made)
    assert made.conclude().complete
    return made


def largest_change(conclusion: Conclusion) -> float:
    return max(abs(each.delta) for each in conclusion.verdicts if each.delta is not None)


# 4 trials are the screen, 9 the three blocks
@rows("fails", {"a node was swapped": False, "a node came back": True})
def test_a_change_inside_a_block_parts_it_in_two(tmp_path: Path, *, fails: bool) -> None:
    made = swept(tmp_path, 9, fails=fails)
    history, conclusion = made.view().history, made.conclude()
    blocks = {(each.trial.block, each.epoch) for each in history if each.trial.block}
    assert blocks == {(1, 0), (2, 0), (2, 1), (3, 1)}
    assert all(verdict.kind != "FASTER" for verdict in conclusion.verdicts)
    assert largest_change(conclusion) < 0.005
    # what the same trials would say without epochs: they prevent just this
    as_one = made.study.decide([replace(result, epoch=0) for result in history]).conclusion
    assert largest_change(as_one) > 0.05
    # it is told, and concluded again from the ledger alone
    notes = " ".join(map(sentence, made.view().state.notes))
    assert ("node001, node009, were node001, node002" in notes) is not fails
    known = read_cell_report(made.folder)
    assert known.conclusion == conclusion
    assert "2 epochs" in markdown(known.document)


OTHER = profile("other", "--xla_other=1", env={"LD_LIBRARY_PATH": "/opt/other"})


def node(name: str, jaxlib: str) -> NodeEnvironment:
    return NodeEnvironment(name=name, node={"kernel": "6.8"}, packages={"jaxlib": jaxlib})


@rows("is_upgraded", {"n2, after it was silent once": True, "never": False})
def test_what_nodes_tell_begins_an_epoch_where_it_changed(
    tmp_path: Path, *, is_upgraded: bool
) -> None:
    """A profile of other libraries would be alone in an epoch, and so would all after it."""

    def tells(trial_id: str) -> Sequence[NodeEnvironment]:
        number, is_other = len(executor.submitted) + 1, trial_id.startswith("other")
        later = node("n2", "0.10" if is_upgraded and number > 3 else "0.9")
        first = node("n1", "0.11" if is_other else "0.9")
        return [first] if number == 3 else [first, later]

    changes = ["on n2 changed: jaxlib 0.9 -> 0.10"] * is_upgraded
    executor = scripted.FakeExecutor(
        lambda *trial: (scripted.ordinary(*trial)[0], replace(scripted.OK, nodes=("n1", "n2")))
    )
    executor.tells = tells
    made = scripted.campaign(tmp_path, executor, profiles=(*scripted.PROFILES, OTHER))
    scripted.run(made)
    record = record_of_study(made.view().state, made.study)
    assert [sentence(each) for each in record.changes] == changes
    assert {each.epoch for each in made.view().history} == ({0, 1} if changes else {0})


GPU = "sm_9.0a_gpu"
SMALL = "module_0000.jit_convert_element_type.{}_after_optimizations.txt"
Where = Callable[[str, int], str]  # of a trial and an attempt: the device as XLA writes it


class Somewhere(scripted.FakeExecutor):
    """Writes the files that XLA would write on the device of each attempt; "" is none."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job_id = super().submit(spec, request)
        trial_id, _, attempt = request.folder.name.rpartition(".")
        if device := self.where(trial_id, int(attempt)):
            folder = request.folder / OPTIONS_FOLDER
            folder.mkdir(exist_ok=True)
            (folder / SMALL.format(device)).write_text("HloModule jit_convert_element_type\n")
        return job_id


def only(which: str, device: str, *, attempts: int = 99) -> Where:
    return lambda trial_id, attempt: (
        device if trial_id.startswith(which) and attempt <= attempts else GPU
    )


@rows(
    "where, tries, has_score",
    {
        "no dump at all": (lambda *_: "", 1, True),
        "a baseline whose dump is missing": (only("baseline", ""), 1, True),
        "the device as an older release writes it": (only("fast", "sm_9.0_gpu"), 1, True),
        "a profile that fell back once": (only("fast", "cpu", attempts=1), 2, True),
        "a profile that runs on another GPU": (only("fast", "sm_8.0_gpu"), 2, False),
    },
)
def test_a_profile_that_runs_elsewhere_has_no_score(
    where: Where, tries: int, has_score: bool, tmp_path: Path
) -> None:
    executor = Somewhere(where)
    made = scripted.campaign(tmp_path, executor)
    scripted.run(made)
    results = [each.result for each in made.view().state.trials.values()]
    fast = next(each for each in results if each.trial.arm == "fast")
    assert executor.submitted.count(fast.trial.id) == tries
    assert ("other-device" in {finding.cls for finding in fast.findings}) is (tries > 1)
    assert (fast.status, fast.score is not None) == (
        "measured" if has_score else "dropped",
        has_score,
    )
    others = [each for each in results if each.trial.arm != "fast" and each.job_ids]
    assert all(each.score is not None for each in others)
    said = "it ran on cuda sm_8.0 and baseline-deployed on cuda sm_9.0, as module jit_convert_"
    assert has_score or said in sentence(fast.reason)


def of_one_node(gpus: str, _: str) -> Sequence[NodeEnvironment]:
    return [NodeEnvironment(name="n1", node={"GPUs": gpus})]


def test_a_node_whose_gpus_were_replaced_begins_anew(tmp_path: Path) -> None:
    """What the kernel's files tell of a node is the node's; a fallback does not change it."""
    more = (*scripted.PROFILES, profile("third", "--xla_third=1"))
    for session, gpus, device, profiles in (
        ("first", "8 x H100", GPU, scripted.PROFILES),
        ("second", "8 x B200", "sm_10.0_gpu", more),
    ):
        executor = Somewhere(lambda *_, device=device: device)
        executor.tells = partial(of_one_node, gpus)
        made = scripted.campaign(tmp_path, executor, session=session, profiles=profiles)
        scripted.run(made)
        assert executor.submitted
    assert not [each for each in made.view().state.decisions if each.cls == "other-device"]


@rows(
    "head, devices",
    {
        "GPUs": ("Devices: [CudaDevice(id=0), CudaDevice(id=1)]", {"log:Devices": "cuda"}),
        "a CPU": ("System Information: Jax Backend: cpu", {"log:Jax Backend": "cpu"}),
        "a plugin": (
            "System Information: Jax Backend: PJRT C API\nrocm 60300",
            {"log:Jax Backend": "an accelerator"}),
        "a CPU beside GPUs": ("Devices: [CpuDevice(id=0)]", {"log:Devices": "cpu"}),
    },
)  # fmt: skip
def test_a_log_alone_tells_the_devices_of_jax(head: str, devices: dict[str, str]) -> None:
    report = read_log([f"{head}\n{scripted.log()}".encode()])
    beside = {"baseline": {"log:Devices": "cuda"}}
    trial = scripted.CellsStudy(cells=(scripted.CELL,)).trial(scripted.CELL, 0)
    found = assess(trial, scripted.CELL, scripted.OK, report, ran_on=beside)
    assert found.devices == devices
    is_refused = devices == {"log:Devices": "cpu"}
    assert (found.score is None) is is_refused
    if is_refused:
        said = "it ran on cpu and baseline on cuda, as log:Devices shows"
        assert said in sentence(found.why_none)
