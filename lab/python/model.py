#!/usr/bin/env python3
"""A second model of a recording, written apart from vmlab.

It knows the format of traces and what Linux 6.12 does, and shares no code with vmlab. It reads a trace by itself,
applies the events to sets of areas, and compares its figures with those of `vmlab report --json`. A figure that
differs is an error of one of the two.

    python3 lab/python/model.py --vmlab target/debug/vmlab data/boot-smp1.ftrace.gz ...

What the kernel does (mm/vmalloc.c, mm/percpu.c of Linux 6.12):

- `alloc_vmap_area` without `failed` makes `[va_start, va_start + size)` busy. With it, nothing changes.
- `free_vmap_area_noflush` makes the busy area at `va_start` lazy: it is not reused before a purge.
- `purge_vmap_area_lazy` returns `num_purged` lazy areas. Those that were freed while it ran stay lazy, so the areas
  that it returns are the oldest. What is purged counts as free here, though the kernel may keep it in a pool.
- `percpu_create_chunk` makes an area busy at its `base_addr`. Only /proc/vmallocinfo has its size.
- Blocks of vm_map_ram are freed without an event. An area is gone at the latest when its range is allocated again.
- Before the first event there are the areas of the table from the beginning, if there is one. An event that came while
  that table was read decides what was there: an allocation was not, and what is freed was busy.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import gzip
import json
import pathlib
import re
import subprocess
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, TextIO, Tuple

PAGE = 4096
# The kernel manages [1, ULONG_MAX).
SPACE = (1, 2**64 - 1)
CHUNK = 2 << 20
NAMES = (
    "alloc_vmap_area",
    "free_vmap_area_noflush",
    "purge_vmap_area_lazy",
    "percpu_create_chunk",
    "percpu_destroy_chunk",
)
HEAD = re.compile(r"^\s*(?P<task>.+)-\d+\s+\[\d+\]\s+\S+\s+[\d.]+:\s+(?P<name>\w+):\s+(?P<fields>.*)$")


class Row(NamedTuple):
    """An area of /proc/vmallocinfo."""

    start: int
    size: int
    text: str

    @property
    def lazy(self) -> bool:
        return self.text.startswith("unpurged vm_area")

    @property
    def caller(self) -> str:
        symbol = re.match(r"([\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+", self.text)
        if symbol:
            return symbol.group(1)
        return "vm_map_ram" if "vm_map_ram" in self.text else "(unnamed)"


class Event(NamedTuple):
    """An event, or a mark of the recorder (`mark`)."""

    name: str
    task: str
    fields: Dict[str, int]


class Input(NamedTuple):
    """A trace and the tables of its ends."""

    events: List[Event]
    before: Optional[List[Row]]
    after: List[Row]


# ---- reading


def number(value: Any, base: int = 0) -> int:
    return value if isinstance(value, int) else int(value, base)


def text_of(path: pathlib.Path, vmlab: str) -> TextIO:
    """Opens plain text or gzip; anything else is unpacked by vmlab, which does not interpret a line of a recording."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic[:2] == b"\x1f\x8b":
        return gzip.open(path, "rt", errors="replace")
    if magic == b"\x28\xb5\x2f\xfd":
        if path.name.endswith("vmallocinfo.zst"):
            raise SystemExit(f"{path}: unpack it first")
        output = subprocess.run([vmlab, "convert", str(path), "--as", "jsonl"], check=True, capture_output=True, text=True)
        return iter(output.stdout.splitlines(True))  # type: ignore[return-value]
    return path.open(errors="replace")


def row_of(line: str) -> Optional[Row]:
    match = re.match(r"0x([0-9a-f]+)-0x([0-9a-f]+)\s+(\d+)\s*(.*)", line.strip())
    if not match:
        return None
    start, end, size = int(match[1], 16), int(match[2], 16), int(match[3])
    return Row(start, size, match[4]) if size > 0 and end - start == size else None


def event_of_text(line: str) -> Optional[Event]:
    match = HEAD.match(line)
    if not match:
        return None
    name, fields = match["name"], match["fields"]
    if name == "tracing_mark_write":
        return Event("mark " + fields.strip(), "", {})
    if name not in NAMES:
        return None
    # Linux prints "va_start: N" in one event and "va_start=N" in the others.
    pairs = re.findall(r"(\w+)(?:=|: )(\S+)", fields)
    base = {key: 16 if key == "base_addr" else 0 for key, _ in pairs}
    return Event(name, match["task"].strip(), {key: number(value, base[key]) for key, value in pairs})


def read(path: pathlib.Path, vmlab: str) -> Input:
    events: List[Event] = []
    tables: Dict[str, List[Row]] = {}
    for line in text_of(path, vmlab):
        if not line.startswith("{"):
            event = event_of_text(line)
            if event:
                events.append(event)
            continue
        item = json.loads(line)
        if "area" in item:
            area = item["area"]
            rows = tables.setdefault(area["when"], [])
            if "start" in area and "end" in area and number(area["end"]) - number(area["start"]) == number(area["bytes"]):
                rows.append(Row(number(area["start"]), number(area["bytes"]), area["text"]))
        elif item.get("event") == "tracing_mark_write":
            events.append(Event("mark " + item["text"], "", {}))
        elif item.get("event") in NAMES:
            keys = ("va_start", "size", "align", "vstart", "vend", "failed", "num_purged", "base_addr")
            fields = {key: number(item[key]) for key in keys if key in item}
            events.append(Event(item["event"], item.get("task", ""), fields))
    stem = path.name
    for end in (".gz", ".zst", ".ftrace", ".txt", ".jsonl"):
        stem = stem[: -len(end)] if stem.endswith(end) else stem

    def beside(end: str) -> Optional[List[Row]]:
        plain = path.with_name(f"{stem}.{end}")
        if plain.exists():
            return [row for row in map(row_of, plain.read_text(errors="replace").splitlines()) if row]
        return None

    before = beside("before.vmallocinfo")
    after = beside("vmallocinfo")
    if before is None:
        before = tables.get("begin")
    if after is None:
        after = tables.get("end") or tables.get("begin") or []
    return Input(events, before, after)


# ---- the space


class Space:
    """Busy and lazy areas, and the holes between them."""

    def __init__(self, window: Tuple[int, int]) -> None:
        self.window = window
        # First address: bytes, and who allocated it.
        self.busy: Dict[int, Tuple[int, str]] = {}
        # First address: bytes, in the order of the frees.
        self.lazy: "collections.OrderedDict[int, int]" = collections.OrderedDict()
        self.busy_bytes = 0
        self.lazy_bytes = 0
        # Starts of all held areas in order, and their ends.
        self.starts: List[int] = []
        self.end_of: Dict[int, int] = {}
        self.ends: Dict[int, int] = {}
        self.touching = 0
        self._largest: Optional[Tuple[int, int]] = None

    def _hold(self, start: int, size: int) -> None:
        end = start + size
        self.touching += (start in self.ends) + (end in self.end_of)
        bisect.insort(self.starts, start)
        self.end_of[start], self.ends[end] = end, start
        if self._largest and start < self._largest[1] and end > self._largest[0]:
            self._largest = None

    def _release(self, start: int) -> None:
        end = self.end_of.pop(start)
        del self.ends[end]
        del self.starts[bisect.bisect_left(self.starts, start)]
        self.touching -= (start in self.ends) + (end in self.end_of)
        self._largest = None

    def allocate(self, start: int, size: int, holder: str) -> None:
        end = start + size
        while True:
            at = bisect.bisect_left(self.starts, end) - 1
            if at < 0 or self.end_of[self.starts[at]] <= start:
                break
            self._forget(self.starts[at])
        self.busy[start] = (size, holder)
        self.busy_bytes += size
        self._hold(start, size)

    def _forget(self, start: int) -> None:
        """Frees an area that was freed without an event."""
        if start in self.busy:
            self.busy_bytes -= self.busy.pop(start)[0]
        else:
            self.lazy_bytes -= self.lazy.pop(start)
        self._release(start)

    def free(self, start: int) -> None:
        if start in self.busy:
            size, _ = self.busy.pop(start)
            self.busy_bytes -= size
            self.lazy[start] = size
            self.lazy_bytes += size

    def purge(self, count: int) -> None:
        for _ in range(min(count, len(self.lazy))):
            start, size = self.lazy.popitem(last=False)
            self.lazy_bytes -= size
            self._release(start)

    def holes(self) -> int:
        runs = len(self.starts) - self.touching
        if not self.starts:
            return 1
        first, last = self.starts[0], self.end_of[self.starts[-1]]
        return runs - 1 + (first > SPACE[0]) + (last < SPACE[1])

    def gaps(self) -> Iterator[Tuple[int, int]]:
        """The free ranges inside the window."""
        low, high = self.window
        at = low
        for start in self.starts:
            end = self.end_of[start]
            if start >= high:
                break
            if start > at:
                yield at, start
            at = max(at, end)
        if at < high:
            yield at, high

    def largest(self) -> Tuple[int, int]:
        if self._largest is None:
            self._largest = max(self.gaps(), key=lambda gap: gap[1] - gap[0], default=(0, 0))
        return self._largest


def whole_pages(gap: Tuple[int, int]) -> int:
    start, end = -(-gap[0] // PAGE) * PAGE, gap[1] // PAGE * PAGE
    return max(end - start, 0)


def standing(events: List[Event], before: Optional[List[Row]]) -> Tuple[List[Row], List[bool], List[Event]]:
    """The areas before the first event, whether each is lazy, and the events that follow."""
    names = [event.name for event in events]

    def mark(side: str) -> Optional[int]:
        text = f"mark vmlab vmallocinfo begin {side}"
        return names.index(text) if text in names else None

    if before is None:
        return [], [], events
    opens = mark("opens")
    first = opens or 0
    closes = max(mark("closes") or first, first)
    seen: Dict[int, str] = {}
    for event in events[first:closes]:
        if event.name == "free_vmap_area_noflush" or event.name == "alloc_vmap_area" and not event.fields["failed"]:
            seen.setdefault(event.fields["va_start"], event.name)
    rows, lazy = [], []
    for row in before:
        what = seen.get(row.start)
        if what != "alloc_vmap_area":
            rows.append(row)
            lazy.append(row.lazy and what is None)
    return rows, lazy, events[first:]


def figures(given: Input) -> Dict[str, Any]:
    rows, lazy, events = standing(given.events, given.before)
    events = [event for event in events if event.name in NAMES]
    windows = collections.Counter(
        (event.fields["vstart"], event.fields["vend"]) for event in events if event.name == "alloc_vmap_area"
    )
    window = max(windows.items(), key=lambda item: (item[1], item[0]))[0]
    space = Space(window)
    for row, is_lazy in zip(rows, lazy):
        space.allocate(row.start, row.size, row.caller)
        if is_lazy:
            space.free(row.start)
    chunks = {row.start: row.size for row in reversed(given.after) if row.text.startswith("pcpu_get_vm_areas")}
    any_chunk = next((row.size for row in given.after if row.text.startswith("pcpu_get_vm_areas")), CHUNK)
    peaks: Dict[str, Dict[str, int]] = {}

    def note(at: int) -> None:
        for name, value in (
            ("busy_bytes", space.busy_bytes),
            ("busy_areas", len(space.busy)),
            ("lazy_pages", space.lazy_bytes // PAGE),
            ("lazy_areas", len(space.lazy)),
            ("holes", space.holes()),
            ("span_bytes", window[1] - window[0] - whole_pages(space.largest())),
        ):
            if name not in peaks or value > peaks[name]["value"]:
                peaks[name] = {"value": value, "event": at}

    counts: "collections.Counter[str]" = collections.Counter()
    failed = allocated = purged = 0
    tasks: Dict[str, List[int]] = {}
    note(0)
    for at, event in enumerate(events, 1):
        fields = event.fields
        counts[event.name] += 1
        if event.name == "alloc_vmap_area":
            if fields["failed"]:
                failed += 1
            else:
                allocated += fields["size"]
                task = tasks.setdefault(event.task, [0, 0])
                task[0] += 1
                task[1] += fields["size"]
                holder = f"task {event.task}" if event.task else "(unnamed)"
                space.allocate(fields["va_start"], fields["size"], holder)
        elif event.name == "free_vmap_area_noflush":
            space.free(fields["va_start"])
        elif event.name == "purge_vmap_area_lazy":
            purged += fields["num_purged"]
            space.purge(fields["num_purged"])
        elif event.name == "percpu_create_chunk":
            base = fields["base_addr"]
            space.allocate(base, chunks.get(base, any_chunk), "(percpu chunk)")
        note(at)
    # The table of the end names the callers of what is busy then.
    listed = {(row.start, row.size): row.caller for row in given.after if not row.lazy}
    callers: Dict[str, List[int]] = {}
    for start, (size, holder) in space.busy.items():
        caller = callers.setdefault(listed.get((start, size), holder), [0, 0])
        caller[0] += 1
        caller[1] += size
    largest = space.largest()
    return {
        "events": {name: counts[name] for name in NAMES},
        "standing": len(rows),
        "failed": failed,
        "allocated_bytes": allocated,
        "purged_areas": purged,
        "peaks": peaks,
        "end": {
            "busy": {"areas": len(space.busy), "bytes": space.busy_bytes},
            "lazy": {"areas": len(space.lazy), "bytes": space.lazy_bytes},
            "holes": space.holes(),
            "largest_hole": largest[1] - largest[0],
        },
        "callers": {name: {"areas": areas, "bytes": size} for name, (areas, size) in callers.items()},
        "tasks": {name: {"allocs": allocs, "bytes": size} for name, (allocs, size) in tasks.items()},
    }


# ---- the comparison


def flat(value: Any, path: str = "") -> Dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    flattened: Dict[str, Any] = {}
    for key, inner in value.items():
        flattened.update(flat(inner, f"{path}/{key}" if path else key))
    return flattened


def reported(path: pathlib.Path, vmlab: str) -> Dict[str, Any]:
    output = subprocess.run([vmlab, "report", "--json", str(path)], check=True, capture_output=True, text=True)
    report = json.loads(output.stdout)
    if report["version"] != 1:
        raise SystemExit(f"version {report['version']} of the figures is not known here")
    named = {
        "callers": {row["name"]: {key: row[key] for key in ("areas", "bytes")} for row in report["callers"]},
        "tasks": {row["name"]: {key: row[key] for key in ("allocs", "bytes")} for row in report["tasks"]},
    }
    return {key: value for key, value in {**report, **named}.items() if key not in ("version", "trace")}


def main() -> int:
    parser = argparse.ArgumentParser(description="compares a second model with vmlab report --json")
    parser.add_argument("--vmlab", default="vmlab", help="the program")
    parser.add_argument("traces", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    differ = 0
    for path in arguments.traces:
        model = flat(figures(read(path, arguments.vmlab)))
        report = flat(reported(path, arguments.vmlab))
        wrong = [key for key in sorted(model.keys() | report.keys()) if model.get(key) != report.get(key)]
        for key in wrong:
            print(f"{path.name}: {key}: model {model.get(key)}, vmlab {report.get(key)}")
        print(f"{path.name}: {len(model)} figures, {len(wrong)} differ")
        differ += len(wrong)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
