"""Gates of commits and of images: a planted loss is red, and what would measure nothing refused."""

from __future__ import annotations

import json
import venv
from pathlib import Path

import pytest

from tests.helpers.repositories import Repository
from tests.plugin.conftest import TRAINER, Folder

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
OF_ITS_COMMIT = TRAINER.replace("speed = 1000.0\n", "from speed import SPEED as speed\n")


@pytest.fixture
def repository(folder: Folder) -> Repository:
    """A trainer with the deployed commit, and one with a planted loss."""
    folder.put("test_sweep.py", GATE_FILE)
    made = Repository(folder.path / "trainer")
    made.commit("deployed", train=OF_ITS_COMMIT, speed="SPEED = 1000.0\n")
    made.commit("slow", speed="SPEED = 900.0\n")
    return made


SAME, OTHERS = "what the baseline starts", "no commit has these files, and they would run:"
STEPS = "protocol=Protocol(steps=12),"
DEPLOYED_FLAGS = (
    ('candidate("head", code="HEAD")', 'candidate("same", "--xla_b=true --xla_a=1")'),
    ("HEAD~1", "HEAD"),
    (STEPS, STEPS + 'deployed={"XLA_FLAGS": "--xla_a=1 --xla_b"},'),
)
Edits = tuple[tuple[str, str], ...]
REFUSED: dict[str, tuple[Edits, str]] = {
    "the same commit": ((('code="HEAD"', 'code="HEAD~1"'),), SAME),
    "a misspelt branch": ((('code="HEAD"', 'code="mian"'),), "no commit 'mian'"),
    "a clone of one commit": ((), "fetch-depth: 0, GIT_DEPTH: 0)"),
    "what is changed, not committed": ((), f"{OTHERS} speed.py"),
    "a link into the repository": (
        (('"train.py"', 'str(HERE / "link" / "train.py")'),), OTHERS),
    "flags that are deployed": (DEPLOYED_FLAGS, SAME),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_measure_nothing_is_refused(
    folder: Folder, repository: Repository, name: str
) -> None:
    (folder.path / "link").symlink_to(repository.path, target_is_directory=True)
    if "clone" in name:
        head = repository.git("rev-parse", "HEAD")
        folder.put("trainer/.git/shallow", f"{head}\n")
    if "changed" in name:
        repository.write(speed="SPEED = 800.0\n")
    edits, words = REFUSED[name]
    folder.edit("test_sweep.py", *edits)
    done = folder.run()
    assert done.ret not in (0, 1, 10)
    assert words in " ".join(done.stdout.str().split())
    assert folder.submitted == []


@pytest.mark.parametrize("how", [{"editable": True}, {}], ids=["editable", "a copy"])
def test_an_installed_trainer_would_run_one_code_for_all(
    folder: Folder, repository: Repository, tmp_path: Path, how: dict[str, bool]
) -> None:
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
    repository.commit("same speed", speed="SPEED = 1000.0  # same\n")
    folder.edit("test_sweep.py", ("HEAD~1", "HEAD~2"))
    assert folder.run("--xlatune-budget=8").ret == 0
    made = repository.path / ".git" / "xlatune"
    changed = next(path for path in made.iterdir() if path.is_dir())
    speed = changed / "speed.py"
    before = speed.read_text("utf-8")
    for path, text in ((speed, "SPEED = 2000.0\n"), (changed / "hashlib.py", "")):
        speed.write_text(before, "utf-8")
        path.write_text(text, "utf-8")
        done = folder.run("--xlatune-fresh")
        done.assert_outcomes(errors=1)
        done.stdout.fnmatch_lines([f"*{OTHERS} {path.name}*"])


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
    speed = "speed = float(os.environ.get('IMAGE_SPEED', 1000))\n"
    folder.put("train.py", TRAINER.replace("speed = 1000.0\n", speed))
    folder.put("podman", STAND_IN).chmod(0o755)
    now, slow = (f"rocm/jax:{name}@sha256:{at * 64}" for name, at in (("now", "0"), ("next", "1")))
    launcher = GATE_FILE[GATE_FILE.index("    launcher=") : GATE_FILE.index("site=") + 5]
    deployed = ('code=os.environ.get("BASELINE", "HEAD~1")', f"image={now!r}")
    folder.put("test_sweep.py", GATE_FILE)
    inside = (launcher, IN_A_CONTAINER)
    folder.edit("test_sweep.py", inside, deployed, ('code="HEAD"', f"image={slow!r}"))
    red = folder.run()
    assert red.ret == 1
    red.stdout.fnmatch_lines(["regression: head, delta -*"])
    for line in ("def no_regression*", "*Captured log*"):  # the verdict alone
        red.stdout.no_fnmatch_line(line)
    record = folder.json("reports/pretend/gate.json")["record"]
    assert set(record["image"].split(", ")) == {slow, now}
