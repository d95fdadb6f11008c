"""The recorder: complete lines, remembered failure, ids; and the clock beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.errors import RecordingError
from analysis.schema import TABLES, Ack, AckOutcome, Call, Decision, Invocation
from consumer.clock import HostClock
from consumer.recorder import Recorder


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_table_has_a_file_and_a_row_is_one_complete_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run" / "evidence")
    recorder.write(Ack(delivery_id=1, acked_at=5, outcome=AckOutcome.DELETED))
    # Readable at once: nothing waits in a buffer.
    assert lines(tmp_path / "run" / "evidence" / "acks.jsonl") == [
        {"delivery_id": 1, "acked_at": 5, "outcome": "deleted"}
    ]
    assert {path.name for path in (tmp_path / "run" / "evidence").iterdir()} == {
        f"{table.TABLE}.jsonl" for table in TABLES
    }
    recorder.close()


def test_rows_are_appended_to_what_is_there(tmp_path: Path) -> None:
    for delivery_id in (1, 2):
        recorder = Recorder(tmp_path)
        recorder.write(Ack(delivery_id=delivery_id, acked_at=5, outcome=AckOutcome.DELETED))
        recorder.close()
    assert [row["delivery_id"] for row in lines(tmp_path / "acks.jsonl")] == [1, 2]


def test_ids_are_counted_from_one_for_each_table(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    assert [recorder.next_id(Call), recorder.next_id(Call), recorder.next_id(Invocation)] == [
        1,
        2,
        1,
    ]
    recorder.close()


def test_text_that_is_not_unicode_is_kept_as_far_as_possible(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.write(Invocation(1, "r", 1, True, 5, response="half \ud83d of a pair"))
    assert lines(tmp_path / "invocations.jsonl")[0]["response"] == "half ? of a pair"
    recorder.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=r"file.*--out"):
        Recorder(tmp_path / "file" / "evidence")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_fails_the_run_and_stops_the_writing(tmp_path: Path) -> None:
    (tmp_path / "acks.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.raises(RecordingError, match="No space left") as failed:
        recorder.write(Ack(delivery_id=1, acked_at=5, outcome=AckOutcome.DELETED))
    assert recorder.failure is failed.value
    assert failed.value.exit_code == 4
    # Other tables too: evidence with a hole in it is worse than evidence that ends.
    with pytest.raises(RecordingError):
        recorder.write(Invocation(1, "r", 1, True, 5))
    assert lines(tmp_path / "invocations.jsonl") == []
    recorder.close()


def test_a_line_that_did_not_fit_is_the_last_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path)
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: whole_write(file, line[:10]))
    with pytest.raises(RecordingError, match="only part"):
        recorder.write(Ack(delivery_id=1, acked_at=5, outcome=AckOutcome.DELETED))
    monkeypatch.undo()
    with pytest.raises(RecordingError):
        recorder.write(Ack(delivery_id=2, acked_at=5, outcome=AckOutcome.DELETED))
    assert len((tmp_path / "acks.jsonl").read_bytes()) == 10
    recorder.close()


def test_a_kill_loses_at_most_the_line_being_written(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, itertools, pathlib\n"
            "from analysis.schema import Ack, AckOutcome\n"
            "from consumer.recorder import Recorder\n"
            "recorder = Recorder(pathlib.Path(sys.argv[1]))\n"
            "for number in itertools.count(1):\n"
            "    recorder.write(Ack(number, number, AckOutcome.DELETED))\n"
            "    print(number, flush=True)\n",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert writer.stdout is not None
    for _ in range(50):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    said = [int(line) for line in writer.stdout.read().split()] or [50]
    writer.wait()
    writer.stdout.close()
    kept = (tmp_path / "acks.jsonl").read_bytes().split(b"\n")[:-1]
    assert [json.loads(line)["delivery_id"] for line in kept[: said[-1]]] == list(
        range(1, said[-1] + 1)
    )


def test_words_are_written_as_their_text(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.write(Call(1, None, 1, None, "sqs", "SendMessage", None, None, 5))
    assert lines(tmp_path / "calls.jsonl")[0]["decision"] == Decision.UNKNOWN.value
    recorder.close()


def test_host_clock_is_the_epoch_and_does_not_follow_the_hosts_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 50)
    clock = HostClock()
    assert clock.now_ns() == 1_000
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 57)
    assert clock.now_ns() == 1_007
