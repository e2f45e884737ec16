"""A capture in memory: devices, their streams, and the events on them as numpy columns.

Readers (`xplane`, `chrome`) make it, `breakdown` reads it. Times are integer picoseconds since the
capture's own origin: nothing here is comparable between two files except durations.

Kernel names belong to families: data, first match wins, the rest is `other`. A family also says
what its kernels do to the step: compute, communicate, or move memory. Whether
something is a kernel at all is not decided here, and never by its name: the trace's planes say so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted

Ints = NDArray[np.int64]

ABSENT = -1  # in an index column: this event has no such attribute


class Backend(StrEnum):
    """What a device is; on CPU a device is an ordinal among the host's events."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Columns of equal length, one element per event; the last four may have 32 bits."""

    start_ps: Ints
    duration_ps: Ints
    name: Ints  # this and the next two index `Trace.names`
    op: Ints
    module: Ints
    launch: Ints  # correlation id (GPU) or run id (CPU): of the host call that caused the event

    def __len__(self) -> int:
        return len(self.start_ps)

    @property
    def end_ps(self) -> Ints:
        """The end of each event."""
        return self.start_ps + self.duration_ps

    def take(self, which: NDArray[np.bool_] | Ints) -> Events:
        """Return the chosen events: a mask, or positions in the order wanted."""
        return Events(**{column: getattr(self, column)[which] for column in COLUMNS})

    def part(self, begin: int, end: int) -> Events:
        """Return the events from one position to another, in the same memory."""
        return Events(**{column: getattr(self, column)[begin:end] for column in COLUMNS})


COLUMNS = ("start_ps", "duration_ps", "name", "op", "module", "launch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """One line of a device plane: what ran on one queue of the device, in no promised order."""

    name: str
    events: Events


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device with at least one event on a stream line."""

    name: str  # /device:GPU:0
    backend: Backend
    streams: tuple[Stream, ...]
    events: Events  # of all streams, one behind the other

    @classmethod
    def of(cls, name: str, backend: Backend, streams: Sequence[Stream]) -> Device:
        """Return a device with some streams; each event is kept once."""
        if len(streams) == 1:
            (stream,) = streams
            return cls(name=name, backend=backend, streams=(stream,), events=stream.events)
        events = joined([each.events for each in streams])
        ends = np.cumsum([len(each.events) for each in streams]).tolist()
        views = (
            Stream(name=each.name, events=events.part(end - len(each.events), end))
            for each, end in zip(streams, ends, strict=True)
        )
        return cls(name=name, backend=backend, streams=tuple(views), events=events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A host-side step marker: jax.profiler.StepTraceAnnotation. It brackets dispatch, not work."""

    step: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """Host calls that started device work: id and time, sorted by id."""

    id: Ints
    start_ps: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One capture file of one process."""

    source: str
    format: str  # xplane | trace.json
    host: str | None
    names: tuple[str, ...]
    devices: tuple[Device, ...]
    has_all: bool  # its format keeps all events, or says that it dropped some
    planes_present: int  # device planes, idle ones included
    annotations: tuple[Annotation, ...]
    launches: Launches
    started_unix_ns: int | None
    stopped_unix_ns: int | None
    # why the file does not hold the whole window: shown always, and never averaged over
    truncated: str | None
    warnings: tuple[str, ...] = ()
    foreign: str | None = None  # of another device or profiler than we read: which


def narrow(column: Ints) -> Ints:
    """Return a column in half the memory where its numbers fit."""
    kept = cast("Ints", column.astype(np.int32))
    return kept if (kept == column).all() else column


def joined(parts: list[Events]) -> Events:
    """Return the events of all parts, one after the other."""
    none = np.zeros(0, np.int64)
    columns = {each: [getattr(part, each) for part in parts] or [none] for each in COLUMNS}
    return Events(**{each: np.concatenate(found) for each, found in columns.items()})


# /device:TPU:0      host-3 /device:XPU:1      /device:TPU:0 SparseCore 1
_OTHER = re.compile(r"/device:(?!GPU:|CPU:|CUSTOM:)(?P<kind>[A-Za-z]\w*):(?P<number>\d{1,9})")


def other_device(planes: Iterable[str]) -> str | None:
    """Say which device a capture is of that is not read, by its planes or processes; else None."""
    found = [match for name in planes if (match := _OTHER.search(name))]
    kinds = {match["kind"]: {each.group() for each in found if each["kind"] == match["kind"]}
             for match in found}  # fmt: skip
    told = " and ".join(counted(len(devices), kind) for kind, devices in sorted(kinds.items()))
    return f"a capture of {told}, which `drill` does not read" if told else None


_ROUND, _BINARY = 100_000, 1 << 20


def at_a_cap(count: int, *, is_round: bool = False) -> bool:
    """Tell whether a number of events is one at which writers stop, so that more were there.

    A collector keeps 2 x 1024 x 1024 of a kind, ROCm's one more. With `is_round` such numbers as
    300,000 count too: jaxlib's trace.json ends at 1,000,000 events (5,000,000 since mid-2026), a
    viewer's at what its user asked for. One file in 80,000 has such a number by chance.
    """
    is_binary = count >= _BINARY and count % _BINARY in (0, 1)
    return is_binary or (is_round and count >= _ROUND and count % _ROUND == 0)


class Names(dict[str, int]):
    """Strings to indices: equal strings of several planes and files share one."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


def without_containers(events: Events) -> Events:
    """Drop events that contain the next one of the same thread: a `while` is its body's time.

    Host events nest; those of a GPU stream do not.
    """
    # of two that start together the longer one is outside
    order = np.lexsort((-events.duration_ps, events.start_ps))
    ordered = events.take(order)
    inner = np.ones(len(ordered), bool)
    if len(ordered) > 1:
        inner[:-1] = ordered.start_ps[1:] >= ordered.end_ps[:-1]
    return ordered.take(inner)


def launches(ids: Ints, start_ps: Ints) -> Launches:
    """Return host calls by id; of several with one id the first is the launch."""
    if (np.diff(ids) > 0).all():
        return Launches(id=ids, start_ps=start_ps)  # as one thread writes them
    order = np.lexsort((start_ps, ids))
    ids, first = np.unique(ids[order], return_index=True)
    return Launches(id=ids, start_ps=start_ps[order][first])


class Kind(StrEnum):
    """What a kernel does to the step."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


KINDS = tuple(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named set of kernels: those whose name the pattern finds, in any case of letters."""

    name: str
    kind: Kind
    pattern: str


_LIBRARY = r"(?:nccl|rccl|msccl)\w*"
# Each pattern stands beside a kernel that it is for.
FAMILIES: tuple[Family, ...] = tuple(
    Family(name=name, kind=kind, pattern=pattern)
    for name, kind, pattern in (
        # void stream_executor::gpu::RaggedAllToAllKernelImpl<8>(...)
        ("ragged all-to-all, in process", Kind.COMMUNICATION, r"RaggedAllToAllKernelImpl"),
        # void primus_turbo::deep_ep::intranode::dispatch<...>(...)
        ("deep_ep", Kind.COMMUNICATION, r"\bdeep_ep\b"),
        # one family a kind; a library's kernel, XLA's own, and an operation of the CPU
        #   ncclDevKernel_AllGather_RING_LL(...)    all-gather.10
        ("all-gather", Kind.COMMUNICATION, rf"{_LIBRARY}AllGather|^all-gather\b"),
        # ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    reduce-scatter.3
        ("reduce-scatter", Kind.COMMUNICATION, rf"{_LIBRARY}ReduceScatter|^reduce-scatter\b"),
        # ncclDevKernel_AllReduce_Sum_f32_TREE_LL    stream_executor::gpu::AllReduceKernelImpl<...>
        (
            "all-reduce",
            Kind.COMMUNICATION,
            rf"{_LIBRARY}AllReduce|\bAllReduceKernel|^all-reduce\b",
        ),
        # ncclDevKernel_AllToAll    ragged-all-to-all.1
        ("all-to-all", Kind.COMMUNICATION, rf"{_LIBRARY}AllToAll|^(ragged-)?all-to-all\b"),
        # ncclDevKernel_SendRecv    collective-permute.2    recv.4
        (
            "send and receive",
            Kind.COMMUNICATION,
            rf"{_LIBRARY}SendRecv|^(collective-permute|send|recv)\b",
        ),
        # rcclGenericKernel    ncclDevKernel_Broadcast_RING_LL    mscclKernel_Sum_half_LL
        ("nccl, rccl", Kind.COMMUNICATION, r"nccl|rccl|mscclk|mscclpp"),
        # stream_executor::gpu::MultiGpuBarrierKernel    collective-broadcast.1
        (
            "other collectives",
            Kind.COMMUNICATION,
            r"MultiGpuBarrier|nvshmem|rocshmem|^collective-broadcast\b",
        ),
        # MemcpyH2D    CopyDeviceToDevice    __amd_rocclr_copyBuffer.kd    copy.12 (CPU)
        (
            "copies",
            Kind.MEMORY,
            r"^mem(cpy|set)|^copy(device|host)to|__amd_rocclr_(copy|fill)|^copy(\.\d+)?$",
        ),
        # aiter::fmha_bwd_hd128_bf16    cudnn_generated_fort_native_sdpa_sm90_flash_fprop
        # transformer_engine::fused_attn_rocm::dk_dv_reduce
        ("attention", Kind.COMPUTE, r"fmha|flash|\baiter|sdpa|attention|(\b|_)attn"),
        # Cijk_Ailk_Bljk_BBS_...    nvjet_hsh_128x256    gemm_fusion_dot_2    ck_tile::GemmKernel
        (
            "gemm",
            Kind.COMPUTE,
            r"gemm|^Cijk_|nvjet|cutlass|xmma|cublas|matmul|^dot\b|wgrad|^ynn_fusion|onednn",
        ),
        # input_scatter_fusion_2.kd
        ("scatter fusions", Kind.COMPUTE, r"scatter"),
        # loop_gather_fusion.kd
        ("gather fusions", Kind.COMPUTE, r"gather"),
        # input_reduce_fusion_1    input_broadcast_reduce_select
        ("reduce fusions", Kind.COMPUTE, r"reduce"),
        # loop_transpose_fusion_3
        ("transpose fusions", Kind.COMPUTE, r"transpose"),
        # loop_convert_fusion.kd
        ("convert fusions", Kind.COMPUTE, r"convert"),
        # loop_select_fusion
        ("select fusions", Kind.COMPUTE, r"select"),
        # fusion_5.kd    wrapped_add    loop_multiply_fusion_7    triton_softmax_2
        ("other fusions", Kind.COMPUTE, r"fusion|^wrapped_|^triton_"),
    )
)
OTHER = Family(name="other", kind=Kind.COMPUTE, pattern="")


def parse_families(data: Json, *, where: str) -> tuple[Family, ...]:
    """Read a user's own families: a list of tables with `name`, `kind` and `pattern`.

    Raises:
        ConfigError: another shape, an unknown kind, a pattern that is no regular expression.
    """
    if not isinstance(data, list):
        raise ConfigError(f"{where}: expected a list of families, found {data!r:.80}")
    found = []
    for item in data:
        if not isinstance(item, dict) or item.keys() != {"name", "kind", "pattern"}:
            raise ConfigError(
                f"{where}: expected name, kind and pattern of a family, found {item!r:.80}"
            )
        if item["kind"] not in KINDS:
            raise ConfigError.unknown("kind", str(item["kind"]), valid=KINDS, where=where)
        try:
            re.compile(str(item["pattern"]))
        except re.error as error:
            raise ConfigError(f"{where}: pattern {item['pattern']!r}: {error}") from None
        found.append(
            Family(name=str(item["name"]), kind=Kind(item["kind"]), pattern=str(item["pattern"]))
        )
    return tuple(found)


@functools.lru_cache(maxsize=2)  # ranks of a window bear the same names
def classify(
    names: tuple[str, ...], families: tuple[Family, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the family (an index; `len(families)` is other) and the kind of each name."""
    patterns = [re.compile(family.pattern, re.IGNORECASE) for family in families]
    kinds = [*(KINDS.index(family.kind) for family in families), KINDS.index(OTHER.kind)]
    family = [
        next((i for i, pattern in enumerate(patterns) if pattern.search(name)), len(families))
        for name in names
    ]
    return np.array(family, np.int64), np.array([kinds[each] for each in family], np.int64)
