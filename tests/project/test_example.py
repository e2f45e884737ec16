"""The checkout after `make sweep`, a project beside it, and the quickstart trainer on real JAX."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.launchers import command
from pytest_xlatune.launchers.command import FOLDER
from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers import quick_compile
from tests.helpers.benchmarks import load
from tests.helpers.tables import rows

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "sweeps" / "quickstart"
SWEEP = "sweeps/test_quickstart.py"


# a Python that finds no hypothesis, as that of `make sweep`
BARE = """\
import importlib.machinery as machinery
found = machinery.PathFinder.find_spec
class Finder:  # no function: pytest makes it an attribute of a class
    def __call__(self, name, *args, **named):
        return None if name == 'hypothesis' else found(name, *args, **named)
machinery.PathFinder.find_spec = Finder()
"""


def run_pytest(folder: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *argv],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "Traceback (most" not in done.stdout + done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "path", sorted((ROOT / "sweeps").glob("test_*.py")), ids=lambda path: path.stem
)
def test_an_example_says_what_a_sweep_takes(path: Path) -> None:
    load_sweep(path)


@rows(
    "argv, status, shown",
    {
        "without a word": ((), 5, "hypothesis is not installed here"),
        "a sweep": (("--collect-only", "-q", SWEEP), 0, "opt-level-1"),
    },
)
def test_pytest_starts_in_the_checkout_with_what_a_sweep_needs(
    tmp_path: Path, argv: tuple[str, ...], status: int, shown: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    no = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    ended, out = run_pytest(ROOT, *no, *argv, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert ended == status, out
    assert shown in out


@rows(
    "argv",
    {"with workers": ("-n", "2"), "without the plugin": ("-p", "no:xlatune")},
)
def test_a_project_that_merely_has_the_plugin_notices_nothing(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    """Its warnings are errors, and its markers strict; what a sweep left lies about."""
    strict = "addopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{strict}")
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n", encoding="utf-8")
    (tmp_path / ".xlatune" / "own" / "cell").mkdir(parents=True)
    (tmp_path / ".xlatune" / "own" / "cell" / "ledger.jsonl").write_text("{}\n")
    ended, out = run_pytest(tmp_path, *argv)
    assert ended == 0, out
    assert "1 passed" in out


def test_documents_pages_readme_tutorial_and_picture_show_the_committed_example() -> None:
    """As the code of today writes them from the run's JSON, headers included."""
    made = load("example", QUICKSTART).made()
    assert [path.name for path in made].count("leaderboard.html") == 2
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: say `make example`"


def test_the_committed_json_has_what_the_code_of_today_concludes_of_its_trials() -> None:
    found = load("concluded", QUICKSTART).written()
    assert len(found) == 8
    for path, text in found.items():
        # processors differ in the last digits of a product of matrices
        wanted = json.loads(text, parse_float=lambda each: pytest.approx(float(each), rel=1e-9))
        told = json.loads(path.read_text(encoding="utf-8"))
        assert told == wanted, f"{path.name}: say `python sweeps/quickstart/concluded.py`"


TRAINER = Path(__file__).parents[2] / "sweeps" / "quickstart" / "train.py"
TINY = (
    "log_config=false",
    "steps=3",
    "max_target_length=16",
    "base_emb_dim=32",
    "base_num_decoder_layers=2",
    "base_mlp_dim=64",
    "head_dim=8",
    "vocab_size=64",
)
# I1120 11:15:48.493462 140681341782912 train.py:604] completed step: 0, seconds: 0.004, ...
STEP = re.compile(
    r"(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ train\.py:\d+\] "
    r"completed step: (?P<step>\d+), seconds: \d+\.\d{3}, TFLOP/s/device: \d+\.\d{3}, "
    r"Tokens/s/device: (?P<tgs>\d+\.\d{3}), total_weights: (?P<weights>\d+), loss: (?P<loss>\S+)$"
)


def train(*args: str, flags: str, variables: dict[str, str]) -> tuple[str, str]:
    """Train on four devices, without what would change the trainer; return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "M_", "COV"))}
    forced = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, str(TRAINER), *args],
        env=kept | {"XLA_FLAGS": f"{forced} {quick_compile.flags()} {flags}"} | variables,
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.jax
def test_a_run_with_everything_on_shows_no_secret_and_what_its_metrics_file_rounds(
    tmp_path: Path,
) -> None:
    """With metrics, profiler, dump, and a full cache to defeat it."""
    args = (
        *TINY, "steps=6", "ici_fsdp_parallelism=4", "per_device_batch_size=2", "run_name=seen",
        f"base_output_directory={tmp_path}", f"metrics_file={tmp_path}/metrics.jsonl",
        "profiler=xplane", "skip_first_n_steps_for_profiler=2", "profiler_steps=2",
        f"jax_cache_dir={tmp_path}/cache",
    )  # fmt: skip
    # as a scored trial asks for XLA's options, which must not keep the step from the cache
    flags = command._DUMP_OPTIONS_FLAGS
    asked = " ".join(str(each).replace(FOLDER, str(tmp_path)) for each in flags)
    _, err = train(*args, "profiler=", flags=asked, variables={"JAX_LOG_COMPILES": "1"})
    # Finished XLA compilation of jit(train_step) in 1.234 sec
    compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", err)
    # a small program, beside which every XLA writes its options
    (named,) = (each.value for each in flags if each.name.endswith("module_re"))
    assert [name for name in compiled if re.search(str(named), f"jit_{name}")]
    assert compiled[-1] == "train_step"
    assert any("train_step" in path.name for path in tmp_path.glob("cache/*"))

    dump = f"--xla_dump_to={tmp_path}/dump --xla_dump_hlo_as_text"
    secret = {"JAX_TOKEN": "hush", "NCCL_DEBUG": "WARN", "AWS_SECRET_ACCESS_KEY": "hush"}
    out, err = train(*args, flags=dump, variables=secret)
    lines = list(STEP.finditer(err))
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    assert [int(line["step"]) for line in lines] == list(range(6))
    for line, record in zip(lines, records, strict=True):
        assert (record["step"], record["run_name"]) == (int(line["step"]), "seen")
        assert record["learning/total_weights"] == int(line["weights"]) == 2 * 4 * 16
        assert f"{record['learning/loss']:.3f}" == line["loss"]
        assert f"{record['perf/per_device_tokens_per_sec']:.3f}" == line["tgs"]
        # tokens per second times seconds is the batch of a device
        tokens = record["perf/step_time_seconds"] * record["perf/per_device_tokens_per_sec"]
        assert tokens == pytest.approx(2 * 16)
    shown = out.partition("Per train step:")[0].splitlines()
    assert (shown[0], shown[1:]) == ("Show all environment variables:", sorted(shown[1:]))
    assert "NCCL_DEBUG=WARN" in shown
    assert "hush" not in out + err
