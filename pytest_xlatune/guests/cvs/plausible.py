"""Whether the thresholds of a CVS file can be true: each check with its arithmetic.

TFLOP/s and tokens/s of one training are one number: their ratio is the TFLOP of a token, (6 P + 6 L
S H A) / 1e12 with P active parameters, L layers, S tokens of a sequence, H heads of A numbers each;
the half that a causal mask leaves out is taken off. Sizes and peaks are those that the makers of
models and chips publish.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_xlatune.guests.cvs._values import (
    DISTRIBUTED,
    PREFIX,
    TFLOPS,
    TOKENS,
    TOKENS_TOTAL,
    CvsCell,
    CvsFile,
    Implausible,
    Threshold,
    typed,
)

# pattern of a model's name -> active parameters, layers, heads x size of a head
_MODELS = (
    (r"llama-?[_ ]?3.*405b", 405.9e9, 126, 16384),
    (r"llama-?[_ ]?3.*70b", 70.6e9, 80, 8192),
    (r"llama-?[_ ]?3.*8b", 8.03e9, 32, 4096),
    (r"llama-?[_ ]?2.*70b", 69.0e9, 80, 8192),
    (r"llama-?[_ ]?2.*13b", 13.0e9, 40, 5120),
    (r"llama-?[_ ]?2.*7b", 6.74e9, 32, 4096),
    (r"mixtral-?8x7b", 12.9e9, 32, 4096),
)
# GPU -> dense TFLOP/s in 16 and in 8 bits
_PEAKS = (
    (r"mi300x?$|mi325x?$", 1307.4, 2614.9),
    (r"mi35[05x]x?$", 2500.0, 5000.0),
)
_CLOSE = 0.15
_TIMES = 3.0
_VOCABULARY = 128256  # of Llama 3
GATED = (TFLOPS, TOKENS, "final_loss", "loss_decreased")


def tflop_per_token(model: str, length: int) -> float | None:
    """Return the TFLOP of one token at a length; None for a model that is not known here."""
    for pattern, parameters, layers, width in _MODELS:
        if re.search(pattern, model, re.IGNORECASE):
            return (6 * parameters + 6 * layers * length * width) / 1e12
    return None


def peak_of(gpu: str, precision: str) -> float | None:
    """Return the dense TFLOP/s of a GPU; None where it is not known."""
    for pattern, sixteen, eight in _PEAKS:
        if re.match(pattern, gpu.strip(), re.IGNORECASE):
            return eight if re.search(r"fp8|int8", precision, re.IGNORECASE) else sixteen
    return None


def demand(cell: CvsCell, metric: str) -> Threshold | None:
    """Return a cell's threshold of a metric, with or without the first word of its name."""
    return cell.thresholds.get(PREFIX + metric) or cell.thresholds.get(metric)


def least(cell: CvsCell, metric: str) -> Threshold | None:
    """Return a cell's threshold of a metric where it is a least value."""
    found = demand(cell, metric)
    is_least = found is not None and found.kind in ("min", "min_tok_s") and found.value is not None
    return found if is_least else None


def implausible(file: CvsFile) -> tuple[Implausible, ...]:
    """Return every contradiction of a configuration, each once."""
    found = [each for cell in file.cells for each in _of_cell(file, cell)]
    found += _of_file(file)
    found += _of_names(file)
    return tuple({(each.check, each.paths, each.text): each for each in found}.values())


def _of_cell(file: CvsFile, cell: CvsCell) -> Iterator[Implausible]:
    tflops, tokens = least(cell, TFLOPS), least(cell, TOKENS)
    length = cell.max_target_length
    per_token = tflop_per_token(cell.model, length) if length else None
    # published for a 70B on MI300X: 1800 TFLOP/s beside 900 tokens/s, 2.0 a token where 0.46 is due
    if tflops and tokens and tflops.value and tokens.value and per_token:
        ratio = tflops.value / tokens.value
        if abs(ratio / per_token - 1) > _CLOSE:
            yield Implausible(
                check="one-number",
                paths=(tflops.path, tokens.path),
                text=f"{tflops.value:g} TFLOP/s / {tokens.value:g} tokens/s = {ratio:.3g} TFLOP a "
                f"token, and {cell.model} at {length} takes {per_token:.3g}: "
                f"{tokens.value:g} tokens/s are {tokens.value * per_token:.0f} TFLOP/s",
            )
    peak = peak_of(cell.gpu or file.gpu, cell.precision)
    # those 1800 stood above the chip's 1307 for ten months
    if tflops and tflops.value and peak and tflops.value >= peak:
        yield Implausible(
            check="peak",
            paths=(tflops.path,),
            text=f"{tflops.value:g} TFLOP/s are demanded of a {cell.gpu or file.gpu}, whose dense "
            f"peak in {cell.precision} is {peak:g}",
        )
    for metric, each in cell.thresholds.items():
        if each.kind.startswith("min") and each.value is not None and each.value <= 0:
            yield Implausible(
                check="cannot-fail",
                paths=(each.path,),
                text=f"{metric} must be at least {each.value:g}, which nothing can miss",
            )
    yield from _of_loss(cell)
    yield from _of_step_time(cell, tokens)
    yield from _scaling(file, cell, tokens)


def _of_loss(cell: CvsCell) -> Iterator[Implausible]:
    final = demand(cell, "final_loss")
    untrained = math.log(_VOCABULARY)
    if final and final.kind == "max" and final.value is not None and final.value >= untrained:
        yield Implausible(
            check="cannot-fail",
            paths=(final.path,),
            text=f"final_loss may be up to {final.value:g}, and a model that has learned nothing "
            f"has ln({_VOCABULARY}) = {untrained:.2f}",
        )
    fell = demand(cell, "loss_decreased")
    if fell and fell.kind == "min" and cell.maxtext.get("dataset_type") == "synthetic":
        yield Implausible(
            check="cannot-fail",
            paths=(fell.path,),
            text="loss_decreased is demanded of synthetic data, where the loss says nothing",
        )


def _of_step_time(cell: CvsCell, tokens: Threshold | None) -> Iterator[Implausible]:
    """Return the limits of a step's time that the threshold of tokens/s leaves no work."""
    batch, length = cell.per_device_batch_size, cell.max_target_length
    if tokens is None or not tokens.value or tokens.value < 0 or not batch or not length:
        return
    for metric, each in cell.thresholds.items():
        name = metric.removeprefix(PREFIX)
        is_limit = each.kind in ("max", "max_ms") and name.startswith("step_time")
        if not is_limit or each.value is None:
            continue
        thousand, unit = (1000, "ms") if name.endswith("_ms") else (1, "s")
        longest = batch * length / tokens.value * thousand
        if each.value > _TIMES * longest:
            yield Implausible(
                check="cannot-fail",
                paths=(each.path, tokens.path),
                text=f"{name} may be up to {each.value:g} {unit}, and at the least "
                f"{tokens.value:g} tokens/s a step of {batch:g} x {length:g} tokens takes "
                f"{longest:.0f} {unit}: the threshold of tokens/s fails long before",
            )


def _scaling(file: CvsFile, cell: CvsCell, tokens: Threshold | None) -> Iterator[Implausible]:
    block = file.watched.get("scaling_baseline")
    if not isinstance(block, dict) or tokens is None or not tokens.value:
        return
    total, nodes = typed(block.get(TOKENS_TOTAL)), typed(block.get("num_nodes", 1))
    if not isinstance(total, int | float) or not isinstance(nodes, int | float) or nodes <= 0:
        return
    each = total / (nodes * cell.gpus_per_node)
    # published: 394000 tokens/s of one node, 49250 a device where 700 are demanded
    if each > 0 and not 1 / _TIMES <= each / tokens.value <= _TIMES:
        place = "scaling_baseline" if file.generation == "4" else "training.scaling_baseline"
        yield Implausible(
            check="scaling-baseline",
            paths=(f"{place}.{TOKENS_TOTAL}", tokens.path),
            text=f"{total:g} tokens/s / ({nodes:g} nodes x {cell.gpus_per_node} devices) = "
            f"{each:.0f} a device, and {tokens.value:g} are demanded: "
            f"{each / tokens.value:.1f} times",
        )


def _of_file(file: CvsFile) -> Iterator[Implausible]:
    # all published files of the fourth generation say so
    if not file.enforce:
        yield Implausible(
            check="cannot-fail",
            paths=("enforce_thresholds",),
            text="enforce_thresholds is false: no threshold of this file fails a run",
        )
    has_open = any("result_dict" in each.path for each in file.open_items)
    for cell in file.cells:
        gates = [
            each
            for metric in GATED
            if (each := demand(cell, metric)) and each.kind != "info" and each.value is not None
        ]
        if gates or has_open or not file.has_thresholds:
            continue
        where = "result_dict" if file.generation in ("1", "2") else cell.name
        yield Implausible(
            check="cannot-fail",
            paths=(where,),
            text=f"cell {cell.name!r} has no threshold of {', '.join(GATED[:2])}: nothing is gated",
        )


def _of_names(file: CvsFile) -> Iterator[Implausible]:
    # 27 published sweeps contradict their names
    for cell in (*file.cells, *file.idle):
        if not cell.label:
            continue
        named = {key: typed(value) for key, value in cell.label.items()}
        nodes = named.get("NNODES") or named.get("NODES")
        if not isinstance(nodes, int):
            nodes = 1 if file.mode != DISTRIBUTED else cell.nodes
        batch = cell.per_device_batch_size
        checks = [
            ("STEPS", cell.steps, f"steps of the file: {cell.steps}"),
            ("BATCH", batch, f"per_device_batch_size: {batch}"),
            ("SEQLEN", cell.max_target_length, f"max_target_length: {cell.max_target_length}"),
        ]
        if batch is not None and nodes is not None:
            product = nodes * cell.gpus_per_node * batch
            text = f"{nodes} nodes x {cell.gpus_per_node} devices x {batch:g} = {product:g}"
            checks.append(("GBS", product, text))
        for word, actual, text in checks:
            said = named.get(word)
            if isinstance(said, int | float) and actual is not None and said != actual:
                yield Implausible(
                    check="name",
                    paths=(cell.name,),
                    text=f"the name says {word}={said}, the content {text}",
                )
