"""`xlatune flags`: list, show, lint, diff; text, JSON, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_xlatune.catalog.rules import RULES
from tests.cli.conftest import Run
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
SCHEDULER = "--xla_gpu_enable_latency_hiding_scheduler"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"


def test_the_document_names_every_rule() -> None:
    document = (ROOT / "docs" / "reference" / "flags.md").read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in document] == []


def test_list(run: Run) -> None:
    code, out, _ = run("flags", "list")
    assert code == 0
    assert "--xla_gpu_all_gather_combine_threshold_bytes = 268435456" in out
    # of an axis it is what a wave would take
    code, out, _ = run("flags", "list", "--axis", "pp", "--jaxlib", "0.10.2", "--device", "sm_90")
    assert code == 0
    assert "left out: pipeline-ag: --xla_gpu_pipeline_all_gather is accepted since" in out


def test_show(run: Run) -> None:
    code, out, _ = run("flags", "show", "--xla_gpu_collective_inflation_factor", "NCCL_BUFFSIZE")
    assert code == 0
    assert "collective-inflation: --xla_gpu_collective_inflation_factor (blocked)" in out
    assert "recipes write 16M" in out
    code, out, _ = run("flags", "show", "xla_gpu_graph_min_graph_size")
    assert "not in the catalog" in out, "a flag that only the releases know"
    out = run("flags", "show", "ag", "channels")[1]
    assert "seen in:  NCCL_DEBUG=INFO" in out
    assert "accepted since jaxlib 0.4.30 or before" in out


@pytest.mark.jax
def test_lint_of_words(run: Run) -> None:
    assert run("flags", "lint", "--xla_gpu_enable_triton_gemm=false")[0] == 0
    code, out, _ = run(
        "flags", "lint", "--json", "--xla_gpu_no_such=1 --xla_disable_hlo_passes=x",
        "NCCL_BUFFSIZE=16M", "--deployed", "--xla_disable_hlo_passes=y",
    )  # fmt: skip
    assert code == 1
    document = json.loads(out)
    rules = [objection["rule"] for objection in document["objections"]]
    assert rules == ["plain-integer", "unknown-flag", "adds-up"]
    assert document["jaxlib"]


@pytest.mark.usefixtures("xla")
def test_lint_of_a_sweep_file(run: Run) -> None:
    sweep = ROOT / "sweeps" / "test_quickstart.py"
    code, out, _ = run("flags", "lint", sweep, "--python", sys.executable)
    assert code == 1
    assert "profile warp-drive: unknown to this XLA: --xla_cpu_enable_warp_drive" in out


@pytest.mark.parametrize(
    ("argv", "rules", "is_probed"),
    [
        pytest.param(
            ("--jaxlib", "0.6.2", "--xla_gpu_pipeline_all_gather=on"), ["unknown-flag"], True,
            id="a release that was probed",
        ),
        pytest.param(
            ("--jaxlib", "0.4.34", f"{OVERLAP} {SCHEDULER}=true"), [], False,
            id="a release between one that lacks it and one that has it",
        ),
        pytest.param(
            ("--jaxlib", "99.0", "--xla_gpu_no_such=1", "--deployed", "--xla_gpu_autotune_level=0"),
            [], False, id="a release of later",
        ),
        pytest.param(
            ("--megascale_abort_on_hangs=true", "--device", "v6e", "--jaxlib", "0.10.2"),
            ["tpu-flag"], True, id="a bare flag of libtpu",
        ),
        pytest.param(
            ("LIBTPU_INIT_ARGS=--megascale_abort_on_hangs=true", "--jaxlib", "0.4.35"), [], True,
            id="a flag of libtpu in its variable",
        ),
    ],
)  # fmt: skip
def test_lint_without_an_xla(
    run: Run, argv: tuple[str, ...], rules: list[str], *, is_probed: bool
) -> None:
    code, out, _ = run("flags", "lint", "--json", *argv)
    document = json.loads(out)
    assert [objection["rule"] for objection in document["objections"]] == rules
    assert code == bool(rules)
    (said,) = document["unchecked"]
    assert ("other releases than jaxlib" not in said) is is_probed


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("lint", "--python", "/no/such/python", "--xla_a=1"), "not on this machine"),
        (("lint", "--python", "p", "--jaxlib", "0.8.3", "--xla_a=1"), "one of the two"),
        (("lint", "--deployed", "--xla_a=1 b", "--xla_a=1"), "--deployed: 'b' does not begin"),
        (("list", "--device", "nope", "--axis", "DP"), "unknown device 'nope'"),
        (("show", "xla_gpu_autotune_lvl"), "did you mean"),
    ],
)
def test_wrong_use_ends_in_one_message(run: Run, argv: tuple[str, ...], words: str) -> None:
    code, out, err = run("flags", *argv)
    assert (code, out) == (2, "")
    assert words in err
