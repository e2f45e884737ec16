"""Ways in which a setting is lost between us and the program: none of them may end as a winner.

Real processes: the payload, bash, and where the setting is a flag what tells of it as XLA does; of
`make test-all`, XLA itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pytest_xlatune.campaign._follow import options_of_dump
from pytest_xlatune.campaign.assess import Assessment
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import read_outcomes, read_spec, write_spec
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import OPTIONS_FOLDER, Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess
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
LEVEL = profile("level", "--xla_backend_optimization_level=1")
RING = profile("ring", env={"NCCL_ALGO": "Ring"})
FULL = profile("full", overrides={"remat_policy": "full"})
TELLS = f"import os\n{TELL_OPTIONS}"
programs = (pytest.mark.jax, pytest.mark.part("programs"))
by_xla = pytest.mark.parametrize(
    "xla", [pytest.param(TELLS, id="as XLA"), pytest.param(JAX, id="XLA", marks=programs)]
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
    trial = Trial(
        cell_digest=cell.digest, profile=of, protocol=protocol, study="tuning", stage="wave1"
    )
    attempt = folder / name
    write_spec(attempt, launcher.launch(trial, cell))
    subprocess.run(
        [sys.executable, payload.__file__, str(attempt)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=True,
        timeout=240,
    )
    with (attempt / payload.log_name()).open("rb") as log:
        report = read_log(iter(lambda: log.read(1 << 16), b""))
    spec = read_spec(attempt)
    return assess(
        trial,
        cell,
        read_outcomes(attempt)[0],
        report,
        options=options_of_dump(attempt, trial.protocol),
        dumps_options=spec is not None and spec.tells_options,
    )


def ends(found: Assessment) -> tuple[str, Next]:
    (setting,) = (each for each in found.settings if not each.is_deployed)
    return str(setting.effect), found.decision.next


@by_xla
@pytest.mark.parametrize(
    ("program", "wrapper", "end"),
    [
        pytest.param(SHOWS, "", ("in effect", Next.ACCEPT), id="nothing in between"),
        pytest.param(
            SHOWS,
            'XLA_FLAGS="$XLA_FLAGS --xla_backend_optimization_level=3"',
            ("contradicted", Next.DROP),
            id="an env file that is sourced again has the last word",
        ),
        pytest.param(
            "",
            'export XLA_FLAGS="--xla_backend_optimization_level=3"',
            ("not seen", Next.ACCEPT),
            id="an env file that replaces everything, and no line about it",
        ),
        pytest.param(
            f"{SHOWS}os.environ['XLA_FLAGS'] = ''\n",
            "",
            ("not seen", Next.ACCEPT),
            id="a trainer that resets the flags after it has printed them",
        ),
        pytest.param(
            "", 'exec env -i PATH="$PATH" JAX_PLATFORMS=cpu "$@"', ("not seen", Next.ACCEPT),
            id="a wrapper that drops everything",
        ),
    ],
)  # fmt: skip
def test_a_flag_on_its_way_to_xla(
    xla: str, program: str, wrapper: str, end: tuple[str, Next], tmp_path: Path
) -> None:
    found = ran(LEVEL, tmp_path, f"{program}{xla}", wrapper=wrapper)
    assert ends(found) == end, found.settings
    left = [
        each for each in (tmp_path / "an attempt" / OPTIONS_FOLDER).rglob("*") if each.is_file()
    ]
    assert len(left) <= 5, "what is not read is deleted"
    assert sum(each.stat().st_size for each in left) < 1 << 16


@pytest.mark.jax
def test_a_trainer_that_gives_the_compiler_an_option_of_its_own(tmp_path: Path) -> None:
    program = (
        "import jax\nf = jax.jit(lambda x: x @ x, compiler_options="
        "{'xla_backend_optimization_level': 3})\nf(jax.numpy.ones((8, 8)))\n"
    )
    found = ran(LEVEL, tmp_path, program)
    assert ends(found) == ("contradicted", Next.DROP), found.settings


@by_xla
def test_options_of_a_start_that_died_are_no_proof_of_the_one_that_was_measured(
    xla: str, tmp_path: Path
) -> None:
    """A wrapper starts the trainer again, without the flags that the first start wrote down."""
    early = "import sys\nif 'early' in sys.argv:\n    for step in range(4):\n"
    early += "        print(f'completed step: {step}, seconds: 0.5, TFLOP/s/device: 0.1, '\n"
    early += "              'Tokens/s/device: 1024.0, total_weights: 512, loss: 7.1')\n"
    early += "    sys.exit(1)\n"
    found = ran(LEVEL, tmp_path, f"{xla}{early}", wrapper='"$@" early; unset XLA_FLAGS')
    assert ends(found) == ("asked", Next.ACCEPT)
    (setting,) = found.settings
    assert not setting.is_proved


@by_xla
def test_a_trainer_that_swallows_a_typo(xla: str, tmp_path: Path) -> None:
    of = profile("typo", "--xla_cpu_enable_fast_mathh=true")
    swallow = 'XLA_FLAGS=$(tr " " "\\n" <<<"$XLA_FLAGS" | grep -v mathh | tr "\\n" " ")'
    assert ends(ran(of, tmp_path, xla, wrapper=swallow)) == ("not seen", Next.ACCEPT)


@pytest.mark.parametrize(
    ("program", "wrapper", "end"),
    [
        pytest.param(NCCL, "", ("in effect", Next.ACCEPT), id="NCCL reads it"),
        pytest.param(NCCL, "export NCCL_ALGO=Tree", ("contradicted", Next.DROP), id="overwritten"),
        pytest.param(NCCL, "unset NCCL_ALGO", ("not seen", Next.ACCEPT), id="taken away"),
        pytest.param("", "", ("not seen", Next.ACCEPT), id="NCCL is not loaded"),
    ],
)
def test_a_variable_on_its_way_to_nccl(
    program: str, wrapper: str, end: tuple[str, Next], tmp_path: Path
) -> None:
    assert ends(ran(RING, tmp_path, program, wrapper=wrapper)) == end


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ("full", ("in effect", Next.ACCEPT)),
        ("none", ("contradicted", Next.DROP)),
        ("", ("asked", Next.ACCEPT)),
    ],
    ids=["the key is used", "a yml wins", "a trainer that prints no key"],
)
def test_a_key_on_its_way_to_the_trainer(says: str, end: tuple[str, Next], tmp_path: Path) -> None:
    program = f"print('Config param remat_policy: {says}')\n" if says else ""
    assert ends(ran(FULL, tmp_path, program)) == end


def test_a_user_who_dumps_is_left_alone(tmp_path: Path) -> None:
    of = profile("dumps", "--xla_dump_to=/mine --xla_a=1")
    found = ran(of, tmp_path, SHOWS)
    assert [str(each.effect) for each in found.settings] == ["asked", "asked"]
    log = (tmp_path / "an attempt" / payload.log_name()).read_text(encoding="utf-8")
    assert "XLA_FLAGS=--xla_dump_to=/mine --xla_a=1\n" in log


@by_xla
@pytest.mark.parametrize("has_file", [False, True], ids=["composed here", "by bash on the node"])
def test_the_folder_of_autotuning_is_made_and_its_flag_is_in_effect(
    has_file: bool, xla: str, tmp_path: Path
) -> None:
    (tmp_path / "env.sh").write_text("export XLA_FLAGS=--xla_cpu_enable_fast_math=false\n")
    protocol = Protocol(steps=12, autotune_cache=str(tmp_path / "shared" / "tuned"))
    files = (str(tmp_path / "env.sh"),) if has_file else ()
    found = ran(LEVEL, tmp_path, xla, protocol=protocol, env_files=files)
    assert found.decision.next is Next.ACCEPT
    said = {each.name: each for each in found.settings}
    pin = said["xla_gpu_per_fusion_autotune_cache_dir"]
    assert (pin.effect, pin.is_deployed) == ("in effect", True)
    assert said["xla_backend_optimization_level"].effect == "in effect"
    (made,) = (tmp_path / "shared" / "tuned").iterdir()
    assert made.is_dir()
    assert pin.asked == str(made)


# says of the program that takes long whether it was compiled; small ones are compiled in any case
KEEPS = """
import jax, jax.numpy as jnp
of = jnp.ones((8, 8)) + 1
said = lambda name, **_: print(name.rpartition("/")[2]) if "/cache_" in name else None
jax.monitoring.register_event_listener(said)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x: jnp.sin(x) @ x, inline=True)(of)
"""


@pytest.mark.jax
@pytest.mark.part("programs")
@pytest.mark.parametrize("has_file", [False, True], ids=["composed here", "by bash on the node"])
def test_later_trials_of_an_arm_load_what_its_first_compiled_and_are_witnessed(
    has_file: bool, tmp_path: Path
) -> None:
    """The key of a kept program holds the flags: another arm compiles its own."""
    shared = tmp_path / "shared"
    protocol = Protocol(
        steps=12, autotune_cache=f"{shared}/tuned", compile_cache=f"{shared}/compiled"
    )
    (tmp_path / "env.sh").write_text("export XLA_FLAGS=--xla_cpu_enable_fast_math=false\n")
    files = (str(tmp_path / "env.sh"),) if has_file else ()
    said = []
    other = profile("other", "--xla_backend_optimization_level=2")
    for at, of in enumerate((LEVEL, LEVEL, other)):
        own = tmp_path / f"trial-{at}"
        own.mkdir()
        # JAX parts XLA_FLAGS at blanks for its key: in a folder with one nothing is found again
        found = ran(of, own, KEEPS, protocol=protocol, env_files=files, name="attempt")
        assert found.decision.next is Next.ACCEPT
        effects = {each.name: str(each.effect) for each in found.settings}
        # a program that was loaded, and kernels that JAX would choose a folder for, included
        assert set(effects.values()) == {"in effect"}, effects
        assert "xla_gpu_per_fusion_autotune_cache_dir" in effects
        log = (own / "attempt" / payload.log_name()).read_text(encoding="utf-8")
        said.append([each for each in log.splitlines() if each.startswith("cache_")])
    assert "cache_hits" not in said[0]
    assert said[1] == ["cache_hits"]
    assert "cache_hits" not in said[2]


def test_an_evidence_run_and_a_profile_of_other_kernels_compile_themselves() -> None:
    protocol = Protocol(autotune_cache="/s/tuned", compile_cache="/s/compiled/")
    trial = Trial(cell_digest="c", profile=LEVEL, protocol=protocol, study="s", stage="wave1")
    assert trial.compile_folder == "/s/compiled/c"
    evidence = msgspec.structs.replace(trial, protocol=msgspec.structs.replace(protocol, dump=True))
    assert evidence.compile_folder == ""
    own = profile("own", "--xla_gpu_load_autotune_results_from=/shared/a.pb")
    assert msgspec.structs.replace(trial, profile=own).compile_folder == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param({"compile_cache": "kept"}, "compile_cache is 'kept', expected an absolute"),
        pytest.param({"compile_cache": "/s/kept"}, "compile_cache is set"),
    ],
    ids=["relative", "kernels by chance"],
)
def test_a_compile_cache_that_would_tell_arms_apart_wrongly_is_refused(
    said: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Protocol(**said)  # type: ignore[arg-type]


def test_a_profile_may_name_the_results_of_autotuning_itself() -> None:
    own = profile("own", "--xla_gpu_load_autotune_results_from=/shared/a.pb")
    protocol = Protocol(steps=12, autotune_cache="/shared/tuned")
    trial = Trial(cell_digest="c", profile=own, protocol=protocol, study="s", stage="wave1")
    assert trial.pins == ()
    (pin,) = msgspec.structs.replace(trial, profile=LEVEL).pins
    assert str(pin) == "--xla_gpu_per_fusion_autotune_cache_dir=/shared/tuned/c"


def test_a_folder_of_autotuning_that_no_node_could_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="autotune_cache is 'tuned', expected an absolute path"):
        Protocol(autotune_cache="tuned")
