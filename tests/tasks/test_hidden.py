"""What speaks of a secret is shown nowhere: tables, commands, findings, decisions."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.ledger import AttemptEnded, Decided, Ledger, Noted
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import diagnose
from pytest_xlatune.model import redact
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol, secrets_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import say, sentence, verbatim
from pytest_xlatune.model.profile import check_unique, profile
from pytest_xlatune.model.redact import HIDDEN, hide, secrets_of
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Finding, Outcome, State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.study_documents import command_of
from tests.helpers import secrets_planted as planted
from tests.helpers.tables import recorded

SECRET = "hush-hush'\"$hush"
CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
ENV = {"API_KEY": SECRET, "MYSQL_PWD": "mysqlpwd99"}
DECLARED = profile("p", "--xla_a=1", env=ENV, overrides={"hf_access_token": SECRET})


def test_names_that_speak_of_a_secret_and_others() -> None:
    speak = (
        "HF_TOKEN AWS_SECRET_ACCESS_KEY db_password hf_access_token api-key WANDB_APIKEY dbpwd "
        "GOOGLE_CREDENTIALS REGISTRY_AUTH GITHUB_PAT MYSQL_PWD SLACK_WEBHOOK_URL SENTRY_DSN"
    )
    others = "NCCL_ALGO KEYBOARD TOKENIZERS_PARALLELISM tokenizer_path XLA_FLAGS PATH PWD OLDPWD"
    assert [name for name in speak.split() if not redact.is_secret(name)] == []
    assert [name for name in others.split() if redact.is_secret(name)] == []


PROXY = "http://ada:hunter2hunter2@proxy.example:3128"
HIDDEN_PROXY = f"http://{HIDDEN}@proxy.example:3128"


@pytest.mark.parametrize(
    ("env", "secrets", "shown"),
    [
        pytest.param(
            {"API_KEY": "1", "GPU_AUTH": "Disabled", "HF_TOKEN": SECRET},
            {SECRET},
            dict.fromkeys(("API_KEY", "GPU_AUTH", "HF_TOKEN"), HIDDEN),
            id="a short value, a word of every message: hidden by name and not by value",
        ),
        pytest.param(
            {"PROXY": PROXY, "DB": "postgres://u:pg@password@h/db", "URL": "http://h:80/a@b"},
            {"hunter2hunter2", "pg@password"},
            {"PROXY": HIDDEN_PROXY, "DB": f"postgres://{HIDDEN}@h/db", "URL": "http://h:80/a@b"},
            id="the password of an address, whatever its name",
        ),
        *(
            pytest.param({"X": value, "HF_TOKEN": value}, None, None, id=f"planted {name}")
            for name, (value, _) in (planted.DEPLOYED | planted.SOURCED).items()
        ),
    ],
)
def test_what_is_secret_of_an_environment_and_what_is_shown_of_it(
    env: dict[str, str], secrets: set[str] | None, shown: dict[str, str] | None
) -> None:
    kept = redact.without_secrets(env)
    assert shown is None or kept == shown
    assert secrets is None or secrets_of(env) == secrets
    assert redact.without_secrets(kept) == kept, "what is kept is kept the same twice"
    assert secrets_of(kept) == frozenset()


@given(st.text(min_size=redact.SHORTEST).filter(lambda value: value not in HIDDEN))
def test_a_value_is_found_as_it_is_in_json_and_in_a_shells_quotes(value: str) -> None:
    for text in (value, json.dumps({"a": value}), shlex.quote(value)):
        shown = hide(f"before {text} after", {value})
        assert HIDDEN in shown
        assert value not in shown.replace(HIDDEN, "")


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("p%40ss/word", "p@ss/word"),  # of an address, and as its library hands it on
        ("p@ss word", "p%40ss+word"),
        ('it\'s "so"', repr('it\'s "so"')[1:-1]),
        ("pässwörd", repr("pässwörd".encode())[2:-1]),
        ("pässwörd", "pässwörd"),
        ("pass'word", "pass&#x27;word"),  # as Python's html writes it
        ('pass"word', "pass&quot;word"),
        ('pass"word', json.dumps(json.dumps('pass"word'))[3:-3]),
    ],
)
def test_a_secret_is_known_however_a_library_writes_it(secret: str, written: str) -> None:
    assert hide(f"401: {written}.", {secret}) == f"401: {HIDDEN}."


def test_a_value_inside_others_leaves_nothing() -> None:
    assert hide("abcdefgh-ijkl", {"abcdefgh", "abcdefgh-ijkl"}) == HIDDEN
    assert hide(f"cannot reach {PROXY}", ()) == f"cannot reach {HIDDEN_PROXY}"
    # a key of several lines in a file of a shell is known line by line
    text = f"export SSH_KEY=$'first\\n{'k' * 40}\\nlast'\n"
    assert hide(f"bad line {'k' * 40}", redact.secrets_in_text(text)) == f"bad line {HIDDEN}"


FILES, QUOTATIONS = (recorded("secrets.txt", part) for part in ("files", "quotations"))


@pytest.mark.parametrize(("text", "shown"), FILES.values(), ids=FILES)
def test_the_value_of_a_secrets_name_is_hidden_in_a_file(text: str, shown: str) -> None:
    assert redact.hide_assignments(text) == shown
    assert redact.hide_assignments(shown) == shown


@pytest.mark.parametrize(("text", "shown"), QUOTATIONS.values(), ids=QUOTATIONS)
def test_what_a_log_says_is_quoted_without_a_secret_that_is_not_declared(
    text: str, shown: str
) -> None:
    assert redact.hide_quoted(text.rstrip("\n")) == shown.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("bash", "-c", "export HF_TOKEN=abcdef; train 5"), f"export HF_TOKEN={HIDDEN}; train 5"),
        (("train", "--password", "abcdef"), HIDDEN),
        (("curl", "--header=X-Api-Key: abcdef"), f"--header=X-Api-Key: {HIDDEN}"),
        (("train", '--config={"api_key": "abcdef", "b": 1}'), f'{{"api_key": "{HIDDEN}", "b": 1}}'),
        (("train", "--data=https://h/x?token=abcdef&v=1"), f"https://h/x?token={HIDDEN}&v=1"),
    ],
)
def test_a_secret_inside_a_word_of_a_command_is_hidden(words: tuple[str, ...], shown: str) -> None:
    kept = redact.command_without_secrets(words)
    assert kept[-1].endswith(shown)
    assert redact.command_without_secrets(kept) == kept
    text = shlex.join(words)
    assert "abcdef" not in redact.command_text_without_secrets(text)
    assert "abcdef" in redact.secrets_of_command(text)
    cell = replace(CELL, launcher=f"command {text}")
    assert "abcdef" not in command_of(DECLARED, LaunchSpec(argv=words), cell=cell)


def test_a_profile_shows_its_settings_without_its_secrets() -> None:
    shown = f"--xla_a=1 API_KEY={HIDDEN} MYSQL_PWD={HIDDEN} hf_access_token={HIDDEN}"
    assert DECLARED.shown_text == shown
    assert SECRET in DECLARED.settings_text, "its identity is what it really sets"
    with pytest.raises(ConfigError) as caught:
        check_unique([DECLARED, DECLARED], where="here")
    assert SECRET not in str(caught.value)
    argv, text = ("train", f"hf_access_token={SECRET}"), f"export API_KEY={shlex.quote(SECRET)}\n"
    spec = LaunchSpec(argv=argv, env={"HF_TOKEN": "hf-abcdef123"}, files={"profile.env.sh": text})
    command = command_of(DECLARED, spec, cell=CELL)
    assert "hush" not in command
    assert "hf-abcdef123" not in command
    # one that was kept gets its secrets from those declared
    kept = type(DECLARED).from_json(json.loads(json.dumps(DECLARED.to_json())))
    assert set(kept.env.values()) == {HIDDEN}
    assert kept.same_as(DECLARED)
    other = profile("q", "--xla_a=1", env={"API_KEY": "another"})
    assert kept.with_secrets_of([other, DECLARED]) == DECLARED
    # a stack that was derived from both, in a session that knows two values: none is guessed
    assert replace(kept, id="r").with_secrets_of([other, DECLARED]).env["API_KEY"] == HIDDEN
    cell = replace(CELL, deployed={"proxy": PROXY})
    assert secrets_in(cell, [DECLARED]) == {SECRET, "hunter2hunter2", "mysqlpwd99"}


def test_a_cell_is_the_same_with_another_token_and_is_read_back_as_it_was_kept() -> None:
    one, two = (
        replace(CELL, deployed={"HF_TOKEN": token, "A": "1"}, launcher=f"train --api-key={token}")
        for token in ("token-one", "token-two")
    )
    assert one.digest == two.digest == Cell.from_json(one.to_json()).digest
    assert "token-one" not in repr(one) + json.dumps(one.to_json())
    assert one.digest != replace(one, deployed={"HF_TOKEN": "token-one", "A": "2"}).digest


def test_what_a_log_quotes_is_hidden_in_the_line_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = "trainer-7"  # a name may be a secret's value by chance, and is looked up
    monkeypatch.setattr(redact, "_kept", {SECRET, arm})
    said, drop = f"401 for token {SECRET}", Action.DROP
    quoted = say("{said}: {line}", said="exit 2", line=said)
    why = say("{why}; its log: {log}", why=quoted, log="log")
    findings = (
        Finding(cls="other", action=drop, text=said, detail=SECRET),
        Finding(cls="other", action=drop, why=why),
    )
    trial = {"trial_id": f"{arm}-wave2-0123456789", "attempt": 1}
    told = {"next": Next.DROP, "detail": said, "found": why, "shown": verbatim(said)}
    outcome = Outcome(state=State.FAILED, reason=said)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(
        AttemptEnded(**trial, outcome=outcome, findings=findings),  # type: ignore[arg-type]
        Decided(**trial, **told),  # type: ignore[arg-type]
        Noted(text=said),
        at_s=1.0,
    )
    text = ledger.path.read_text(encoding="utf-8")
    assert ("hush" in text, text.count(arm)) == (False, 2)
    ended = ledger.refresh()[0].event
    assert isinstance(ended, AttemptEnded)
    assert ended.findings[0].text == f"401 for token {HIDDEN}"
    assert sentence(ended.findings[1].said) == f"exit 2: 401 for token {HIDDEN}; its log: log"


def test_a_quotation_never_ends_within_a_word() -> None:
    """Half of a secret is not known as one: a log of such lines is read and quoted."""
    secret = "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345678901"
    for length in (*range(100, 215, 3), *range(460, 500, 3)):
        filler = "no " * (length // 3)
        for line in (f"RuntimeError: {filler}{secret} end", f"F1120 a.cc:1] {filler}{secret} end"):
            report = read_log([f"{line}\n".encode()])
            outcome = Outcome(state=State.COMPLETED, exit_code=0)
            found = [*report.findings, *diagnose(report, outcome, Protocol())]
            texts = [text for finding in found for text in (finding.text, finding.detail)]
            shown = "".join(hide(text, {secret}) for text in (*texts, *report.tail))
            assert secret[:4] not in shown, (line, shown)


@pytest.mark.parametrize("unbroken", ["x", "a-", "1."])
def test_a_long_value_without_a_blank_is_read_once(unbroken: str) -> None:
    """Of 32 KB, looked at from each of its characters, a sweep did not begin within minutes."""
    value = unbroken * 200_000
    began_s = time.process_time()
    assert secrets_of({"BLOB": value, "ALSO": f"{value} 2nd.token=hunter2"}) == {"hunter2"}
    assert redact.hide_quoted(f"{value} --api_key=hunter2") == f"{value} --api_key={HIDDEN}"
    assert time.process_time() - began_s < 10
