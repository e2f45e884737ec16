"""A setting changes where the env file has one plain assignment of it; bash says what follows."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_xlatune.model.profile import (
    NO_ENV_ID,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
)
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.sweep.deployed import deployed_env
from tests.helpers.deploying import ENV, apply, covered, repository
from tests.helpers.examples import tried

BOTH = profile("fast", "--xla_a=3", env={"NCCL_ALGO": "Tree"})


def deployed(tmp_path: Path, text: str, recipe: Profile) -> str:
    """Apply the patch as people do, source the result as the trainer does; return the new file."""
    root = repository(tmp_path, {ENV: text})
    before = deployed_env(root / ENV)
    patch = patch_of([covered(recipe, text=text)])
    assert patch.text, patch.missing
    apply(root, patch.text)
    subprocess.run(["bash", "-n", root / ENV], check=True, timeout=60)
    after = deployed_env(root / ENV)
    flags = append_flags(before.pop("XLA_FLAGS", ""), recipe.flags)
    found = effective_values(parse_flags(after.pop("XLA_FLAGS", "")))
    assert found == effective_values(parse_flags(flags))
    assert after == {**before, **recipe.env}
    return (root / ENV).read_text(encoding="utf-8")


def said(text: str) -> list[str]:
    """The lines of a file that do something."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(
            "export XLA_FLAGS=--xla_a=1\nexport NCCL_ALGO=Ring\n",
            ["export XLA_FLAGS=--xla_a=3", "export NCCL_ALGO=Tree"],
            id="one line each",
        ),
        pytest.param(
            'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1 --xla_b=2"\n'
            "export NCCL_ALGO='Ring'  # the old fabric\n",
            [
                'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=3 --xla_b=2"',
                "export NCCL_ALGO=Tree  # the old fabric",
            ],
            id="quotes and a comment",
        ),
        pytest.param(
            'export XLA_FLAGS="--xla_b=2 \\\n  --xla_a=1 \\\n  --xla_c=1"\nexport NCCL_ALGO="Ring"',
            [
                'export XLA_FLAGS="--xla_b=2 \\',
                "  --xla_a=3 \\",
                '  --xla_c=1"',
                "export NCCL_ALGO=Tree",
            ],
            id="several lines, and no line feed at the end",
        ),
        pytest.param(
            'export XLA_FLAGS=--xla_a\nexport XLA_FLAGS="$XLA_FLAGS --xla_b=2"\n'
            "export NCCL_ALGO=\n",
            [
                "export XLA_FLAGS=--xla_a=3",
                'export XLA_FLAGS="$XLA_FLAGS --xla_b=2"',
                "export NCCL_ALGO=Tree",
            ],
            id="a bare flag that a later line keeps, an empty variable",
        ),
    ],
)
def test_what_stands_plainly_changes_where_it_stands(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    assert said(deployed(tmp_path, text, BOTH)) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(
            'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"\nexport NCCL_ALGO=Ring\n',
            ["export NCCL_ALGO=Ring"],
            id="a line of that flag alone",
        ),
        pytest.param(
            'export XLA_FLAGS="--xla_b=2 \\\n  --xla_a=1 \\\n  --xla_c=1"\n',
            ['export XLA_FLAGS="--xla_b=2 \\', '  --xla_c=1"'],
            id="a line of several",
        ),
        pytest.param(
            "export XLA_FLAGS=--xla_a=1\n",
            ["export XLA_FLAGS="],
            id="a line that takes away what is inherited",
        ),
    ],
)
def test_a_recipe_that_is_the_default_of_everything_takes_the_flags_out(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    root = repository(tmp_path, {ENV: text})
    patch = patch_of([covered(profile(NO_ENV_ID, "--xla_a=3"), text=text)])
    apply(root, patch.text)
    subprocess.run(["bash", "-n", root / ENV], check=True, timeout=60)
    assert said((root / ENV).read_text(encoding="utf-8")) == lines


# what is not one plain assignment of a setting, and what the file then comes to without the patch
NOT_PLAIN = {
    "twice": "export NCCL_ALGO=Ring\nexport NCCL_ALGO=Tree\n",
    "in a block": "if true; then\nexport NCCL_ALGO=Ring\nexport XLA_FLAGS=--xla_a=1\nfi\n",
    "on a condition": "true && export NCCL_ALGO=Ring\n",
    "another one reads it": 'export NCCL_ALGO=Ring\nexport OTHER="x-$NCCL_ALGO"\n',
    "a default": 'export NCCL_ALGO="${NCCL_ALGO:-Ring}"\n',
    "taken back": "export NCCL_ALGO=Ring XLA_FLAGS=--xla_a=1\nunset NCCL_ALGO XLA_FLAGS\n",
    "not exported": "NCCL_ALGO=Ring\nXLA_FLAGS=--xla_a=1\n",
    "another file": "export NCCL_ALGO=Ring\n. /dev/null\n",
    "a text of several lines": "export TEXT='\nexport NCCL_ALGO=Ring\n'\n",
    "a document": "cat > /dev/null <<END\nexport NCCL_ALGO=Ring\nEND\n",
    "a function": "set_it() {\nexport NCCL_ALGO=Ring\n}\nset_it\n",
    "flags set anew": "export XLA_FLAGS=--xla_a=1\nexport XLA_FLAGS=--xla_b=2\n",
    "flags cut": "export XLA_FLAGS='--xla_b=1 --xla_a=1'\nexport XLA_FLAGS=${XLA_FLAGS%--xla*}\n",
    "a flag twice": 'export XLA_FLAGS="--xla_a=1 --xla_a=2"\n',
    "a longer flag": "export XLA_FLAGS=--xla_a_more=1\n",
    "a flag of another variable": "export MORE=--xla_a=1\n",
    "flags read by another": 'export XLA_FLAGS=--xla_a=1\nexport KEPT="$XLA_FLAGS"\n',
    "flags of a default": 'export XLA_FLAGS="${XLA_FLAGS:---xla_a=1}"\n',
    "flags in single quotes": "export XLA_FLAGS=--xla_a=1\nexport XLA_FLAGS='--xla_b=$XLA_FLAGS'\n",
    "a value with a variable": "export N=1\nexport XLA_FLAGS=--xla_a=$N\n",
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_does_not_is_appended_to(tmp_path: Path, name: str) -> None:
    after = deployed(tmp_path, NOT_PLAIN[name], BOTH)
    assert after.startswith(NOT_PLAIN[name])
    assert "export NCCL_ALGO=Tree\n" in after[len(NOT_PLAIN[name]) :]
    assert "--xla_a=3" in after[len(NOT_PLAIN[name]) :]


def test_lists_that_add_up_and_edits_of_a_list_are_appended(tmp_path: Path) -> None:
    text = 'export XLA_FLAGS="--xla_disable_hlo_passes=a --xla_gpu_enable_command_buffer=FUSION"\n'
    for each in ("--xla_disable_hlo_passes=b", "--xla_gpu_enable_command_buffer=+CUBLAS"):
        folder = tmp_path / each.partition("=")[2]
        folder.mkdir()
        assert deployed(folder, text, profile("fast", each)).startswith(text)


TWO_SIGNS = 'export A="x # y"  # it\'s'
PIECES = st.sampled_from(
    [
        *(text.removesuffix("\n") for text in NOT_PLAIN.values()),
        "export NCCL_ALGO=Ring",
        "export XLA_FLAGS=--xla_a=1",
        'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1 --xla_b=2"',
        'export XLA_FLAGS="--xla_b=1 $XLA_FLAGS"',
        'export XLA_FLAGS+=" --xla_a=2"',
        "export OTHER='it is'",
        "# it's NCCL_ALGO=Ring here",
        "export XLA_FLAGS=--xla_b=2 \\",
        "  NCCL_ALGO=Ring",
        "",
        TWO_SIGNS,
    ]
)


@settings(max_examples=tried(60), deadline=None)
@example(lines=["export XLA_FLAGS=--xla_b=2 \\", "export MORE=--xla_a=1"])
@example(lines=[TWO_SIGNS, NOT_PLAIN["a text of several lines"].removesuffix("\n")])
@given(lines=st.lists(PIECES, min_size=1, max_size=6))
def test_whatever_the_file_is_it_comes_to_what_was_measured(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in [": the file", *lines])
    with tempfile.TemporaryDirectory() as folder:
        root = repository(Path(folder), {ENV: text})
        try:
            before = deployed_env(root / ENV)
            flags = append_flags(before.get("XLA_FLAGS", ""), BOTH.flags)
            wanted = effective_values(parse_flags(flags))
        except Exception:  # noqa: BLE001 - no such file is deployed anywhere
            return
        apply(root, patch_of([covered(BOTH, text=text)]).text)
        after = deployed_env(root / ENV)
        assert effective_values(parse_flags(after.pop("XLA_FLAGS"))) == wanted
        before.pop("XLA_FLAGS", None)
        assert after == {**before, **BOTH.env}
