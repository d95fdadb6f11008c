"""``loadtest lab --target aws``: the story through Lambda, and that a broken promise is told."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from tests.cli import Reply, loadtest, names_at
from tests.control_plane import Asked, control_plane

PROMISES = (
    "✓ four messages given to the function: 4 in ",
    "✓ two results processed, all others duplicate: 2, ",
    "✓ two accepted writes, both of new items: INSERT, INSERT, by the table's stream",
    "✓ copies changed nothing: attempt ",
    "✓ queue empty (waiting and in flight): 0 and 0, approximately",
    "✓ reference item untouched: keep unchanged",
)


def test_the_story_is_walked_through_lambda_and_a_broken_promise_is_told(
    emulator_url: str, tmp_path: Path
) -> None:
    def forgets(asked: Asked) -> Reply:
        """A reference item that was touched, in the second walk only."""
        reply = asked.forward()
        if asked.action != "dynamodb:BatchGetItem" or not forgetting:
            return reply
        said = reply.body.replace(b"keep unchanged", b"changed")
        return Reply(reply.status, said, reply.content_type)

    forgetting = False
    name = f"t{secrets.token_hex(3)}"
    with control_plane(emulator_url, forgets) as url:
        end = loadtest("lab", "--target", "aws", "--endpoint-url", url, "--yes", cwd=tmp_path)
        assert (end.code, end.err) == (0, ""), end.said
        for promise in PROMISES:
            assert promise in end.said
        for order in ("dedup-order/4/1100", "other-order/1/350"):
            assert order in end.said
        for result in ("processed", "duplicate"):
            assert end.out.count(result) >= 3, "twice in the table, once in the promises"
        assert "✓ everything removed and proven gone: all 8 parts of the stack" in end.said
        assert "Not to be seen of a deployed function:" in end.said
        assert "receiptHandle" not in end.out
        assert "onceproof-lab-" not in names_at(emulator_url)
        assert list((tmp_path / "runs").iterdir()) == []

        deployed = loadtest("deploy", "--endpoint-url", url, "--name", name, "--yes", cwd=tmp_path)
        assert deployed.code == 0
        forgetting = True
        end = loadtest(
            *("lab", "--target", "aws", "--endpoint-url", url, "--stack", name, "--yes"),
            cwd=tmp_path,
        )
        assert end.code == 1, end.said
        assert "✗ reference item untouched: changed" in end.said
        assert f"gone: 2 items of table onceproof-{name}-orders" in end.said
        assert loadtest("clean", "--stack", name, "--yes", cwd=tmp_path).code == 0


def test_what_cannot_be_walked_is_told(emulator_url: str, tmp_path: Path) -> None:
    for asked, said in (
        (("--stack", "nowhere", "--target", "aws"), "there is no stack nowhere in account"),
        (("--stack", "nowhere"), "name that target as well"),
        (("--target", "aws", "--stack", "NO"), "'NO' cannot be the name of a stack"),
    ):
        end = loadtest("lab", *asked, "--endpoint-url", emulator_url, cwd=tmp_path)
        assert end.code == 2
        assert said in end.said
    assert json.dumps(names_at(emulator_url)).count("nowhere") == 0
