"""The look before anything is submitted, the XLA that is asked, and what a node says of itself.

This machine has no GPU: what drivers, devices and libraries say are the texts that public documents
and logs print.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import BatchSize, CellSettings, CompileCheck, SiteSettings, Sweep
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import history, load
from pytest_xlatune.evidence.hlo.dump import seen_options
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    APPENDING,
    Flag,
    Profile,
    append_flags,
    format_flags,
    parse_flags,
    profile,
    restore_default,
)
from pytest_xlatune.model.result import Effect
from pytest_xlatune.prepare.preflight import (
    ZERO,
    Preflight,
    Target,
    check_flags,
    check_keys,
    check_rules,
    check_site,
    lint,
)
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.sweep.deployed import context_of, defaults_of
from pytest_xlatune.tasks.runs import run_preflight
from pytest_xlatune.workers import probe_environment
from pytest_xlatune.workers.probe_environment import MARK, node_facts, packages
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture
from tests.helpers.probes import make_cell, probe
from tests.helpers.tables import rows

KNOWN = profile("known", "--xla_cpu_multi_thread_eigen=false")


def checked(folder: Path, *, image: str = "", env_files: tuple[str, ...] = ()) -> Preflight:
    sweep = Sweep(
        name="s",
        launcher=CommandLauncher(argv=(sys.executable, "/no/train.py"), env_files=env_files),
        profiles=(KNOWN,),
        cell=CellSettings(model_tag="m", parallelism="FSDP=4", image=image),
        site=SiteSettings(executor="local"),
    )
    resolved = sweep.resolve()
    return check_site(resolved, folder / "work", resolved.cell, is_first=True, is_busy=False)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    clean, dirty = tmp_path / "clean.env.sh", tmp_path / "dirty.env.sh"
    clean.write_text("# TUNE_PROFILE is no more\nexport A=1\n")
    dirty.write_text("export A=1\nTUNE_PROFILE=overlap-2\n")
    found = checked(tmp_path, image="/no/image.sif", env_files=(str(clean), str(dirty)))
    with pytest.raises(ConfigError, match="nothing was submitted") as error:
        found.raise_faults("sweep 's'")
    message = str(error.value)
    assert message.count("\n  - ") == len(found.faults) == 3
    assert f"{dirty}: TUNE_PROFILE is left over" in message
    assert "/no/train.py does not exist" in message
    assert "/no/image.sif does not exist" in message
    assert not list((tmp_path / "work").iterdir()), "the marker is gone"


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file in its place")
    faults = checked(tmp_path).faults
    assert any("cannot be written" in fault for fault in faults)
    Preflight(notes=("a note",)).raise_faults("sweep 's'")


UNKNOWN = profile("unknown", "--xla_cpu_enable_warp_drive=true")
BAD_VALUE = profile("bad-value", "--xla_cpu_enable_fast_math=maybe")
THRESHOLD = profile("t", "--xla_gpu_collective_permute_decomposer_threshold=1024")
BLOCKED = profile("inflated", "--xla_gpu_collective_inflation_factor=0")


@pytest.mark.usefixtures("xla")
@rows(
    "profiles, deployed, faults, notes",
    {
        "a bad value hides no unknown one": (
            [KNOWN, BAD_VALUE, UNKNOWN], "", 0, ("profile bad-value", "profile unknown")),
        "that none is known is a fault": ([UNKNOWN], "", 2, ()),
        "an unknown deployed one is a fault": ([KNOWN], "--xla_bogus=1", 1, ()),
        "a blocked one is a fault, though known": ([KNOWN, BLOCKED], "", 1, ()),
    },
)  # fmt: skip
def test_the_trainers_own_xla_says_which_flags_it_knows(
    profiles: list[Profile], deployed: str, faults: int, notes: tuple[str, ...]
) -> None:
    context = Context(deployed=parse_flags(deployed))
    found = check_flags(profiles, context, python=sys.executable, environ=os.environ)
    assert len(found.faults) == faults, found
    assert tuple(note.partition(":")[0] for note in found.notes) == notes


def test_where_xla_cannot_be_asked_the_rules_still_hold() -> None:
    for python, why in (("/no/such/python", "not on this machine"), ("false", "cannot be run")):
        found = check_flags([KNOWN, BLOCKED], Context(), python=python, environ=os.environ)
        assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
        assert why in found.notes[-1]


def test_an_env_file_that_only_the_nodes_can_read_makes_an_absent_partner_a_note(
    tmp_path: Path,
) -> None:
    env_file = tmp_path / "node.env.sh"
    env_file.write_text("test -e /dev/kfd.absent\n")
    launcher = CommandLauncher(argv=("/bin/true",), env_files=(str(env_file),))
    found = check_rules([THRESHOLD, BLOCKED], context_of(make_cell(), launcher))
    assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
    assert "[partner]" in found.notes[0]
    with pytest.raises(ConfigError, match="silently drops"):
        context_of(make_cell(deployed={"XLA_FLAGS": "--xla_a=1 , --xla_b=2"}), probe())


# --- keys of a release ----------------------------------------------------------------------------

BASE = """\
steps: 150_001 # of a whole run
per_device_batch_size: 12.0
remat_policy: 'full'
logical_axis_rules: [
                      ['batch', 'data'],
                    ]
ici_fsdp_parallelism: -1
ici_pipeline_parallelism: 1
"""
TYPES = """\
class Lora:
    rank: int = 8

class Config:
    lora: Lora
    emb_dim: int
    not_a_field = 3
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package `maxtext` that would fail to be imported: it is only read."""
    configs = tmp_path / "maxtext" / "configs"
    configs.mkdir(parents=True)
    (tmp_path / "maxtext" / "__init__.py").write_text("raise RuntimeError\n")
    (configs / "base.yml").write_text(BASE)
    (configs / "types.py").write_text(TYPES)
    (tmp_path / "tiny-1b.gpu.yml").write_text('base_config: "base.yml"\nremat_policy: minimal\n')
    return tmp_path


def maxtext_in(checkout: Path, **changes: Any) -> MaxTextLauncher:
    values = {"python": sys.executable, "module": "maxtext.trainers.pre_train.train", **changes}
    axes = {"FSDP": "ici", "PP": "ici"}
    config = "{model_tag}.gpu.yml"
    return MaxTextLauncher(config=config, cwd=str(checkout), axis_prefix=axes, **values)


def look(
    checkout: Path, *profiles: Profile, overrides: dict[str, str] | None = None, **launcher: str
) -> Preflight:
    cell = make_cell("FSDP=2", overrides=overrides or {})
    return check_keys(maxtext_in(checkout, **launcher), cell, profiles, environ=os.environ)


def test_every_unknown_key_is_named_at_once_with_its_place_and_the_nearest(checkout: Path) -> None:
    """Keys of the base, and fields of the types, are known."""
    found = look(
        checkout,
        profile("known", overrides={"remat_policy": "minimal"}),
        profile("typo", overrides={"remat_polisy": "full"}),
        overrides={"not_a_field": "3", "emb_dim": "64", "lora.rank": "4"},
    )
    lacks = f"(maxtext does not have it: {checkout / 'maxtext' / 'configs' / 'base.yml'})"
    of_profile = "in profile 'typo', remat_polisy=full; did you mean 'remat_policy'?"
    assert found.faults == (
        f"unknown key 'not_a_field' in cell 'tiny-1b FSDP=2 pdbs=7', not_a_field=3. {lacks}",
        f"unknown key 'remat_polisy' {of_profile} {lacks}",
    )


def test_a_release_that_cannot_be_asked_is_a_note(checkout: Path) -> None:
    for changes, why in (
        ({"python": "/no/such/python"}, "were not checked: /no/such/python is not on"),
        ({"module": "elsewhere.train"}, "has no package elsewhere"),
    ):
        found = look(checkout, overrides={"nonsense": "1"}, **changes)
        assert found.faults == ()
        assert why in "".join(found.notes)


def test_an_old_release_accepts_what_the_configuration_and_its_parents_declare(
    checkout: Path,
) -> None:
    configs = checkout / "maxtext" / "configs"
    (configs / "types.py").unlink()
    (configs / "gpu").mkdir()
    (configs / "gpu" / "common.yml").write_text("of_parent: 1\n")
    (checkout / "tiny-1b.gpu.yml").write_text('base_config: "gpu/common.yml"\nof_file: 1\n')
    overrides = {"of_parent": "2", "of_file": "2", "of_none": "2"}
    (fault,) = look(checkout, overrides=overrides).faults
    assert fault.startswith("unknown key 'of_none'")


def test_a_key_that_a_study_varies_is_held_against_the_release_too(checkout: Path) -> None:
    sweep = Sweep(
        name="s",
        cell=CellSettings(model_tag="tiny-1b", parallelism="FSDP=2", per_device_batch_size=4),
        launcher=maxtext_in(checkout),
        site=SiteSettings(executor="local"),
        study=BatchSize(sizes=(4, 8), by="remat_polcy", by_values=("full", "none")),
        compile_check=CompileCheck(memory_limit_gib=1),
    )
    preflight = run_preflight(sweep.resolve(), checkout, is_first=True, is_busy=False, cells=())
    (fault,) = preflight.faults
    assert fault.startswith("unknown key 'remat_polcy' in cell ")
    assert "did you mean 'remat_policy'?" in fault


def test_other_trainers_have_no_keys_to_look_at(checkout: Path) -> None:
    assert look(checkout, module="train.py", overrides={"nonsense": "1"}) == Preflight()
    inside = ContainerLauncher(inner=maxtext_in(checkout), runtime="podman")
    found = check_keys(inside, make_cell(), (), environ={})
    assert found.faults == ()
    assert "is in an image" in " ".join(found.notes)


programs = pytest.mark.part("programs")
PASSES = "--xla_disable_hlo_passes=fusion,algsimp --xla_disable_hlo_passes=dce"
MAP = "--xla_gpu_analytical_latency_estimator_options=nic_speed_gbps=3,gpus_per_node=8"


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(python=sys.executable, environ=os.environ)


@pytest.mark.jax
def test_xlas_own_options_are_those_that_were_probed(target: Target) -> None:
    """Decoding agrees with the table of releases, option by option, and lists, maps, enums read."""
    default, changed = target(
        ["", f"{PASSES} {MAP} --xla_gpu_enable_command_buffer=FUSION --xla_gpu_autotune_level=2"]
    )
    assert default.options is not None
    assert changed.options is not None
    probed = history()
    compared = 0
    for name, value in default.options.items():
        expected = probed.default(name, target.jaxlib)
        if expected is not None:
            zero = expected.lower() in ("false", "0", "") or expected.isupper()
            assert value.lower() == expected.lower() or (value == ZERO and zero), name
            compared += 1
    # a release that was not probed shares most of its options with its neighbours
    assert compared > 150 or target.jaxlib not in probed.versions
    differing = {
        name: value for name, value in changed.options.items() if default.options[name] != value
    }
    estimator = differing.pop("xla_gpu_analytical_latency_estimator_options")
    assert {"nic_speed_gbps=3", "gpus_per_node=8"} <= set(estimator.split(","))
    assert differing == {
        "xla_disable_hlo_passes": "fusion,algsimp,dce",
        "xla_gpu_enable_command_buffer": "FUSION",
        "xla_gpu_autotune_level": "2",
    }


@programs
@pytest.mark.jax
def test_every_value_of_the_catalog_is_one_that_xla_takes(target: Target) -> None:
    """Of the flags that this release accepts."""
    profiles = [each for entry in load().entries for each in entry.profiles if each.flags]
    answers = target([format_flags(each.flags) for each in profiles])
    for each, answer in zip(profiles, answers, strict=True):
        assert answer.options is not None or answer.unknown, (each.id, answer.refused)
        accepted = (history().is_accepted(name, target.jaxlib) for name in answer.unknown)
        assert not any(accepted), each.id


@programs
@pytest.mark.jax
def test_what_is_put_back_is_xlas_default(target: Target) -> None:
    """Every flag of the release at its default in one text; and those of the catalog put back."""
    (first,) = target([""])
    all_defaults = defaults_of(history().flags, target.jaxlib)
    spelled = [Flag(name=name, value=value) for name, value in all_defaults.items()]
    deployed = {
        entry.name: str(Flag(name=entry.name, value=entry.values[-1]))
        for entry in load().entries
        if entry.values and entry.name in all_defaults and entry.name not in APPENDING
    }
    text = " ".join(deployed.values())
    back = restore_default(parse_flags(text), all_defaults)
    same, changed, after = target([format_flags(spelled), text, append_flags(text, back)])
    if target.jaxlib in history().versions:
        assert len(deployed) > 20
        assert len(spelled) > 200
    assert same.options is not None
    assert after.options is not None
    assert first.options is not None
    # an enum at zero is written by its name where it was set, and not at all where it was not
    zeros = {name for name, value in first.options.items() if value == ZERO}
    assert {name for name, value in same.options.items() - first.options.items()} <= zeros
    assert changed.options != first.options
    assert after.options == first.options


def test_without_an_xla_the_tables_are_asked_and_it_is_said() -> None:
    found = lint([profile("p", "--xla_gpu_graph_level=0")], Context(jaxlib="0.8.3"))
    assert [each.rule for each in found.objections] == ["unknown-flag"]
    assert "no XLA was asked" in found.unchecked[0]


@pytest.mark.jax
@programs
def test_what_a_real_xla_dumps(tmp_path: Path) -> None:
    """The first text is in effect; behind the lone comma of the second XLA drops a flag."""
    assert seen_options(tmp_path) is None
    passes, flags = "--xla_disable_hlo_passes=algsimp", "--xla_cpu_enable_fast_math=true"
    asked = profile("asked", f"{passes} {flags}")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    effects = {}
    for name, text in (("whole", f"{passes} {flags}"), ("cut", f"{passes} , {flags}")):
        to = f"--xla_dump_to={tmp_path / name} --xla_dump_hlo_as_text"
        subprocess.run(
            [sys.executable, "-c", "import jax; jax.jit(lambda x: x * 2 + 1)(1.0)"],
            env=clean | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{to} {text}"},
            check=True,
            capture_output=True,
            timeout=240,
        )
        judged = judge_settings(asked, Witnesses(options=seen_options(tmp_path / name)))
        effects[name] = {each.effect for each in judged}
    assert effects["whole"] == {Effect.IN_EFFECT}
    assert effects["cut"] == {Effect.IN_EFFECT, Effect.CONTRADICTED}


PROGRAM = Path(probe_environment.__file__)

H100 = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 150\nGPU UUID: \t GPU-eaf23aa1-4d3d\n"
CPU_OF_KFD = "cpu_cores_count 128\nsimd_count 0\ngfx_target_version 0\n"


def kfd(version: int) -> str:
    return f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ngfx_target_version {version}\n"


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


NVRM = "NVRM version: NVIDIA UNIX"
OPEN = f"{NVRM} Open Kernel Module for x86_64  555.42.06  Release Build  (abuild@host)\n"
OLD = f"{NVRM} x86_64 Kernel Module 390.48 Thu Mar 22 00:42:57\n"
NVIDIA = "proc/driver/nvidia"
KFD = "sys/class/kfd/kfd/topology/nodes"
BUSES = {f"{NVIDIA}/gpus/0000:{bus:02x}:00.0/information": H100 for bus in range(8)}
AMD = {
    "sys/module/amdgpu/version": "6.12.12\n",
    f"{KFD}/0/properties": CPU_OF_KFD,
    **{f"{KFD}/{at}/properties": kfd(version) for at, version in ((1, 90402), (4, 90010))},
}


@pytest.mark.parametrize(
    ("files", "driver", "gpus"),
    [
        ({f"{NVIDIA}/version": OPEN, **BUSES}, "NVIDIA 555.42.06", "8 x NVIDIA H100 80GB HBM3"),
        ({f"{NVIDIA}/version": OLD, **BUSES}, "NVIDIA 390.48", "8 x NVIDIA H100 80GB HBM3"),
        (AMD, "amdgpu 6.12.12", "1 x gfx90a, 1 x gfx942"),
    ],
)
def test_the_driver_and_its_devices(
    tmp_path: Path, files: dict[str, str], driver: str, gpus: str
) -> None:
    found = node_facts(machine(tmp_path, **files))
    assert (found["driver"], found["GPUs"]) == (driver, gpus)


PACKAGES = {"jax-cuda12-plugin": "0.10.2", "nvidia-nccl-cu12": "2.27.3", "libtpu": "0.0.17"}
CUDA = '{"cuda" : {"version" : "12.8.1"}}'


def test_cuda_rocm_and_the_packages_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in {**PACKAGES, "jaxtyping": "0.2.36"}.items():
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        (tmp_path / "site" / folder).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    rocm = {"opt/rocm/.info/version": "6.4.1-83\n"}
    found = packages(machine(tmp_path, **{"usr/local/cuda/version.json": CUDA}, **rocm))
    assert found.items() >= {**PACKAGES, "CUDA": "12.8.1", "ROCm": "6.4.1-83"}.items()
    assert "jaxtyping" not in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1: p5-dy-gpu-2:62571:62571 [1] NCCL INFO NCCL version 2.26.2+cuda12.2\n",
         {"NCCL": "2.26.2+cuda12.2"}),
        (("node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567\n"
         "HIP version  : 7.2.53211-97f5574fe2\nROCm version : 7.2.4.0-93-97f5574fe2\n"
         "Hostname     : n1\nLibrccl path : /usr/local/lib/librccl.so.1\n"),
         {"RCCL": "2.27.7-HEAD:29e1567", "ROCm": "7.2.4.0-93-97f5574fe2"}),
        ("a trainer asks for NCCL version 2.18 or later\n", {}),
    ],
    ids=["NCCL", "RCCL and ROCm", "a trainer"],
)  # fmt: skip
def test_a_library_tells_its_version_as_it_is_loaded(text: str, found: dict[str, str]) -> None:
    assert read_log([text.encode()]).libraries == found
    split = [text[at : at + 1].encode() for at in range(len(text))]
    assert read_log(split).libraries == found


def test_where_jax_ends_the_process_the_rest_is_told_all_the_same(tmp_path: Path) -> None:
    # an image whose XLA_FLAGS hold an unknown flag: XLA aborts
    (tmp_path / "jax.py").write_text("import os\nos._exit(1)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "trainer", "train.py", "devices"],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [each for each in done.stdout.splitlines() if each.startswith(MARK)]
    told = json.loads(line.removeprefix(MARK))
    assert told["packages"]["python"] == platform.python_version()
    assert "devices:" in told["problems"][0]
