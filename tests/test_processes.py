"""Logs of child processes: bounded, without receipt handles, harmless when the disk is full."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.processes import BoundedLog, Processes
from tests.cli import is_running

PRINTED = (
    b'EVENT {"Records": [{"receiptHandle": "AQEBsecret+/=", "body": "x"}]}\n'
    b"{'Records': [{'receiptHandle': 'AQEBsecret+/=', 'body': 'x'}]}\n"
    b'"{\\"receiptHandle\\": \\"AQEBsecret+/=\\"}"\n'
    b'{"ReceiptHandle":"AQEBsecret+/="}\n'
    b"a last line without an end: {'receiptHandle': 'AQEBsecret+/='"
)


@given(cuts=st.lists(st.integers(0, len(PRINTED)), max_size=6))
def test_no_receipt_handle_is_kept_however_the_output_arrives(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = BoundedLog(Path(directory) / "child.log")
        for start, end in itertools.pairwise([0, *sorted(cuts), len(PRINTED)]):
            log.write(PRINTED[start:end])
        log.close()
        kept = log.path.read_bytes()
    assert kept == PRINTED.replace(b"AQEBsecret+/=", b"[left out]")


def test_the_tail_holds_an_unfinished_line(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "child.log")
    log.write(b"one\ntwo")
    assert log.tail() == "one\ntwo"
    log.close()


def test_what_is_not_kept_is_counted(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "child.log", limit_bytes=4)
    log.write(b"123456\n")
    log.write(b"78")
    log.close()
    assert log.path.read_text() == "1234\n[5 more bytes were not kept]\n"


def test_a_full_disk_does_not_stop_the_reading_of_a_childs_output() -> None:
    log = BoundedLog(Path("/dev/full"))
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()


async def test_a_number_is_not_used_once_its_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another's by then: what the child forked is killed when it ends."""
    forks = """
import os, time
reads, writes = os.pipe()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.write(writes, b"!")
    time.sleep(600)
os.read(reads, 1)
"""
    signalled: list[int] = []
    killpg = os.killpg

    def watched(group: int, number: int) -> None:
        signalled.append(group)
        killpg(group, number)

    log = BoundedLog(tmp_path / "child.log")
    async with Processes() as processes:
        child = await processes.start([sys.executable, "-c", forks], env={}, cwd=tmp_path, log=log)
        monkeypatch.setattr(os, "killpg", watched)
        assert await child.wait() == 0
        await child.output_end(30)  # the forked process has the pipe open while it lives
        assert signalled == [child.pid]
        processes.signal(child, signal.SIGKILL)
        assert await processes.end(child) == 0
    assert signalled == [child.pid]
    assert not is_running(int(log.tail().split()[0]))
    log.close()
