"""Ways in which a setting is lost between us and the program: none of them may end as a winner.

Real processes: the payload, bash, and where the setting is a flag what tells of it as XLA does; of
`make test-all`, XLA itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.campaign._follow import options_of_dump
from pytest_xlatune.campaign.assess import Assessment
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import read_outcomes, read_spec, write_spec
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import OPTIONS_FOLDER, Profile, profile
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess
from tests.helpers.tables import rows
from tests.helpers.tell_options import TELL_OPTIONS

PROTOCOL = Protocol(steps=12)
STEPS = """
for step in range(12):
    print(f"completed step: {step}, seconds: 0.5, TFLOP/s/device: 0.1, "
          "Tokens/s/device: 1024.0, total_weights: 512, loss: 7.1")
"""
JAX = "import jax, jax.numpy as jnp\njax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))\n"
SHOWS = "import os\nprint('XLA_FLAGS=' + os.environ.get('XLA_FLAGS', ''))\n"
# what NCCL itself prints where it is loaded and asked to
NCCL = """
import os
if os.environ.get("NCCL_DEBUG") == "INFO" and "NCCL_ALGO" in os.environ:
    print("n1:7:7 [0] NCCL INFO NCCL_ALGO set by environment to " + os.environ["NCCL_ALGO"])
"""
# of a trainer that is started again: its first start
EARLY = """
import sys
if "early" in sys.argv:
    for step in range(4):
        print(f"completed step: {step}, seconds: 0.5, Tokens/s/device: 1024.0, loss: 7.1")
    sys.exit(1)
"""
SWALLOW = 'XLA_FLAGS=$(tr " " "\\n" <<<"$XLA_FLAGS" | grep -v mathh | tr "\\n" " ")'
KEY = "print('Config param remat_policy: {}')\n"
LEVEL = profile("level", "--xla_backend_optimization_level=1")
TYPO = profile("typo", "--xla_cpu_enable_fast_mathh=true")
RING = profile("ring", env={"NCCL_ALGO": "Ring"})
FULL = profile("full", overrides={"remat_policy": "full"})
TELLS = f"import os\n{TELL_OPTIONS}"
OF_PROGRAMS = (pytest.mark.jax, pytest.mark.part("programs"))
by_xla = pytest.mark.parametrize(
    "xla", [pytest.param(TELLS, id="as XLA"), pytest.param(JAX, id="XLA", marks=OF_PROGRAMS)]
)


def ran(
    of: Profile,
    folder: Path,
    program: str,
    *,
    wrapper: str = "",
    protocol: Protocol = PROTOCOL,
    env_files: tuple[str, ...] = (),
    name: str = "an attempt",
) -> Assessment:
    """Run a trial of a profile as the payload does, and assess it as the campaign does."""
    (folder / "trainer.py").write_text(f"{program}{STEPS}", encoding="utf-8")
    (folder / "wrapper.sh").write_text(f'{wrapper}\nexec "$@"\n', encoding="utf-8")
    argv = ("bash", str(folder / "wrapper.sh"), sys.executable, str(folder / "trainer.py"))
    inherit = ("PATH", "HOME", "JAX_PLATFORMS")
    launcher = CommandLauncher(argv=(*argv, "{overrides}"), inherit=inherit, env_files=env_files)
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=1"), protocol=protocol)
    trial = trial_of(of, protocol, cell.digest)
    attempt = folder / name
    write_spec(attempt, launcher.launch(trial, cell))
    command = [sys.executable, payload.__file__, str(attempt)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run(command, env=environment, check=True, timeout=240)
    report = read_log([(attempt / payload.log_name()).read_bytes()])
    spec = read_spec(attempt)
    assert spec is not None
    options = options_of_dump(attempt, protocol)
    outcome = read_outcomes(attempt)[0]
    return assess(trial, cell, outcome, report, options=options, dumps_options=spec.tells_options)


def trial_of(of: Profile, protocol: Protocol, cell_digest: str = "c") -> Trial:
    return Trial(
        cell_digest=cell_digest, profile=of, protocol=protocol, study="tuning", stage="wave1"
    )


def ends(found: Assessment) -> str:
    (setting,) = (each for each in found.settings if not each.is_deployed)
    return f"{setting.effect}: {found.decision.next}"


@by_xla
@rows(
    "program, wrapper, end",
    {
        "nothing in between": (SHOWS, "", "in effect: accept"),
        "an env file that is sourced again has the last word": (
            SHOWS, 'XLA_FLAGS="$XLA_FLAGS --xla_backend_optimization_level=3"',
            "contradicted: drop"),
        "an env file that replaces everything, and no line about it": (
            "", 'export XLA_FLAGS="--xla_backend_optimization_level=3"',
            "not seen: accept"),
        "a trainer that resets the flags after it has printed them": (
            f"{SHOWS}os.environ['XLA_FLAGS'] = ''\n", "", "not seen: accept"),
        "a trainer that swallows a typo": ("", SWALLOW, "not seen: accept"),
    },
)  # fmt: skip
def test_a_flag_on_its_way_to_xla(
    xla: str, program: str, wrapper: str, end: str, tmp_path: Path
) -> None:
    found = ran(TYPO if wrapper == SWALLOW else LEVEL, tmp_path, f"{program}{xla}", wrapper=wrapper)
    assert ends(found) == end, found.settings
    folder = tmp_path / "an attempt" / OPTIONS_FOLDER
    left = [each for each in folder.rglob("*") if each.is_file()]
    assert len(left) <= 5, "what is not read is deleted"
    assert sum(each.stat().st_size for each in left) < 1 << 16


@by_xla
def test_options_of_a_start_that_died_are_no_proof_of_the_one_that_was_measured(
    xla: str, tmp_path: Path
) -> None:
    """A wrapper starts the trainer again, without the flags that the first start wrote down."""
    found = ran(LEVEL, tmp_path, xla + EARLY, wrapper='"$@" early; unset XLA_FLAGS')
    assert ends(found) == "asked: accept"
    assert not found.settings[0].is_proved


@rows(
    "of, program, wrapper, end",
    {
        "NCCL reads it": (RING, NCCL, "", "in effect: accept"),
        "a variable is overwritten": (RING, NCCL, "export NCCL_ALGO=Tree", "contradicted: drop"),
        "the key is used": (FULL, KEY.format("full"), "", "in effect: accept"),
        "a yml wins": (FULL, KEY.format("none"), "", "contradicted: drop"),
    },
)
def test_a_variable_or_a_key_on_its_way(
    of: Profile, program: str, wrapper: str, end: str, tmp_path: Path
) -> None:
    assert ends(ran(of, tmp_path, program, wrapper=wrapper)) == end


def test_a_user_who_dumps_is_left_alone(tmp_path: Path) -> None:
    found = ran(profile("dumps", "--xla_dump_to=/mine --xla_a=1"), tmp_path, SHOWS)
    assert [str(each.effect) for each in found.settings] == ["asked", "asked"]
    log = (tmp_path / "an attempt" / payload.log_name()).read_text(encoding="utf-8")
    assert "XLA_FLAGS=--xla_dump_to=/mine --xla_a=1\n" in log
