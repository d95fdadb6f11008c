"""``loadtest lab``: the smallest story, and that it notices when a promise is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli import (
    Reply,
    endpoint,
    forward,
    loadtest,
    loadtest_apart,
    names_at,
    only_run,
    processes_of,
)

PROMISES = (
    "✓ four deliveries: 4",
    "✓ two accepted writes: 2",
    "✓ two rejections, their item unchanged: 2, 2 unchanged",
    "✓ items exactly those two: dedup-order/4/1100, other-order/1/350",
    "✓ queue empty (waiting and in flight): 0 and 0",
    "✓ reference item untouched: keep unchanged",
    "✓ everything removed and proven gone: ",
)


def test_the_lab_keeps_its_promises(tmp_path: Path) -> None:
    # The proxy of a machine must not come between it and its own loopback.
    end = loadtest_apart("lab", cwd=tmp_path, env={"HTTP_PROXY": "http://127.0.0.1:9"})
    assert (end.code, end.err) == (0, ""), end.out
    for promise in PROMISES:
        assert promise in end.said
    for step in ("one order alone", "two copies of it", "one other order"):
        assert step in end.out
    assert end.out.count("accepted") == 3, "two in the table, one in the promises"
    assert processes_of(tmp_path) == []


def test_a_broken_promise_is_told_and_nothing_is_left_at_the_endpoint(
    tmp_path: Path, emulator_url: str
) -> None:
    def miscounts(operation: str, body: dict[str, Any]) -> Reply:
        reply = forward(emulator_url, operation, body)
        if operation != "GetQueueAttributes":
            return reply
        counted = json.loads(reply.body)
        counted["Attributes"]["ApproximateNumberOfMessagesNotVisible"] = "3"
        return Reply(reply.status, json.dumps(counted).encode())

    with endpoint(miscounts) as url:
        end = loadtest("lab", "--endpoint-url", url, cwd=tmp_path)
    assert end.code == 1
    assert "✗ queue empty (waiting and in flight): 0 and 3" in end.said
    assert "✓ four deliveries: 4" in end.said
    assert only_run(tmp_path).info.run_id not in names_at(emulator_url)
