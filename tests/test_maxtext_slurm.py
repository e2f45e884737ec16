"""maxtext-slurm: the command that is submitted, and a job of a pretend checkout from end to end.

XLATUNE_UPDATE_GOLDEN=1 rewrites the file of the command.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Cell, ConfigError, Parallelism, Profile, Protocol, profile
from pytest_xlatune.campaign.assess import FLAGS_NOT_EFFECTIVE, assess
from pytest_xlatune.cells import LaunchSpec, Stage, Trial
from pytest_xlatune.evidence_files import captures_below, read_program
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.maxtext_slurm import JOB_NAME_BYTES, MaxTextSlurmLauncher
from pytest_xlatune.profiles import BASELINE
from pytest_xlatune.reading.reading import read_one
from pytest_xlatune.results import Outcome, State
from pytest_xlatune.sweep.sweep import Inputs
from pytest_xlatune.workers.maxtext_slurm import RECORD

DATA = Path(__file__).parent / "data" / "maxtext_slurm"
MODEL = "deepseek3-671b"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"


def make_cell(**changes: Any) -> Cell:
    values: dict[str, Any] = {
        "model_tag": MODEL,
        "parallelism": Parallelism.parse("PP=8"),
        "per_device_batch_size": 7,
        "max_target_length": 4096,
    }
    return Cell(**values | changes)


def make_trial(cell: Cell, of: Profile = BASELINE, *, evidence: bool = False) -> Trial:
    return Trial(
        cell_digest=cell.digest,
        profile=of,
        protocol=Protocol(profiler="xplane") if evidence else Protocol(),
        study="tuning",
        stage=Stage.EVIDENCE if evidence else Stage.SCREEN,
    )


def make_launcher(**changes: Any) -> MaxTextSlurmLauncher:
    values: dict[str, Any] = {
        "checkout": "/shared/maxtext-slurm",
        "sbatch": ("-N", "8", "-w", "node[001-008]"),
        "is_ray": True,
        "python": "python3",
    }
    return MaxTextSlurmLauncher(**values | changes)


def name_of(spec: LaunchSpec) -> str:
    return spec.argv[spec.argv.index("--name") + 1]


# --- the command -----------------------------------------------------------------------------


def rendered(spec: LaunchSpec) -> str:
    words = shlex.join(spec.argv).replace(" -- ", " \\\n    -- ")
    files = "".join(f"\n{name}:\n{text.strip()}\n" for name, text in spec.files.items())
    return f"{spec.env}\n{words}\n{files}"


def test_the_command_that_is_submitted() -> None:
    cell = make_cell(overrides={"num_pipeline_microbatches": "16", "base_config": "/a b/base.yml"})
    of = profile("overlap-2", OVERLAP, env={"NCCL_PROTO": "it's"})
    launcher = make_launcher()
    plain = rendered(launcher.launch(make_trial(cell, of), cell))
    evidence = rendered(launcher.launch(make_trial(cell, of, evidence=True), cell))
    found = f"{launcher.describe()}\n\n{plain}\nevidence: {evidence}"
    golden = DATA / "command.txt"
    if os.environ.get("XLATUNE_UPDATE_GOLDEN") == "1":
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")


def test_it_is_a_launcher() -> None:
    launcher: Launcher = make_launcher()
    cell = make_cell(launcher=launcher.describe())
    spec = launcher.launch(make_trial(cell), cell)
    assert spec == launcher.launch(make_trial(cell), cell)
    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert launcher.env_files_of(cell) == (
        "/shared/maxtext-slurm/train_env.sh",
        "/shared/maxtext-slurm/configs/deepseek3-671b.env.sh",
    )


def test_waiting_for_nodes_is_not_part_of_the_trials_deadline() -> None:
    cell = make_cell()
    spec = make_launcher(queue_s=3600).launch(make_trial(cell), cell)
    assert "--time=45:00" in spec.argv
    assert spec.deadline_s == 2700 + 3600
    own = make_launcher(sbatch=("-w", "n1", "-t", "50:00")).launch(make_trial(cell), cell)
    assert not [each for each in own.argv if each.startswith("--time")]


def test_a_job_name_has_at_most_243_bytes_and_is_refused_before_anything_is_submitted() -> None:
    launcher = make_launcher()
    free = JOB_NAME_BYTES - len(name_of(launcher.launch(make_trial(make_cell()), make_cell())))
    # the readable part of the tag goes first
    free += len("baseline-deployed-")
    fits = make_cell(overrides={"k": "v" * (free - len("-k_"))})
    spec = launcher.launch(make_trial(fits), fits)
    assert len(name_of(spec)) == JOB_NAME_BYTES
    assert "baseline" not in name_of(spec)
    longer = make_cell(overrides={"k": "v" * (free - len("-k_") + 1)})
    with pytest.raises(ConfigError, match=r"244 bytes, at most 243 .*deepseek3-671b\.gpu\.yml"):
        launcher.launch(make_trial(longer), longer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sbatch": ("-N", "8")}, r"sbatch='-N 8' names no nodes"),
        ({"sbatch": ("-w", "n1", "--", "steps=1")}, "sbatch holds `--`"),
        ({"checkout": "maxtext-slurm"}, "checkout 'maxtext-slurm' is relative"),
        ({"workspace": "outputs"}, "workspace 'outputs' is relative"),
        ({"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_misuse_is_refused_at_construction(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_launcher(**changes)


@pytest.mark.parametrize(
    ("cell", "of", "message"),
    [
        ({"deployed": {"NCCL_ALGO": "Ring"}}, BASELINE, r"belongs into .*671b\.env\.sh"),
        ({"overrides": {"_env_XLA_FLAGS": "--a=1"}}, BASELINE, "_env_XLA_FLAGS is exported after"),
        (
            {"overrides": {"_env_NCCL_PROTO": "LL"}},
            profile("p", env={"NCCL_PROTO": "Simple"}),
            "_env_NCCL_PROTO is exported after profile 'p' and would replace NCCL_PROTO",
        ),
        ({"overrides": {"_env_X": "a b"}}, BASELINE, "_env_X='a b' cannot be a passthrough"),
        ({"overrides": {"base_output_directory": "/x"}}, BASELINE, "it is the job's folder"),
        ({}, profile("p", overrides={"steps": "9"}), r"Protocol\(steps=\.\.\.\)"),
    ],
    ids=[
        "an environment of the cell",
        "flags that replace all that is deployed",
        "a variable that comes after the profile's",
        "a passthrough of two words",
        "another output folder",
        "a profile with steps of its own",
    ],
)
def test_what_would_be_lost_or_replace_the_deployed_is_refused(
    cell: dict[str, Any], of: Profile, message: str
) -> None:
    made = make_cell(**cell)
    with pytest.raises(ConfigError, match=message):
        make_launcher().launch(make_trial(made, of), made)


# --- a job, from end to end ------------------------------------------------------------------


class Site:
    """A pretend checkout, a pretend Slurm, and the folder of an attempt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkout = root / "maxtext slurm"
        shutil.copytree(DATA / "checkout", self.checkout)
        self.outputs = self.checkout / "outputs"
        self.outputs.mkdir()
        (self.outputs / "big").write_text("never copied")
        (self.checkout / "secret.local.sh").write_text("never copied")
        for command in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", "-C", str(self.checkout), *command], check=True)
        self.state = root / "state"
        self.attempt = root / "attempt"
        bin_folder = root / "bin"
        for folder in (self.state, self.attempt, bin_folder):
            folder.mkdir()
        for name in ("squeue", "scontrol", "scancel"):
            script = bin_folder / name
            code = (DATA / "slurm.py").read_text(encoding="utf-8")
            script.write_text(f"#!{sys.executable}\n{code}")
            script.chmod(0o755)
        self.environ = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(root),
            "SLURM_STANDIN": str(self.state),
        }

    def start(
        self, of: Profile, *, evidence: bool = False, **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start what a payload would start, as it would."""
        cell = make_cell()
        launcher = make_launcher(
            checkout=str(self.checkout), sbatch=("-N2", "-wnode[001-002]"), python=sys.executable
        )
        spec = launcher.launch(make_trial(cell, of, evidence=evidence), cell)
        for name, text in spec.files.items():
            (self.attempt / name).write_text(text, encoding="utf-8")
        with (self.attempt / "log.0.txt").open("wb") as log:
            return subprocess.Popen(
                spec.argv,
                env={**self.environ, **spec.env, **environ},
                cwd=self.attempt,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, of: Profile, *, evidence: bool = False, **environ: str) -> int:
        return self.start(of, evidence=evidence, **environ).wait(timeout=120)

    @property
    def log(self) -> Path:
        return self.attempt / "log.0.txt"

    def record(self) -> Mapping[str, str]:
        found: dict[str, str] = json.loads((self.attempt / RECORD).read_text(encoding="utf-8"))
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_profile_is_the_last_word_and_the_checkout_stays_as_it_is(site: Site) -> None:
    before = sorted(path for path in site.checkout.rglob("*") if ".git/" not in str(path))
    of = profile("ag-8g", "--xla_all_gather=8 --xla_list='a b'", env={"NCCL_PROTO": "it's"})
    assert site.run(of) == 0
    read = read_one(site.log)
    assert read.report.xla_flags == (
        "--xla_of_the_image=1 --xla_all_gather=8589934592 --xla_all_gather=1073741824 "
        "--xla_all_gather=8 --xla_list='a b'"
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


def test_a_flag_that_only_train_env_sets_is_seen_not_to_be_effective(site: Site) -> None:
    assert site.run(BASELINE) == 0
    cell = make_cell()
    asked = make_trial(cell, profile("ag-8g", "--xla_all_gather=8589934592"))
    outcome = Outcome(state=State.COMPLETED, exit_code=0)
    found = assess(asked, cell, outcome, read_one(site.log).report)
    assert found.findings[0].cls == FLAGS_NOT_EFFECTIVE


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
    read = read_one(named(site.outputs))
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
    assert "xlatune: submit.sh ended with 1 and no running job" in log
    assert not (site.attempt / RECORD).exists()


def test_a_signal_cancels_the_job(site: Site) -> None:
    process = site.start(BASELINE, HANG="1")
    until_s = time.monotonic() + 60
    while "completed step: 3" not in site.log.read_text(encoding="utf-8"):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert "scancel 4711" in (site.state / "calls").read_text()
    assert site.record()["state"] == "CANCELLED"


def test_a_job_that_an_earlier_attempt_left_in_the_queue_is_cancelled_first(site: Site) -> None:
    (site.state / "strays").write_text("4700 4701\n")
    assert site.run(BASELINE) == 0
    calls = (site.state / "calls").read_text().splitlines()
    assert [each for each in calls if each.startswith("scancel")] == [
        "scancel 4700",
        "scancel 4701",
    ]
    asked = shlex.split(calls[0])
    assert asked[asked.index("-n") + 1] == (site.state / "submitted").read_text().splitlines()[0]


def test_the_program_of_a_job_is_found_in_its_folder(tmp_path: Path) -> None:
    dump = tmp_path / "4711-JAX-deepseek3-671b" / "xla_dump"
    dump.mkdir(parents=True)
    kept = DATA.parent / "evidence" / "jaxlib-0.12.0" / "fsdp-ov.txt.gz"
    program = dump / "module_0025.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    program.write_bytes(gzip.decompress(kept.read_bytes()))
    by_job, by_dump = read_program(dump.parent), read_program(dump)
    assert by_job == by_dump
    assert by_job.source == str(program)


def test_the_sweep_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[1] / "docs" / "maxtext.md").read_text(encoding="utf-8")
    (block,) = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/maxtext.md", "exec"), names)
    resolved = names["SWEEP"].resolve(Inputs())
    resolved.check()
    (trial,) = [each for each in resolved.study().propose(()) if not each.is_baseline]
    argv = resolved.sweep.launcher.launch(trial, resolved.cell).argv
    shown = shlex.join(("submit.sh", *argv[argv.index("--") + 1 :]))
    digest = trial.id.rpartition("-")[2]
    written = " ".join(text.partition("    submit.sh")[2].partition("\n\n")[0].split())
    assert shown.removeprefix("submit.sh ").replace(digest, "784ebde6c2") == written.replace(
        "\\ ", ""
    )


SWEEP = """\
import pytest
from pytest_xlatune import Protocol, Sweep, profile
from pytest_xlatune.launchers.maxtext_slurm import INHERIT, MaxTextSlurmLauncher

SWEEP = Sweep(
    name="pretend",
    model_tag="deepseek3-671b",
    parallelism="PP=8",
    per_device_batch_size=7,
    max_target_length=4096,
    launcher=MaxTextSlurmLauncher(
        checkout={checkout!r},
        sbatch=("-N", "2", "-w", "node[001-002]"),
        inherit=(*INHERIT, "SLURM_STANDIN"),
    ),
    profiles=(profile("bogus", "--xla_bogus=1"), profile("overlap-2", "--xla_of_somebody=2")),
    protocol=Protocol(steps=12),
    executor="local",
    screen_baselines=2,
)


@pytest.mark.wave2
def test_flag(measure, profile):
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph
"""


def test_a_whole_sweep_through_a_checkout(site: Site) -> None:
    (site.root / "test_sweep.py").write_text(SWEEP.format(checkout=str(site.checkout)))
    lock = {"XLATUNE_MACHINE_LOCK": str(site.root / "machine.lock")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", f"--rootdir={site.root}", "test_sweep.py"],
        env={**site.environ, **lock},
        cwd=site.root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed, 1 xfailed" in done.stdout
    jobs = sorted(each.name for each in site.outputs.glob("*.log"))
    assert [each[:4] for each in jobs] == ["4711", "4712", "4713", "4714"]
    board = json.loads((site.root / "reports" / "pretend" / "leaderboard.json").read_text())
    kinds = {each["profile"]: each["kind"] for each in board["conclusion"]["verdicts"]}
    assert kinds == {"bogus": "INVALID", "overlap-2": "SCREENED"}
