"""The embedded AWS: ministack as a child process on a free loopback port."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import aiohttp

from analysis.errors import OnceproofError, TargetError
from consumer.processes import BoundedLog, Child, Processes, exit_words

_START_TIMEOUT_S = 60.0
_HEALTH = "/_ministack/health"


class Emulator:
    """One private ministack; everything it holds goes with it.

    As an asynchronous context manager it gives its endpoint URL, and tells an error of its
    users when the reason is that it has ended.
    """

    def __init__(self, directory: Path, processes: Processes) -> None:
        self._directory = directory.absolute()  # it runs in this folder
        self._processes = processes
        self._child: Child | None = None

    async def __aenter__(self) -> str:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        status = self._child.status if self._child is not None else None
        if isinstance(error, OnceproofError) and status is not None:
            said = self._log.tail().strip() or "it printed nothing"
            error.add_note(
                f"The embedded AWS had ended by itself or was killed ({exit_words(status)}): {said}"
            )
        await self.close()

    async def start(self) -> str:
        """Start it and wait until it answers; its endpoint URL.

        :raises TargetError: it ended or did not answer, with the end of its log.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._log = BoundedLog(self._directory / "emulator.log")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            # Inherited by its connections. The child cannot tell that this is TCP and would
            # leave it off: every reply then waits 40 ms for a delayed acknowledgement.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The child inherits a socket that already listens: no port can be taken in
            # between, and a first request waits in its backlog until the child answers.
            self._child = await self._processes.start(
                [
                    *(sys.executable, "-m", "uvicorn", "ministack.app:app"),
                    *("--fd", str(listener.fileno())),
                    *("--log-level", "warning", "--no-access-log"),
                    # A busy machine may leave a connection idle for long, and a request that
                    # meets its closing is lost.
                    *("--timeout-keep-alive", "3600"),
                ],
                env=self._variables(port),
                cwd=self._directory,
                log=self._log,
                pass_fds=[listener.fileno()],
            )
        url = f"http://127.0.0.1:{port}"
        await self._answering(url, self._child)
        return url

    async def _answering(self, url: str, child: Child) -> None:
        health = asyncio.create_task(_healthy(url + _HEALTH))
        ended = asyncio.create_task(child.wait())
        try:
            done, _ = await asyncio.wait(
                {health, ended}, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if health in done and health.result():
                return
            await child.output_end()
            raise TargetError(
                "the embedded AWS (ministack) did not start:\n"
                f"{self._log.tail().strip() or 'it printed nothing'}\n"
                "Install the package again, or name another endpoint with --endpoint-url."
            )
        finally:
            health.cancel()
            ended.cancel()

    async def close(self) -> None:
        if self._child is not None:
            await self._processes.end(self._child)
            self._log.close()

    def _variables(self, port: int) -> dict[str, str]:
        """Only what it needs, so that settings of another emulator do not leak in."""
        inherited = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL")
        return {
            **{name: os.environ[name] for name in inherited if name in os.environ},
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "LOG_LEVEL": "WARNING",
            "TMPDIR": str(self._directory),
            "HOME": str(self._directory),
            "DOCKER_HOST": f"unix://{self._directory}/no-docker.sock",
        }


async def _healthy(url: str) -> bool:
    """Whether one request, held in the backlog while the child starts, is answered well."""
    timeout = aiohttp.ClientTimeout(total=_START_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
