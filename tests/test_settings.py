"""xlatune.toml: what it may say, which place wins, and messages that name the place."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.configured import configured
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.profiles import profile
from pytest_xlatune.settings.options import OPTIONS, Options
from pytest_xlatune.settings.resolving import resolve_options
from pytest_xlatune.sweep.inputs import Inputs, inputs_of
from pytest_xlatune.sweep.sweep import ResolvedSweep, Sweep

SHA = "sha256:" + "ab" * 32
FILE = f"""\
model = "llama3.1-405b"
nodelist = ["node001", "node002"]
budget = 40
pdbs = 7
image = "rocm/jax:26.4@{SHA}"
workdir = "work"
max-target-length = 8192

[slurm]
account = "me"
qos = "high"

[launcher]
python = "/opt/venv/bin/python"
cwd = "/opt/maxtext"
env-files = ["site/train.env.sh", "/opt/{{model_tag}}.env.sh"]
axis-prefix = {{ PP = "ici" }}

[container]
runtime = "podman"
mounts = ["/opt"]
pull = true

[deployed]
NCCL_DEBUG = "WARN"
THREADS = 4

[overrides]
scan_layers = true

[sweeps.pp8]
model = "deepseek3-671b"
nodes = 8
devices = 8

[sweeps.pp8.slurm]
qos = "low"

[sweeps.pp8.overrides]
hardware = "gpu"

[sweeps.here]
executor = "local"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "xlatune.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


def resolve(root: Path, *, line: Any = (), environ: Any = (), ini: Any = ()) -> Options:
    command_line = {f"xlatune_{name}": value for name, value in dict(line).items()}
    variables = {f"XLATUNE_{name.upper()}": value for name, value in dict(environ).items()}
    keys = {f"xlatune_{name}": value for name, value in dict(ini).items()}
    return resolve_options(command_line, variables, keys, root=root)


def test_command_line_then_environment_then_ini_then_the_file(root: Path) -> None:
    line, environ, ini = {"budget": "3"}, {"budget": "2"}, {"budget": "1"}
    assert resolve(root, line=line, environ=environ, ini=ini).budget == 3
    assert resolve(root, environ=environ, ini=ini).budget == 2
    assert resolve(root, ini=ini).budget == 1
    assert resolve(root).budget == 40
    (root / "xlatune.toml").unlink()
    assert resolve(root).budget is None, "the sweep file decides"


def test_every_place_is_known(root: Path) -> None:
    options = resolve(root, line={"budget": "3"}, environ={"seed": "2"}, ini={"pdbs": "1"})
    assert options.places == {
        "budget": "--xlatune-budget",
        "seed": "XLATUNE_SEED",
        "pdbs": "ini key xlatune_pdbs",
        **dict.fromkeys(
            ("model", "nodelist", "image", "workdir", "max-target-length", "slurm", "launcher"),
            "xlatune.toml",
        ),
        **dict.fromkeys(("container", "deployed", "overrides"), "xlatune.toml"),
    }
    assert options.sweeps["pp8"].places["nodes"] == "xlatune.toml [sweeps.pp8]"
    assert options.sweeps["pp8"].places["budget"] == "--xlatune-budget"


def test_a_sweeps_own_table_stands_above_what_is_said_of_all(root: Path) -> None:
    options = resolve(root, line={"slurm": "reservation=r", "pdbs": "2"})
    assert options.slurm == {"account": "me", "qos": "high", "reservation": "r"}
    sweep = options.sweeps["pp8"]
    assert sweep.slurm == {"account": "me", "qos": "low", "reservation": "r"}
    assert (sweep.model, sweep.pdbs, sweep.devices) == ("deepseek3-671b", 2.0, 8)
    assert (sweep.nodes, sweep.nodelist) == (8, None), "a slot is named in one way"
    assert sweep.overrides == {"scan_layers": "true", "hardware": "gpu"}
    assert options.overrides == {"scan_layers": "true"}
    assert options.deployed == {"NCCL_DEBUG": "WARN", "THREADS": "4"}
    assert (options.executor, options.sweeps["here"].executor) == (None, "local")
    assert resolve(root, line={"executor": "slurm"}).sweeps["here"].executor == "slurm"
    assert resolve(root, line={"nodelist": "n1"}).sweeps["pp8"].nodes is None


def test_paths_are_relative_to_the_file(root: Path) -> None:
    below = root / "deep" / "er"
    below.mkdir(parents=True)
    options = resolve(below)
    assert options.workdir == root / "work"
    assert options.reports == below / "reports"
    assert options.launcher is not None
    assert options.launcher["env-files"] == [
        str(root / "site/train.env.sh"),
        "/opt/{model_tag}.env.sh",
    ]
    assert options.file == str(root / "xlatune.toml")


def test_the_search_ends_with_the_repository(root: Path) -> None:
    inner = root / "other"
    (inner / ".git").mkdir(parents=True)
    assert resolve(inner).file == ""
    named = resolve(inner, line={"config": "../xlatune.toml"})
    assert named.model == "llama3.1-405b"
    with pytest.raises(ConfigError, match=r"no\.toml cannot be read: No such file"):
        resolve(inner, line={"config": "no.toml"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "m"', r"unknown setting 'modle' in xlatune.toml; did you mean 'model'\?"),
        ("model = ", r"xlatune.toml is no TOML: Invalid value \(at line 1"),
        ('[sweeps.pp8]\nmodle = "m"', r"in xlatune.toml \[sweeps.pp8\]; did you mean 'model'"),
        ('[sweeps.pp8]\nworkdir = "w"', r"\[sweeps.pp8\]: workdir is the whole session's"),
        ("sweeps = 3", "`sweeps` must hold tables"),
        ("nodes = true", "xlatune.toml: nodes: found True, expected text or a number"),
        ("nodes = 0", r"xlatune.toml: nodes: found '0', expected N \(expected a positive"),
        ("devices = 0", "devices: found 0, expected a positive integer"),
        ('executor = "slrum"', "unknown value 'slrum' in xlatune.toml: executor; did you mean"),
        ('slurm = "x"', r"slurm: found 'x', expected a table: \[slurm\]"),
        ("[slurm]\naccount = [1]", r"xlatune.toml \[slurm\]: account: found \[1\]"),
        ("[sweeps.a.deployed]\nA = {}", r"xlatune.toml \[sweeps.a.deployed\]: A: found \{\}"),
        ('nodelist = "n[1"', "n\\[1"),
        ('notify-url = "slack://x"', "unknown setting 'notify-url'.*'notify-file'"),
        ('config = "other.toml"', "unknown setting 'config'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(root: Path, text: str, message: str) -> None:
    (root / "xlatune.toml").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        inputs_of(resolve(root), root)


def test_a_secret_of_another_name_is_not_repeated(root: Path) -> None:
    (root / "xlatune.toml").write_bytes(b"model = \xff\n")
    with pytest.raises(ConfigError, match="is no TOML"):
        resolve(root)


def test_no_file_is_read_and_no_parser_loaded_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    before = sys.modules.pop("pytest_xlatune.settings.file", None)
    try:
        assert resolve(tmp_path).file == ""
        assert "pytest_xlatune.settings.file" not in sys.modules
    finally:
        if before is not None:
            sys.modules["pytest_xlatune.settings.file"] = before


def test_every_option_can_be_set_in_the_file() -> None:
    known = {field.name for field in dataclasses.fields(Options)}
    assert {option.attribute for option in OPTIONS} <= known


def test_the_example_of_the_docs_is_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "site.md").read_text(encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / "xlatune.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    found = resolved(tmp_path, sweep())
    found.check()
    assert resolve(tmp_path).notify_variable == "TEAM_APPRISE_URL"
    assert (found.cell.model_tag, found.cell.deployed["NCCL_DEBUG"]) == ("deepseek3-671b", "WARN")
    assert found.resources.options == {"account": "perf", "partition": "long", "qos": "high"}
    assert found.cell.launcher.startswith("container docker mounts=/shared /data:/data:ro gpus=amd")
    outside = resolved(tmp_path, sweep("smoke"), model="m")
    assert isinstance(outside.sweep.launcher, MaxTextLauncher)
    assert outside.cell.image == ""


# --- what a sweep makes of it ---------------------------------------------------------------------


def sweep(name: str = "pp8", **changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "launcher": MaxTextLauncher(
            config="configs/base.yml", cwd="/workspace/maxtext", env_files=("/first.env.sh",)
        ),
        "profiles": (profile("a", "--xla_a=1"),),
        "parallelism": "PP=8",
        "overrides": {"hardware": "cpu", "model_name": "{model_tag}"},
        "deployed": {"NCCL_DEBUG": "INFO"},
    }
    return Sweep(name=name, **values | changes)


def resolved(root: Path, made: Sweep, **line: str) -> ResolvedSweep:
    return made.resolve(inputs_of(resolve(root, line=line), root))


def test_a_sweep_takes_cell_launcher_and_container_from_the_file(root: Path) -> None:
    made = sweep()
    found = resolved(root, made, launcher="module=train.py,env-files=/last.env.sh")
    cell = found.cell
    assert (cell.model_tag, cell.image) == ("deepseek3-671b", f"rocm/jax:26.4@{SHA}")
    assert (cell.max_target_length, cell.per_device_batch_size) == (8192, 7.0)
    assert cell.overrides["hardware"] == "gpu"
    assert cell.overrides["model_name"] == "{model_tag}"
    assert cell.deployed == {"NCCL_DEBUG": "WARN", "THREADS": "4"}
    outer = found.sweep.launcher
    assert isinstance(outer, ContainerLauncher)
    assert (outer.runtime, outer.mounts, outer.pull) == ("podman", ("/opt",), True)
    inner = outer.inner
    assert isinstance(inner, MaxTextLauncher)
    assert (inner.python, inner.cwd, inner.module) == (
        *("/opt/venv/bin/python", "/opt/maxtext", "train.py"),
    )
    assert inner.axis_prefix == {"PP": "ici"}
    assert inner.env_files == ("/first.env.sh", "/last.env.sh"), "the site's come last"
    assert found.settings["image"] == "xlatune.toml"
    assert cell.launcher.startswith("container podman")
    assert made.launcher.env_files_of(cell) == ("/first.env.sh",)
    found.check()


def test_without_settings_the_sweep_file_decides() -> None:
    made = sweep(model_tag="m", executor="local")
    found = made.resolve(Inputs())
    assert found.sweep.launcher is made.launcher
    assert found.settings == {}


COMMAND = CommandLauncher(argv=("a", "b"))


@pytest.mark.parametrize(
    ("launcher", "settings", "container", "message"),
    [
        (COMMAND, {"pyhton": "x"}, {}, r"unknown setting 'pyhton' in f, launcher.*Known: argv"),
        (COMMAND, {"cwd": 3}, {}, "f, launcher: cwd: found 3, expected text"),
        (COMMAND, {"argv": [1]}, {}, r"argv: found \[1\], expected a list of text"),
        (COMMAND, {"in-shell": "true"}, {}, "unknown setting 'in-shell'"),
        (COMMAND, {}, {"inner": "x"}, "unknown setting 'inner' in f, container"),
        (COMMAND, {}, {"pull": "perhaps"}, "pull: found 'perhaps', expected true or false"),
        (COMMAND, {}, {"runtime": "dokcer"}, "did you mean 'docker'"),
        (object(), {"cwd": "/x"}, {}, "object is no dataclass"),
    ],
)
def test_a_setting_that_a_launcher_does_not_have(
    launcher: Any, settings: dict[str, Any], container: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(launcher, settings, container, where="f")


def test_settings_reach_the_launcher_inside_a_container() -> None:
    outer = ContainerLauncher(inner=COMMAND, runtime="podman")
    found = configured(outer, {"cwd": "/x"}, {"gpus": ["amd"], "args": ["-q"]}, where="f")
    assert isinstance(found, ContainerLauncher)
    assert (found.runtime, found.gpus, found.args) == ("podman", "amd", ("-q",))
    assert isinstance(found.inner, CommandLauncher)
    assert found.inner.cwd == "/x"
    assert configured(outer, {}, {}, where="f") is outer
