"""maxtext-slurm: the command, a job of a pretend checkout from end to end, and whole sweeps."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Cell, ConfigError, Profile, Protocol, profile
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.executors.folder import read_environments
from pytest_xlatune.launchers.maxtext_slurm import DRIVER, JOB_NAME_BYTES
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.read_logs import logs_of, read_one
from pytest_xlatune.workers.maxtext_slurm_job import RECORD, write_environments
from tests.helpers import golden, probes
from tests.helpers.history import trial_of
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside

DATA = Path(__file__).parents[1] / "data" / "maxtext_slurm"
MODEL = "deepseek3-671b"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"


def make_cell(**changes: Any) -> Cell:
    values = {"model_tag": MODEL, "per_device_batch_size": 7, "max_target_length": 4096}
    return probes.make_cell("PP=8", **values | changes)


def make_trial(cell: Cell, of: Profile = BASELINE, *, evidence: bool = False) -> Trial:
    if not evidence:
        return trial_of(cell, of)
    protocol = Protocol(profiler="xplane", metric="none", dump=True)
    return trial_of(cell, of, protocol=protocol, stage="evidence")


# as `python -m` starts it, but for what it waits between two questions and two looks at the log
QUICK_PYTHON = f"""\
#!/bin/sh
[ "$1 $2" = "-m {DRIVER}" ] || exit 9
shift 2
exec {sys.executable} -c '
import sys
import {DRIVER} as driver
driver.POLL_S, driver._LOOK_S = 0.2, 0.1
sys.exit(driver.main())
' "$@"
"""


def name_of(spec: LaunchSpec) -> str:
    return spec.argv[spec.argv.index("--name") + 1]


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
        self.python = bin_folder / "quick-python"
        self.python.write_text(QUICK_PYTHON)
        self.python.chmod(0o755)
        self.environ = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(root),
            "SLURM_STANDIN": str(self.state),
        }

    def run(self, of: Profile, *, evidence: bool = False, **environ: str) -> int:
        """Run what a payload would start, as it would."""
        launcher = probes.maxtext_slurm(
            checkout=str(self.checkout), sbatch=("-N2", "-wnode[001-002]"), python=str(self.python)
        )
        spec = launcher.launch(make_trial(make_cell(), of, evidence=evidence), make_cell())
        for name, text in spec.files.items():
            (self.attempt / name).write_text(text, encoding="utf-8")
        env = {**self.environ, **spec.env, **environ}
        with self.log.open("wb") as log:
            return subprocess.run(
                spec.argv,
                env=env,
                cwd=self.attempt,
                stdout=log,
                stderr=log,
                timeout=240,
                check=False,
            ).returncode

    @property
    def log(self) -> Path:
        return self.attempt / "log.0.txt"

    def record(self) -> Mapping[str, str]:
        found: dict[str, str] = json.loads((self.attempt / RECORD).read_text(encoding="utf-8"))
        return found


SWEEPS = Path(__file__).parents[2] / "sweeps"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def rendered(spec: LaunchSpec) -> str:
    words = shlex.join(spec.argv).replace(" -- ", " \\\n    -- ")
    files = "".join(f"\n{name}:\n{text.strip()}\n" for name, text in spec.files.items())
    return f"{spec.env}\n{words}\n{files}"


def test_the_command_that_is_submitted() -> None:
    cell = make_cell(overrides={"num_pipeline_microbatches": "16", "base_config": "/a b/base.yml"})
    of = profile("overlap-2", OVERLAP, env={"NCCL_PROTO": "it's"})
    launcher = probes.maxtext_slurm()
    plain = rendered(launcher.launch(make_trial(cell, of), cell))
    evidence = rendered(launcher.launch(make_trial(cell, of, evidence=True), cell))
    golden.check(DATA / "command.txt", f"{launcher.describe()}\n\n{plain}\nevidence: {evidence}")
    env_files = ("train_env.sh", "configs/deepseek3-671b.env.sh")
    assert launcher.env_files_of(cell) == tuple(f"/shared/maxtext-slurm/{x}" for x in env_files)
    assert launcher.files(make_cell(image="/images/a.tar"))[-1] == "/images/a.tar"


def test_a_plan_counts_the_nodes_that_sbatch_is_asked_for() -> None:
    assert probes.maxtext_slurm(sbatch=("-N", "8", "-w", "node[001-008]")).nodes == 8
    assert probes.maxtext_slurm(sbatch=("-N2", "-wnode[001-002]")).nodes == 2
    assert probes.maxtext_slurm(sbatch=("--nodelist=node[001-003]",)).nodes == 3


def test_a_job_name_has_at_most_243_bytes_and_is_refused_before_anything_is_submitted() -> None:
    launcher = probes.maxtext_slurm()
    free = JOB_NAME_BYTES - len(name_of(launcher.launch(make_trial(make_cell()), make_cell())))
    # the readable part of the tag goes first
    free += len("baseline-deployed-")
    fits = make_cell(overrides={"_env_K": "v" * (free - len("-_env_K_"))})
    spec = launcher.launch(make_trial(fits), fits)
    assert len(name_of(spec)) <= JOB_NAME_BYTES
    assert "baseline" not in name_of(spec)
    # then the keys, which have another way to MaxText
    keys = [f"a_long_key_{at}" for at in range(9)]
    many = make_cell(overrides=dict.fromkeys(keys, "v" * 40))
    spec = launcher.launch(make_trial(many), many)
    assert len(name_of(spec)) <= JOB_NAME_BYTES
    assert all(f"M_{key.upper()}=" in "".join(spec.files.values()) for key in keys)
    longer = make_cell(overrides={"_env_K": "v" * (free - len("-_env_K_") + 300)})
    with pytest.raises(ConfigError, match=r"bytes, but .* room for 243: .*deepseek3-671b\.env\.sh"):
        launcher.launch(make_trial(longer), longer)


# --- jobs of a pretend checkout -------------------------------------------------------------------


def files_of(site: Site) -> set[Path]:
    return {path for path in site.checkout.rglob("*") if ".git/" not in str(path)}


def test_a_profile_is_the_last_word_and_the_checkout_stays_as_it_is(site: Site) -> None:
    before = files_of(site)
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
    env = read.report.env
    assert (env["NCCL_PROTO"], env["NCCL_NCHANNELS_PER_NET_PEER"]) == ("it's", "4")
    assert [step.tgs for step in read.report.steps] == [994.9] * 12
    _, sbatch, ray = (site.state / "submitted").read_text().splitlines()
    assert (sbatch, ray) == ("-N2 -wnode[001-002] --time=45:00", "RAY=1")
    tops = {path.relative_to(site.outputs).parts[0][:5] for path in files_of(site) - before}
    assert tops == {".arti", "4711-"}
    frozen = site.outputs / ".artifacts" / "4711"
    assert (frozen / "submit.sh").is_file()
    assert not (frozen / "outputs").exists()
    assert not (frozen / "secret.local.sh").exists()
    folder = next(path for path in site.outputs.glob("4711-*") if path.is_dir())
    for named in (site.outputs / "4711", folder, next(site.outputs.glob("4711-*.log"))):
        found = read_one(*logs_of(named))
        assert (found.report.last_step, found.path.suffix) == (11, ".log")


def test_outputs_are_found_by_the_front_of_their_name_after_the_tagger_renamed_them(
    site: Site,
) -> None:
    assert site.run(BASELINE, evidence=True) == 0
    record = site.record()
    assert (record["job_id"], record["state"]) == ("4711", "COMPLETED")
    assert record["folder"] == f"{site.outputs}/4711-JAX-{MODEL}-2N-pdbs7-TGS_994.900"
    dumped = "module_0025.jit_train_step.gfx950_gpu_after_optimizations.txt"
    assert (site.attempt / "xla_dump" / dumped).is_file()
    captures = [path.name for path in captures_below(site.attempt)]
    assert captures == ["node001.xplane.pb", "node002.xplane.pb"]
    log = site.log.read_text(encoding="utf-8")
    variables = ("M_PROFILER=xplane", "M_PROFILER_STEPS=3", "ENABLE_XLA_DUMP=1")
    for line in (*variables, "argument jax_cache_dir="):
        assert f"0: {line}\n" in log
    assert log.endswith("JobState=COMPLETED ExitCode=0:0 NodeList=node[001-002]\n")


def test_what_submit_says_when_it_fails_is_in_the_log(site: Site) -> None:
    assert site.run(BASELINE, FAIL_SUBMIT="1") == 1
    log = site.log.read_text(encoding="utf-8")
    assert "sbatch: error: Batch job submission failed" in log
    assert "submit.sh ended with 1" in log
    assert not (site.attempt / RECORD).exists()


@pytest.mark.parametrize("ends_with", ["0", "1"])
def test_a_job_that_submit_does_not_name_is_found_by_its_name(site: Site, ends_with: str) -> None:
    assert site.run(BASELINE, MUTE=ends_with) == 0
    assert (site.record()["job_id"], site.record()["state"]) == ("4711", "COMPLETED")
    assert "scancel" not in (site.state / "calls").read_text()


def test_each_node_of_a_job_tells_what_it_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every container sources the model's file; the log mixes what they print."""
    told = (
        '{"name": "node002", "packages": {"jaxlib": "0.9.1"}, "problems": []}',
        '{"name": "node001", "packages": {"jaxlib": "0.9.0"}, "problems": []}',
        "{torn",
        "[]",
        '{"name": "node001", "packages": {"jaxlib": "of a later line"}, "problems": []}',
    )
    lines = [f"0: xlatune-environment: {words}\n" for words in told]
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "4711-a.log").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write_environments("4711", tmp_path / "outputs", tmp_path / "no repository")
    versions = {node.name: node.packages for node in read_environments(tmp_path)}
    assert versions == {"node001": {"jaxlib": "0.9.0"}, "node002": {"jaxlib": "0.9.1"}}


# --- sweeps ---------------------------------------------------------------------------------------


# a ready sweep, and one of its profiles
READY = {
    "pp8": "overlap-2",
    "fsdp8": "ag-1g",
    "tp8": "windowed-einsum",
    "hybrid": "ag-1g-overlap-2",
}
SETTINGS = """\
model = "{model}"

[launcher]
checkout = "{checkout}"
python = "{python}"
sbatch = ["-N", "2", "-w", "node[001-002]"]
inherit = ["PATH", "HOME", "SLURM_STANDIN"]

[overrides]
pipeline_parallel_layers = 56
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "hybrid" else BESIDE_THE_LAB) for name in READY]
)
@pytest.mark.usefixtures("loaded")
def test_a_ready_sweep_runs_through_a_checkout_to_its_report(
    name: str, site: Site, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.format(model=MODEL, checkout=site.checkout, python=site.python)
    (site.root / "xlatune.toml").write_text(settings, encoding="utf-8")
    for variable, value in site.environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(site.root)
    file = SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py"
    words = (str(file), "-p", "no:cacheprovider", "--xlatune-config", "xlatune.toml")
    chosen = ("-m", "wave2", "-k", f"[{READY[name]}]", "--xlatune-negative", "xfail")
    done = run_inside(pytester, f"--rootdir={site.root}", *words, *chosen)
    assert done.ret == 0, done.stdout.str()[-3000:]
    jobs = [path.name for path in site.outputs.glob("*.log")]
    assert len(jobs) >= 2
    assert all("_parallelism_" in job and "heartbeat" not in job for job in jobs)
    board = json.loads((site.root / "reports" / f"{name}-jobs" / "leaderboard.json").read_text())
    assert READY[name] in {verdict["arm"] for verdict in board["conclusion"]["verdicts"]}
    # Slurm's own ids and nodes, not those of the processes that follow its jobs
    ids = {job for trial in board["trials"] for job in trial["job_ids"]}
    assert ids == {job.partition("-")[0] for job in jobs}
    assert all(trial["outcome"]["nodes"] == ["node001", "node002"] for trial in board["trials"])
    assert board["cell"]["image"] == "rocm/jax-training:maxtext-v26.2"
    document = (site.root / "reports" / f"{MODEL}-tuning.md").read_text(encoding="utf-8")
    assert "MAXTEXT_PATCH_BRANCH=pipelines" in document
    (node,) = board["record"]["nodes"]
    assert node["node"]["kernel"] == platform.release()
    assert node["packages"]["python"]
    assert "devices: not asked" in node["problems"][0]


@pytest.mark.parametrize("name", READY)
def test_a_ready_sweep_asks_what_the_flagship_asks(name: str) -> None:
    ready = load_sweep(SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py")
    whole = load_sweep(SWEEPS / f"test_{name}.py")
    assert (ready.profiles, ready.derived) == (whole.profiles, whole.derived)
    assert not ready.cell.overrides, "the checkout's configuration names the model"
