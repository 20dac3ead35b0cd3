"""Reads the address space of a Linux kernel by drgn, from a core dump or the running kernel.

    python3 -m vmlab.kernel                                   # the running kernel, as root
    python3 -m vmlab.kernel vmcore --vmlinux vmlinux -o dump.jsonl.gz

It prints tables: areas by state, nodes and their pools, the purge, blocks, per-CPU chunks. It checks them against the
kernel's own counters. With -o it writes a recording without events, which `vmlab map`, `report`, `compare` and
`replay --before` read (`vmlab.dump`; `docs/formats.md`).

It reads Linux 6.9 and later, 64 bits, little-endian, with several CPUs: what has `struct vmap_node`. drgn needs the
kernel's debug symbols (DWARF): a `vmlinux` by --vmlinux, or a package of the distribution.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import dump as plain

#: Flags of an area, and their words in /proc/vmallocinfo in its order (Linux 6.12, include/linux/vmalloc.h).
WORDS = ((0x1, "ioremap"), (0x1000, "sparse"), (0x2, "vmalloc"), (0x4, "vmap"), (0x8, "user"), (0x10, "dma-coherent"))
#: Of an area that is not set up yet, which no table shows.
UNINITIALIZED = 0x20
#: Of an area of vm_map_ram, which has no structure of its own.
MAP_RAM = 0x1
#: The most entries of a list: a list that changes while it is read may have no end.
ENTRIES_MAX = 1 << 24
#: Bytes that may be lazy before a purge, for each binary digit of the number of CPUs (`lazy_max_pages`).
LAZY_BYTES = 32 << 20


class Unreadable(Exception):
    """The reason why a kernel cannot be read, a line."""


def read(prog: Any) -> plain.Dump:
    """Reads the state of a program of drgn that has a kernel and its debug symbols.

    Raises Unreadable for another version of the kernel, and drgn.FaultError if a list changed while it was read.
    """
    try:
        return _Reader(prog).dump()
    except (LookupError, AttributeError) as error:
        # A variable or a member of a structure that is not there. FaultError is neither.
        raise Unreadable(f"Linux {_release(prog)} has other structures than 6.12: {_first_line(error)}") from error


def program(core: Optional[str], symbols: Sequence[str]) -> Any:
    """Returns a program of drgn: of a core dump, or of the running kernel if `core` is None.

    Raises Unreadable if there is no drgn, no such dump, no right to read it, or no debug symbols.
    """
    try:
        import drgn
    except ImportError as error:
        raise Unreadable(f"drgn is missing, install it by `pip install drgn` ({error})") from error
    # Its warnings are among the reasons below.
    logging.getLogger("drgn").setLevel(logging.ERROR)
    prog, shown = drgn.Program(), core or "/proc/kcore"
    try:
        prog.set_core_dump(shown)
    except PermissionError as error:
        raise Unreadable(f"{shown} may be read by root only: run this command by sudo") from error
    except FileNotFoundError as error:
        why = "the running kernel has no CONFIG_PROC_KCORE, or hides it" if core is None else "there is no such file"
        raise Unreadable(f"{shown}: {why}") from error
    except (OSError, ValueError, LookupError) as error:
        raise Unreadable(f"{shown}: no core dump that drgn reads ({_first_line(error)})") from error
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        hint = "QEMU writes it with `-device vmcoreinfo` and a kernel with CONFIG_FW_CFG_SYSFS"
        raise Unreadable(f"{shown}: no dump of a Linux kernel, or without the note VMCOREINFO; {hint}")
    try:
        prog.load_debug_info(list(symbols), main=True)
        prog.type("struct vm_struct")
    except (drgn.MissingDebugInfoError, LookupError) as error:
        release = _release(prog)
        hint = f"name the vmlinux of {release} by --vmlinux, or install its debug symbols; drgn does not read BTF"
        raise Unreadable(f"{shown}: no debug symbols: {hint}") from error
    except OSError as error:
        raise Unreadable(f"cannot read the debug symbols: {_first_line(error)}") from error
    return prog


def mem_profiling(prog: Any) -> bool:
    """True if the kernel has a record for each object and page of the place that allocated it, as 6.12 has it."""
    try:
        if not prog["mem_alloc_profiling_key"].key.enabled.counter.value_():
            return False
        # Later kernels may keep the records of pages in the flags of pages.
        if "mem_profiling_compressed" in prog and prog["mem_profiling_compressed"].key.enabled.counter.value_():
            return False
        return bool(prog.type("struct pcpuobj_ext").has_member("tag")) and "page_alloc_tagging_ops" in prog
    except (LookupError, AttributeError):
        return False


def _release(prog: Any) -> str:
    try:
        return str(prog["UTS_RELEASE"].string_().decode())
    except (LookupError, ValueError):
        return "this kernel"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Reader:
    """Walks the structures of one kernel, as Linux 6.12 has them in mm/vmalloc.c, mm/percpu.c and percpu-internal.h."""

    def __init__(self, prog: Any) -> None:
        import drgn
        from drgn.helpers.linux import cpumask, percpu, xarray
        from drgn.helpers.linux import list as lists

        self.prog, self.drgn = prog, drgn
        self.lists, self.percpu, self.xarray = lists, percpu, xarray
        self.page = prog["PAGE_SIZE"].value_()
        self.cpus = list(cpumask.for_each_possible_cpu(prog))
        self.units = prog["pcpu_nr_units"].value_()
        self.online = cpumask.num_online_cpus(prog)
        platform = prog.platform
        flags = platform.flags if platform else 0
        wanted = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
        if flags & wanted != wanted:
            raise Unreadable("only kernels of 64 bits, little-endian, are read")
        try:
            self.nodes = [prog["vmap_nodes"][nth] for nth in range(prog["nr_vmap_nodes"].value_())]
            self.zone = prog["vmap_zone_size"].value_()
        except LookupError as error:
            raise Unreadable(
                f"Linux {_release(prog)} has no `vmap_nodes`: read are 6.9 and later with several CPUs, and none whose "
                "areas are those of adopt/linux"
            ) from error
        self.windows = list(self.kcore_windows())
        self.callers: Dict[int, str] = {}
        # Bytes and calls of each place, by the kind of memory and the address of the kernel's record of the place.
        self.sites: Dict[Tuple[str, int], List[int]] = {}
        # Bytes of a record beside an object or a page, and where the place is in it.
        self.object_tag: Optional[Tuple[int, int]] = None
        self.page_tag: Optional[Tuple[int, int]] = None
        if mem_profiling(prog):
            kind = prog.type("struct pcpuobj_ext")
            self.object_tag = drgn.sizeof(kind), drgn.offsetof(kind, "tag")
            self.page_tag = prog["page_ext_size"].value_(), prog["page_alloc_tagging_ops"].offset.value_()

    def dump(self) -> plain.Dump:
        prog = self.prog
        live = bool(prog.flags & self.drgn.ProgramFlags.IS_LIVE)
        platform = prog.platform.arch.name.lower()
        head = plain.Head(
            _release(prog), platform, len(self.cpus), self.online, self.page, f"drgn {self.drgn.__version__}", live
        )
        areas, pools = self.areas()
        holes = [
            plain.Hole(va.va_start.value_(), va.va_end.value_()) for va in self.vmap_areas(prog["free_vmap_area_list"])
        ]
        blocks, chunks = list(self.blocks()), list(self.chunks())
        sites = [self.site(memory, tag, *counts) for (memory, tag), counts in self.sites.items()]
        return plain.Dump(head, self.state(), self.windows, areas, holes, pools, blocks, chunks, sites)

    def entries(self, kind: str, head: Any, member: str = "list") -> Iterator[Any]:
        """Pointers to the entries of a list."""
        for count, entry in enumerate(self.lists.list_for_each_entry(kind, head.address_of_(), member)):
            if count == ENTRIES_MAX:
                raise Unreadable("a list has no end: it changed while it was read, try again")
            yield entry

    def state(self) -> plain.State:
        prog = self.prog
        first = prog["pcpu_first_chunk"]
        first_end = first.base_addr.value_() + first.nr_pages.value_() * self.page
        lazy_max = self.online.bit_length() * (LAZY_BYTES // self.page)
        return plain.State(
            nodes=len(self.nodes),
            zone_bytes=self.zone,
            lazy_pages=prog["vmap_lazy_nr"].counter.value_(),
            lazy_pages_max=lazy_max,
            # The owner of a mutex, and the pending bit of work.
            purging=prog["vmap_purge_lock"].owner.counter.value_() != 0,
            queued=bool(prog["drain_vmap_work"].data.counter.value_() & 1),
            unit_bytes=prog["pcpu_unit_size"].value_(),
            units=self.units,
            percpu_populated=prog["pcpu_nr_populated"].value_(),
            percpu_first=(first_end - prog["pcpu_base_addr"].value_()) // self.page,
            percpu_empty=prog["pcpu_nr_empty_pop_pages"].value_(),
        )

    def kcore_windows(self) -> Iterator[plain.Window]:
        """The ranges that the kernel registers for /proc/kcore, which have the same names on every architecture."""
        for name in ("vmalloc", "modules"):
            try:
                known = self.prog[f"kcore_{name}"]
            except LookupError:
                continue
            start, size = known.addr.value_(), known.size.value_()
            if size:
                # The end that it registers may be the last address.
                yield plain.Window(name, start, (start + size + self.page - 1) // self.page * self.page)

    def areas(self) -> Tuple[List[plain.Area], List[plain.Pool]]:
        areas, pools = [], []
        for number, node in enumerate(self.nodes):
            for state, head in (("busy", node.busy.head), ("lazy", node.lazy.head)):
                areas += [self.area(va, state, number) for va in self.vmap_areas(head)]
            areas += [self.area(va, "purging", number) for va in self.purging(node.purge_list)]
            for index, pool in enumerate(node.pool):
                length = pool.len.value_()
                kept = [self.area(va, "pooled", number) for va in self.vmap_areas(pool.head)]
                areas += kept
                if length or kept:
                    pools.append(plain.Pool(number, index + 1, length))
        return areas, pools

    def vmap_areas(self, head: Any) -> Iterator[Any]:
        # Read whole: each member by itself would be a read of the dump.
        return (entry[0].read_() for entry in self.entries("struct vmap_area", head))

    def purging(self, head: Any) -> Iterator[Any]:
        # The list is set up by the first purge: before that it is what the memory held.
        try:
            first, last = head.next, head.prev
            if first.prev.value_() != head.address_ or last.next.value_() != head.address_:
                return
        except self.drgn.FaultError:
            return
        yield from self.vmap_areas(head)

    def area(self, va: Any, state: str, node: int) -> plain.Area:
        start, end = va.va_start.value_(), va.va_end.value_()
        flags, pages, text = va.flags.value_(), 0, plain.TEXTS.get(state, "")
        if state == "busy":
            vm = va.vm
            if vm.value_():
                pages, text = self.words(vm[0].read_())
            elif flags & MAP_RAM:
                text = "vm_map_ram"
        return plain.Area(start, end, state, node, text, flags, pages)

    def words(self, vm: Any) -> Tuple[int, str]:
        """Returns the pages of an area and its text, as /proc/vmallocinfo has it but for pages by NUMA node."""
        flags, pages, caller = vm.flags.value_(), vm.nr_pages.value_(), vm.caller.value_()
        if flags & UNINITIALIZED:
            return pages, ""
        phys = vm.phys_addr.value_()
        words = [self.caller(caller)] if caller else []
        words += [f"pages={pages}"] if pages else []
        words += [f"phys=0x{phys:016x}"] if phys else []
        words += [word for flag, word in WORDS if flags & flag]
        array = vm.pages.value_()
        if pages and array and self.page_tag:
            self.count("vmalloc", self.tag_of_page(vm.pages[0]), pages * self.page)
        if any(one.name == "vmalloc" and one.start <= array < one.end for one in self.windows):
            words.append("vpages")
        return pages, " ".join(words)

    def caller(self, address: int) -> str:
        if address not in self.callers:
            try:
                symbol = self.prog.symbol(address)
                self.callers[address] = f"{symbol.name}+{address - symbol.address:#x}/{symbol.size:#x}"
            except LookupError:
                self.callers[address] = f"{address:#x}"
        return self.callers[address]

    def blocks(self) -> Iterator[plain.Block]:
        queues = self.prog["vmap_block_queue"]
        for cpu in self.cpus:
            queue = self.percpu.per_cpu(queues, cpu)
            queued = {entry.value_() for entry in self.entries("struct vmap_block", queue.free, "free_list")}
            for _, entry in self.xarray.xa_for_each(queue.vmap_blocks.address_of_()):
                address = entry.value_()
                block = self.drgn.Object(self.prog, "struct vmap_block", address=address).read_()
                used = sum(bin(word.value_()).count("1") for word in block.used_map)
                va = block.va[0].read_()
                yield plain.Block(
                    va.va_start.value_(),
                    va.va_end.value_(),
                    block.cpu.value_(),
                    address in queued,
                    block.free.value_(),
                    block.dirty.value_(),
                    used,
                )

    def chunks(self) -> Iterator[plain.Chunk]:
        prog = self.prog
        special = {prog["pcpu_first_chunk"].value_(): "first"}
        reserved = prog["pcpu_reserved_chunk"]
        if reserved.value_():
            yield self.chunk(reserved, "reserved", -1)
        slots = prog["pcpu_chunk_lists"]
        for slot in range(prog["pcpu_nr_slots"].value_()):
            for entry in self.entries("struct pcpu_chunk", slots[slot]):
                yield self.chunk(entry, special.get(entry.value_(), ""), slot)

    def chunk(self, chunk: Any, kind: str, slot: int) -> plain.Chunk:
        pages = chunk.nr_pages.value_()
        count = pages * self.page // plain.BIT_BYTES
        taken = plain.bits(self.map(chunk.alloc_map.value_(), count), count)
        bounds = plain.bits(self.map(chunk.bound_map.value_(), count), count)
        # The bits before and behind what the chunk serves are taken, by nobody.
        first = chunk.start_offset.value_() // plain.BIT_BYTES
        last = count - chunk.end_offset.value_() // plain.BIT_BYTES
        objects = free = longest = 0
        for at, length, is_object in plain.ranges(taken[first:last], bounds[first:last]):
            if is_object:
                objects += 1
                size = length * plain.BIT_BYTES * self.units
                self.count("percpu", self.tag_of_object(chunk, first + at), size)
            else:
                free, longest = free + length, max(longest, length)
        populated = self.map(chunk.populated.address_, pages)
        return plain.Chunk(
            base=chunk.base_addr.value_(),
            kind=kind or ("isolated" if chunk.isolated.value_() else ""),
            slot=slot,
            pages=pages,
            populated=chunk.nr_populated.value_(),
            empty=chunk.nr_empty_pop_pages.value_(),
            free_bytes=chunk.free_bytes.value_(),
            hint=chunk.chunk_md.contig_hint.value_(),
            bits_free=free,
            bits_populated=plain.bits(populated, pages).count("1"),
            objects=objects,
            longest=longest,
        )

    def count(self, memory: str, tag: int, size: int) -> None:
        if tag:
            counts = self.sites.setdefault((memory, tag), [0, 0])
            counts[0] += size
            counts[1] += 1

    def tag_of_object(self, chunk: Any, bit: int) -> int:
        """Returns the record of the place that allocated an object of a chunk; 0 if the kernel has none."""
        exts = chunk.obj_exts.value_() if self.object_tag else 0
        if not exts or not self.object_tag:
            return 0
        size, offset = self.object_tag
        return int(self.prog.read_u64(exts + bit * size + offset))

    def tag_of_page(self, page: Any) -> int:
        """Returns the record of the place that allocated a page; 0 if the kernel has none."""
        from drgn.helpers.linux import mm, mmzone

        frame = mm.page_to_pfn(page).value_()
        extensions = mmzone.pfn_to_section(self.prog, frame).page_ext.value_()
        # The lowest bit says that the extensions of a section are going.
        if not extensions or extensions & 1 or not self.page_tag:
            return 0
        size, offset = self.page_tag
        return int(self.prog.read_u64(extensions + size * frame + offset))

    def site(self, memory: str, tag: int, size: int, calls: int) -> plain.Site:
        record = self.drgn.Object(self.prog, "struct codetag", address=tag).read_()
        file, function, module = (
            pointer.string_().decode(errors="replace") if pointer.value_() else ""
            for pointer in (record.filename, record.function, record.modname)
        )
        return plain.Site(memory, file, record.lineno.value_(), function, module, size, calls)

    def map(self, address: int, count: int) -> int:
        """Reads a bitmap of `count` bits."""
        return int.from_bytes(self.prog.read(address, (count + 63) // 64 * 8), "little")


def _arguments() -> argparse.ArgumentParser:
    about = "Shows the vmalloc space and the per-CPU memory of a Linux kernel (6.9 or later), by drgn."
    parser = argparse.ArgumentParser(prog="python3 -m vmlab.kernel", description=about)
    parser.add_argument(
        "core", nargs="?", help="a core dump: ELF, kdump, or what QEMU writes (default: the running kernel)"
    )
    parser.add_argument("--vmlinux", action="append", default=[], metavar="FILE", help="the kernel with debug symbols")
    parser.add_argument(
        "--vmallocinfo", metavar="FILE", help="compare with the kernel's own table, read at the same time"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write a recording that vmlab reads; .gz is compressed")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Prints the tables and the checks. Returns 1 if a dump does not meet them, 2 if the kernel cannot be read."""
    args = _arguments().parse_args(arguments)
    try:
        found = _read(program(args.core, args.vmlinux))
        table = None
        if args.vmallocinfo:
            with open(args.vmallocinfo, encoding="utf-8", errors="replace") as file:
                table = file.read()
        if args.output:
            opened = gzip.open if args.output.endswith(".gz") else open
            with opened(args.output, "wt", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in plain.lines(found))
    except (Unreadable, OSError) as error:
        print(f"vmlab.kernel: {_first_line(error)}", file=sys.stderr)
        return 2
    print(plain.tables(found), end="\n\n")
    checks = plain.checks(found, table)
    for check in checks:
        print(f"{'holds' if check.holds else 'DIFFERS'}: {check.rule}: {check.text}")
    failed = not all(check.holds for check in checks)
    if failed and found.head.live:
        print("The kernel ran on while it was read, so that its counters and lists are of different times.")
    return int(failed and not found.head.live)


def _read(prog: Any) -> plain.Dump:
    """Reads the state; of a running kernel up to five times, until no list changes under the reader."""
    import drgn

    live = bool(prog.flags & drgn.ProgramFlags.IS_LIVE)
    found: Optional[plain.Dump] = None
    fault = ""
    for _ in range(5 if live else 1):
        try:
            found = read(prog)
            if all(check.holds for check in plain.checks(found)):
                break
        except drgn.FaultError as error:
            fault = _first_line(error)
    if found is None:
        raise Unreadable(f"memory cannot be read: {fault}")
    return found


if __name__ == "__main__":
    sys.exit(main())
