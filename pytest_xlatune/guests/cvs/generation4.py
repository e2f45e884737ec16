"""Generation 4: `train_params`, `container.env`, sweeps as cells, thresholds in a file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

from pytest_xlatune.guests.cvs._draft import (
    DEVICES,
    Draft,
    env_of,
    flags_of,
    image_of,
    parallelism_of,
)
from pytest_xlatune.guests.cvs._keys import (
    ADDED,
    ADDED_BY_MODE,
    OF_THE_TRIAL,
    Table,
    fourth_table,
    read_thresholds,
)
from pytest_xlatune.guests.cvs._values import (
    DISTRIBUTED,
    SINGLE,
    Container,
    CvsCell,
    CvsFile,
    OpenItem,
    Path,
    Source,
    Threshold,
    is_open,
    objects_of,
    sample_of,
    setting_text,
    typed,
    written,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

Find = Callable[[str], tuple[str, str] | None]

_ROOT = "train_params"
# where the image's MaxText may have its script
_SCRIPTS = (
    "src/maxtext/trainers/pre_train/train.py",
    "src/MaxText/train.py",
    "MaxText/train.py",
)
_FP8_BEFORE_MI35, _FP8 = "nanoo_fp8", "fp8"


def read_fourth(draft: Draft, find: Find) -> tuple[CvsFile, Table]:
    """Return the facts of generation 4 and its table of keys.

    Raises:
        ConfigError: a value is of another kind than CVS takes.
    """
    source = draft.source
    env = env_of(draft, "container", "env")
    mode = DISTRIBUTED if "NCCL_IB_HCA" in env else SINGLE
    gpu = source.text("gpu_name")
    devices = source.whole("gpus_per_node") or DEVICES
    base = _keys_of(draft)
    model = source.text(_ROOT, "model_id") or setting_text(base.get("model_name", ""))
    steps = source.whole(_ROOT, "maxtext_config", "steps")
    sweeps = _sweeps(draft)
    thresholds = _thresholds_beside(draft, find)
    if sweeps:
        _tell_strangers(draft, sweeps, thresholds)
    cells = []
    for name in [each for each, runs in sweeps.items() if runs] or [_DEFAULT]:
        at: Path = ("sweeps", name) if sweeps else (_ROOT, "maxtext_config")
        own = source.table(*at) if sweeps else {}
        overrides = {key: typed(draft.filled(value)) for key, value in own.items()}
        maxtext = {**base, **_keys_of_name(draft, name, gpu), **overrides}
        for key in ("per_device_batch_size", "max_target_length"):
            source.as_number((*at, key), maxtext.get(key))
        own_steps = source.as_whole((*at, "steps"), maxtext.pop("steps", None))
        compact = _COMPACT.fullmatch(name)
        nodes = 1 if mode == SINGLE else draft.nodes or (int(compact[1]) if compact else None)
        demands = thresholds.get(name, {})
        if not demands and not sweeps and len(thresholds) == 1:
            demands = next(iter(thresholds.values()))
        cells.append(
            CvsCell(
                name=name,
                model=model,
                gpu=gpu,
                maxtext=maxtext,
                steps=own_steps or steps,
                nodes=nodes,
                gpus_per_node=devices,
                parallelism=parallelism_of(draft, maxtext, nodes=nodes, devices=devices, at=at),
                thresholds=demands,
            )
        )
    if "maxtext_branch" in source.table(_ROOT):
        draft.notes.append(
            f"{_ROOT}.maxtext_branch: CVS changes the checkout inside the image; here the image "
            "runs as it is"
        )
    # CVS holds a slope against 0 and enforces it, where its block does not say otherwise
    has_curve = isinstance(source.get("loss_curve"), dict)
    slope = source.number("loss_curve", "max_slope")
    scripts = [str(draft.filled(each)) for each in source.items(_ROOT, "train_script_paths")]
    made = CvsFile(
        where=source.where,
        generation="4",
        kind="config",
        model=model,
        mode=mode,
        gpu=gpu,
        image=image_of(draft, "container", "image"),
        steps=steps,
        cells=tuple(cells),
        xla_flags=flags_of(draft, _ROOT, "xla_flags"),
        env=env,
        added={**ADDED, **ADDED_BY_MODE[mode]},
        scripts=tuple(dict.fromkeys(scripts)) or _SCRIPTS,
        container=_container(draft),
        token_file=draft.filled(source.text("paths", "hf_token_file")),
        enforce=source.truth("enforce_thresholds", default=True),
        baseline=source.table("scaling_baseline"),
        patterns=_patterns(draft),
        max_slope=0.0 if has_curve and slope is None else slope,
        enforce_slope=source.truth("loss_curve", "enforce", default=has_curve),
        target=_target(draft),
        threshold_name=sample_of(draft.filled(source.text("threshold_json"))),
    )
    return made, fourth_table(sweeps)


def _patterns(draft: Draft) -> dict[str, str]:
    """Return the file's patterns of failure; one that is empty is switched off.

    Raises:
        ConfigError: one is no regular expression.
    """
    found = {}
    for name, pattern in draft.source.table("error_patterns").items():
        if not isinstance(pattern, str):
            raise draft.source.wrong(("error_patterns", name), pattern, "a regular expression")
        try:
            re.compile(pattern, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            where = f"{draft.source.where}: {written(('error_patterns', name))}"
            raise ConfigError(
                f"{where}: {pattern!r:.80} is no regular expression: {error}"
            ) from None
        if pattern:
            found[name] = pattern
    return found


def _target(draft: Draft) -> float | None:
    """Return the loss that `convergence` waits for; None where its target is 0 or below.

    `auto` is the loss of the evaluation where one runs, else that of the steps; only the latter is
    told here.
    """
    metric = draft.source.text("convergence", "target_metric") or "auto"
    target = draft.source.number("convergence", "target_value")
    if target is None or target <= 0:
        return None
    every = typed(draft.source.get("train_params", "maxtext_config", "eval_interval"))
    evaluates = isinstance(every, int | float) and every > 0
    # eval_loss was once read as the loss of the steps
    if metric not in ("train_loss", "loss", *(() if evaluates else ("auto",))):
        draft.notes.append(
            f"convergence.target_metric is {metric!r}: only the loss of a step is told here"
        )
        return None
    return target


def _keys_of(draft: Draft) -> dict[str, Json]:
    """Return the MaxText keys that all cells of a file share."""
    found: dict[str, Json] = {
        key: typed(draft.filled(value))
        for key, value in draft.source.table(_ROOT, "maxtext_config").items()
        if key not in OF_THE_TRIAL and key != "steps" and not is_open(value)
    }
    if dtype := draft.source.text(_ROOT, "dtype"):
        found.setdefault("dtype", dtype)
    return found


_DEFAULT = "default"  # the cell of a file without sweeps


def _sweeps(draft: Draft) -> dict[str, bool]:
    """Return whether each sweep runs, those that run first; {} of a file without sweeps.

    Raises:
        ConfigError: a name among those that run is no sweep.
    """
    source = draft.source
    found, enabled = source.table("sweeps"), source.items("runs")
    for name in found:
        source.table("sweeps", name)
    for index, name in enumerate(enabled if found else ()):
        if not isinstance(name, str):
            raise source.wrong(("runs", index), name, "the name of a sweep")
        # CVS only warns of such a name, and runs without the sweep
        if name not in found:
            where = f"{source.where}: runs[{index}]"
            raise ConfigError.unknown("sweep", name, valid=found, where=where)
    names = enabled or list(found)
    return {name: name in names for name in (*names, *found)} if found else {}


# of the newest files:  NN1_ST30_BF16_B5_SL8192
_COMPACT = re.compile(r"NN([1-9]\d{0,5})_ST\d+_[A-Z]+\d+_B\d+_SL\d+")
# a part of the name of a sweep:  BS=5
_TOKEN = re.compile(r"([A-Z_]+)=([^,\s;/]+)")


def _keys_of_name(draft: Draft, name: str, gpu: str) -> dict[str, Json]:
    """Return what the name of a sweep sets: BS, SL, PRECISION.

    Raises:
        ConfigError: a word that CVS does not know.
    """
    keys: dict[str, Json] = {}
    for word, value in _TOKEN.findall(name):
        where = f"{draft.source.where}: sweeps.{name}"
        if word == "BS":
            keys["per_device_batch_size"] = typed(value)
        elif word == "SL":
            keys["max_target_length"] = typed(value)
        elif word == "PRECISION" and value.upper() == "BF16":
            keys["quantization"] = ""
        elif word == "PRECISION" and value.upper() == "FP8":
            is_new = gpu.lower().startswith("mi35")
            keys["quantization"] = _FP8 if is_new else _FP8_BEFORE_MI35
            if "xx" in gpu.lower():
                wanted = f"the GPU: FP8 is fp8 from mi35x on, else nanoo_fp8; {gpu} says neither"
                draft.asked.append(OpenItem(path="gpu_name", sample="mi300x", wanted=wanted))
        elif word == "PRECISION":
            raise ConfigError.unknown("precision", value, valid=("BF16", "FP8"), where=where)
        else:
            raise ConfigError.unknown("word", word, valid=("BS", "SL", "PRECISION"), where=where)
    return keys


def _tell_strangers(draft: Draft, names: Iterable[str], thresholds: Iterable[str]) -> None:
    """Note the cells of the threshold file that are of no sweep; CVS refuses them or warns."""
    for name in thresholds:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            of = f"; the nearest is {near[0]!r}" if near else ""
            draft.notes.append(
                f"thresholds of cell {name!r} are of no sweep of this file{of}: they gate nothing, "
                "and CVS refuses such a file where enforce_thresholds is true"
            )


def _thresholds_beside(draft: Draft, find: Find) -> dict[str, dict[str, Threshold]]:
    """Return the thresholds that stand beside a file; a note says why there are none."""
    name = sample_of(draft.filled(draft.source.text("threshold_json")))
    found = find(name)
    if found is None:
        said = f"threshold file {name}" if name else "single *threshold.json beside it"
        draft.notes.append(f"there is no {said}: no metric has a threshold")
        return {}
    where, text = found
    data, notes = objects_of(text, where=where)
    draft.notes += notes
    return read_thresholds(Source(data, where=where))


_OWN_ARGS = frozenset({"volumes", "devices", "privileged", "ulimit", "shm-size", "network", "ipc"})


def _container(draft: Draft) -> Container:
    source = draft.source
    at: Path = ("container", "runtime", "args")
    args = source.table(*at)
    mounts: list[str] = []
    for index, each in enumerate(source.items(*at, "volumes")):
        if not isinstance(each, str):
            raise source.wrong((*at, "volumes", index), each, "a mount: /path:/inside")
        mounts.append(draft.filled(each))
    devices = [str(draft.filled(each)) for each in source.items(*at, "devices")]
    words = ["--privileged"] if source.truth(*at, "privileged") else []
    for index, each in enumerate(source.items(*at, "ulimit")):
        if not isinstance(each, str):
            raise source.wrong((*at, "ulimit", index), each, "a text: memlock=-1")
        words.append(f"--ulimit={each}")
    for key in (each for each in args if each not in _OWN_ARGS):
        for each in args[key] if isinstance(args[key], list) else [args[key]]:
            if isinstance(each, dict | list):
                raise source.wrong((*at, key), each, "an option of the container")
            if each is True:
                words.append(f"--{key}")
            elif each not in (False, None, ""):
                words.append(f"--{key}={setting_text(each)}")
    # ours have the node's network and, without a size of /dev/shm, its ipc
    others = [key for key in ("network", "ipc") if args.get(key, "host") != "host"]
    return Container(
        runtime=source.text("container", "runtime", "name") or "docker",
        mounts=tuple(each for each in mounts if not is_open(each)),
        devices=tuple(devices),
        shm_size=source.text(*at, "shm-size"),
        args=tuple(words),
        dropped=tuple(f"{key}={args[key]}" for key in others),
    )
