"""Reads what `vmlab ... --json` prints, into plain records or pandas DataFrames.

    import vmlab
    for figures in vmlab.run("report", "trace.ftrace.gz"):
        print(figures.trace, figures.peaks["busy_bytes"].value)
    vmlab.frame(vmlab.read(open("rows.jsonl")))      # needs pandas

Each object that vmlab prints names the version of its form. An object of a version that this package does not know is
an error (`UnknownVersion`), and unknown keys are ignored. Addresses are integers here, and strings in the JSON.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar, Union

if TYPE_CHECKING:
    import pandas

__version__ = "0.1.0"
#: The version of the objects that this package reads, all but those of a Diff.
VERSION = 1
#: The metadata of a field that has an address, or a list of them.
ADDRESS = {"address": True}


class UnknownVersion(ValueError):
    """An object has a version that this package does not know, or none."""


class UnknownObject(ValueError):
    """An object is of no command of vmlab that this package knows."""


@dataclass(frozen=True)
class Amount:
    """Areas and their bytes."""

    areas: int
    bytes: int


@dataclass(frozen=True)
class Peak:
    """A maximum, and the number of events before the first state that has it."""

    value: int
    event: int


@dataclass(frozen=True)
class Caller:
    """The areas of a caller; `keeps_apart` is bytes of holes that would join a larger one without them."""

    name: str
    areas: int
    bytes: int
    largest: int
    keeps_apart: int


@dataclass(frozen=True)
class Task:
    """The allocations of a task."""

    name: str
    allocs: int
    bytes: int


@dataclass(frozen=True)
class End:
    """The space after the last event; holes are those of the whole space."""

    busy: Amount
    lazy: Amount
    holes: int
    largest_hole: int


@dataclass(frozen=True)
class Figures:
    """`vmlab report --json`: a trace."""

    trace: str
    events: Dict[str, int]
    standing: int
    failed: int
    allocated_bytes: int
    purged_areas: int
    peaks: Dict[str, Peak]
    end: End
    callers: List[Caller]
    tasks: List[Task]


@dataclass(frozen=True)
class Replay:
    """`vmlab replay --json`: a trace on an index. The answers are in five columns whose sum is `allocs`."""

    trace: str
    index: str
    events: int
    allocs: int
    equal: int
    lower: int
    higher: int
    failed_both: int
    failed_differs: int
    inferred: int
    ns_median: float
    ns_min: float
    holes: int
    largest_hole: int


@dataclass(frozen=True)
class SpaceReplay:
    """`vmlab replay --space --json`: a trace on a space under a policy."""

    trace: str
    policy: str
    nodes: int
    events: int
    allocs: int
    equal: int
    lower: int
    higher: int
    failed_both: int
    failed_differs: int
    inferred: int
    why: Dict[str, int]
    purges: int
    flushes: int
    pooled: int
    holes: int


@dataclass(frozen=True)
class Difference:
    """A place where the core did something else than in the kernel."""

    line: int
    call: str
    kernel: str
    here: str


@dataclass(frozen=True)
class CallsReplay:
    """`vmlab replay --calls --json`: the calls of a core inside a kernel, on the same core."""

    recording: str
    cpus: int
    calls: int
    by_call: Dict[str, int]
    by_cpu: List[int]
    addresses: int
    equal: int
    requests: int
    differences: int
    first: List[Difference]
    complete: bool


@dataclass(frozen=True)
class Policy:
    """A policy of `vmlab whatif --json`. Stalls are modelled."""

    policy: str
    nodes: int
    requests: int
    failed: int
    saved: int
    span_bytes: int
    hole_bytes: int
    holes: int
    kept_bytes: int
    purges: int
    flushes: int
    purged: int
    stall_ns: int
    longest_stall_ns: int
    passed_over: int


@dataclass(frozen=True)
class Pinned:
    """The areas that stand from before the recording to its end, and the bytes up to the end of the highest."""

    areas: int
    bytes: int
    span_bytes: int


@dataclass(frozen=True)
class WhatIf:
    """`vmlab whatif --json`: a recording under several policies; `part` says what is counted, if not all is."""

    recording: str
    policies: List[Policy]
    verdict: str
    pinned: Pinned
    part: Optional[str] = None


@dataclass(frozen=True)
class Window:
    """A window of areas, and its holes."""

    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)
    holes: int
    hole_bytes: int


@dataclass(frozen=True)
class Aligned:
    """The most bytes from an aligned address on, and the holes that fit a request of that size and alignment."""

    align: int
    bytes: int
    at: Optional[int] = field(metadata=ADDRESS)
    holes: int


@dataclass(frozen=True)
class Map:
    """`vmlab map --json`: the space at one time."""

    title: str
    busy: Amount
    lazy: Amount
    pooled: Amount
    holes: Amount
    largest_holes: List[int]
    holes_by_size: List[int]
    aligned: List[Aligned]
    overlapping: int
    beyond: int
    windows: List[Window]
    callers: List[Caller]
    notes: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class PercpuReplay:
    """`vmlab replay --percpu --json`: the per-CPU objects of a trace under a policy."""

    trace: str
    policy: str
    allocs: int
    equal: int
    lower: int
    higher: int
    elsewhere: int
    failed: int
    first: int
    first_equal: int
    not_placed: int
    frees_unknown: int
    assumed_bytes: int
    chunks: int


@dataclass(frozen=True)
class Divergence:
    """An alloc of a recording that a policy answers with another address than the kernel."""

    number: int
    line: int
    ns: Optional[int]
    cpu: Optional[int]
    size: int
    align: int
    window: List[int] = field(metadata=ADDRESS)
    kernel: Optional[int] = field(metadata=ADDRESS)
    policy: Optional[int] = field(metadata=ADDRESS)
    cause: str
    why: str


@dataclass(frozen=True)
class Diff:
    """`vmlab replay --diff --json`: a recording under a policy, the causes of what differs, and the first of that."""

    recording: str
    policy: str
    nodes: int
    allocs: int
    equal: int
    lower: int
    higher: int
    failed_both: int
    failed_differs: int
    purges: int
    differ: int
    unknowable: int
    causes: Dict[str, int]
    divergences: List[Divergence]
    causes_incomplete: bool = False


@dataclass(frozen=True)
class Durations:
    """Durations, in nanoseconds."""

    count: int
    median_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    total_ns: int


@dataclass(frozen=True)
class Call(Durations):
    """The durations of a call; of one caller or task with `--by`. A part of the histogram is its lower end and a count."""

    call: str
    function: str
    histogram: List[List[int]]
    caller: Optional[str] = None
    task: Optional[str] = None


@dataclass(frozen=True)
class Lock(Durations):
    """The waits for a lock at one place; a lock that the kernel does not name has none here."""

    site: str
    lock: Optional[str] = None


@dataclass(frozen=True)
class Probes:
    """The probes of a recording: a measured call takes `plain_ps` picoseconds, and `pair_ps` more with its two probes."""

    kind: str
    functions: List[str]
    resolution_ns: int
    measured_calls: int
    plain_ps: int
    pair_ps: int
    floor_ns: int


@dataclass(frozen=True)
class Latency:
    """`vmlab latency --json`: the durations and waits of a recording.

    `unpaired` counts what has no duration, and `elsewhere` waits that are of no lock of the allocators.
    """

    recording: str
    span_ns: int
    lost: int
    unpaired: Dict[str, int]
    calls: List[Call]
    locks: List[Lock]
    elsewhere: Dict[str, int]
    kernel: Optional[str] = None
    cpus: Optional[int] = None
    probes: Optional[Probes] = None


@dataclass(frozen=True)
class Leak:
    """Areas that a caller had not freed at the end; the oldest is that many nanoseconds old."""

    areas: int
    bytes: int
    oldest_ns: Optional[int] = None


@dataclass(frozen=True)
class Spread:
    """The durations of a call, and between which the median and p99 of all such calls are, with 95 % of certainty.

    An end of an interval is `None` if the calls are too few to show it.
    """

    count: int
    median_ns: int
    median_interval_ns: List[Optional[int]]
    p99_ns: int
    p99_interval_ns: List[Optional[int]]
    max_ns: int


@dataclass(frozen=True)
class Side:
    """One side of a comparison. A caller has its bytes and areas."""

    name: str
    measures: Dict[str, float]
    callers: Dict[str, List[int]]
    leaks: Dict[str, Leak]
    durations: Dict[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class Compare:
    """`vmlab compare --json`: two recordings or tables, and the conditions of `--fail-if` that hold."""

    before: Side
    after: Side
    holds: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A place of the kernel's source that allocates; `memory` is vmalloc, percpu, own, or None if it is not known."""

    site: str
    calls: int
    bytes: int
    memory: Optional[str] = None


@dataclass(frozen=True)
class Sites:
    """`vmlab sites --json`: the listed places, and the number and bytes of all; `bad` lines cannot be read."""

    name: str
    places: int
    bytes: int
    sites: List[Place]
    bad: int = 0


Record = Union[Figures, Replay, SpaceReplay, PercpuReplay, CallsReplay, Diff, WhatIf, Map, Latency, Compare, Sites]
T = TypeVar("T")

# The fields that are other records, and the keys that tell the objects apart.
_INNER: Dict[str, Type[Any]] = {
    "End.busy": Amount,
    "End.lazy": Amount,
    "Figures.peaks": Peak,
    "Figures.end": End,
    "Figures.callers": Caller,
    "Figures.tasks": Task,
    "CallsReplay.first": Difference,
    "WhatIf.policies": Policy,
    "WhatIf.pinned": Pinned,
    "Map.busy": Amount,
    "Map.lazy": Amount,
    "Map.pooled": Amount,
    "Map.holes": Amount,
    "Map.aligned": Aligned,
    "Map.windows": Window,
    "Map.callers": Caller,
    "Diff.divergences": Divergence,
    "Latency.calls": Call,
    "Latency.locks": Lock,
    "Latency.probes": Probes,
    "Compare.before": Side,
    "Compare.after": Side,
    "Side.leaks": Leak,
    "Side.durations": Spread,
    "Sites.sites": Place,
}
_KINDS: Tuple[Tuple[str, Type[Any]], ...] = (
    ("peaks", Figures),
    ("policies", WhatIf),
    ("index", Replay),
    ("why", SpaceReplay),
    ("first_equal", PercpuReplay),
    ("by_call", CallsReplay),
    ("divergences", Diff),
    ("windows", Map),
    ("locks", Latency),
    ("after", Compare),
    ("sites", Sites),
)
_VERSIONS = {Diff: 2}
_MAPPINGS = ("Figures.peaks", "Side.leaks", "Side.durations")
# The records with a row for each of a list: the field that names the record, and the list.
_LISTS: Dict[Type[Any], Tuple[str, str]] = {
    WhatIf: ("recording", "policies"),
    Latency: ("recording", "calls"),
    Sites: ("name", "sites"),
}


def _record(kind: Type[T], value: Mapping[str, Any]) -> T:
    """Returns the record of an object: inner records, and integers of addresses. Unknown keys are ignored."""
    given: Dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in value:
            continue
        name, inner = f"{kind.__name__}.{one.name}", value[one.name]
        of = _INNER.get(name)
        if one.metadata.get("address"):
            inner = _address(inner)
        elif of and name in _MAPPINGS:
            inner = {key: _record(of, each) for key, each in inner.items()}
        elif of and isinstance(inner, list):
            inner = [_record(of, each) for each in inner]
        elif of and inner is not None:
            inner = _record(of, inner)
        given[one.name] = inner
    return kind(**given)


def _address(value: Any) -> Any:
    if isinstance(value, list):
        return [_address(one) for one in value]
    return None if value is None else int(value, 0)


def record(value: Mapping[str, Any]) -> Record:
    """Returns the record of an object.

    Raises UnknownVersion or UnknownObject for another, and TypeError if a key is missing.
    """
    kind = next((kind for key, kind in _KINDS if key in value), None)
    version = _VERSIONS.get(kind, VERSION) if kind else VERSION
    if value.get("version") != version:
        raise UnknownVersion(f"version {value.get('version')!r}, and this package reads {version}")
    if kind:
        return _record(kind, value)  # type: ignore[no-any-return]
    raise UnknownObject(f"an object with the keys {', '.join(sorted(value))}")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Reads an object a line, as vmlab prints them: an open file, or the lines of a text."""
    return (record(json.loads(line)) for line in lines if line.strip())


def run(command: str, *arguments: str, vmlab: str = "vmlab") -> List[Record]:
    """Runs `vmlab COMMAND --json ARGUMENTS`, and returns what it prints.

    Raises subprocess.CalledProcessError, with the reason in `stderr`, if it fails.
    """
    done = subprocess.run([vmlab, command, "--json", *arguments], check=True, capture_output=True, text=True)
    return list(read(done.stdout.splitlines()))


def rows(records: Iterable[Record]) -> Iterator[Dict[str, Any]]:
    """Flattens records into rows of a table.

    There is one row for each, or one for each policy of a WhatIf, call of a Latency, place of Sites and caller of a
    Compare. A field inside another has a key such as `end.busy.bytes`. Lists of callers, tasks, windows, locks and
    divergences are left out: they are tables of their own (`rows(figures.callers)`).
    """
    for one in records:
        if type(one) in _LISTS:
            name, parts = _LISTS[type(one)]
            for part in getattr(one, parts):
                yield {name: getattr(one, name), **dict(_flat(part, ""))}
        elif isinstance(one, Compare):
            before, after = one.before.callers, one.after.callers
            for caller in sorted(before.keys() | after.keys()):
                (old, olds), (new, news) = before.get(caller, (0, 0)), after.get(caller, (0, 0))
                sizes = {"before.bytes": old, "after.bytes": new, "before.areas": olds, "after.areas": news}
                yield {"caller": caller, **sizes}
        else:
            yield dict(_flat(one, ""))


def _flat(value: Any, path: str) -> Iterator[Any]:
    if hasattr(value, "__dataclass_fields__"):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif not isinstance(value, list):
        yield path, value


def frame(records: Iterable[Any]) -> "pandas.DataFrame":
    """Returns a pandas DataFrame with the rows of the records."""
    import pandas

    return pandas.DataFrame(list(rows(records)))
