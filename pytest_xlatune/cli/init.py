"""`xlatune init`: write a sweep file, from options or by asking for what they leave out."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.cli import show
from pytest_xlatune.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSay:
    """One thing that a sweep file has to say: an option, and a question where it is not given.

    Attributes:
        text: of the question, and the option's help.
        default: what an empty answer means; "" where it needs an answer.
        kinds: of trainers that are asked; () is all.
        example: of an answer.
        is_optional: whether an empty answer is one.
    """

    text: str
    default: str = ""
    kinds: tuple[str, ...] = ()
    example: str = ""
    is_optional: bool = False


KINDS = {
    "trainer": "a program of your own that prints a line a step",
    "maxtext": "MaxText from an environment of its own",
    "maxtext-slurm": "MaxText through maxtext-slurm's submit.sh",
}
QUESTIONS: Mapping[str, ToSay] = {
    "kind": ToSay(text="How is a trial started", default="trainer"),
    "command": ToSay(
        text="The trainer's command line; {steps} becomes the number of steps, {overrides} the "
        "settings of a profile",
        kinds=("trainer",),
        example="python3 /opt/me/train.py --steps={steps} {overrides}",
    ),
    "config": ToSay(
        text="MaxText's yml, absolute", kinds=("maxtext",), example="/opt/configs/llama.gpu.yml"
    ),
    "python": ToSay(
        text="The interpreter of MaxText's environment, absolute",
        kinds=("maxtext",),
        example="/opt/venv/bin/python",
    ),
    "module": ToSay(
        text="MaxText's module: MaxText.train up to 0.1",
        default="maxtext.trainers.pre_train.train",
        kinds=("maxtext",),
    ),
    "checkout": ToSay(
        text="The checkout of maxtext-slurm, absolute",
        kinds=("maxtext-slurm",),
        example="/shared/maxtext-slurm",
    ),
    "model": ToSay(text="The model's tag", example="llama3.1-405b"),
    "parallelism": ToSay(text="The parallelism", example="PP=2,FSDP=4"),
    "nodelist": ToSay(
        text="The nodes in Slurm; nothing is this machine",
        example="node[001-008]",
        is_optional=True,
    ),
    "flags": ToSay(
        text="XLA flags to try, blanks between them, each a profile",
        example="--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
        default="--xla_gpu_enable_latency_hiding_scheduler=true",
    ),
}


def add_init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="SWEEP_FILE", help="to write, test_NAME.py")
    for name, each in QUESTIONS.items():
        example = f", e.g. {each.example}" if each.example else ""
        default = f" ({each.default})" if each.default else ""
        text = f"{each.text}{example}{default}".replace("%", "%%")
        choices = tuple(KINDS) if name == "kind" else None
        parser.add_argument(f"--{name}", metavar=name.upper(), help=text, choices=choices)
    parser.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    if path.exists():
        raise ConfigError(f"{path} exists; name a new file, nothing is overwritten")
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise ConfigError(f"{path}: pytest collects files such as test_{path.stem}.py; name it so")
    ask = input if sys.stdin.isatty() else None
    text = sweep_file(answers(vars(arguments), ask), name=path.stem.removeprefix("test_"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    show(
        [
            f"written: {path}",
            f"xlatune plan {path}    the trials, their cost, and what they can show",
            f"pytest {path} -n 2     runs it",
        ]
    )
    return 0


def answers(given: Mapping[str, object], ask: Callable[[str], str] | None) -> dict[str, str]:
    """Return an answer to each question that is to be asked.

    Args:
        given: what the options say, by name; None is nothing.
        ask: shows a text and returns the typed answer; None where no person is there.

    Raises:
        ConfigError: no person is there, and options are missing; or an answer does not fit.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for name, each in QUESTIONS.items():
        if each.kinds and found.get("kind") not in each.kinds:
            if given.get(name):
                raise ConfigError(f"--{name} belongs to --kind {' or '.join(each.kinds)}")
            continue
        said = given.get(name)
        if said is not None:
            found[name] = str(said)
        elif ask is None:
            found[name] = each.default
            if not (each.default or each.is_optional):
                missing.append(f"--{name}")
        else:
            found[name] = _asked(name, each, ask)
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: no terminal to ask on, so the options must say it"
        )
    return found


def _asked(name: str, question: ToSay, ask: Callable[[str], str]) -> str:
    text = question.text
    if name == "kind":
        text += "".join(f"\n  {kind:<14} {what}" for kind, what in KINDS.items()) + "\n"
    hint = question.default or (question.example and f"e.g. {question.example}")
    shown = f"{text}{f' [{hint}]' if hint else ''}: "
    while True:
        said = ask(shown).strip() or question.default
        if name == "kind" and said not in KINDS:
            continue
        if said or question.is_optional:
            return said


def sweep_file(found: Mapping[str, str], *, name: str) -> str:
    """Return the text of a sweep file.

    Raises:
        ConfigError: a name, the parallelism, the nodes or a flag is malformed.
    """
    from pytest_xlatune.model.cell import Parallelism
    from pytest_xlatune.model.hosts import expand
    from pytest_xlatune.model.profile import parse_flags

    slug = "".join(each if each.isalnum() else "-" for each in name.lower()).strip("-") or "sweep"
    Parallelism.parse(found["parallelism"])
    nodes = expand(found["nodelist"]) if found["nodelist"] else ()
    kind = found["kind"]
    if kind == "maxtext-slurm" and not nodes:
        raise ConfigError("maxtext-slurm: --nodelist must name the nodes of its jobs")
    launcher, needs = _LAUNCHERS[kind](found)
    flags = parse_flags(found["flags"])
    ids: list[str] = []
    for at, flag in enumerate(flags, start=1):
        short = flag.name.removeprefix("xla_").removeprefix("gpu_").removeprefix("cpu_")
        slugged = short.replace("_", "-")[:56].strip("-")
        ids.append(slugged if slugged not in ids else f"{slugged}-{at}")
    profiles = [
        f"        profile({each!r}, {str(flag)!r})," for each, flag in zip(ids, flags, strict=True)
    ]
    is_slurm = bool(nodes) and kind != "maxtext-slurm"
    site = f'executor="slurm", nodelist={nodes!r}' if is_slurm else 'executor="local"'
    names = sorted(
        {"CellSettings", "Protocol", "SiteSettings", "Sweep", "profile", "standard_tests", needs}
    )
    return "\n".join(
        [
            f'"""The sweep {slug}: {found["model"]}, {found["parallelism"]}."""',
            "",
            "from pytest_xlatune import (",
            *(f"    {each}," for each in names),
            ")",
            "",
            "SWEEP = Sweep(",
            f"    name={slug!r},",
            "    cell=CellSettings(",
            f"        model_tag={found['model']!r},",
            f"        parallelism={found['parallelism']!r},",
            '        # deployed={"XLA_FLAGS": "..."},  # what a job has without any profile',
            "        protocol=Protocol(steps=15),",
            "    ),",
            f"    launcher={launcher},",
            "    profiles=(",
            *profiles,
            "    ),",
            f"    site=SiteSettings({site}),",
            ")",
            "",
            "tests = standard_tests(SWEEP)",
            "",
        ]
    )


def _of_trainer(found: Mapping[str, str]) -> tuple[str, str]:
    argv = tuple(shlex.split(found["command"]))
    return f"CommandLauncher(argv={argv!r})", "CommandLauncher"


def _of_maxtext(found: Mapping[str, str]) -> tuple[str, str]:
    said = ", ".join(f"{key}={found[key]!r}" for key in ("config", "python", "module"))
    return f"MaxTextLauncher({said})", "MaxTextLauncher"


def _of_maxtext_slurm(found: Mapping[str, str]) -> tuple[str, str]:
    sbatch: Sequence[str] = ("-w", found["nodelist"])
    said = f"checkout={found['checkout']!r}, sbatch={tuple(sbatch)!r}"
    return f"MaxTextSlurmLauncher({said})", "MaxTextSlurmLauncher"


_LAUNCHERS: Mapping[str, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    "trainer": _of_trainer,
    "maxtext": _of_maxtext,
    "maxtext-slurm": _of_maxtext_slurm,
}
