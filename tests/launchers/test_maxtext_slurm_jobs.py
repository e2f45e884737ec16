"""maxtext-slurm: a job of a pretend checkout from end to end, and a whole sweep."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import profile
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.executors.folder import read_environments
from pytest_xlatune.model.environment import differing
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Action, Outcome, State
from pytest_xlatune.tasks.read_logs import logs_of, read_one
from pytest_xlatune.workers.maxtext_slurm_job import RECORD, write_environments
from tests.helpers.assessed import assess
from tests.helpers.checkout import MODEL, Site, make_cell, make_trial


def test_a_profile_is_the_last_word_and_the_checkout_stays_as_it_is(site: Site) -> None:
    before = sorted(path for path in site.checkout.rglob("*") if ".git/" not in str(path))
    of = profile("ag-8g", "--xla_all_gather=8 --xla_list='a b'", env={"NCCL_PROTO": "it's"})
    assert site.run(of) == 0
    read = read_one(site.log)
    assert read.report.xla_flags is not None
    asks, _, flags = read.report.xla_flags.partition(" --xla_of")
    assert asks.startswith('--xla_dump_to="'), "the first rank is made to tell its options"
    assert f"--xla_of{flags}" == (
        "--xla_of_the_image=1 --xla_all_gather=8589934592 --xla_all_gather=1073741824 "
        '--xla_all_gather=8 --xla_list="a b"'
    )
    assert read.report.env["NCCL_PROTO"] == "it's"
    assert read.report.env["NCCL_NCHANNELS_PER_NET_PEER"] == "4"
    assert [step.tgs for step in read.report.steps] == [994.9] * 12
    outcome = Outcome(state=State.COMPLETED, exit_code=0)
    cell = make_cell()
    found = assess(make_trial(cell, of), cell, outcome, read.report)
    assert found.score is not None
    assert found.score.tgs == pytest.approx(994.9, rel=1e-3)
    name, sbatch, ray = (site.state / "submitted").read_text().splitlines()
    assert (sbatch, ray) == ("-N2 -wnode[001-002] --time=45:00", "RAY=1")
    after = sorted(path for path in site.checkout.rglob("*") if ".git/" not in str(path))
    made = [path for path in after if path not in before]
    tops = {path.relative_to(site.outputs).parts[0] for path in made}
    assert {each[:5] for each in tops} == {".arti", "4711-"}
    frozen = site.outputs / ".artifacts" / "4711"
    assert (frozen / "submit.sh").is_file()
    assert not (frozen / "outputs").exists()
    assert not (frozen / "secret.local.sh").exists()
    assert not (site.attempt / "checkout").exists()
    assert f"JOB_NAME={name}\n" in site.log.read_text(encoding="utf-8")
    assert found.findings == () or {each.action for each in found.findings} == {Action.NONE}
    (node,) = read_environments(site.attempt)
    assert node.node["kernel"] == platform.release()
    assert node.packages["python"]


def test_outputs_are_found_by_the_front_of_their_name_after_the_tagger_renamed_them(
    site: Site,
) -> None:
    assert site.run(BASELINE, evidence=True) == 0
    record = site.record()
    assert (record["job_id"], record["state"]) == ("4711", "COMPLETED")
    assert record["folder"] == f"{site.outputs}/4711-JAX-{MODEL}-2N-pdbs7-TGS_994.900"
    dumped = "module_0025.jit_train_step.gfx950_gpu_after_optimizations.txt"
    assert (site.attempt / "xla_dump" / dumped).is_file()
    captures = [each.name for each in captures_below(site.attempt)]
    assert captures == ["node001.xplane.pb", "node002.xplane.pb"]
    log = site.log.read_text(encoding="utf-8")
    for variable in ("M_PROFILER=xplane", "M_PROFILER_STEPS=3", "ENABLE_XLA_DUMP=1"):
        assert f"0: {variable}\n" in log
    assert "0: argument jax_cache_dir=\n" in log
    assert log.endswith("JobState=COMPLETED ExitCode=0:0 NodeList=node[001-002]\n")


@pytest.mark.parametrize(
    "named",
    [
        lambda outputs: outputs / "4711",
        lambda outputs: next(each for each in outputs.glob("4711-*") if each.is_dir()),
        lambda outputs: next(outputs.glob("4711-*.log")),
    ],
    ids=["the id", "the folder", "the log"],
)
def test_a_job_is_read_by_its_id_its_folder_or_its_log(
    site: Site, named: Callable[[Path], Path]
) -> None:
    assert site.run(BASELINE) == 0
    read = read_one(*logs_of(named(site.outputs)))
    assert read.report.last_step == 11
    assert read.path.suffix == ".log"


def test_a_failed_job_ends_as_it_did_and_is_diagnosed_from_its_own_log(site: Site) -> None:
    of = profile("bogus", "--xla_bogus=1")
    assert site.run(of) == 1
    cell = make_cell()
    outcome = Outcome(state=State.FAILED, exit_code=1)
    found = assess(make_trial(cell, of), cell, outcome, read_one(site.log).report)
    assert found.findings[0].cls == "unknown-flag"
    assert found.findings[0].detail == "--xla_bogus=1"


def test_what_submit_says_when_it_fails_is_in_the_log(site: Site) -> None:
    assert site.run(BASELINE, FAIL_SUBMIT="1") == 1
    log = site.log.read_text(encoding="utf-8")
    assert "sbatch: error: Batch job submission failed" in log
    assert "submit.sh ended with 1" in log
    assert not (site.attempt / RECORD).exists()


@pytest.mark.parametrize("ends_with", ["0", "1"])
def test_a_job_that_submit_does_not_name_is_found_by_its_name(site: Site, ends_with: str) -> None:
    assert site.run(BASELINE, MUTE=ends_with) == 0
    record = site.record()
    assert (record["job_id"], record["state"]) == ("4711", "COMPLETED")
    assert "scancel" not in (site.state / "calls").read_text()


def test_the_sweep_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "maxtext.md").read_text(
        encoding="utf-8"
    )
    (block,) = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/how-to/maxtext.md", "exec"), names)
    resolved = names["SWEEP"].resolve()
    resolved.check()
    (trial,) = [each for each in resolved.study().decide(()).due if not each.is_baseline]
    argv = resolved.sweep.launcher.launch(trial, resolved.cell).argv
    shown = shlex.join(("submit.sh", *argv[argv.index("--") + 1 :]))
    digest = trial.id.rpartition("-")[2]
    written = " ".join(text.partition("    submit.sh")[2].partition("\n\n")[0].split())
    assert shown.removeprefix("submit.sh ").replace(digest, "784ebde6c2") == written.replace(
        "\\ ", ""
    )


def test_each_node_of_a_job_tells_what_it_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every container sources the model's file; the log mixes what they print."""

    def told(name: str, jaxlib: str) -> str:
        found = {"name": name, "packages": {"jaxlib": jaxlib}, "problems": []}
        return f"xlatune-environment: {json.dumps(found)}\n"

    lines = [
        f"1: {told('node002', '0.9.1')}",
        f"0: {told('node001', '0.9.0')}",
        "0: xlatune-environment: {torn\n",
        "0: xlatune-environment: []\n",
        f"0: {told('node001', 'of a trainer that prints such a line later')}",
    ]
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "4711-a.log").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write_environments("4711", tmp_path / "outputs", tmp_path / "no repository")
    found = read_environments(tmp_path)
    assert [(each.name, each.packages) for each in found] == [
        ("node001", {"jaxlib": "0.9.0"}),
        ("node002", {"jaxlib": "0.9.1"}),
    ]
    assert differing(found) == ("jaxlib: 0.9.0 on node001, 0.9.1 on node002",)
