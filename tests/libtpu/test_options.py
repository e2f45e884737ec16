"""What libtpu takes as options of a compilation, of real libtpu without a TPU: `tox -e libtpu`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.cli import main
from pytest_xlatune.model.channels import CHANNELS, LIBTPU, flags_in
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.rotation import options_of
from tests.helpers.golden import check
from tests.libtpu.test_real_digests import FOLDERS, pytestmark  # noqa: F401 - where it is there

ROOT = Path(__file__).parents[2]
VERSIONS = pytest.mark.parametrize("version", sorted(FOLDERS))


def asked(version: str, what: str, jobs: Any = None, *, variable: str = "") -> Any:
    """Return what libtpu answers, in a process of its own."""
    library = next(Path(FOLDERS[version]).rglob("libtpu.so"))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("options.py")), str(library), what],
        input=json.dumps(jobs),
        env={"PATH": "/usr/bin:/bin", LIBTPU: variable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@cache
def of_the_catalog() -> dict[str, Profile]:
    """The profiles of libtpu's flags that are options of a compilation."""
    found = [p for each in load().entries if each.channel == LIBTPU for p in each.profiles]
    return {each.id: each for each in found if isinstance(options_of(each, ()), dict)}


@VERSIONS
def test_what_is_called_an_option_is_never_refused(version: str) -> None:
    """All names in the library; of those that are refused most are for debugging."""
    found = asked(version, "names")
    assert len(found["known"]) > 1000
    own = {each for each in found["known"] if CHANNELS[LIBTPU].is_option(each)}
    sys.stdout.write(f"{version}: {len(own)} of {len(found['known'])} names are options\n")
    assert not own & set(found["refused"])
    assert len(own) > 800
    assert {name for each in of_the_catalog().values() for name in options(each)} <= own


def options(of: Profile) -> dict[str, str]:
    return flags_in(LIBTPU, of.env[LIBTPU])


@VERSIONS
def test_options_make_the_program_that_the_variable_makes(version: str) -> None:
    """Each profile alone as options; then all that leave the program, and all that change it.

    As all of a kind are set at once in the variable, one that is ignored as an option shows there.
    """
    profiles = of_the_catalog()
    named = {name: options(each) for name, each in profiles.items()}
    base, *made = asked(version, "programs", [{}, *named.values()])
    found = dict(zip(named, made, strict=True))
    refused = {name: said for name, said in found.items() if not said.isalnum()}
    assert not refused
    changing = {name for name, each in found.items() if each != base}
    sys.stdout.write(f"{version}: {len(changing)} of {len(found)} profiles change the program\n")
    assert len(changing) >= 6
    for kind in (changing, found.keys() - changing):
        together: dict[str, str] = {}
        for name in sorted(kind):
            together |= named[name]
        text = " ".join(f"--{name}={value}" for name, value in together.items())
        assert asked(version, "programs", [{}], variable=text) == asked(
            version, "programs", [together]
        ), text


@VERSIONS
def test_an_option_replaces_one_flag_of_the_variable(version: str) -> None:
    """What else is deployed stays."""
    one, other = "xla_tpu_overlap_compute_collective_tc", "xla_jf_enable_multi_output_fusion"
    both = f"--{one}=false --{other}=false"
    deployed, restored = asked(version, "programs", [{}, {one: "true"}], variable=both)
    assert restored != deployed
    assert [restored] == asked(version, "programs", [{}], variable=f"--{other}=false")


def test_a_sweep_is_compiled_for_a_tpu_that_is_not_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of the versions, below the command; docs/how-to/tpu.md shows what it says."""
    monkeypatch.setenv("PYTHONPATH", FOLDERS[max(FOLDERS)])
    shutil.copy(ROOT / "tests" / "libtpu" / "mine.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    command = "xlatune compile-check mine.py --program mine:step --target v5e:2x4"
    assert main(command.split()[1:]) == 0
    said, _, limits = capsys.readouterr().out.partition(", in ")  # so many seconds
    assert limits.endswith("the largest compiled module.\n")
    check(ROOT / "tests/data/libtpu/compile_check.txt", f"\n$ {command}\n{said}, ...\n")
