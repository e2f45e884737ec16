"""Options, xlatune.toml and sweep files: what they may say, and which place wins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    ConfigError,
    Gate,
    Limits,
    MaxTextLauncher,
    Patience,
    Protocol,
    Resources,
    SiteSettings,
    Stacks,
    Sweep,
    profile,
)
from pytest_xlatune.launchers.container import ContainerLauncher, configured
from pytest_xlatune.sweep.groups import GROUPS, OPTIONS, RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.sweep.settings import resolve_options
from tests.helpers.probes import maxtext

SHA = "sha256:" + "ab" * 32
FILE = f"""\
model = "llama3.1-405b"
nodelist = ["node001", "node002"]
budget = 40
image = "rocm/jax:26.4@{SHA}"
workdir = "work"
max-target-length = 8192
[slurm]
account = "me"
qos = "high"
[launcher]
python = "/opt/venv/bin/python"
env-files = ["site/train.env.sh", "/opt/{{model_tag}}.env.sh"]
axis-prefix = {{ PP = "ici" }}
[container]
runtime = "podman"
mounts = ["/opt"]
program = "sudo podman"
[deployed]
NCCL_DEBUG = "WARN"
THREADS = 4
[overrides]
scan_layers = true
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    # as an editor writes it that marks its encoding
    (tmp_path / "xlatune.toml").write_text(FILE, encoding="utf-8-sig")
    return tmp_path


def resolve(root: Path, *, line: Any = (), environ: Any = (), ini: Any = ()) -> RunSettings:
    command_line = {f"xlatune_{name}": value for name, value in dict(line).items()}
    variables = {f"XLATUNE_{name.upper()}": value for name, value in dict(environ).items()}
    keys = {f"xlatune_{name}": value for name, value in dict(ini).items()}
    return resolve_options(command_line, variables, keys, root=root)


def test_command_line_then_environment_then_ini_then_the_file(root: Path) -> None:
    line, environ, ini = {"budget": "3"}, {"budget": "2"}, {"budget": "1"}
    assert resolve(root, line=line, environ=environ, ini=ini).for_sweeps.values["budget"] == 3
    assert resolve(root, environ=environ, ini=ini).for_sweeps.values["budget"] == 2
    assert resolve(root, ini=ini).for_sweeps.values["budget"] == 1
    assert resolve(root, ini={"budget": ""}).for_sweeps.values["budget"] == 40
    overruled = {"budget": "x", "nodelist": "n["}  # what is overruled is not read
    found = resolve(root, line={"budget": "3", "nodes": "2"}, ini=overruled)
    assert found.for_sweeps.values["budget"] == 3
    (root / "xlatune.toml").unlink()
    assert "budget" not in resolve(root).for_sweeps.values, "the sweep file decides"


def test_paths_are_relative_to_the_file(root: Path) -> None:
    below = root / "deep" / "er"
    below.mkdir(parents=True)
    options = resolve(below)
    assert (options.workdir, options.reports) == (root / "work", below / "reports")
    assert options.for_sweeps.values["launcher"]["env-files"] == [
        str(root / "site/train.env.sh"),
        "/opt/{model_tag}.env.sh",
    ]
    assert options.for_sweeps.file == str(root / "xlatune.toml")


def test_the_search_ends_with_the_repository(root: Path) -> None:
    inner = root / "other"
    (inner / ".git").mkdir(parents=True)
    assert resolve(inner).for_sweeps.file == ""
    named = resolve(inner, line={"config": "../xlatune.toml"})
    assert named.for_sweeps.values["model_tag"] == "llama3.1-405b"
    with pytest.raises(ConfigError, match=r"no\.toml cannot be read: No such file"):
        resolve(inner, line={"config": "no.toml"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "m"', r"unknown setting 'modle' in xlatune.toml; did you mean 'model'\?"),
        ("model = 'ü'", "xlatune.toml is not valid TOML: .*utf-8"),
        ("model = ", r"xlatune.toml is not valid TOML: Invalid value \(at "),
        ("nodes = 0", r"xlatune.toml: nodes: found '0', expected a whole number above 0"),
        ('executor = "slrum"', "unknown value 'slrum' in xlatune.toml: executor; did you mean"),
        ('slurm = "x"', r"slurm: found 'x', expected a table: \[slurm\]"),
        ("[deployed]\nA = {}", r"xlatune.toml \[deployed\]: A: found \{\}"),
        ('model = "a b"', r"xlatune.toml: model: .*'a b': expected"),
        ('notify-url = "slack://x"', "unknown setting 'notify-url'.*'notify-file'"),
        ("nodelist = []", r"nodelist: found \[\], which names no node"),
        ("node-health = \"sh -c 'open\"", "node-health: found .*expected a command line"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(root: Path, text: str, message: str) -> None:
    (root / "xlatune.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        resolve(root)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("nodes", "0", r"--xlatune-nodes: found '0'.*a whole number above 0"),
        ("slurm", "account", r"--xlatune-slurm: found 'account'.*key=value,key=value"),
        ("negative", "pass", r"unknown value 'pass' in --xlatune-negative"),
    ],
)
def test_a_wrong_value_names_its_place(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(Path("/project"), line={key: text})
    with pytest.raises(ConfigError, match=f"XLATUNE_{key.upper()}"):
        resolve(Path("/project"), environ={key: text})
    with pytest.raises(ConfigError, match=f"ini key xlatune_{key}"):
        resolve(Path("/project"), ini={key: text})


def test_a_misspelt_variable_is_not_passed_over() -> None:
    others = {"XLATUNE_MACHINE_LOCK": "x", "XLATUNE_NOTIFY_URL": "x", "XLATUNE_OWN": "x"}
    resolve_options({}, others, {}, root=Path("/project"))
    with pytest.raises(ConfigError, match=r"variable 'XLATUNE_MODLE'.*mean 'XLATUNE_MODEL'"):
        resolve_options({}, {**others, "XLATUNE_MODLE": "x"}, {}, root=Path("/project"))


BELONGS = r"budget belongs to DesignSettings; write Sweep\(design=DesignSettings\(budget=...\)\)"


@pytest.mark.parametrize(
    ("group", "keyword", "message"),
    [
        (Sweep, "buget", r"keyword 'buget' in Sweep\(...\); did you mean 'budget'"),
        (Sweep, "budget", BELONGS),
        (Limits, "node_hour", r"'node_hour' in Limits.*did you mean 'node_hours'"),
    ],
)
def test_an_unknown_keyword_is_told_where_it_belongs(
    group: Any, keyword: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        group(**{keyword: 1})


def test_every_option_can_be_set_in_the_file(root: Path) -> None:
    texts = {"executor": "local", "negative": "xfail", "log-level": "debug", "access": "group"}
    texts |= {"parallelism": "PP=3", "step-pattern": "torchtitan", "rotate": "off"}
    texts["export"] = "csv,github-benchmark"
    tables = {"slurm", "launcher", "container"}
    names = [option.name for option in OPTIONS if option.name not in {*tables, "config"}]
    lines = [f'{name} = "{texts.get(name, 3)}"' for name in names]
    lines += [f'[{name}]\ncwd = "x"' for name in sorted(tables)]
    (root / "xlatune.toml").write_text("\n".join(lines))
    options = resolve(root)
    assert (options.negative, options.log_level) == ("xfail", "debug")
    assert options.notify_file == root / "3"


def test_who_says_the_node_slot_last_says_all_of_it(root: Path) -> None:
    number, names = {"nodes": "4"}, {"nodelist": "n[1-2]"}
    eight = sweep(site=SiteSettings(resources=Resources(nodes=8)))
    above = resolve(root, line=number, environ=names).for_sweeps
    for site, nodes, nodelist in (
        (sweep().resolve(above).sweep.site, 4, None),
        (resolved(root, eight, **names).sweep.site, 2, ("n1", "n2")),
    ):
        assert (site.resources.nodes, site.nodelist) == (nodes, nodelist)
    with pytest.raises(ConfigError, match=r"4 nodes were .* names 2"):
        resolved(root, sweep(), **number, **names)


def test_a_table_adds_up_over_all_places(root: Path) -> None:
    said = resolve(
        root,
        line={"slurm": "qos=a=b, x=y"},
        environ={"slurm": "qos=b,reservation=r"},
        ini={"slurm": "qos=c,mem=1"},
    ).for_sweeps
    merged = {"account": "me", "qos": "a=b", "x": "y", "reservation": "r", "mem": "1"}
    assert said.values["slurm"] == merged


# --- what a sweep makes of it ---------------------------------------------------------------------


def sweep(**changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "launcher": maxtext(cwd="/workspace/maxtext", env_files=("/first.env.sh",)),
        "profiles": (profile("a", "--xla_a=1"),),
        "cell": CellSettings(
            parallelism="PP=8",
            overrides={"hardware": "cpu", "model_name": "{model_tag}"},
            deployed={"NCCL_DEBUG": "INFO"},
        ),
    }
    return Sweep(name="pp8", **values | changes)


def resolved(root: Path, made: Sweep, **line: str) -> ResolvedSweep:
    return made.resolve(resolve(root, line=line).for_sweeps)


def test_a_sweep_takes_cell_launcher_and_container_from_the_file(root: Path) -> None:
    found = resolved(root, sweep(), launcher="module=train.py,env-files=/last.env.sh")
    cell = found.cell
    assert (cell.model_tag, cell.image) == ("llama3.1-405b", f"rocm/jax:26.4@{SHA}")
    assert cell.max_target_length == 8192
    assert cell.overrides.items() >= {"hardware": "cpu", "model_name": "{model_tag}"}.items()
    assert cell.deployed == {"NCCL_DEBUG": "WARN", "THREADS": "4"}
    outer = found.sweep.launcher
    assert isinstance(outer, ContainerLauncher)
    assert (outer.runtime, outer.mounts, outer.program) == ("podman", ("/opt",), "sudo podman")
    inner = outer.inner
    assert isinstance(inner, MaxTextLauncher)
    assert (inner.python, inner.module) == ("/opt/venv/bin/python", "train.py")
    assert inner.axis_prefix == {"PP": "ici"}
    assert inner.env_files == ("/first.env.sh", "/last.env.sh"), "the site's come last"
    found.check()


COMMAND = CommandLauncher(argv=("a", "b"))


@pytest.mark.parametrize(
    ("launcher", "settings", "container", "message"),
    [
        (COMMAND, {"pyhton": "x"}, {}, r"unknown setting 'pyhton' in f, launcher.*Known: argv"),
        (COMMAND, {"cwd": 3}, {}, "f, launcher: cwd: found 3, expected text"),
        (COMMAND, {"argv": [1]}, {}, r"argv: found \[1\], expected a list of text"),
        (COMMAND, {}, {"inner": "x"}, "unknown setting 'inner' in f, container"),
        (object(), {"cwd": "/x"}, {}, "object is no dataclass"),
    ],
)
def test_a_setting_that_a_launcher_does_not_have(
    launcher: Any, settings: dict[str, Any], container: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(launcher, settings, container, where="f")


# --- a sweep file ---------------------------------------------------------------------------------

# what a checker of types would refuse, a sweep file may hold
xl: Any = pytest_xlatune

SLOW = profile("slow", "--xla_slow=1")


def declared(**changed: Any) -> Sweep:
    launcher = CommandLauncher(argv=("train", "{overrides}"))
    own = {name: value for name, value in changed.items() if name in Sweep.__struct_fields__}
    rest = {name: value for name, value in changed.items() if name not in own}
    groups = {
        keyword: group(**{k: v for k, v in rest.items() if k in group.__struct_fields__})
        for keyword, group in GROUPS.items()
    }
    return Sweep(name="kinds", **{"launcher": launcher, "profiles": (SLOW,), **groups, **own})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"overrides": {"w": 512}}, "'kinds', cell: overrides['w'] is 512 (int), expected a text"),
        ({"budget": "30"}, "budget is '30' (str), expected a whole number"),
        ({"nodelist": "node1"}, "nodelist is 'node1' (str), expected a tuple"),
        ({"profiles": ("slow",)}, "profiles[0] is 'slow' (str), expected Profile"),
        ({"executor": "locl"}, "'locl' in sweep 'kinds', site; did you mean 'local'"),
        ({"protocol": 15}, "protocol is 15 (int), expected Protocol"),
        ({"resources": Resources(patience=60)}, "resources: patience is 60 (int)"),  # type: ignore[arg-type]
        (lambda: xl.Protocol(steps="12"), "protocol: steps is '12' (str), expected a whole number"),
        (lambda: xl.Resources(tasks_per_node=0), "tasks_per_node is 0, expected at least 1"),
        (lambda: xl.Gate(margin="1 %"), "gate: margin is '1 %' (str), expected a number"),
        (lambda: xl.Nodes(floors=5), "'floors' in Nodes(...); did you mean 'floor_tgs'?"),
        (lambda: xl.CommandLauncher(argv=("a", 5)), "argv[1] is 5 (int), expected a text: write"),
        (lambda: xl.profile("p", ["--xla_a=1"]), "['--xla_a=1'] (list), expected one text"),
        (
            lambda: declared(retry_policy=xl.RetryPolicy(rules={"hang": 1})),
            "retry policy: rules['hang'] is 1 (int), expected RetryRule",
        ),
        (lambda: xl.profile("p", env={"WIDTH": 512}), "WIDTH is 512 (int), expected a text: write"),
        (Protocol(steps=3).check_window, "needs 6 of them; set steps=11 or more"),
        (Protocol(steps=15, first_step=12).check_window, "set steps=18 or more"),
        ({"nodelist": ("a", "a")}, "a is named twice"),
        ({"nodelist": ("--evil",)}, "begins with a dash"),
        ({"nodelist": ("n[1-2]",)}, "one node in each text: ('n1', 'n2')"),
        ({"launcher": None}, "launcher is None"),
        ({"profiles": ()}, "declares no profile"),
        (
            {"gate": Gate(margin=0.01), "derived": (Stacks(wave="wave3", slots=1),)},
            "nothing but its profiles; leave derived",
        ),
    ],
    ids=lambda said: said if isinstance(said, str) else "",
)
def test_what_a_sweep_file_says_wrong_is_refused_with_its_place(said: Any, message: str) -> None:
    """Python's own errors name no attribute, and pytest ends with 2 instead of 4."""
    with pytest.raises(ConfigError) as told:
        declared(**said) if isinstance(said, dict) else said()
    assert message in str(told.value)


def test_what_means_the_same_is_taken() -> None:
    lists = {"profiles": [SLOW], "nodelist": ["node1", "node2"]}
    assert declared(per_device_batch_size=8, **lists).name == "kinds"
    assert declared(profiles=(), derived=(Stacks(wave="wave3", slots=1),)).name == "kinds"
    assert declared(resources=Resources(patience=Patience(training_s=60))).name == "kinds"


NUMBERS: dict[str, tuple[Any, ...]] = {
    "budget": (-1, 2.5, math.nan, None),
    "max_target_length": (-1, 0, True),
    "per_device_batch_size": (-1.0, 0, math.nan, math.inf),
    "loss_tolerance": (-1.0, math.nan, math.inf, "0.1"),
    "node_hours": (-1, 0, math.nan, "1"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_in_its_range_in_a_sweep_file_too(name: str) -> None:
    for value in NUMBERS[name]:
        with pytest.raises(ConfigError, match=rf"{name} is .*, expected (a|more than 0) "):
            declared(**{name: value})


def tagged(**config_tags: dict[str, str]) -> Sweep:
    return Sweep(
        name="tags",
        cell=CellSettings(model_tag="tiny", parallelism="FSDP=2", protocol=Protocol(steps=12)),
        launcher=MaxTextLauncher(python="python3", config="/configs/tiny.yml"),
        profiles=(profile("overlap-2", "--xla_overlap=2"),),
        site=SiteSettings(executor="local"),
        config_tags=config_tags,
    )


def test_another_configuration_is_another_cell() -> None:
    declared = tagged(sparse={"sparse_matmul": "true"})
    resolved = declared.resolve()
    there = resolved.elsewhere("sparse", declared.profiles, Gate())
    for each in (resolved, there):
        each.check()
        (first, *_) = each.study().decide(()).due
        argv = declared.launcher.launch(first, each.cell).argv
        assert ("sparse_matmul=true" in argv) is (each is there)
        assert first.cell_digest == each.cell.digest
    assert there.cell.label == "tiny FSDP=2 sparse"
    assert there.cell.digest != resolved.cell.digest
    assert there.folder != resolved.folder, "a ledger of its own"
    # one that cannot be launched is told before the first trial
    with pytest.raises(ConfigError, match=r"long.* overrides max_target_length=32"):
        tagged(long={"max_target_length": "32"}).resolve().check()


@pytest.mark.parametrize(
    ("axes", "devices", "words"),
    [
        ("PP=7", 0, "multiplies to 7, which neither divides 8"),
        ("FSDP=12", 12, "12 devices cannot .* 8 nodes"),
        ("PP=8", 0, ""),
        ("PP=8,FSDP=8", 64, ""),
        ("TP=6,FSDP=4", 24, ""),
    ],
)
def test_axes_are_held_against_the_nodes(axes: str, devices: int, words: str) -> None:
    sweep = Sweep(
        name="nodes",
        launcher=CommandLauncher(argv=("train", "{steps}")),
        profiles=(profile("p", "--xla_a=1"),),
        cell=CellSettings(model_tag="m", parallelism=axes, devices=devices),
        site=SiteSettings(nodelist=tuple(f"n{number}" for number in range(8))),
    )
    if not words:
        assert sweep.resolve().cell.nodelist
        return
    with pytest.raises(ConfigError, match=words):
        sweep.resolve()
