"""`xlatune megascale --check-env`: this host, and what the script printed on another one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.guests.megascale.environment import check, parse, script

GOOD = """\
tcp_slow_start_after_idle=0
default_qdisc=fq
tcp_rmem=4096\t41943040\t314572800
tcp_rto_min_us=5000
hystart_detect=2
mtu.lo=65536
mtu.eth0=8896
jax=0.7.2
XLA_FLAGS=--xla_dump_to=/tmp/d
LIBTPU_INIT_ARGS=--vmodule=real_program_continuator=1
"""


def test_the_script_runs_and_its_output_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(["sh", "-c", script()], capture_output=True, text=True, check=True)
    assert parse(done.stdout).keys() >= {"tcp_rmem", "jax", "XLA_FLAGS"}
    out = tmp_path / "node.txt"
    out.write_text(GOOD, encoding="utf-8")
    assert main(["megascale", "--check-env", str(out)]) == 0
    assert "CHANGE" not in capsys.readouterr().out
    assert main(["megascale", "--check-env", "script"]) == 0
    assert capsys.readouterr().out == script()
    assert main(["megascale", "--check-env"]) in (0, 1)  # this host
    assert "jax = " in capsys.readouterr().out
    out.write_text("hello\n", encoding="utf-8")
    for wrong in (["--check-env", str(out)], ["--check-env", str(tmp_path / "no")], []):
        assert main(["megascale", *wrong]) == 2


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("default_qdisc=pfifo_fast", "default_qdisc"),
        ("tcp_rmem=4096 131072 6291456", "tcp_rmem"),
        ("mtu.eth0=1460", "mtu.eth0"),
        ("jax=0.5.3", "jax"),
    ],
)
def test_each_setting_that_is_not_as_advised_is_named_with_its_source(
    line: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(line if each.startswith(f"{name}=") else each for each in GOOD.splitlines())
    bad = [each for each in check(parse(text)) if each.is_good is False]
    assert [each.name for each in bad] == [name]
    assert bad[0].source
    assert not next(iter(check({name: "9" * 5000}))).is_good, (
        "a number of thousands of digits is none"
    )
    out = tmp_path / "node.txt"
    out.write_text(text, encoding="utf-8")
    assert main(["megascale", "--check-env", str(out)]) == 1
    assert f"CHANGE {name} = " in capsys.readouterr().out
