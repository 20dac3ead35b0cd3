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
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Type, TypeVar, Union

if TYPE_CHECKING:
    import pandas

__version__ = "0.1.0"
#: The version of the objects that this package reads.
VERSION = 1


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
class WhatIf:
    """`vmlab whatif --json`: a recording under several policies; `part` says what is counted, if not all is."""

    recording: str
    policies: List[Policy]
    verdict: str
    part: Optional[str] = None


@dataclass(frozen=True)
class Window:
    """A window of areas, and its holes."""

    start: int
    end: int
    holes: int
    hole_bytes: int


@dataclass(frozen=True)
class Map:
    """`vmlab map --json`: the space at one time."""

    title: str
    busy: Amount
    lazy: Amount
    pooled: Amount
    holes: Amount
    largest_holes: List[int]
    windows: List[Window]
    callers: List[Caller]
    notes: List[str] = field(default_factory=list)


Record = Union[Figures, Replay, SpaceReplay, WhatIf, Map]
T = TypeVar("T")

# The fields that are other records, and the keys that tell the objects apart.
_INNER: Dict[str, Type[Any]] = {
    "End.busy": Amount,
    "End.lazy": Amount,
    "Figures.peaks": Peak,
    "Figures.end": End,
    "Figures.callers": Caller,
    "Figures.tasks": Task,
    "WhatIf.policies": Policy,
    "Map.busy": Amount,
    "Map.lazy": Amount,
    "Map.pooled": Amount,
    "Map.holes": Amount,
    "Map.windows": Window,
    "Map.callers": Caller,
}
_KINDS = (("peaks", Figures), ("policies", WhatIf), ("index", Replay), ("why", SpaceReplay), ("windows", Map))
_MAPPINGS = ("Figures.peaks",)
_ADDRESSES = ("Window.start", "Window.end")


def _record(kind: Type[T], value: Mapping[str, Any]) -> T:
    given: Dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in value:
            continue
        name, inner = f"{kind.__name__}.{one.name}", value[one.name]
        of = _INNER.get(name)
        if name in _ADDRESSES:
            inner = int(inner, 0)
        elif of and name in _MAPPINGS:
            inner = {key: _record(of, each) for key, each in inner.items()}
        elif of and isinstance(inner, list):
            inner = [_record(of, each) for each in inner]
        elif of:
            inner = _record(of, inner)
        given[one.name] = inner
    return kind(**given)


def record(value: Mapping[str, Any]) -> Record:
    """Returns the record of an object.

    Raises UnknownVersion or UnknownObject for another, and TypeError if a key is missing.
    """
    if value.get("version") != VERSION:
        raise UnknownVersion(f"version {value.get('version')!r}, and this package reads {VERSION}")
    for key, kind in _KINDS:
        if key in value:
            return _record(kind, value)  # type: ignore[return-value]
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
    """Flattens records into rows of a table: one for each, or one for each policy of a WhatIf.

    A field inside another has a key such as `end.busy.bytes`. Lists of callers, tasks and windows are left out: they are
    tables of their own (`rows(figures.callers)`).
    """
    for one in records:
        if isinstance(one, WhatIf):
            for policy in one.policies:
                yield {"recording": one.recording, **dict(_flat(policy, ""))}
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
