"""No message shows a secret, whatever it quotes: it is hidden where the error is made."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune import CellSettings, CommandLauncher, Protocol, SiteSettings, Sweep, profile
from pytest_xlatune.cli import complain, main
from pytest_xlatune.executors import QueueFull, SchedulerDown
from pytest_xlatune.launchers.container import ContainerLauncher, configured
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model import errors
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError, XlatuneError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.redact import HIDDEN, hide_quoted, keep_secret
from pytest_xlatune.sweep.settings import resolve_options

HUSH = "hush-Hush9hush"
# what a checker of types would refuse, a sweep file may hold
xl: Any = pytest_xlatune


def everywhere(cls: type[BaseException] = XlatuneError) -> list[type[BaseException]]:
    return [cls, *(each for sub in cls.__subclasses__() for each in everywhere(sub))]


def launcher(*words: str) -> CommandLauncher:
    return CommandLauncher(argv=("trainer", *words))


def sweep(**changes: Any) -> Sweep:
    values = {"launcher": launcher(), "profiles": (), "cell": CellSettings()}
    return Sweep(name="s", **{**values, **changes})


def swept(**cell: Any) -> Sweep:
    return sweep(cell=CellSettings(**cell))


def declared(**settings: Any) -> Profile:
    return profile("p", **settings)


def file_with(text: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        path = folder / "xlatune.toml"
        path.write_text(text, encoding="utf-8")
        return resolve_options({}, {}, {}, root=folder)

    return read


MISTAKES: dict[str, Callable[[Path], object]] = {
    "a placeholder in the word after an option": lambda _: launcher("--password", f"{{{HUSH}}}"),
    "a stray brace in a header": lambda _: launcher("--header", f"X-Api-Key: {HUSH}{{"),
    "overrides beside a secret": lambda _: launcher(f"--token={HUSH}{{overrides}}"),
    "an argument that is no text": lambda _: xl.CommandLauncher(argv=("t", "--token", HUSH, 5)),
    "arguments in one text": lambda _: sweep(launcher=xl.CommandLauncher(argv=f"t --token {HUSH}")),
    "another keyword": lambda _: xl.CommandLauncher(argv=("t",), HF_TOKEN=HUSH),
    "a relative env file": lambda _: CommandLauncher(argv=("t",), env_files=(f"a?token={HUSH}",)),
    "a mount": lambda _: ContainerLauncher(inner=launcher(), mounts=(f"https://u:{HUSH}@x",)),
    "a runtime": lambda _: ContainerLauncher(inner=launcher(), runtime=f"--password={HUSH}"),
    "settings of a container": lambda _: configured(
        launcher(), {}, {"args": {"REGISTRY_PASSWORD": HUSH}}, where="xlatune.toml"
    ),
    "keys of a module": lambda _: xl.MaxTextLauncher(repo={"HF_TOKEN": HUSH}),
    "arguments of sbatch": lambda _: MaxTextSlurmLauncher(
        checkout="/x", sbatch=("--comment", f"SITE_TOKEN={HUSH}")
    ),
    "a number": lambda _: profile("p", env={"HF_TOKEN": 31415926535}),  # type: ignore[dict-item]
    "a name of a profile": lambda _: profile("A B", env={"HF_TOKEN": HUSH}),
    "no name of a variable": lambda _: profile("p", env={"HF TOKEN": HUSH, "A_KEY": "x" + HUSH}),
    "variables as one text": lambda _: declared(env=f"HF_TOKEN={HUSH}"),
    "deployed pairs": lambda _: swept(deployed=[("HF_TOKEN", HUSH), ("A_KEY", "x" + HUSH)]),
    "a variable with a NUL": lambda _: profile("p", env={"HF_TOKEN": f"{HUSH}\0"}),
    "flags that end early": lambda _: profile("p", f"--xla_a=1 HF_TOKEN={HUSH}"),
    "a flag of a channel": lambda _: profile("p", f"--xla_tpu_x='--token {HUSH}'"),
    "deployed values of another kind": lambda _: swept(deployed={"HF_TOKEN": (HUSH,)}),
    "a keyword that is misspelt": lambda _: xl.CellSettings(depolyed={"HF_TOKEN": HUSH}),
    "a parallelism with a secret": lambda _: swept(parallelism=f"HF_TOKEN={HUSH}").resolve(),
    "a command with a secret": lambda _: SiteSettings(node_health=f"look --token {HUSH}"),
    "a sweep of another kind": lambda _: sweep(launcher={"HF_TOKEN": HUSH}),
    "a metric of the protocol": lambda _: Protocol(metric=f"HF_TOKEN={HUSH}"),
    "options of Slurm": lambda _: sweep(
        site=SiteSettings(resources=xl.Resources(options=f"--comment=SITE_TOKEN={HUSH}"))
    ),
    "a file's table": file_with(f'[deployed]\nHF_TOKEN = ["{HUSH}"]\n'),
    "a file's nodes": file_with(f'nodelist = "https://me:{HUSH}@x"\n'),
    "a record": lambda _: Profile.from_json({"id": 5, "env": {"HF_TOKEN": [HUSH]}}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_without_the_secret(tmp_path: Path, mistake: str) -> None:
    with pytest.raises(XlatuneError) as told:
        MISTAKES[mistake](tmp_path)
    for text in (str(told.value), repr(told.value), str(pickle.loads(pickle.dumps(told.value)))):
        assert HUSH not in text
        assert "31415926535" not in text
        assert HUSH[:8] not in text
    assert told.value.__cause__ is None or HUSH not in str(told.value.__cause__)


@pytest.mark.parametrize("cls", everywhere(), ids=lambda each: each.__name__)
def test_each_error_hides_what_this_process_knows(
    cls: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_secret([HUSH])
    monkeypatch.setenv("SITE_PASSWORD", "from-the-login")
    monkeypatch.setenv("PROXY", "http://me:of-an-address@proxy:3128")
    errors.hide_secrets_of(os.environ)
    said = f"sbatch: bad {HUSH} from-the-login of-an-address"
    error = cls(Path("x"), said) if cls.__init__ is not XlatuneError.__init__ else cls(said)
    assert str(error).endswith(f"sbatch: bad {HIDDEN} {HIDDEN} {HIDDEN}")


def test_what_a_command_complains_of_is_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_PASSWORD", "from-the-login")
    errors.hide_secrets_of(os.environ)
    assert complain([f"--password={HUSH} from-the-login is wrong"]) == 2
    assert capsys.readouterr().err == f"xlatune: --password={HIDDEN} {HIDDEN} is wrong\n"
    with pytest.raises(SystemExit):
        main(["plan", "sweep.py", f"--password={HUSH}"])
    assert f"unrecognized arguments: --password={HIDDEN}" in capsys.readouterr().err


def test_what_messages_say_of_a_secrets_name() -> None:
    for text, shown in (
        ("--token=abcdef", "--token=(hidden)"),
        ("('--token', 'abc def')", "('--token', '(hidden)')"),
        ("deployed['HF_TOKEN'] is 'abc def' (str)", "deployed['HF_TOKEN'] is '(hidden)' (str)"),
        ("HF_TOKEN: found ['abcdef'], expected", "HF_TOKEN: found ['(hidden)'], expected"),
        ("/etc/app/password: hunter22", "/etc/app/password: (hidden)"),
        ("/run/x.token=abcdef", "/run/x.token=(hidden)"),
    ):
        assert hide_quoted(text) == shown
    for text in (
        *("HF_TOKEN is missing", "Key: cuda:local_topology", "token: 1024"),
        *("the option --token, which", "Failed to open /etc/munge/munge.key: Permission denied"),
    ):
        assert hide_quoted(text) == text


def test_a_message_keeps_its_other_words() -> None:
    for cls in (ConfigError, LedgerError, SubmissionError, SchedulerDown, QueueFull):
        said = "profile 'fast': the key 'a.b' is unknown; did you mean 'a.c'? Known: a.c, tokens"
        assert str(cls(said)) == said
    with pytest.raises(ConfigError, match=r"unknown placeholder 'stepz' in the command's arg"):
        launcher("{stepz}")
