"""Judging within limits: little memory, a full disk, a judge that was killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import scratch
from analysis.errors import ScratchError
from analysis.findings import VerdictWord
from analysis.scratch import PREFIX, scratch_database
from analysis.store import open_evidence
from analysis.verdict import judge
from benchmarks.judge import make
from tests.sample_run import Sample, write_run

ROWS = "CREATE TABLE t AS SELECT range AS n, md5(range::VARCHAR) AS text FROM range(2_000_000)"
LARGEST_FIRST = "CREATE TABLE sorted AS FROM t ORDER BY text"


def left_behind(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(f"{PREFIX}*"))


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose working tables fill more than one block on disk."""
    run_dir = tmp_path_factory.mktemp("long") / "run"
    make(run_dir, messages=150_000, lost_replies=0.1)
    return run_dir


def test_a_tiny_memory_limit_gives_the_same_verdict(
    long_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = judge(long_run)
    assert verdict.verdict == VerdictWord.PASS
    monkeypatch.setattr(scratch, "MOST_MEMORY", 150_000_000)
    assert judge(long_run) == verdict


def sort_much(run_dir: Path, most_on_disk: str) -> object:
    with scratch_database(run_dir) as connection:
        connection.execute(f"SET max_temp_directory_size = '{most_on_disk}'")
        connection.execute(ROWS)
        connection.execute(LARGEST_FIRST)
        return connection.execute("SELECT count(*), count(DISTINCT n) FROM sorted").fetchone()


def test_what_does_not_fit_into_memory_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST_MEMORY", 100_000_000)
    assert sort_much(tmp_path, "1GB") == (2_000_000, 2_000_000)
    assert left_behind(tmp_path) == []


def test_no_room_for_what_leaves_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST_MEMORY", 100_000_000)
    with pytest.raises(ScratchError, match=r"no room to work in .*Free some space"):
        sort_much(tmp_path, "1MB")
    assert left_behind(tmp_path) == []


JUDGE = "import sys; from analysis.__main__ import main; sys.exit(main([sys.argv[1]]))"


def test_a_full_disk_ends_the_judging_and_keeps_the_evidence(long_run: Path) -> None:
    evidence = long_run / "evidence"
    before = {path.name: path.read_bytes() for path in evidence.iterdir()}

    def no_large_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    ended = subprocess.run(
        [sys.executable, "-c", JUDGE, str(long_run)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=no_large_files,
    )
    assert ended.returncode == ScratchError.exit_code
    assert "no room to work in" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {path.name: path.read_bytes() for path in evidence.iterdir()} == before
    assert left_behind(long_run) == []
    assert not (long_run / "verdict.json").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from analysis.scratch import scratch_database
with scratch_database(Path(sys.argv[1])) as connection:
    connection.execute("CREATE TABLE t AS SELECT range AS n FROM range(1000)")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_judge_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = left_behind(tmp_path)
    with scratch_database(tmp_path):
        assert left not in left_behind(tmp_path)
        with scratch_database(tmp_path):  # another one at work is left alone
            assert len(left_behind(tmp_path)) == 2
    assert left_behind(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_that_cannot_be_written_is_judged_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path, Sample(orders=2))
    tmp_path.chmod(0o555)
    with open_evidence(tmp_path) as evidence:
        assert evidence.scalar("SELECT count(*) FROM messages") > 2
        assert left_behind(tmp_path) == []
    tmp_path.chmod(0o755)
