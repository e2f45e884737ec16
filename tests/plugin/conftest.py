"""A sweep over a trainer that only pretends: everything around it is real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.captures import node
from tests.helpers.hlo_programs import text as hlo_text
from tests.helpers.sessions import run_inside, run_with_workers
from tests.helpers.tell_options import TELL_OPTIONS
from tests.helpers.words import events_in

# Prints MaxText's lines; how fast depends on the flags, how it ends on the profile's variables.
TRAINER = """\
import hashlib, os, pathlib, re, shutil, signal, sys, time
flags, here = os.environ.get("XLA_FLAGS", ""), pathlib.Path(__file__).parent
keys = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
print("Show all environment variables:")
print(f"XLA_FLAGS={flags}", flush=True)
for key in sorted(keys):
    print(f"Config param {key}: {keys[key]}")
"""
TRAINER += TELL_OPTIONS
TRAINER += """\
if os.environ.get("NCCL_DEBUG") == "INFO":
    for name in os.environ:
        if name.startswith("NCCL_"):
            print(f"n1:7:7 [0] NCCL INFO {name} set by environment to {os.environ[name]}")
if unknown := re.search("--xla_bogus|--xla_cpu_enable_warp_drive", flags):
    print("F1120 09:03:25.888154 14479 parse_flags_from_env.cc:234] "
          f"Unknown flag in XLA_FLAGS: {unknown[0]}=1", file=sys.stderr)
    sys.exit(1)
first = not os.path.exists(os.environ["MARK"]) if "MARK" in os.environ else False
if first:
    open(os.environ["MARK"], "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(float(os.environ.get("SLEEP_S", "0")))
while os.path.exists(os.environ.get("HOLD", "")):
    time.sleep(0.02)
# a kept program and a made capture, where an evidence run asks for both
dump = re.search('--xla_dump_to="?([^" ]*xla_dump)', flags)
if dump:
    to, program = pathlib.Path(dump[1]), "jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    plugins = to.parent / "plugins" / "profile" / "1"
    for folder in (to, plugins):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(here / "program.txt", to / f"module_1.{program}")
    shutil.copy(here / "capture.pb", plugins / "n.xplane.pb")
speed = 1000.0
for setting, gain in (
    ("--xla_fast", 0.10), ("--xla_slow", -0.20), ("collective_overlap_limit=2", 0.03),
    ("all_gather_combine_threshold_bytes=1073741824", 0.04), ("double_buffering=true", -0.03),
    ("threshold_for_windowed_einsum_mib=0", 0.05),
):
    speed *= 1 + gain * (setting in flags)
# the same for every folder that a test runs in: a trial's id without the digest at its end
trial = keys.get("run_name", sys.argv[2]).rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed *= 1 + 0.002 * noise
# eight sequences fill a device
size = float(keys.get("per_device_batch_size", "4"))
if size > 8:
    print("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes.", flush=True)
    sys.exit(1)
speed *= 5 / 4 * size / (size + 1)
tokens = size * float(keys.get("max_target_length", "128"))
for step in range(int(keys.get("steps", sys.argv[1]))):
    print(f"completed step: {step}, seconds: {tokens / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""

SWEEP_FILE = """\
import sys
from pathlib import Path

import pytest

from pytest_xlatune import *

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="FSDP=4",
        deployed={"XLA_FLAGS": "--xla_deployed=1"},
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(
        argv=(sys.executable, str(Path(__file__).parent / "trainer.py"), "{steps}", "{trial}")
    ),
    profiles=(
        PROFILES
    ),
    site=SiteSettings(executor="local"),
    design=DesignSettings(
        screen_baselines=2,
        finalists=2,
        blocks=3,
        block_baselines=1,
        budget=40,
    ),
)


@pytest.mark.wave1
def test_baseline(baseline_deployed):
    assert baseline_deployed.n >= 2


@pytest.mark.wave2
def test_flag(measure, profile):
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_finalist(measure, finalist):
    measured = measure(finalist)
    assert measured.not_slower, measured.paragraph
"""
# what stands in front of the tests, and a sweep file whose tests are the standard ones
HEAD = SWEEP_FILE.partition("\n\n@pytest.mark")[0]
DESIGN = HEAD[HEAD.index("        screen_baselines") : HEAD.index("    ),\n)\n")]
STANDARD = f"{HEAD}\n\ntests = standard_tests(SWEEP)\n"

CHECKOUTS = """\
HERE, TRAINER = Path(__file__).parent, str(Path(__file__).parent / "trainer")

def of_checkouts(argv):
    inner = CommandLauncher(argv=(argv[0], "train.py", *argv[2:]), cwd=TRAINER)
    return CheckoutLauncher(repository=TRAINER, inner=inner)

SWEEP = """


def edited(text: str, *changes: tuple[str, str]) -> str:
    """Put new texts in the place of old ones, which have to be there; "" is the end."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new) if old else text + new
    return text


def declaring(what: str, text: str = STANDARD, *, commits: bool = False) -> str:
    """A sweep file with a study or a gate in place of profiles; of the commits of a repository."""
    design = text[text.index("    design=") : text.index("\n)\n") + 1]
    text = text.replace("profiles=(\n        PROFILES\n    )", what).replace(design, "")
    if commits:
        text = text.replace("SWEEP = ", CHECKOUTS, 1)
        text = text.replace("launcher=CommandLauncher", "launcher=of_checkouts")
    return text


# of a trainer whose commits differ in a file beside it
OF_ITS_COMMIT = TRAINER.replace("speed = 1000.0\n", "from speed import SPEED as speed\n")
PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("same", "--xla_other=1"),
        profile("unknown", "--xla_bogus=1"),
"""


class Folder:
    """A project with one sweep, and what its runs left behind."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path

    def write(self, *, profiles: str = PROFILES, text: str = SWEEP_FILE) -> None:
        (self.path / "trainer.py").write_text(TRAINER, encoding="utf-8")
        sweep = text.replace("        PROFILES\n", profiles)
        (self.path / "test_sweep.py").write_text(sweep, encoding="utf-8")

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest in this process, over trials that have run when they are submitted."""
        return run_inside(self.pytester, "test_sweep.py", *args)

    def run_with_workers(self, *args: str) -> pytest.RunResult:
        """Run pytest with two workers, over trials that have run when they are submitted."""
        return run_with_workers(self.pytester, "-n2", "test_sweep.py", *args)

    def run_apart(self, *args: str) -> pytest.RunResult:
        """Run pytest in a process of its own, as a user does."""
        named = ("-p", "xlatune", "test_sweep.py")
        return self.pytester.runpytest_subprocess(*named, *args, timeout=240)

    def events(self, kind: str, *, sweep: str = "pretend") -> list[dict[str, Any]]:
        """Every event of this kind in all ledgers of a sweep, those moved aside included."""
        return events_in(self.path.glob(f".xlatune/{sweep}/*/ledger*.jsonl"), kind)

    @property
    def submitted(self) -> list[str]:
        return [line["submission"]["trial_id"] for line in self.events("attempt-submitted")]

    @property
    def results(self) -> list[dict[str, Any]]:
        return [line["result"] for line in self.events("trial-ended")]

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def json(self, name: str) -> Any:
        return json.loads(self.read(name))

    def put_evidence(self, program: str) -> None:
        """Lay down what the trainer leaves where an evidence run asks for it."""
        self.put("program.txt", hlo_text("0.12.0", program))
        (self.path / "capture.pb").write_bytes(node().data())

    def put(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        return path

    def edit(self, name: str, *changes: tuple[str, str]) -> None:
        self.put(name, edited(self.read(name), *changes))


@pytest.fixture
def folder(
    loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Folder:
    # these trials measure nothing: they need not take turns with real ones on this machine
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setenv("PYTHONPATH", "")
    made = Folder(pytester)
    made.write()
    return made
