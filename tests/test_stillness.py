"""What the kernel tells about a process and its connections."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from consumer import stillness

pytestmark = pytest.mark.skipif(not stillness.can_be_seen(), reason="Linux tells, others do not")


def arrives(port: int) -> bool:
    """Soon: the kernel may be busy with other things."""
    return not all(stillness.on_its_way(port) for _ in range(1_000))


def test_what_the_other_side_has_not_had_is_on_its_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert arrives(port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert stillness.on_its_way(port), "a connection that is not accepted"
            served, _ = listener.accept()
            with served:
                assert arrives(port)
                client.sendall(b"request")
                assert stillness.on_its_way(port), "a request that is not read"
                served.recv(100)
                assert arrives(port)
                served.sendall(b"reply")
                assert arrives(port), "the client has it, and may read it"


WORKS = "import sys; sys.stdin.readline()\nwhile True: pass"


async def test_a_process_that_works_does_not_stand_still(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKS), stdin=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        ended = asyncio.get_running_loop().create_future()
        try:
            await stillness.come_to_rest(process.pid, port, ended)  # it waits for a line
            process.stdin.write(b"\n")
            await process.stdin.drain()
            rest = asyncio.create_task(stillness.come_to_rest(process.pid, port, ended))
            await asyncio.wait([rest], timeout=0.1)
            assert not rest.done()
            ended.set_result(None)
            await rest
        finally:
            process.kill()
            await process.wait()
