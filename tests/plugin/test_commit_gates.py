"""Gates of commits and of images: a planted loss is red, and what would measure nothing refused."""

from __future__ import annotations

import json
import venv
from pathlib import Path

import pytest

from tests.helpers.repositories import Repository
from tests.plugin.conftest import Folder

GATE_FILE = """\
import os
import sys
from pathlib import Path

from pytest_xlatune import *

HERE = Path(__file__).parent
TRAINER = HERE / "trainer"
SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="FSDP=4",
        code=os.environ.get("BASELINE", "HEAD~1"),
        protocol=Protocol(steps=12),
    ),
    launcher=CheckoutLauncher(
        repository=str(TRAINER),
        inner=CommandLauncher(
            argv=(sys.executable, "train.py", "{steps}", "{trial}"), cwd=str(TRAINER)
        ),
    ),
    site=SiteSettings(executor="local"),
    gate=Gate(margin=0.01, candidates=(candidate("head", code="HEAD"),)),
)

tests = standard_tests(SWEEP)
"""
TRAINER = """\
import hashlib, sys
from speed import SPEED
trial = sys.argv[2].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed = SPEED * (1 + 0.004 * noise)
for step in range(int(sys.argv[1])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""


def speeds(speed: float) -> dict[str, str]:
    """Return the files of a trainer of a known speed."""
    return {"train": TRAINER, "speed": f"SPEED = {speed}\n"}


@pytest.fixture
def repository(folder: Folder) -> Repository:
    folder.put("test_sweep.py", GATE_FILE)
    made = Repository(folder.path / "trainer")
    made.commit("deployed", **speeds(1000.0))
    return made


SAME, OTHERS = "what the baseline starts", "no commit has these files, and they would run:"
STEPS = "protocol=Protocol(steps=12),"
Edits = tuple[tuple[str, str], ...]


def code(named: str) -> Edits:
    return (('code="HEAD"', f"code={named!r}"),)


def started(argv: str, cwd: str) -> Edits:
    """Start the trainer by these words; `link` and `other` lie beside the repository."""
    return (('sys.executable, "train.py"', argv), ("cwd=str(TRAINER)", f"cwd={cwd}"))


def given(of: str, cell: str = STEPS) -> Edits:
    """A candidate of the deployed commit, and what else is deployed."""
    return (('candidate("head", code="HEAD")', of), ("HEAD~1", "HEAD"), (STEPS, cell))


@pytest.mark.parametrize(
    ("change", "edits", "words"),
    [
        pytest.param("", code("HEAD~1"), SAME, id="the same commit"),
        pytest.param("", code("mian"), "no commit 'mian'", id="a misspelt branch"),
        pytest.param("shallow", (), "fetch-depth: 0, GIT_DEPTH: 0)", id="a clone of one commit"),
        pytest.param("edit", (), f"{OTHERS} speed.py", id="what is changed, not committed"),
        pytest.param(
            "", started('sys.executable, str(HERE / "link" / "train.py")', "str(TRAINER)"),
            OTHERS, id="a link into the repository",
        ),
        pytest.param(
            "", given('candidate("same", "--xla_b=true --xla_a=1")',
                      STEPS + 'deployed={"XLA_FLAGS": "--xla_a=1 --xla_b"},'),
            SAME, id="flags that are deployed",
        ),
    ],
)  # fmt: skip
def test_what_would_measure_nothing_is_refused(
    folder: Folder, repository: Repository, change: str, edits: Edits, words: str
) -> None:
    repository.commit("slow", **speeds(900.0))
    (folder.path / "link").symlink_to(repository.path, target_is_directory=True)
    (folder.path / "other").mkdir()
    if change == "shallow":
        head = repository.git("rev-parse", "HEAD")
        folder.put("trainer/.git/shallow", f"{head}\n")
    if change == "edit":
        repository.write(**speeds(800.0))
    folder.edit("test_sweep.py", *edits)
    done = folder.run()
    assert done.ret not in (0, 1, 10)
    assert words in " ".join(done.stdout.str().split())
    assert folder.submitted == []


@pytest.mark.parametrize("how", [{"editable": True}, {}], ids=["editable", "a copy"])
def test_an_installed_trainer_would_run_one_code_for_all(
    folder: Folder, repository: Repository, tmp_path: Path, how: dict[str, bool]
) -> None:
    repository.commit("slow", **speeds(900.0))
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    info = site / "speed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speed\nVersion: 1\n", "utf-8")
    url = {"url": f"file://{repository.path}", "dir_info": how}
    (info / "direct_url.json").write_text(json.dumps(url), "utf-8")
    python = str(tmp_path / "venv" / "bin" / "python")
    folder.edit("test_sweep.py", ("sys.executable", repr(python)))
    done = folder.run()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*would run: the installed package speed*"])
    assert folder.submitted == []
    first = "deployed={'PYTHONPATH': str(TRAINER)},\n        parallelism="
    folder.edit("test_sweep.py", ("parallelism=", first))
    assert folder.run().ret == 1


def test_a_checkout_that_was_changed_is_no_commit(folder: Folder, repository: Repository) -> None:
    """Not by an edit, nor by a new module, which git does not know."""
    repository.commit("same speed", note="# same\n")
    assert folder.run("--xlatune-budget=8").ret == 0
    made = repository.path / ".git" / "xlatune"
    changed = next(path for path in made.iterdir() if path.is_dir())

    def is_refused(name: str) -> None:
        done = folder.run("--xlatune-fresh")
        done.assert_outcomes(errors=1)
        done.stdout.fnmatch_lines([f"*{OTHERS} {name}*"])

    speed = changed / "speed.py"
    before = speed.read_text("utf-8")
    speed.write_text("SPEED = 2000.0\n", "utf-8")
    is_refused("speed.py")
    speed.write_text(before, "utf-8")
    (changed / "hashlib.py").touch()
    is_refused("hashlib.py")


# sets what the second image would, and starts here what would be inside
STAND_IN = """\
#!/bin/sh
[ "$1" = run ] || exit 0
case "$*" in *:next@*) export IMAGE_SPEED=900 ;; esac
while [ "$1" != bash ]; do shift; done
exec "$@"
"""
IN_A_CONTAINER = """\
    launcher=ContainerLauncher(
        inner=CommandLauncher(argv=(sys.executable, str(HERE / "train.py"), "{steps}", "{trial}")),
        runtime="podman", program=str(HERE / "podman"),
        mounts=("/usr:/usr:ro", sys.base_prefix, sys.prefix, str(HERE)),
    ),
    site="""


def test_an_image_is_a_candidate(folder: Folder) -> None:
    trainer = TRAINER.replace("from speed import SPEED", "import os")
    folder.put("train.py", trainer.replace("SPEED *", "int(os.environ.get('IMAGE_SPEED', 1000)) *"))
    folder.put("podman", STAND_IN).chmod(0o755)
    now, slow = (f"rocm/jax:{name}@sha256:{at * 64}" for name, at in (("now", "0"), ("next", "1")))
    launcher = GATE_FILE[GATE_FILE.index("    launcher=") : GATE_FILE.index("site=") + 5]
    deployed = ('code=os.environ.get("BASELINE", "HEAD~1")', f"image={now!r}")
    folder.put("test_sweep.py", GATE_FILE)
    inside = (launcher, IN_A_CONTAINER)
    folder.edit("test_sweep.py", inside, deployed, ('code="HEAD"', f"image={slow!r}"))
    red = folder.run()
    assert red.ret == 1
    red.stdout.fnmatch_lines(["*regression: head, delta -*"])
    record = folder.json("reports/pretend/gate.json")["record"]
    assert set(record["image"].split(", ")) == {slow, now}
