"""Generations 3 and 4: sweeps as cells, `training` or `train_params`, thresholds in a file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from pytest_xlatune.guests.cvs._draft import (
    DEVICES,
    SCRIPTS,
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
    third_table,
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
    is_comment,
    is_open,
    objects_of,
    sample_of,
    setting_text,
    typed,
    written,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json, dataclass

Find = Callable[[str], tuple[str, str] | None]

# a part of a sweep's name:  BATCH=5
_TOKEN = re.compile(r"([A-Z_]+)=([^,\s;/]+)")
_GID = "NCCL_IB_GID_INDEX"
# keys of `nccl` -> variables
NETWORK = {
    "ib_hca": "NCCL_IB_HCA",
    "ib_hca_list": "NCCL_IB_HCA_LIST",
    "socket_ifname": "NCCL_SOCKET_IFNAME",
    "gloo_socket_ifname": "GLOO_SOCKET_IFNAME",
    "ib_gid_index": _GID,  # of later files; the earlier ones have it in env_vars too
}
TIMEOUTS = {
    "initialization_timeout_seconds": "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS",
    "heartbeat_timeout_seconds": "JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS",
}
_WATCHED = (
    *("scaling_baseline", "convergence", "loss_curve", "error_patterns", "smoke"),
    "checkpoint_resume",
)
_FP8_BEFORE_MI35, _FP8 = "nanoo_fp8", "fp8"


def read_later(draft: Draft, find: Find) -> tuple[CvsFile, Table, list[Path]]:
    """Return the facts of generation 3 or 4, its table of keys, and the places that do not run.

    Raises:
        ConfigError: a value is of another kind than CVS takes.
    """
    source, is_fourth, has_gid = draft.source, draft.generation == "4", False
    root: Path = ("train_params",) if is_fourth else ("training",)
    env = env_of(draft, "container", "env") if is_fourth else env_of(draft, "training", "env_vars")
    if is_fourth:
        mode = DISTRIBUTED if "NCCL_IB_HCA" in env else SINGLE
        if env.get("NCCL_IB_HCA") == "":  # as good as unset, and says the mode
            del env["NCCL_IB_HCA"]
    else:
        mode = DISTRIBUTED if source.truth("training", "distributed") else SINGLE
        has_gid = _GID in env
        env = {**_of_third(draft, mode), **env}
    gpu = source.text("gpu_name" if is_fourth else "gpu_arch")
    devices = source.whole("gpus_per_node") or source.whole(*root, "gpus_per_node") or DEVICES
    base = _keys_of(draft, root)
    named = source.text(*root, "model_id") if is_fourth else source.text("model", "id")
    model = named or setting_text(base.get("model_name", ""))
    steps = source.whole(*root, "maxtext_config", "steps") or source.whole(*root, "steps")
    sweeps, off = _sweeps(draft, root)
    thresholds = _thresholds_beside(draft, find)
    if all(each.is_declared for each in sweeps):
        _tell_strangers(draft, sweeps, thresholds)
    cells: dict[bool, list[CvsCell]] = {True: [], False: []}
    for sweep in sweeps:
        label = _label(sweep.name)
        maxtext = {**base, **_label_keys(draft, label, gpu, sweep), **sweep.overrides}
        for key in ("per_device_batch_size", "max_target_length"):
            source.as_number((*sweep.path, key), maxtext.get(key))
        own_steps = source.as_whole((*sweep.path, "steps"), maxtext.pop("steps", None))
        nodes = 1 if mode == SINGLE else draft.nodes or _nodes_of(label)
        demands = thresholds.get(sweep.name, {})
        if not demands and not sweep.is_declared and len(thresholds) == 1:
            demands = next(iter(thresholds.values()))
        axes = parallelism_of(draft, maxtext, nodes=nodes, devices=devices, at=sweep.path)
        cells[sweep.is_idle].append(
            CvsCell(
                name=sweep.name,
                model=model,
                gpu=gpu,
                maxtext=maxtext,
                steps=own_steps or steps,
                nodes=nodes,
                gpus_per_node=devices,
                parallelism=axes,
                thresholds=demands,
                label=label,
            )
        )
    if "maxtext_branch" in source.table(*root):
        draft.notes.append(
            f"{written((*root, 'maxtext_branch'))}: CVS changes the checkout inside the image; "
            "here the image runs as it is"
        )
    place: Path = () if is_fourth else root
    # CVS holds a slope against 0 and enforces it, where its block does not say otherwise
    has_curve = isinstance(source.get(*place, "loss_curve"), dict)
    slope = source.number(*place, "loss_curve", "max_slope")
    watched = {key: each for key in _WATCHED if (each := source.get(*place, key)) is not None}
    made = CvsFile(
        where=source.where,
        generation=draft.generation,
        kind="config",
        model=model,
        mode=mode,
        gpu=gpu,
        image=image_of(draft, "container", "image"),
        steps=steps,
        cells=tuple(cells[False]),
        idle=tuple(cells[True]),
        xla_flags=flags_of(draft, *root, "xla_flags"),
        env=env,
        added={**ADDED, **ADDED_BY_MODE[mode]},
        scripts=_scripts(draft, root),
        container=_container(draft),
        token_file=draft.filled(source.text("paths", "hf_token_file")),
        enforce=source.truth("enforce_thresholds", default=True),
        watched=watched,
        patterns=_patterns(draft, place),
        max_slope=0.0 if has_curve and slope is None else slope,
        enforce_slope=source.truth(*place, "loss_curve", "enforce", default=has_curve),
        target=_target(draft, root, place),
        threshold_name=sample_of(draft.filled(source.text("threshold_json"))),
        has_thresholds=bool(thresholds),
    )
    table = fourth_table() if is_fourth else third_table(mode, has_gid=has_gid)
    return made, table, off


def _patterns(draft: Draft, place: Path) -> dict[str, str]:
    """Return the file's patterns of failure; one that is empty is switched off.

    Raises:
        ConfigError: one is no regular expression.
    """
    found = {}
    at: Path = (*place, "error_patterns")
    for name, pattern in draft.source.table(*at).items():
        if not isinstance(pattern, str):
            raise draft.source.wrong((*at, name), pattern, "a regular expression")
        try:
            re.compile(pattern, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            where = f"{draft.source.where}: {written((*at, name))}"
            raise ConfigError(
                f"{where}: {pattern!r:.80} is no regular expression: {error}"
            ) from None
        if pattern:
            found[name] = pattern
    return found


def _target(draft: Draft, root: Path, place: Path) -> float | None:
    """Return the loss that `convergence` waits for; None where its target is 0 or below.

    `auto` is the loss of the evaluation where one runs, else that of the steps; only the latter is
    told here.
    """
    metric = draft.source.text(*place, "convergence", "target_metric") or "auto"
    target = draft.source.number(*place, "convergence", "target_value")
    if target is None or target <= 0:
        return None
    every = typed(draft.source.get(*root, "maxtext_config", "eval_interval"))
    evaluates = isinstance(every, int | float) and every > 0
    # eval_loss was once read as the loss of the steps
    if metric not in ("train_loss", "loss", *(() if evaluates else ("auto",))):
        draft.notes.append(
            f"convergence.target_metric is {metric!r}: only the loss of a step is told here"
        )
        return None
    return target


def _of_third(draft: Draft, mode: str) -> dict[str, str]:
    """Return the variables that generation 3 keeps outside its env_vars."""
    env = {}
    for key, name in TIMEOUTS.items():
        if value := draft.source.text("training", "jax_distributed", key):
            env[name] = value
    for key, name in NETWORK.items() if mode == DISTRIBUTED else ():
        if value := draft.source.text("training", "nccl", key):
            env[name] = draft.filled(value)
    return env


# of the newest files of generation 4:  NN1_ST30_BF16_B5_SL8192
_COMPACT = re.compile(
    r"NN(?P<NNODES>\d+)_ST(?P<STEPS>\d+)_(?P<PRECISION>[A-Z]+\d+)_B(?P<BATCH>\d+)_SL(?P<SEQLEN>\d+)"
)


def _label(name: str) -> dict[str, str]:
    """Return what the name of a sweep says of it, e.g. BATCH -> "5"."""
    compact = _COMPACT.fullmatch(name)
    return compact.groupdict() if compact else dict(_TOKEN.findall(name))


def _nodes_of(label: Mapping[str, str]) -> int | None:
    found = label.get("NNODES") or label.get("NODES") or ""
    return int(found) if re.fullmatch(r"[1-9][0-9]{0,5}", found) else None


def _keys_of(draft: Draft, root: Path) -> dict[str, Json]:
    """Return the MaxText keys that all cells of a file share."""
    source = draft.source
    found: dict[str, Json] = {
        key: typed(draft.filled(value))
        for key, value in source.table(*root, "maxtext_config").items()
        if key not in OF_THE_TRIAL and key != "steps" and not is_open(value)
    }
    if dtype := source.text(*root, "dtype"):
        found.setdefault("dtype", dtype)
    if source.get(*root, "enable_checkpointing") is not None:
        found.setdefault("enable_checkpointing", source.truth(*root, "enable_checkpointing"))
    if path := source.text(*root, "tokenizer", "tokenizer_path"):
        found["tokenizer_path"] = draft.filled(path)
    return found


@dataclass(frozen=True, kw_only=True)
class _Combination:
    """One sweep of a file: its name, the path of its overrides, whether it runs.

    Where the file has no sweeps, the one that stands for it is not declared.
    """

    name: str
    path: Path
    overrides: Mapping[str, Json] = field(default_factory=dict)
    is_idle: bool = False
    is_declared: bool = True


def _sweeps(draft: Draft, root: Path) -> tuple[list[_Combination], list[Path]]:
    """Return the sweeps, those that run first, and the places of those that do not.

    Raises:
        ConfigError: a name among those that run is no sweep.
    """
    source = draft.source
    place: Path = ("sweeps",) if source.get("sweeps") is not None else (*root, "sweeps")
    # name -> its place, the place of its overrides, its overrides
    found: dict[str, tuple[Path, Path, dict[str, Json]]] = {}
    if isinstance(source.get(*place), dict):
        for name in source.table(*place):
            found[name] = ((*place, name), (*place, name), source.table(*place, name))
    else:
        for index, each in enumerate(source.items(*place)):
            at = (*place, index)
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise source.wrong(at, each, "an object with a name")
            overrides = each.get("maxtext_overrides") or {}
            below = (*at, "maxtext_overrides")
            if not isinstance(overrides, dict):
                raise source.wrong(below, overrides, "an object")
            kept = {key: value for key, value in overrides.items() if not is_comment(key)}
            found[each["name"]] = (at, below, kept)
    if not found:
        whole = _Combination(name="default", path=(*root, "maxtext_config"), is_declared=False)
        return [whole], []
    listed: Path = next(
        (
            at
            for at in (("runs",), ("enabled_sweep_list",), (*root, "enabled_sweep_list"))
            if source.get(*at) is not None
        ),
        ("runs",),
    )
    enabled = source.items(*listed)
    for index, name in enumerate(enabled):
        if not isinstance(name, str):
            raise source.wrong((*listed, index), name, "the name of a sweep")
        # CVS only warns of such a name, and runs without the sweep
        if name not in found:
            where = f"{source.where}: {written((*listed, index))}"
            raise ConfigError.unknown("sweep", name, valid=found, where=where)
    names = list(dict.fromkeys(enabled)) or list(found)
    runs = [
        _Combination(
            name=name,
            path=found[name][1],
            overrides={key: typed(draft.filled(v)) for key, v in found[name][2].items()},
            is_idle=name not in names,
        )
        for name in (*names, *(each for each in found if each not in names))
    ]
    return runs, [at for name, (at, _, _) in found.items() if name not in names]


def _label_keys(
    draft: Draft, label: Mapping[str, str], gpu: str, sweep: _Combination
) -> dict[str, Json]:
    """Return what the key of a sweep of generation 4 sets: BS, SL, PRECISION.

    Raises:
        ConfigError: a word that CVS does not know.
    """
    if draft.generation != "4" or _COMPACT.fullmatch(sweep.name):
        return {}
    keys: dict[str, Json] = {}
    for word, value in label.items():
        where = f"{draft.source.where}: sweeps.{sweep.name}"
        if word == "BS":
            keys["per_device_batch_size"] = typed(value)
        elif word == "SL":
            keys["max_target_length"] = typed(value)
        elif word == "PRECISION" and value.upper() == "BF16":
            keys["quantization"] = ""
        elif word == "PRECISION" and value.upper() == "FP8":
            is_new = gpu.lower().startswith("mi35")
            keys["quantization"] = _FP8 if is_new else _FP8_BEFORE_MI35
            if "xx" in gpu.lower() and not sweep.is_idle:
                wanted = f"the GPU: FP8 is fp8 from mi35x on, else nanoo_fp8; {gpu} says neither"
                draft.asked.append(OpenItem(path="gpu_name", sample="mi300x", wanted=wanted))
        elif word == "PRECISION":
            raise ConfigError.unknown("precision", value, valid=("BF16", "FP8"), where=where)
        else:
            raise ConfigError.unknown("word", word, valid=("BS", "SL", "PRECISION"), where=where)
    return keys


def _tell_strangers(
    draft: Draft, sweeps: Iterable[_Combination], thresholds: Iterable[str]
) -> None:
    """Note the cells of the threshold file that are of no sweep; CVS refuses them or warns."""
    names = {each.name for each in sweeps}
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


def _scripts(draft: Draft, root: Path) -> tuple[str, ...]:
    source = draft.source
    found = [str(draft.filled(each)) for each in source.items(*root, "train_script_paths")]
    if script := source.text(*root, "train_script"):
        found.append(draft.filled(script))
    if module := source.text(*root, "train_module"):
        found.append(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    return tuple(dict.fromkeys(found)) or SCRIPTS["2"]


_OWN_ARGS = frozenset(
    {"volumes", "volume", "devices", "device", "privileged", "ulimit", "shm-size", "shm_size"}
    | {"network", "ipc"}
)


def _container(draft: Draft) -> Container:
    source = draft.source
    at: Path = ("container", "runtime", "args")
    args = source.table(*at)
    mounts: list[str] = []
    for key in ("volumes", "volume"):
        if isinstance(args.get(key), dict):
            mounts += [f"{host}:{inside}" for host, inside in draft.filled(args[key]).items()]
            continue
        for index, each in enumerate(source.items(*at, key)):
            if not isinstance(each, str):
                raise source.wrong((*at, key, index), each, "a mount: /path:/inside")
            mounts.append(draft.filled(each))
    devices = [
        str(draft.filled(each)) for key in ("devices", "device") for each in source.items(*at, key)
    ]
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
        shm_size=source.text(*at, "shm-size") or source.text(*at, "shm_size"),
        args=tuple(words),
        dropped=tuple(f"{key}={args[key]}" for key in others),
    )
