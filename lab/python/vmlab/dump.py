"""The state of a kernel's address space at one time, as plain values: its checks, its tables, its lines of JSON.

    import vmlab.dump
    with open("dump.jsonl") as file:
        dump = vmlab.dump.read(file)
    print(vmlab.dump.tables(dump))
    assert all(check.holds for check in vmlab.dump.checks(dump))

`vmlab.kernel` reads one by drgn from a core dump or the running kernel; nothing here needs drgn. The lines are a
recording without events, which `vmlab map`, `report`, `compare` and `replay --before` read. `docs/formats.md` has them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

from . import ADDRESS, VERSION, UnknownVersion, _record

#: The states of an area. A purging one was taken from a lazy list, and its flush has not ended.
STATES = ("busy", "lazy", "purging", "pooled")
#: The texts of areas that are not busy; the first is the kernel's own.
TEXTS = {"lazy": "unpurged vm_area", "purging": "unpurged vm_area", "pooled": "pooled vm_area"}
#: Bytes of a bit of a chunk's maps (Linux 6.12, include/linux/percpu.h).
BIT_BYTES = 4
#: The most places in the table.
SITES_SHOWN = 12
#: The addresses that the kernel's tree of free areas has at boot (Linux 6.12, mm/vmalloc.c).
SPAN = (1, (1 << 64) - 1)


@dataclass(frozen=True)
class Area:
    """A range that is not free.

    `text` is the rest of its line of /proc/vmallocinfo, `node` the node whose list it is in. `flags` are written as an
    address is.
    """

    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)
    state: str
    node: int
    text: str
    flags: int = field(default=0, metadata=ADDRESS)
    pages: int = 0

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Hole:
    """A range of the tree of free areas."""

    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)


@dataclass(frozen=True)
class Window:
    """The addresses that areas of a kind may have: `vmalloc` or `modules`."""

    name: str
    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)


@dataclass(frozen=True)
class Pool:
    """The areas of one size that a node keeps, as the kernel counts them."""

    node: int
    pages: int
    areas: int


@dataclass(frozen=True)
class Block:
    """An area that a CPU cuts into small mappings.

    `free` and `dirty` pages are the kernel's counts, `live` pages those of its bits.
    """

    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)
    cpu: int
    queued: bool
    free: int
    dirty: int
    live: int


@dataclass(frozen=True)
class Chunk:
    """A chunk of per-CPU memory.

    The last four are counted from its maps, the others are the kernel's. `hint` and `longest` are bits.
    """

    base: int = field(metadata=ADDRESS)
    kind: str
    slot: int
    pages: int
    populated: int
    empty: int
    free_bytes: int
    hint: int
    bits_free: int
    bits_populated: int
    objects: int
    longest: int


@dataclass(frozen=True)
class Site:
    """A place of the kernel's source, and what it allocated: pages of `vmalloc`, or `percpu` bytes of all units."""

    memory: str
    file: str
    line: int
    function: str
    module: str
    bytes: int
    calls: int


@dataclass(frozen=True)
class State:
    """The counters of the kernel.

    `purging` is true while a thread holds the lock of purges, `queued` if a purge waits for a worker. `percpu_first` is
    the pages of a unit that the machine set up at boot: static and reserved memory, and the first chunk.
    """

    nodes: int
    zone_bytes: int
    lazy_pages: int
    lazy_pages_max: int
    purging: bool
    queued: bool
    unit_bytes: int
    units: int
    percpu_populated: int
    percpu_first: int
    percpu_empty: int


@dataclass(frozen=True)
class Head:
    """The kernel, and the program that read it: `dump` names that, and `live` is true if the kernel ran meanwhile."""

    kernel: str
    machine: str
    cpus: int
    online: int
    page_bytes: int
    dump: str
    live: bool


@dataclass
class Dump:
    """The state of an address space."""

    head: Head
    state: State
    windows: List[Window] = field(default_factory=list)
    areas: List[Area] = field(default_factory=list)
    holes: List[Hole] = field(default_factory=list)
    pools: List[Pool] = field(default_factory=list)
    blocks: List[Block] = field(default_factory=list)
    chunks: List[Chunk] = field(default_factory=list)
    sites: List[Site] = field(default_factory=list)

    def of(self, state: str) -> List[Area]:
        return [area for area in self.areas if area.state == state]


@dataclass(frozen=True)
class Check:
    """A rule, whether it holds, and the numbers."""

    rule: str
    holds: bool
    text: str


# --- Bits -------------------------------------------------------------------------------------------------------------


def bits(value: int, count: int) -> str:
    """Returns the lowest bits of a number as text, the lowest first."""
    return format(value & ((1 << count) - 1), f"0{count}b")[::-1] if count else ""


def ranges(taken: str, bounds: str) -> Iterator[Tuple[int, int, bool]]:
    """Returns first bit, length and kind of each range of a chunk's maps: true for an object, false for free bits.

    A bit of `bounds` is set where an object begins, and behind its end; between free bits it may be stale.
    """
    at = 0
    while at < len(taken):
        is_object = taken[at] == "1"
        end = bounds.find("1", at + 1) if is_object else taken.find("1", at)
        end = len(taken) if end < 0 else end
        yield at, end - at, is_object
        at = end


# --- Checks -----------------------------------------------------------------------------------------------------------


def checks(dump: Dump, table: Optional[str] = None) -> List[Check]:
    """Returns every rule that the state must meet: all of a kernel that stands still, in a dump.

    `table` is the text of /proc/vmallocinfo at the same time. A kernel that runs on may have an area in no list, on
    its way between two.
    """
    page, state = dump.head.page_bytes, dump.state
    rules = [*_whole(dump)]
    lazy = sum(area.bytes for area in dump.areas if area.state in ("lazy", "purging")) // page
    rules.append(_equal("lazy pages are the kernel's count", lazy, state.lazy_pages))
    counted: Dict[Tuple[int, int], int] = {}
    for area in dump.of("pooled"):
        key = (area.node, area.bytes // page)
        counted[key] = counted.get(key, 0) + 1
    known = {(pool.node, pool.pages): pool.areas for pool in dump.pools if pool.areas}
    wrong = {key for key in {*counted, *known} if counted.get(key) != known.get(key)}
    text = f"{len(known)} pools" + (f", {len(wrong)} differ" if wrong else "")
    rules.append(Check("each pool has as many areas of its size as the kernel counts", not wrong, text))
    away = [area for area in dump.of("busy") if area.start // state.zone_bytes % state.nodes != area.node]
    rules.append(Check("busy areas are in the node of their address", not away, f"{len(away)} are not"))
    rules += _blocks(dump) + _chunks(dump)
    if table is not None:
        rules.append(_table(dump, table))
    return rules


def _equal(rule: str, got: int, want: int) -> Check:
    return Check(rule, got == want, f"{got:,}" if got == want else f"{got:,}, and the kernel has {want:,}")


def _whole(dump: Dump) -> Iterator[Check]:
    """Areas and holes are disjoint, and no address is in none of them."""
    ranges = sorted([(one.start, one.end) for one in dump.areas] + [(one.start, one.end) for one in dump.holes])
    overlaps, gaps, gap_bytes, at = 0, 0, 0, SPAN[0]
    for start, end in [*ranges, (SPAN[1], SPAN[1])]:
        overlaps += start < at
        if start > at:
            gaps, gap_bytes = gaps + 1, gap_bytes + start - at
        at = max(at, end)
    yield Check("areas and holes are disjoint", not overlaps, f"{len(ranges):,} ranges, {overlaps:,} overlap another")
    yield Check("areas and holes are all addresses", not gaps, f"{gap_bytes:,} bytes in {gaps:,} ranges are in no list")
    # Two holes that touch would have been merged.
    ends = {hole.end for hole in dump.holes}
    touching = sum(hole.start in ends for hole in dump.holes)
    yield Check("no two holes touch", not touching, f"{len(dump.holes):,} holes, {touching:,} touch")


def _blocks(dump: Dump) -> List[Check]:
    page = dump.head.page_bytes
    wrong = [one for one in dump.blocks if one.free + one.dirty + one.live != (one.end - one.start) // page]
    # Flags of an area of vm_map_ram: 1, and 2 for one that is a block (Linux 6.12, mm/vmalloc.c).
    areas = {(area.start, area.end) for area in dump.of("busy") if area.flags & 3 == 3}
    known = {(block.start, block.end) for block in dump.blocks}
    text = f"{len(known):,} blocks, {len(areas ^ known):,} are not both"
    return [
        Check(
            "free, dirty and live pages are the whole block",
            not wrong,
            f"{len(dump.blocks):,} blocks, {len(wrong):,} differ",
        ),
        Check("each block is a busy area, and each area of blocks is a block", areas == known, text),
    ]


def _chunks(dump: Dump) -> List[Check]:
    chunks, state = dump.chunks, dump.state
    free = [one for one in chunks if one.bits_free * BIT_BYTES != one.free_bytes]
    pages = [one for one in chunks if one.bits_populated != one.populated]
    hints = [one for one in chunks if one.hint > one.longest]
    shared = [one for one in chunks if one.kind != "reserved"]
    areas = {area.start for area in dump.of("busy")}
    # The first chunk and the reserved one are in the direct map.
    away = [one for one in shared if one.kind != "first" and one.base not in areas]
    count = f"{len(chunks):,} chunks, {{:,}} differ"
    return [
        Check("free bits of a chunk are its free bytes", not free, count.format(len(free))),
        Check("populated bits of a chunk are its populated pages", not pages, count.format(len(pages))),
        Check("the hint of a chunk is no longer than its longest run", not hints, count.format(len(hints))),
        Check("chunks after the first begin at a busy area", not away, f"{len(chunks):,} chunks, {len(away):,} do not"),
        _equal(
            "populated pages are the kernel's count",
            state.percpu_first + sum(one.populated for one in shared if one.kind != "first"),
            state.percpu_populated,
        ),
        _equal(
            "empty populated pages are the kernel's count",
            sum(one.empty for one in shared if one.kind != "isolated"),
            state.percpu_empty,
        ),
    ]


def _table(dump: Dump, table: str) -> Check:
    """The areas that the kernel itself printed are these, each with its caller and its pages."""
    ours = {
        (area.start, area.end): words(area.text) for area in dump.areas if area.state in ("busy", "lazy") and area.text
    }
    theirs, bad = {}, 0
    for line in table.splitlines():
        parts = line.split(None, 2)
        try:
            start, end = (int(part, 16) for part in parts[0].split("-"))
            theirs[start, end] = words(parts[2] if len(parts) > 2 else "")
        except (IndexError, ValueError):
            bad += bool(line.strip())
    missing, more = len(theirs.keys() - ours.keys()), len(ours.keys() - theirs.keys())
    other = [key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]]
    text = f"{len(theirs):,} areas there, {missing:,} not here, {more:,} here alone, {len(other):,} with another text"
    holds = not (missing or more or other or bad) and bool(theirs)
    return Check("/proc/vmallocinfo has the same areas", holds, text + (f", {bad:,} lines unreadable" if bad else ""))


def words(text: str) -> Tuple[str, ...]:
    """Returns the words of a line's text without offsets of symbols, and without pages by NUMA node."""
    kept = [word.split("+0x")[0] for word in text.split()]
    return tuple(word for word in kept if not (word[:1] == "N" and "=" in word))


# --- Tables -----------------------------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Formats bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:,.0f} {unit}" if unit == "B" or count == int(count) else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def table(rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """Formats rows, the first of them the head; the first `left` columns are to the left."""
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    wide = [max(len(row[nth]) for row in texts) for nth in range(len(texts[0]))]
    lines = []
    for row in texts:
        cells = [cell.ljust(wide[nth]) if nth < left else cell.rjust(wide[nth]) for nth, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def tables(dump: Dump) -> str:
    """Returns the tables of a state, at most 80 columns wide: areas, nodes, the purge, blocks, chunks."""
    head, state, page = dump.head, dump.state, dump.head.page_bytes
    live = "the running kernel" if head.live else "a dump"
    parts = [f"Linux {head.kernel}, {head.machine}, {head.online} of {head.cpus} CPUs: {live}, read by {head.dump}"]
    rows: List[List[Any]] = [["state", "areas", "bytes", "largest"]]
    inside = [part for hole in dump.holes for part in _cut(hole, dump.windows)]
    of: List[Tuple[str, Sequence[Any]]] = [(name, dump.of(name)) for name in STATES]
    for name, ranges in [*of, ("holes", inside)]:
        sizes = [one.end - one.start for one in ranges]
        rows.append([name, len(sizes), size(sum(sizes)), size(max(sizes, default=0))])
    parts.append(table(rows))
    parts.append(
        "\n".join(
            f"window {one.name}: {one.start:016x}-{one.end:016x}, {size(one.end - one.start)}" for one in dump.windows
        )
    )
    parts.append(
        f"purge: {state.lazy_pages:,} lazy pages; more than {state.lazy_pages_max:,} begin a purge\n"
        f"       {'one is' if state.purging else 'none is'} running, {'one is' if state.queued else 'none is'} queued"
    )
    parts.append(_nodes(dump))
    if dump.blocks:
        rows = [["block", "cpu", "pages", "free", "dirty", "live", "queued"]]
        rows += [
            [
                f"{one.start:016x}",
                one.cpu,
                (one.end - one.start) // page,
                one.free,
                one.dirty,
                one.live,
                "yes" if one.queued else "no",
            ]
            for one in dump.blocks
        ]
        parts.append(table(rows))
    rows = [["chunk", "slot", "populated", "free", "objects", "longest", "hint", "kind"]]
    rows += [
        [
            f"{one.base:016x}",
            one.slot if one.slot >= 0 else "-",
            f"{one.populated}/{one.pages}",
            one.free_bytes,
            one.objects,
            one.longest * BIT_BYTES,
        ]
        + [one.hint * BIT_BYTES, one.kind or "-"]
        for one in dump.chunks
    ]
    units = f"per-CPU memory: {state.units} units of {size(state.unit_bytes)} a chunk; the figures are of one unit"
    parts.append(f"{units}\n{table(rows)}")
    if dump.sites:
        rows = [["allocated at", "memory", "calls", "bytes"]]
        for site in sorted(dump.sites, key=lambda site: -site.bytes)[:SITES_SHOWN]:
            module = f" [{site.module}]" if site.module else ""
            name = f"{site.file}:{site.line} {site.function}{module}"
            rows.append([name if len(name) <= 52 else f"...{name[-49:]}", site.memory, site.calls, size(site.bytes)])
        more = len(dump.sites) - SITES_SHOWN
        parts.append(table(rows, 2) + (f"\nand {more:,} other places" if more > 0 else ""))
    return "\n\n".join(part for part in parts if part)


def _cut(hole: Hole, windows: Sequence[Window]) -> List[Hole]:
    """Returns the parts of a hole that are in windows; all of it if no window is known."""
    if not windows:
        return [hole]
    cut = [(max(hole.start, one.start), min(hole.end, one.end)) for one in windows]
    return [Hole(start, end) for start, end in cut if start < end]


def _nodes(dump: Dump) -> str:
    """The areas of each node, and its pools: `4:12` is twelve areas of four pages."""
    page = dump.head.page_bytes
    rows: List[List[Any]] = [["node", "busy", "bytes", "lazy", "pages", "pooled", "bytes", "pools"]]
    for node in range(dump.state.nodes):
        of = {name: [area for area in dump.areas if area.node == node and area.state == name] for name in STATES}
        sums = {name: sum(area.bytes for area in areas) for name, areas in of.items()}
        pools = sorted((pool.pages, pool.areas) for pool in dump.pools if pool.node == node and pool.areas)
        shown = " ".join(f"{pages}:{areas}" for pages, areas in pools[:3]) + (
            f" +{len(pools) - 3}" if len(pools) > 3 else ""
        )
        rows.append([node, len(of["busy"]), size(sums["busy"]), len(of["lazy"]), sums["lazy"] // page])
        rows[-1] += [len(of["pooled"]), size(sums["pooled"]), shown or "-"]
    return table(rows) + "\npools: pages of an area, and areas of that size"


# --- Lines ------------------------------------------------------------------------------------------------------------

_LINES: Dict[str, Type[Any]] = {"hole": Hole, "pool": Pool, "block": Block, "chunk": Chunk, "site": Site}


def lines(dump: Dump) -> Iterator[str]:
    """Returns the lines of a recording without events. Addresses are strings, as in every recording."""
    head = {"version": VERSION, **asdict(dump.head), "pointers": "raw"}
    head["windows"] = [_plain(window) for window in dump.windows]
    yield _line("vmlab", head)
    yield _line("state", asdict(dump.state))
    for area in dump.areas:
        yield _line("area", {"when": "begin", **_plain(area), "bytes": area.bytes})
    kept: List[Tuple[str, Sequence[Any]]]
    kept = [("hole", dump.holes), ("pool", dump.pools), ("block", dump.blocks)]
    kept += [("chunk", dump.chunks), ("site", dump.sites)]
    for name, values in kept:
        for value in values:
            yield _line(name, _plain(value))


def _plain(value: Any) -> Dict[str, Any]:
    addresses = [one.name for one in fields(value) if one.metadata.get("address")]
    return {key: f"{one:#x}" if key in addresses else one for key, one in asdict(value).items()}


def _line(key: str, value: Mapping[str, Any]) -> str:
    return json.dumps({key: value}, separators=(",", ":"))


def read(text: Iterable[str]) -> Dump:
    """Reads the lines again; unknown keys are ignored.

    Raises UnknownVersion for another version or a recording of something else, TypeError if a key is missing.
    """
    head: Optional[Head] = None
    state: Optional[State] = None
    found: Dict[str, List[Any]] = {"window": [], "area": [], **{name: [] for name in _LINES}}
    for line in text:
        for key, value in (json.loads(line) if line.strip() else {}).items():
            if key == "vmlab":
                if value.get("version") != VERSION or "dump" not in value:
                    raise UnknownVersion(f"version {value.get('version')!r} of a recording, or not of a dump")
                head = _record(Head, value)
                found["window"] = [_record(Window, window) for window in value.get("windows", [])]
            elif key == "state":
                state = _record(State, value)
            elif key == "area":
                found["area"].append(_record(Area, value))
            elif key in _LINES:
                found[key].append(_record(_LINES[key], value))
    if head is None or state is None:
        raise UnknownVersion("no recording of a dump: its head or its state is missing")
    return Dump(head, state, *(found[name] for name in ("window", "area", *_LINES)))
