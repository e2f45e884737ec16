"""A profile for XLA's scheduler, from the trace of an evidence run to a verdict and its pack.

The trainer pretends to be a GPU's XLA: it prints the lines of jaxlib 0.10.2's CUDA compiler, and is
faster where the file that it was given is of its program.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.profile import PGLE
from tests.helpers.captures import node
from tests.helpers.words import in_words
from tests.plugin.conftest import SWEEP_FILE

OURS, OTHER = "70caf7744d6db14c500bc2be2259cefc", "0" * 32
XLA = f"""\
import base64, os, pathlib, re, sys
flags = os.environ.get("XLA_FLAGS", "")
fingerprint = {OURS!r}
dump = re.search('--xla_dump_to="?([^" ]*xla_dump)', flags)
if dump:
    folder = pathlib.Path(dump.group(1)); folder.mkdir(parents=True)
    (folder / "module_1.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_text(
        'HloModule jit_train_step, is_scheduled=true, frontend_attributes='
        '{{fingerprint_before_lhs="' + fingerprint + '"}}\\n'
        '\\nENTRY %main.1 (a: f32[4]) -> f32[4] {{\\n'
        '  ROOT %a = f32[4]{{0}} parameter(0)\\n}}\\n')
    capture = folder.parent / "plugins" / "profile" / "1"; capture.mkdir(parents=True)
    (capture / "n.xplane.pb").write_bytes(base64.b85decode({base64.b85encode(node().data())!r}))
named = re.search('--{PGLE}=([^" ]+)', flags)
if named and not dump:
    file = pathlib.Path(named.group(1))
    text = file.read_text() if file.exists() else ""
    names = re.findall('costs {{ name: "([^"]*)" cost_us: [0-9.]+ }}', text)
    own = [each for each in names if "::" not in each or each.startswith(fingerprint + "::")]
    at = "1127 16:36:10.700590   25644 "
    if not file.exists():
        print("E" + at + f"gpu_hlo_schedule.cc:384] PGLE profile file does not exist: {{file}}")
    elif not names:
        print("E" + at + "gpu_hlo_schedule.cc:380] Tried but failed to parse PGLE proto from text "
              f"file '{{file}}'. Error message: Can't parse {{file}} as text proto")
    else:
        for some in (own, []):  # another program is always there: that of the parameters
            print("W" + at + "profile_guided_latency_estimator.cc:192] "
                  f"Found {{len(some)}} instructions from the profile.")
            print("W" + at + "profile_guided_latency_estimator.cc:194] "
                  "Missing 1 instructions from the profile.")
    if own:
        os.environ["XLA_FLAGS"] = flags + " --xla_fast=1"
"""
SINGLES = """\
    derived=(Singles(slots=1, pgle=True),),
    site=SiteSettings("""


@pytest.fixture
def guided(folder: Any) -> Any:
    """A sweep whose one candidate is the profile of its own evidence run."""
    folder.write(profiles="", text=SWEEP_FILE.replace("test_flag", "test_single"))
    text = folder.read("test_sweep.py").replace("    site=SiteSettings(", SINGLES)
    text = text.replace("    SiteSettings,\n", "    Singles,\n    SiteSettings,\n", 1)
    text = text.replace("block_baselines=1", "block_baselines=2")
    text = text.replace("(measure, profile)", "(measure, derived)").replace(
        "(profile)", "(derived)"
    )
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    (folder.path / "trainer.py").write_text(XLA + folder.read("trainer.py"), encoding="utf-8")
    return folder


def edited(folder: Any, old: str, new: str) -> None:
    """Change what the trainer is from now on."""
    text = folder.read("trainer.py")
    assert old in text
    (folder.path / "trainer.py").write_text(text.replace(old, new), encoding="utf-8")


def test_the_file_of_an_evidence_run_wins_and_is_no_recipe_of_another_place(
    guided: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guided.run()
    (recorded,) = guided.events("evidence-recorded")
    text = Path(recorded["pgle"]).read_text(encoding="utf-8")
    head, *costs = text.splitlines()
    assert head == "# of jit_train_step for sm_9.0"
    # the shortest operation is left out, so that XLA says how many it found
    assert {each.split('"')[1] for each in costs} == {
        f"{OURS}::{name}"
        for name in ("input_scatter_fusion_2.kd", "ncclDevKernel_AllGather", "nvjet_gemm")
    }
    board = json.loads(guided.read("reports/pretend/leaderboard.json"))
    (verdict,) = board["conclusion"]["verdicts"]
    assert (verdict["arm"], verdict["kind"]) == ("pgle-profile", "FASTER")

    # the file is of the program that was measured: another place makes its own
    monkeypatch.chdir(guided.path)
    asked = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main(asked) == 2
    assert "Singles(..., pgle=True) makes" in capsys.readouterr().err
    assert not [*guided.path.glob("test_sweep_recipe*")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(
            "if named and not dump:",
            f"fingerprint = fingerprint if dump else {OTHER!r}\nif named and not dump:",
            "belongs to another program",
            id="another program",
        ),
        pytest.param(
            "text = file.read_text() if file.exists() else",
            "text = 'costs {' if file.exists() else",
            "could not read {file}",
            id="a damaged file",
        ),
        pytest.param(
            "file = pathlib.Path(named.group(1))",
            "file = pathlib.Path(named.group(1)); file.unlink()",
            "could not read {file}",
            id="a file that is gone",
        ),
    ],
)
def test_a_profile_that_xla_did_not_take_is_invalid(
    guided: Any, old: str, new: str, said: str
) -> None:
    edited(guided, old, new)
    guided.run("-m", "wave2").assert_outcomes(xfailed=1)
    (recorded,) = guided.events("evidence-recorded")
    board = json.loads(guided.read("reports/pretend/leaderboard.json"))
    (verdict,) = board["conclusion"]["verdicts"]
    assert (verdict["arm"], verdict["kind"]) == ("pgle-profile", "INVALID")
    assert said.format(file=recorded["pgle"]) in in_words(verdict["reasons"])
