"""Options, xlatune.toml, sweep files, env files: what they say, and what a sweep makes of it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import pytest_xlatune
from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    ConfigError,
    DesignSettings,
    Gate,
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
from pytest_xlatune.model.hosts import expand, parts
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values
from pytest_xlatune.model.result import Outcome, State, TrialResult, TrialStatus
from pytest_xlatune.report.document import terminal
from pytest_xlatune.sweep.deployed import NoEnv, deployed_env, with_sourced
from pytest_xlatune.sweep.groups import GROUPS, OPTIONS, RunSettings, UserOptions
from pytest_xlatune.sweep.registry import put_in_use, study_of
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.sweep.settings import resolve_options
from pytest_xlatune.tasks.plan import plan_of
from tests.helpers.history import measured, study
from tests.helpers.probes import make_cell, maxtext

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
    found = resolve(root, line={"nodes": "2"}, ini={"nodelist": "n1"}).for_sweeps.values
    assert (found["nodes"], "nodelist" in found) == (2, False)
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


def test_every_option_can_be_set_in_the_file(root: Path) -> None:
    texts = {"executor": "local", "negative": "xfail", "access": "group"}
    texts |= {"parallelism": "PP=3", "step-pattern": "torchtitan", "rotate": "off"}
    texts["export"] = "csv,github-benchmark"
    tables = {"slurm", "launcher", "container"}
    names = [option.name for option in OPTIONS if option.name not in {*tables, "config"}]
    lines = [f'{name} = "{texts.get(name, 3)}"' for name in names]
    lines += [f'[{name}]\ncwd = "x"' for name in sorted(tables)]
    (root / "xlatune.toml").write_text("\n".join(lines))
    options = resolve(root)
    assert options.negative == "xfail"
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


DECLARED = Sweep(
    name="s",
    launcher=CommandLauncher(argv=("train.sh", "{steps}")),
    profiles=tuple(profile(f"p{k:02}", f"--xla_p{k}=1") for k in range(25)),
    cell=CellSettings(model_tag="m", parallelism="FSDP=2"),
    design=DesignSettings(budget=65),
)
SIXTEEN = expand("node[001-016]")


def on_eight(axes: str, devices: int = 0) -> ResolvedSweep:
    nodes = tuple(f"n{number}" for number in range(8))
    return declared(model_tag="m", parallelism=axes, devices=devices, nodelist=nodes).resolve()


def of_a_file(**settings: Any) -> object:
    """Return what a file's tables make of a launcher."""
    container = settings.pop("container", {})
    return configured(CommandLauncher(argv=("a", "b")), settings, container, where="f")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (lambda: xl.Sweep(buget=1), "keyword 'buget' in Sweep(...); did you mean 'budget'"),
        (lambda: xl.Sweep(budget=1), "write Sweep(design=DesignSettings(budget=...))"),
        (lambda: xl.Limits(node_hour=1), "did you mean 'node_hours'"),
        (lambda: of_a_file(pyhton="x"), "unknown setting 'pyhton' in f, launcher"),
        (lambda: of_a_file(cwd=3), "f, launcher: cwd: found 3: Expected `str`"),
        (lambda: of_a_file(argv=[1]), "argv: found [1]: Expected `str`"),
        (lambda: of_a_file(container={"inner": "x"}), "unknown setting 'inner' in f, container"),
        (
            lambda: configured(xl, {"cwd": "x"}, {}, where="f"),
            "unknown setting 'cwd' in f, launcher",
        ),
        (lambda: on_eight("PP=7"), "multiplies to 7, which neither divides 8"),
        (lambda: on_eight("FSDP=12", 12), "12 devices cannot "),
        (
            lambda: split(nodelist=SIXTEEN[:15]),
            "cannot be split into 8 equal slots; leave out 7 nodes, or ask for 3 or 5 or 15 slots",
        ),
        (lambda: split(nodelist=None), "nodes of all slots"),
        (lambda: split(nodes=16), "2 for each of 8"),
        (lambda: split(executor="local"), "this machine, which is one slot"),
        (lambda: split(replace(DECLARED, profiles=(SLOW,), gate=Gate())), "gate has no slots"),
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
    for axes, devices in (("PP=8", 0), ("PP=8,FSDP=8", 64), ("TP=6,FSDP=4", 24)):
        assert on_eight(axes, devices).cell.nodelist
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


def split(declared: Sweep = DECLARED, **said: Any) -> ResolvedSweep:
    values = {"nodelist": SIXTEEN, "slots": 8, **said}
    return declared.resolve(UserOptions(values=values))


def test_the_node_list_is_split_in_its_order() -> None:
    assert parts(("d", "a", "c", "b"), 2) == (("d", "a"), ("c", "b"))
    found = split(nodelist=("d", "a", "c", "b"), slots=2)
    assert found.slots == (("d", "a"), ("c", "b"))
    assert found.cell.nodelist == ("d", "a")
    assert found.nodelist == ("d", "a", "c", "b")
    assert found.sweep.site.resources.nodes == 2, "of a trial"
    study = found.tuning()
    assert [each.nodelist for each in study.cells] == [("d", "a"), ("c", "b")]
    assert found.folder == split(nodelist=("d", "a"), slots=1).folder
    own = replace(DECLARED, site=SiteSettings(nodelist=SIXTEEN, slots=4))
    assert own.resolve().slots == parts(SIXTEEN, 4)
    assert split(nodes=2).slots == parts(SIXTEEN, 8), "nodes are those of a trial"
    layout: Any = split().tuning().layout
    assert split().finalist_count == layout.finalists


def test_a_plan_says_wall_time_and_node_hours_with_slots(tmp_path: Path) -> None:
    def shown(executor: str) -> str:
        found = split(executor=executor)
        plan = plan_of(found, found.tuning(), workdir=tmp_path, shows_all=True)
        return "\n".join(terminal(plan))

    text, step = shown("slurm"), shown("allocation")
    for words in (
        "65 jobs to run, each on 2 nodes",
        "at most 7 h 30 min on 8 slots side by side",  # ten trials of 45 min
        "nodes: node[001-002]; node[003-004]; ",
    ):
        assert words in " ".join(text.split())
    assert "#SBATCH --nodelist='node[001-002]'" in text
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 " in step
    assert "'--nodelist=node[001-002]'" in step
    assert "#SBATCH" not in step
    assert not list(tmp_path.iterdir())


def test_the_nodes_of_an_allocation_around_the_session_are_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[001-004]")
    found = split(nodelist=None, slots=2, executor="allocation")
    assert found.slots == (("node001", "node002"), ("node003", "node004"))


@pytest.mark.parametrize(
    ("status", "block", "rotates"),
    [
        pytest.param(TrialStatus.PLANNED, 0, False, id="a job of its screen is planned"),
        pytest.param(TrialStatus.MEASURED, 1, False, id="jobs of its blocks decide already"),
        pytest.param(TrialStatus.MEASURED, 0, True, id="its jobs are over: others may rotate"),
    ],
)
def test_a_screen_that_began_with_jobs_goes_on_with_jobs(
    status: TrialStatus, block: int, *, rotates: bool
) -> None:
    """A pace that is known by now made the rest of it a rotation, with one baseline left out."""
    python = CommandLauncher(argv=(sys.executable, "train.py"))
    sweep = replace(DECLARED, launcher=python, design=DesignSettings())
    found = split(sweep, nodelist=None, slots=1, executor="local")
    jobs = replace(found.tuning(), rotation=None).decide(()).due
    first, second = [trial for trial in jobs if not trial.is_baseline][:2]
    over = Outcome(state=State.COMPLETED, start_s=0.0, end_s=2.0)
    earlier = (
        replace(measured(first, 6.0, step_s=0.1), outcome=over),
        TrialResult(trial=replace(second, block=block), status=status),
    )
    assert found.tuning().rotates
    assert found.tuning(earlier=earlier).rotates is rotates


def test_the_study_of_a_campaign_is_that_of_its_ledger() -> None:
    own = study(3, seed=7)
    put_in_use(own, own.to_json())
    assert study_of(own.name, json.loads(json.dumps(own.to_json()))) is own


def test_one_with_a_secret_that_no_ledger_has_is_not() -> None:
    own = study(profiles=(profile("token", env={"MY_TOKEN": "hunter2-long-and-secret"}),), seed=7)
    put_in_use(own, own.to_json())
    found = study_of(own.name, own.to_json())
    assert found is not own
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("export XLA_FLAGS=--xla_a=1 NCCL_IB_HCA='a:1,^b'\n",
          'XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=x\\ y"\nNOT_EXPORTED=1\necho chatter\n'),
         {"XLA_FLAGS": "--xla_a=1 --xla_b=x\\ y", "NCCL_IB_HCA": "a:1,^b"}),
        (("set -a\nfile=mine\n", 'B="$file"\n'), {"file": "mine", "B": "mine"}),
        (('export SEEN="${SECRET_TOKEN:-nothing}"\n',), {"SEEN": "nothing"}),
    ],
    ids=["files append", "all are exported from then on", "the caller's environment stays out"],
)  # fmt: skip
def test_files_are_sourced_in_their_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.env.sh" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_text(text, encoding="utf-8")
    assert deployed_env(*names) == expected


def test_a_file_that_does_not_run_to_its_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "env.sh"
    with pytest.raises(ConfigError, match=r"env\.sh does not exist"):
        deployed_env(path)
    for text, message in (("false\n", "exit code 1"), ("if\n", "exit code")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            deployed_env(path)


def test_what_env_files_come_to_is_the_cells_without_secrets_and_without_what_varies(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.env.sh"
    text = """\
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=2"
export HF_TOKEN=hush-hush-hush
export OTHER=$HF_TOKEN
export RUN=$(date +%s%N)
"""
    file.write_text(text, encoding="utf-8")
    launcher = CommandLauncher(argv=("train", "{steps}"), env_files=(str(file),))
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1"})
    sourced = with_sourced(cell, launcher)
    assert sourced.sourced == (("XLA_FLAGS", "--xla_a=1 --xla_b=2"),)
    assert sourced.digest == with_sourced(cell, launcher).digest
    file.write_text(text.replace("=2", "=3"), encoding="utf-8")
    assert with_sourced(cell, launcher).digest != sourced.digest
    file.unlink()
    assert with_sourced(cell, launcher) == cell


TRAIN = CommandLauncher(argv=("train", "{steps}"))
AG, LEVEL = "xla_gpu_all_gather_combine_threshold_bytes", "xla_gpu_autotune_level"
COUNT = "xla_force_host_platform_device_count"
KEPT = (COUNT, "xla_kept")


def restored(flags: str, how: NoEnv) -> Profile:
    return how.profile(TRAIN, make_cell(deployed={"XLA_FLAGS": flags}))


def test_deployed_flags_go_back() -> None:
    flags = f"--{COUNT}=8 --{AG}=8589934592 --{LEVEL}=2"
    found = restored(flags, NoEnv(jaxlib="0.7.2"))
    assert (found.id, found.wave) == (NO_ENV_ID, "wave1")
    # to the defaults of that release, but for a flag that is the cell
    assert effective_values(found.flags) == {AG: "31457287", LEVEL: "4"}
    stated = {LEVEL: "3", "xla_mine": ""}
    found = restored(f"--{LEVEL}=2 --xla_mine=a --xla_kept=1", NoEnv(defaults=stated, keep=KEPT))
    assert effective_values(found.flags) == stated


PIPELINED = "xla_gpu_enable_pipelined_all_gather"


@pytest.mark.parametrize(
    ("flags", "how", "words"),
    [
        (f"--{AG}=1", NoEnv(), f"no default is stated for the deployed flag --{AG}"),
        ("--xla_mine=1 --xla_ours=2", NoEnv(jaxlib="0.7.2"), "the deployed flag --xla_mine"),
        (f"--{PIPELINED}=true", NoEnv(jaxlib="0.12.0.1"), PIPELINED),
        (f"--{COUNT}=8", NoEnv(jaxlib="0.7.2"), "could go back"),
    ],
)  # fmt: skip
def test_there_is_none_and_the_note_says_why(flags: str, how: NoEnv, words: str) -> None:
    found = restored(flags, how)
    assert found.is_baseline
    assert words in found.note


def test_env_files_are_sourced_where_they_can_be_read(tmp_path: Path) -> None:
    first, second = tmp_path / "image.env.sh", tmp_path / "model.env.sh"
    first.write_text("export XLA_FLAGS=--xla_gpu_autotune_level=2\n", encoding="utf-8")
    second.write_text('export XLA_FLAGS="$XLA_FLAGS --xla_mine=1"\n', encoding="utf-8")
    files = (str(first), str(second))
    launcher = MaxTextLauncher(cwd="/opt/maxtext", config="a.yml", env_files=files)
    how = NoEnv(defaults={"xla_mine": "0"})
    flags = [str(flag) for flag in how.profile(launcher, make_cell()).flags]
    assert flags == ["--xla_gpu_autotune_level=4", "--xla_mine=0"]
    second.unlink()
    gone = how.profile(launcher, make_cell())
    assert gone.is_baseline
    assert f"env file {second} does not exist" in gone.note
