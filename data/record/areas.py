"""Uses the kernel's vmalloc space: areas.py THREADS...

For each number, that many threads at a time, whose stacks are areas, and socket filters of three sizes beside them.
"""

import ctypes
import socket
import struct
import sys
import threading

SO_ATTACH_FILTER = 26


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def attach(instructions):
    """A socket with a filter of that length: "return 65535", again and again."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0xFFFF) * instructions)
    program = Program(instructions, ctypes.addressof(code))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(program))
    return sock


def use(count):
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    held = [attach((8, 700, 1500)[n % 3]) for n in range(24)]
    over.set()
    for thread in threads:
        thread.join()
    for sock in held:
        sock.close()


for number in sys.argv[1:]:
    use(int(number))
