"""xlatune.toml through pytest: its settings are the sweep's; what is wrong with it ends the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS

SETTINGS = """\
model = "from-the-file"

[launcher]
env-files = ["site.env.sh"]

[deployed]
XLA_FLAGS = "--xla_slow=1"

[sweeps.pretend]
budget = 30
workdirs = "typo"

[sweeps.pretendd]
budget = 31
"""
UNREAD = "xlatune.toml [[]sweeps.pretendd[]]: *did you mean *pretend*"


def test_a_wrong_setting_ends_the_run_with_one_message(folder: Any) -> None:
    folder.write()
    (folder.path / "xlatune.toml").write_text(SETTINGS)
    run = folder.run()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*unknown setting 'workdirs' in xlatune.toml [[]sweeps.pretend[]]*"])
    assert "Traceback" not in run.stderr.str()


def test_the_file_is_the_sweeps_site(folder: Any) -> None:
    folder.write()
    (folder.path / "xlatune.toml").write_text(SETTINGS.replace('workdirs = "typo"\n', ""))
    (folder.path / "site.env.sh").write_text('export XLA_FLAGS="$XLA_FLAGS --xla_of_the_site=1"\n')
    plan = folder.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(
        [
            "from-the-file FSDP=4: plan",
            "*budget: xlatune.toml [[]sweeps.pretend[]]*",
            UNREAD,
        ]
    )
    run = folder.run("-m", "wave1")
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines([f"xlatune: {UNREAD}"])
    (log, *_) = sorted(folder.path.glob(".xlatune/pretend/*/*/*/log.0.txt"))
    assert "XLA_FLAGS=--xla_slow=1 --xla_of_the_site=1" in log.read_text()
    opened = folder.events("campaign-opened")
    assert opened[0]["settings"]["model"] == "xlatune.toml"


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_log_lies_beside_the_ledger_and_hides_what_is_secret(folder: Any, run: str) -> None:
    folder.write()
    (folder.path / "xlatune.toml").write_text('[deployed]\nSITE_TOKEN = "s3cr3t-of-the-site"\n')
    done = getattr(folder, run)("-k", "fast or unknown", "--xlatune-log-level=info")
    done.assert_outcomes(passed=1, xfailed=1)
    (log,) = folder.path.glob(".xlatune/pretend/*/xlatune.log")
    lines = log.read_text(encoding="utf-8").splitlines()
    submitted = [
        line.split("submitted ")[1].split(",")[0] for line in lines if "submitted " in line
    ]
    assert submitted == folder.submitted, "each once, whichever process drives"
    assert "s3cr3t-of-the-site" not in "".join(lines)

    folder.run("-k", "same", "--xlatune-log-level=warning").assert_outcomes(passed=1)
    assert log.read_text(encoding="utf-8").splitlines() == lines


OWN_FORM = """\
    print(f"it {step} took {512e3 / speed:.4f} ms ({speed:.3f} tok/s a device), loss {loss}")
"""


def test_a_trainer_with_a_step_line_of_its_own_is_swept(folder: Any) -> None:
    trainer = folder.read("trainer.py")
    begin = trainer.index('    print(f"completed step: {step}')
    end = trainer.index('if loss == "nan"')
    (folder.path / "trainer.py").write_text(trainer[:begin] + OWN_FORM + trainer[end:])
    told = folder.run("-m", "wave1")
    told.stdout.fnmatch_lines(["*no step line*step_pattern*"])
    own = r"it (?P<step>\d+) took (?P<ms>[\d.]+) ms \((?P<tgs>[\d.]+) tok/s a device"
    (folder.path / "xlatune.toml").write_text(f"step-pattern = '{own}'\n")
    run = folder.run("-m", "wave1 or wave2", "--xlatune-fresh")
    run.assert_outcomes(passed=3, xfailed=1)
    wrong = folder.run("--xlatune-step-pattern", "torchtitn")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*did you mean 'torchtitan'*"])
