"""Isolation, and the real parts that many tests share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.processes import Processes
from loadtest.emulator import Emulator


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS setting of this machine reaches a test, and output has a fixed width."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "onceproof")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "onceproof")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session")
def emulator_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One emulator for the whole session; tests use names of their own."""
    directory = tmp_path_factory.mktemp("emulator")
    urls: list[str] = []
    started, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with Processes() as processes:
            emulator = Emulator(directory, processes)
            try:
                urls.append(await emulator.start())
                started.set()
                await asyncio.to_thread(done.wait)
            finally:
                started.set()
                await emulator.close()

    # A thread of its own: its event loop must outlive every test's.
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    started.wait()
    yield urls[0]
    done.set()
    thread.join()
