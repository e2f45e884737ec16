"""What speaks of a secret is shown nowhere: tables, commands, findings, decisions."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.campaign.assess import Assessment, without_secrets
from pytest_xlatune.cells import Cell, LaunchSpec, Parallelism
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.hidden import (
    HIDDEN,
    SHORTEST,
    hide,
    hide_assignments,
    is_secret,
    secrets_of,
)
from pytest_xlatune.profiles import check_unique, profile
from pytest_xlatune.recovery import Decision, Next
from pytest_xlatune.report import markdown
from pytest_xlatune.report.plan import plan
from pytest_xlatune.results import Action, Finding

SECRET = "hush-hush'\"$hush"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "db_password",
        "hf_access_token",
        "WANDB_APIKEY",
        "GOOGLE_CREDENTIALS",
        "REGISTRY_AUTH",
        "GITHUB_PAT",
    ],
)
def test_a_name_that_speaks_of_a_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["NCCL_ALGO", "KEYBOARD", "TOKENIZERS_PARALLELISM", "tokenizer_path", "XLA_FLAGS", "PATH"],
)
def test_a_name_that_does_not(name: str) -> None:
    assert not is_secret(name)


@given(st.text(min_size=SHORTEST).filter(lambda each: each not in HIDDEN))
def test_a_value_is_found_as_it_is_in_json_and_in_a_shells_quotes(value: str) -> None:
    for text in (value, json.dumps({"a": value}), shlex.quote(value)):
        shown = hide(f"before {text} after", {value})
        assert HIDDEN in shown
        assert value not in shown.replace(HIDDEN, "")


def test_short_values_are_hidden_by_name_and_not_by_value() -> None:
    assert secrets_of({"API_KEY": "1", "HF_TOKEN": SECRET}) == {SECRET}
    assert hide("1 of 10", secrets_of({"API_KEY": "1"})) == "1 of 10"


def test_one_secret_inside_another_leaves_nothing() -> None:
    assert hide("abcdefgh-ijkl", {"abcdefgh", "abcdefgh-ijkl"}) == HIDDEN


def test_assignments_of_shell_and_yml_are_hidden_line_by_line() -> None:
    text = "export HF_TOKEN='a b'\nhf_access_token: abc\n# HF_TOKEN is set above\nNCCL_ALGO=Ring\n"
    assert hide_assignments(text) == (
        f"export HF_TOKEN={HIDDEN}\nhf_access_token: {HIDDEN}\n"
        "# HF_TOKEN is set above\nNCCL_ALGO=Ring\n"
    )


def test_a_profile_shows_its_settings_without_its_secrets() -> None:
    made = profile("p", "--xla_a=1", env={"API_KEY": SECRET}, overrides={"hf_access_token": SECRET})
    assert made.shown_text == f"--xla_a=1 API_KEY={HIDDEN} hf_access_token={HIDDEN}"
    assert made.shown.env == {"API_KEY": HIDDEN}
    assert SECRET in made.settings_text, "its identity is what it really sets"
    with pytest.raises(ConfigError) as caught:
        check_unique([made, made], where="here")
    assert SECRET not in str(caught.value)


def test_the_plan_shows_commands_without_secrets() -> None:
    made = profile("p", env={"API_KEY": SECRET}, overrides={"hf_access_token": SECRET})
    spec = LaunchSpec(
        argv=("train", f"hf_access_token={SECRET}"),
        env={"HF_TOKEN": "tell-nobody"},
        files={"profile.env.sh": f"export API_KEY={shlex.quote(SECRET)}\n"},
    )
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
    text = markdown.render(plan(cell=cell, trials=(), launches=[(made, spec)], capacity=()))
    assert "hush" not in text
    assert "tell-nobody" not in text
    assert text.count(HIDDEN) >= 3


def test_what_a_log_quotes_is_hidden_before_it_is_written_down() -> None:
    said = f"401 for token {SECRET}"
    finding = Finding(cls="other", action=Action.DROP, text=said, detail=SECRET)
    decision = Decision(next=Next.DROP, cls="other", reason=said, evidence=said)
    found = without_secrets(Assessment(findings=(finding,), decision=decision), frozenset({SECRET}))
    assert found.findings[0].text == f"401 for token {HIDDEN}"
    assert found.findings[0].detail == HIDDEN
    assert "hush" not in f"{found.decision}"
