"""Which files of a dump are the step's, and that a real CPU dump says what its text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.evidence.hlo import read_hlo
from pytest_xlatune.evidence.hlo.dump import choose_module
from pytest_xlatune.model.errors import ParseError
from tests.evidence.programs import GATHER, entry

COMPILE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
f = jax.jit(
    lambda x: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, jnp.ones((5, 8, 8)))[0].sum(),
    in_shardings=NamedSharding(mesh, P("d")),
)
compiled = f.lower(jax.ShapeDtypeStruct((4, 8), "float32")).compile()
open(sys.argv[1], "w").write(compiled.as_text())
"""


def test_a_real_cpu_dump_and_its_text_have_the_same_facts(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    flags = f"--xla_force_host_platform_device_count=2 --xla_dump_to={tmp_path / 'dump'}"
    subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path / "as_text")],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_dump_hlo_as_text"},
        check=True,
        timeout=300,
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "dump").iterdir()}
    module = choose_module(sizes, where="dump")

    def beside(name: str | None) -> str:
        return (tmp_path / "dump" / str(name)).read_text()

    dump = read_hlo(
        beside(module.program).splitlines(keepends=True),
        module.program,
        memory=beside(module.memory),
        options=beside(module.options),
    )
    spoken = read_hlo((tmp_path / "as_text").read_text().splitlines(keepends=True), "as_text")
    assert (dump.target, spoken.target) == ("cpu", "unknown")
    assert dump.collectives == spoken.collectives
    assert [each.kind for each in dump.collectives] == ["all-reduce"]
    assert dump.loops == spoken.loops
    # from 0.11 on a dump names the element where it is used, %param#0, and a text takes it first
    operations = [
        {name: count for name, count in each.opcodes.items() if name != "get-tuple-element"}
        for each in (dump, spoken)
    ]
    assert operations[0] == operations[1]
    assert dump.memory_bytes
    assert not [name for name in dump.options or {} if "dump" in name]


def test_of_several_modules_the_largest_is_the_step() -> None:
    sizes = {
        "module_0001.jit_init.sm_9.0a_gpu_after_optimizations.txt": 10,
        "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations.txt": 99,
        "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt": 200,
        "module_0002.jit_train_step.before_optimizations.txt": 300,
        "module_0002.jit_train_step.debug_options": 1,
    }
    found = choose_module(sizes, where="dump")
    assert found.program == "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations.txt"
    assert found.options == "module_0002.jit_train_step.debug_options"
    assert (found.memory, found.thunks) == (None, None)
    with pytest.raises(ParseError, match=r"dump: no .* JAX_ENABLE_COMPILATION_CACHE=false"):
        choose_module({"module_0002.jit_train_step.before_optimizations.txt": 1}, where="dump")


@pytest.mark.parametrize(
    ("device", "target"),
    [
        pytest.param("sm_9.0_gpu", "sm_9.0", id="NVIDIA, jaxlib 0.6"),
        pytest.param("sm_9.0a_gpu", "sm_9.0a", id="NVIDIA, later"),
        pytest.param("gfx942_gpu", "gfx942", id="AMD MI300"),
        pytest.param("gfx950_gpu", "gfx950", id="AMD MI355"),
        pytest.param("cpu", "cpu", id="CPU"),
    ],
)
def test_the_device_is_read_off_the_name_of_the_program(device: str, target: str) -> None:
    stem = f"module_0001.jit_train_step.{device}_after_optimizations"
    beside = {
        f"{stem}-memory-usage-report.txt": 1,
        "module_0001.jit_train_step.debug_options": 1,
        "module_0001.jit_train_step.thunk_sequence.txt": 1,
    }
    found = choose_module({f"{stem}.txt": 9, **beside}, where="dump")
    assert (found.program, found.memory, found.options, found.thunks) == (f"{stem}.txt", *beside)
    lines = f"HloModule m\n{entry(GATHER)}".splitlines(keepends=True)
    assert read_hlo(lines, found.program).target == target
