"""MaxText's own bundles of flags, by name, out of a file like its `xla_flags_library.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_xlatune import maxtext_bundle, profile
from pytest_xlatune.model.errors import ConfigError

# every form in which that file writes a bundle, and what is none
LIBRARY = """\
\"\"\"Flags.\"\"\"
raise SystemExit("this file is read, not run")
_LIMIT = 98304
LIMIT_FLAG = f" --xla_tpu_scoped_vmem_limit_kib={_LIMIT}"
CUSTOM_LIMIT_FLAG = lambda limit: f"--xla_tpu_scoped_vmem_limit_kib={limit}"
GATHER = (
    " --xla_tpu_enable_async_collective_fusion=true"
    " --xla_enable_async_all_gather=true"  # a comment
)
CORES = " --xla_sc_disjoint_spmem=false" " --2a886c8_chip_config_name=megachip_tccontrol"
BOTH: str = (" --xla_tpu_dot_dot_fusion=false") + CORES
CHECKER = False
LOGS = {"TPU_MIN_LOG_LEVEL": "0"}
WIDE = f"--xla_tpu_scoped_vmem_limit_kib={_LIMIT:>9}"
OF_XLA = "--xla_gpu_autotune_level=3"
ONCE = " --xla_tpu_dot_dot_fusion=true"
ONCE = compute()
BROKEN = " --xla_tpu_dot_dot_fusion=true loose"
"""
CHIP = "--2a886c8_chip_config_name=megachip_tccontrol"
NAMES = "BOTH, BROKEN, CORES, GATHER, LIMIT_FLAG, OF_XLA"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    file = tmp_path / "checkout" / "benchmarks" / "xla_flags_library.py"
    file.parent.mkdir(parents=True)
    file.write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "checkout" / "src" / "maxtext").mkdir(parents=True)
    return tmp_path / "checkout"


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("LIMIT_FLAG", "--xla_tpu_scoped_vmem_limit_kib=98304"),
        (
            "GATHER",
            "--xla_tpu_enable_async_collective_fusion=true --xla_enable_async_all_gather=true",
        ),
        (
            "BOTH",
            f"--xla_tpu_dot_dot_fusion=false --xla_sc_disjoint_spmem=false {CHIP}",
        ),
        ("OF_XLA", "--xla_gpu_autotune_level=3"),
    ],
)
def test_a_bundle_is_read_by_name(checkout: Path, name: str, flags: str) -> None:
    assert maxtext_bundle(name, of=checkout) == flags


def test_the_flags_of_a_bundle_go_to_the_variable_of_the_library_that_reads_them(
    checkout: Path,
) -> None:
    made = profile("both", maxtext_bundle("GATHER", "OF_XLA", of=str(checkout)))
    assert [str(each) for each in made.flags] == ["--xla_gpu_autotune_level=3"]
    assert made.env == {
        "LIBTPU_INIT_ARGS": "--xla_tpu_enable_async_collective_fusion=true "
        "--xla_enable_async_all_gather=true"
    }


def test_an_unknown_bundle_is_named_with_those_that_exist(checkout: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        maxtext_bundle("GATHER", "LIMIT_FLAGS", of=checkout)
    said = str(raised.value)
    assert "unknown bundle 'LIMIT_FLAGS' in " in said
    assert "xla_flags_library.py; did you mean 'LIMIT_FLAG'?" in said
    assert said.endswith(f"Known: {NAMES}")
    for name in ("CUSTOM_LIMIT_FLAG", "LOGS", "_LIMIT", "WIDE", "CHECKER", "ONCE"):
        with pytest.raises(ConfigError, match=f"unknown bundle '{name}'"):
            maxtext_bundle(name, of=checkout)
    with pytest.raises(ConfigError, match=f"name a bundle of .*: {NAMES}"):
        maxtext_bundle(of=checkout)


def test_a_bundle_that_is_no_list_of_flags_is_refused_by_its_name(checkout: Path) -> None:
    with pytest.raises(ConfigError, match=r"BROKEN of .*xla_flags_library"):
        maxtext_bundle("BROKEN", of=checkout)


def environment(folder: Path, *, url: str = "", package: str = "maxtext") -> Path:
    """Return the interpreter of an environment with MaxText in it, or without."""
    (folder / "bin").mkdir(parents=True)
    site = folder / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    if package:
        (site / package).mkdir()
        record = site / f"{package}-0.2.5.dist-info"
        record.mkdir()
        if url:
            text = json.dumps({"dir_info": {"editable": True}, "url": url})
            (record / "direct_url.json").write_text(text, encoding="utf-8")
    return folder / "bin" / "python"


def test_the_file_and_an_interpreter_lead_to_the_checkout(checkout: Path, tmp_path: Path) -> None:
    wanted = maxtext_bundle("GATHER", of=checkout)
    for of in (
        checkout / "benchmarks" / "xla_flags_library.py",
        environment(tmp_path / "newer", url=checkout.as_uri()),
        environment(tmp_path / "older", url=checkout.as_uri(), package="MaxText"),
    ):
        assert maxtext_bundle("GATHER", of=of) == wanted, of


def test_what_has_no_bundles_is_named_with_the_remedy(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for of, why in (
        (tmp_path / "empty", "no checkout of MaxText: it has no benchmarks/xla_flags_library.py"),
        # a stranger may have put a file of that name above it
        (checkout / "src" / "maxtext", "no checkout of MaxText: it has no benchmarks/xla_flags"),
        (tmp_path / "flags.py", "no such file"),
        (environment(tmp_path / "bare", package=""), "no interpreter of an environment with"),
        (environment(tmp_path / "wheel"), "its MaxText has no benchmarks/xla_flags_library.py"),
        (environment(tmp_path / "gone", url="file:///no/such/place"), "its MaxText has no"),
    ):
        with pytest.raises(ConfigError) as raised:
            maxtext_bundle("GATHER", of=of)
        assert str(raised.value).startswith(f"maxtext_bundle: {of}: {why}")
        assert str(raised.value).endswith("; name a checkout of MaxText")
    broken = tmp_path / "broken.py"
    broken.write_text("GATHER = (\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken.py cannot be read: '\(' was never closed"):
        maxtext_bundle("GATHER", of=broken)
