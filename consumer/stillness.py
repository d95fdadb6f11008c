"""Whether a process stands still: none of its threads runs, and nothing that it has sent is on
its way. Linux only.

What a thread is doing is in ``/proc`` (proc(5)): its state, and how often it has been switched
out. All threads asleep in two looks, none switched out between them: so for the whole time
between the looks none of them ran. What was sent before is then either held by the gate, or
still in the queues of sockets, about which the kernel is asked between the looks (sock_diag(7)).

A wait with a timeout (of a lock, of a queue) counts as a wait that somebody else will end, and
processes that the process has started are not looked at.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TURNS = 20
"""Turns of the event loop in which a request that was read from its socket comes to the gate, or a
connection is reset: the server needs a few, and none of them waits for anything."""

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01

# include/uapi/linux: netlink.h, sock_diag.h, inet_diag.h, and the states of net/tcp_states.h
_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_ESTABLISHED, _SYN_SENT, _SYN_RECV, _LISTEN = 1, 2, 3, 10
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI48s")
_TOLD = struct.Struct("=xBxx2s2s48xI")
_TOLD_BYTES = 72
_ATTRIBUTE = struct.Struct("=HH")
_INFO = 2  # struct tcp_info (tcp.h), of which the following are places
_COUNT, _SHORT_COUNT = struct.Struct("=Q"), struct.Struct("=I")
_BYTES_RECEIVED, _NOT_SENT, _BYTES_SENT = 128, 144, (200, 208)  # the last without what came again
_MOST_BYTES = 65_536

Look = dict[str, str]
"""Of each thread, by its number: how often it has been switched out."""


def can_be_seen() -> bool:
    """Whether this system tells."""
    return Path("/proc/self/task").is_dir() and hasattr(socket, "AF_NETLINK")


async def come_to_rest(pid: int, port: int, ended: asyncio.Future[Any]) -> None:
    """Wait until a process stands still, or has ended.

    :param port: on 127.0.0.1, to which it makes its calls, and where this process listens.
    """
    pause_s = _FIRST_PAUSE_S
    while not ended.done():
        await _take_turns()  # what was sent to the process is in the kernel's hands then
        before = _asleep(pid)
        if before is not None and (_waits_for_one(pid, before) or not on_its_way(port)):
            await _take_turns()
            if _asleep(pid) == before:
                return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _take_turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _asleep(pid: int) -> Look | None:
    """None: a thread runs, or could."""
    look: Look = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            lines = (task / "status").read_text().splitlines()
            told = dict(line.partition(":\t")[::2] for line in lines)
            if not told["State"].startswith("S"):
                return None
            look[task.name] = told["voluntary_ctxt_switches"] + told["nonvoluntary_ctxt_switches"]
    except OSError:
        return None  # a thread has just ended, or all of them
    return look or None


def _waits_for_one(pid: int, look: Look) -> bool:
    """Whether its only thread waits for one socket: then it has one call under way and no more,
    and nothing else can be on its way. That is the usual case, and this saves time."""
    if len(look) > 1:
        return False
    try:
        number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return False
    call = _BLOCKING.get(int(number)) if number.isdigit() else None
    return call == "recvfrom" or (call == "poll" and arguments[1] == "0x1")


_BLOCKING = {7: "poll", 45: "recvfrom", 271: "poll", 73: "poll", 207: "recvfrom"}
"""System calls by their numbers, on x86-64 and on ARM (poll is ppoll there)."""


def on_its_way(port: int) -> bool:
    """Whether something was sent to or from a port that the other side has not had yet."""
    sent: dict[tuple[bytes, bytes], int] = {}
    had: dict[tuple[bytes, bytes], int] = {}
    own = port.to_bytes(2)
    for state, source, target, unread, info in _sockets():
        if own not in (source, target):
            continue
        if state in (_SYN_SENT, _SYN_RECV) or (source == own and unread):
            return True  # of a reply a client may leave some unread; we read all that comes
        if state == _ESTABLISHED:
            (received,) = _COUNT.unpack_from(info, _BYTES_RECEIVED)
            all_sent, again = (_COUNT.unpack_from(info, at)[0] for at in _BYTES_SENT)
            (waiting,) = _SHORT_COUNT.unpack_from(info, _NOT_SENT)
            sent[source, target] = all_sent - again + waiting
            had[target, source] = received
    # One side alone: the other one has hung up, or the tester has not been asked yet.
    return any(had.get(way) != number for way, number in sent.items())


def _sockets() -> Iterator[tuple[int, bytes, bytes, int, bytes]]:
    """State, own port, the other side's, bytes to read (of a listener: connections to accept) and
    ``struct tcp_info`` of every socket over IPv4 that may have something on its way."""
    states = 1 << _ESTABLISHED | 1 << _SYN_SENT | 1 << _SYN_RECV | 1 << _LISTEN
    request = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << _INFO - 1, 0, states, b"")
    size = _HEADER.size + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
        while True:
            data = kernel.recv(_MOST_BYTES)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(errno.EIO, "the kernel does not tell about its sockets")
                state, source, target, unread = _TOLD.unpack_from(data, _HEADER.size)
                info, at = b"", _HEADER.size + _TOLD_BYTES
                while at < length:
                    attribute_bytes, attribute = _ATTRIBUTE.unpack_from(data, at)
                    if attribute == _INFO:
                        info = data[at + _ATTRIBUTE.size : at + attribute_bytes]
                    at += attribute_bytes + 3 & ~3
                yield state, source, target, unread, info
                data = data[length + 3 & ~3 :]
