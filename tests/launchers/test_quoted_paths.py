"""A folder, or the value of a flag, may hold any sign: XLA reads it as it is, on every way."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import write_spec
from pytest_xlatune.launchers.command import PROFILE_FILE
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    OPTIONS_FOLDER,
    Flag,
    Profile,
    effective_values,
    format_flags,
    parse_flags,
)
from pytest_xlatune.prepare.lint import Target
from pytest_xlatune.sweep.settings import check_folders
from tests.helpers.payloads import PATH
from tests.helpers.probes import PROBE, make_cell, make_trial, probe

# of a folder, and of the value of a flag
SIGNS = {
    "both quotes": 'it\'s "both"',
    "a backslash before a quote": 'a\\"b \\\\"',
    "a dollar": "$HOME `id` $(id) ${x}",
    "a newline": "two\nlines",
    "blanks": "  a\tb ",
    "what bash puts in place of a match": "& a&b \\&",
    "what would be another flag": "x' --xla_b=2 '",
}
# a work directory with a quote or a backslash is refused
FOLDERS = {name: word for name, word in SIGNS.items() if not {'"', "\\"} & {*word}}
RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"


def flags_in(line: str) -> dict[str, str]:
    """The flags of a line of the probe."""
    return effective_values(parse_flags(json.loads(line)[0]["XLA_FLAGS"]))


def seen(folder: Path) -> dict[str, str]:
    """Run the spec in a folder as the payload does; return the flags as its program reads them."""
    run = [sys.executable, "-c", RUN, str(folder)]
    subprocess.run(run, env={**os.environ, "SLURM_PROCID": "0"}, check=False, timeout=120)
    outcome = (folder / payload.name_of("outcome")).read_text(encoding="utf-8")
    assert json.loads(outcome)["state"] == "completed"
    return flags_in((folder / payload.log_name()).read_text(encoding="utf-8").splitlines()[-1])


@pytest.mark.parametrize("sign", FOLDERS)
def test_the_folder_and_the_profile_arrive_with_and_without_a_shell(
    tmp_path: Path, sign: str
) -> None:
    word = SIGNS[sign]
    top = tmp_path / word
    top.mkdir()
    sourced = top / f"{word}.env.sh"
    sourced.write_text('export XLA_FLAGS="$XLA_FLAGS --xla_file=1"\n', encoding="utf-8")
    mine = Profile(id="p", flags=(Flag(name="xla_a", value=word), Flag(name="xla_last", value="9")))
    deployed = {"XLA_FLAGS": format_flags([Flag(name="xla_deployed", value=word)]), **PATH}
    cell = make_cell(deployed=deployed)
    ways = {
        "plain": (probe(), OPTIONS_FOLDER, False),
        "shell": (probe(env_files=(str(sourced),), cwd=str(top)), OPTIONS_FOLDER, False),
        "evidence": (probe(env_files=(str(sourced),), cwd=str(top)), DUMP_FOLDER, True),
    }
    for name, (launcher, dumps, dump) in ways.items():
        folder = top / name
        spec = launcher.launch(make_trial(cell, mine, dump=dump), cell)
        write_spec(folder, spec)
        flags = seen(folder)
        assert flags["xla_dump_to"] == f"{folder}/{dumps}", name
        assert (flags["xla_a"], flags["xla_deployed"]) == (word, word), name
        assert flags["xla_last"] == "9", name
        assert ("xla_file" in flags) == (name != "plain")


@pytest.mark.parametrize("sign", FOLDERS)
def test_the_folder_of_a_job_of_maxtext_slurm_arrives(tmp_path: Path, sign: str) -> None:
    launcher = MaxTextSlurmLauncher(checkout="/x", sbatch=("-w", "n1"))
    cell = make_cell()
    mine = Profile(id="p", flags=(Flag(name="xla_a", value=SIGNS[sign]),))
    script = tmp_path / "model.env.sh"
    files = launcher.launch(make_trial(cell, mine), cell).files
    script.write_text(files[PROFILE_FILE], encoding="utf-8")
    told = subprocess.run(
        ["bash", "-euc", f'. {shlex.quote(str(script))}; exec "$@"', "bash", sys.executable, "-c",
         PROBE],
        env={**PATH, "OUTPUT_PATH": f"/outputs/{SIGNS[sign]}", "XLA_FLAGS": "--xla_image=1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    flags = flags_in(told.stdout)
    assert flags["xla_dump_to"] == f"/outputs/{SIGNS[sign]}/{OPTIONS_FOLDER}"
    assert (flags["xla_image"], flags["xla_a"]) == ("1", SIGNS[sign])


def test_a_work_directory_that_no_list_of_files_can_hold_is_refused(tmp_path: Path) -> None:
    for name in ("two\nlines", "\udcff", 'a "b"', "a\\b"):
        with pytest.raises(ConfigError, match=r"--xlatune-workdir: .* name another folder") as told:
            check_folders([("--xlatune-workdir", tmp_path / name)])
        assert str(told.value).isprintable()
    check_folders([("--xlatune-workdir", tmp_path / "a person's größe $x")])


@pytest.mark.jax
def test_xla_itself_reads_every_sign_back() -> None:
    """One interpreter, one text a sign; `debug_options` hold the value byte for byte."""
    texts = [
        format_flags([Flag(name="xla_dump_to", value=word), Flag(name="xla_dump_hlo_as_text")])
        for word in SIGNS.values()
    ]
    answers = Target(python=sys.executable, environ=os.environ)(texts)
    for word, answer in zip(SIGNS.values(), answers, strict=True):
        assert answer.options is not None, answer
        assert answer.options["xla_dump_to"] == word
        assert answer.options["xla_dump_hlo_as_text"] == "true"
