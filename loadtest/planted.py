"""The planted bugs: what each is, what must be reported of it, and what shows it. Data only.

Each is a module of ``consumer/planted`` with two handlers: ``handler`` is wrong in one
thing, ``correct`` is its twin. The module says which public reports the bug stands for;
their letters here and there are those of the kinds below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from consumer import planted
from loadtest.explore.model import Fault

CODE = Path(planted.__file__).parent


class BugKind(StrEnum):
    """What goes wrong. The reports of one kind share a letter."""

    DELIVERY = "DELIVERY"  # D: the same message arrives again, or its receives are spent unused
    BATCH = "BATCH"  # B: batches and their partial failures
    ACK = "ACK"  # A: acknowledged too early, never, or for work not done
    KEY = "KEY"  # K: the wrong identity
    CHECK_ACT = "CHECK-ACT"  # C: read, decide, write, and nothing holds it together
    GUARD = "GUARD"  # G: no condition, or one that cannot fail
    CLASSIFY = "CLASSIFY"  # E: an error put into the wrong class
    SELF_CONFLICT = "SELF-CONFLICT"  # S: a retry of one's own successful write
    COMPARE = "COMPARE"  # P: details compared too loosely, too strictly, or with stale data
    CLAIM = "CLAIM"  # L: the life of a claim
    EFFECT = "EFFECT"  # F: order and completeness of side effects
    SCOPE = "SCOPE"  # W: a guard limited in time or place


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest world in which every interleaving together shows a bug. Its correct twin
    is clean in all of it."""

    copies: int
    kinds: tuple[Fault, ...] = ()  # of the one fault that it needs; empty: it needs none
    conflict: bool = False  # the second copy has other details
    poison: bool = False  # one of the copies is a message that no handler can accept
    batch: int = 1  # messages in one event, at most

    @property
    def faults(self) -> int:
        return 1 if self.kinds else 0


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug. A flood with its settings shows it, unless it ``needs`` more than that."""

    name: str  # of its module
    kind: BugKind
    reports: tuple[str, ...]
    expected: tuple[str, ...]  # kinds of finding; each of them must be reported
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Tables of a configuration file, over :data:`BASE`."""
    explore: Smallest | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the faults without which it stays hidden."""
        return tuple(self.settings.get("faults", ()))


BASE: Mapping[str, Any] = {
    "handler": {"timeout": 2},
    "queue": {"visibility_timeout": 2, "max_receive_count": 2},
    "order": {"key": "id", "quantity": {"integer": [1, 10]}, "conflict": ["quantity"]},
    "result": {"processed": "processed", "duplicate": "duplicate"},
    "load": {"orders": 24, "copies": 4, "conflicts": 0.25, "poison": 0.25, "concurrency": 4},
}
"""A small flood whose waits are short: what fails on purpose comes back after 2 s."""

_SKU = {
    "key": "id",
    "sku": {"choice": ["bolt", "nut", "screw"]},
    "quantity": {"integer": [1, 10]},
    "conflict": ["sku", "quantity"],
}
_AMOUNT = {"key": "id", "amount": {"decimal": [1, 1.4, 2]}, "conflict": ["amount"]}
_CLAIMS = [{"name": "orders", "key": "id", "complete_when": {"phase": ["DONE"]}}]
_CALM = {"copies": 1, "conflicts": 0.0, "poison": 0.0}
"""Nothing but deliveries of single orders: what is found comes from the fault alone."""
_OWN_KEY = {**BASE["order"], "item": {"id": "order_id"}}


def _receipts(**tables: Any) -> dict[str, Any]:
    """One receipt is owed for every order, by way of a topic."""
    names = {"TABLE_NAME": "{table:orders}", "RECEIPTS_TOPIC": "{topic:receipts_arn}"}
    return {
        "table": _CLAIMS,
        "effect": [{"call": "sns:Publish", "resource": "receipts", "key": "id"}],
        "handler": {"environment": names},
        **tables,
    }


def _second_table(name: str, call: str, **tables: Any) -> dict[str, Any]:
    """One write to a second table is owed for every order."""
    variable = f"{name.upper()}_TABLE"
    return {
        "table": [
            {"name": "orders", "key": "id"},
            {"name": name, "key": "id", "role": "other"},
        ],
        "effect": [{"call": f"dynamodb:{call}", "resource": name, "key": "id"}],
        "handler": {"environment": {"TABLE_NAME": "{table:orders}", variable: f"{{table:{name}}}"}},
        **tables,
    }


def _batches(size: int, **load: Any) -> dict[str, Any]:
    """Batches with partial failures; copies that meet in one batch cannot race."""
    return {
        "queue": {"batch_size": size, "report_batch_item_failures": True},
        "load": load,
        "expect": {"contended_orders": 0},
    }


_AND_CONFLICT = Smallest(2, conflict=True)
_AND_POISON = Smallest(2, poison=True)
_BESIDE_POISON = Smallest(2, poison=True, batch=2)

PLANTED: tuple[Planted, ...] = (
    Planted(
        "read_then_write",
        BugKind.CHECK_ACT,
        ("C1", "C2", "C3", "C4", "C5"),
        ("overwrite",),
        explore=Smallest(2),
    ),
    Planted(
        "unconditional",
        BugKind.GUARD,
        ("G1", "G2", "G10"),
        ("overwrite", "conflict-acknowledged"),
        explore=Smallest(2),
    ),
    Planted("wrong_attribute", BugKind.GUARD, ("G5", "G6"), ("overwrite",), explore=Smallest(2)),
    Planted(
        "time_in_key",
        BugKind.GUARD,
        ("G3", "G4", "G7", "G8", "G9"),
        ("double-accept",),
        settings={
            "table": [{"name": "orders", "key": "id", "sort": "received_at", "sort_type": "N"}]
        },
        explore=Smallest(2),
    ),
    Planted(
        "message_id_guard",
        BugKind.KEY,
        ("K3", "K5"),
        ("overwrite",),
        settings={
            "table": [
                {"name": "orders", "key": "id"},
                {"name": "seen", "key": "message_id", "role": "guard"},
            ],
            "handler": {
                "environment": {"TABLE_NAME": "{table:orders}", "SEEN_TABLE": "{table:seen}"}
            },
        },
        explore=Smallest(2),
    ),
    Planted(
        "single_table",
        BugKind.KEY,
        ("K3", "K5"),
        ("overwrite",),
        settings={
            "table": [
                {
                    "name": "shop",
                    "key": "pk",
                    "sort": "sk",
                    "items": [
                        {"role": "orders", "key": "ORDER#{id}", "sort": "META"},
                        {"role": "guard", "key": "DONE#*"},
                    ],
                }
            ],
            "load": {"orders": 12},
        },
        explore=Smallest(2),
    ),
    Planted(
        "fresh_key",
        BugKind.KEY,
        ("K1", "K2"),
        ("wrong-key", "double-accept"),
        settings={"order": _OWN_KEY},
        explore=Smallest(1),
    ),
    Planted(
        "missing_key",
        BugKind.KEY,
        ("K6",),
        ("poison-acknowledged", "poison-stored"),
        settings={"order": {"poison": ["missing-field"]}, "load": {"poison": 0.5}},
    ),
    Planted(
        "narrow_key",
        BugKind.KEY,
        ("K8",),
        ("wrong-key", "lost-order"),
        settings={"order": {**_SKU, "item": {"id": "order_id"}}},
        explore=Smallest(1),
    ),
    Planted(
        "details_unchecked",
        BugKind.COMPARE,
        ("P1", "P10"),
        ("conflict-acknowledged",),
        explore=_AND_CONFLICT,
    ),
    Planted(
        "some_fields_compared",
        BugKind.COMPARE,
        ("P9",),
        ("conflict-acknowledged",),
        # The field that is not compared, so that the one conflict that is explored shows it.
        settings={"order": {**_SKU, "conflict": ["sku"]}, "load": {"conflicts": 0.5}},
        explore=_AND_CONFLICT,
    ),
    Planted(
        "typed_comparison",
        BugKind.COMPARE,
        ("P2", "P12"),
        ("duplicate-failed",),
        explore=Smallest(2),
    ),
    Planted(
        "rounded_comparison",
        BugKind.COMPARE,
        ("P8",),
        ("conflict-acknowledged",),
        settings={"order": _AMOUNT, "load": {"conflicts": 0.75}},
        explore=_AND_CONFLICT,
    ),
    Planted(
        "float_amount",
        BugKind.COMPARE,
        ("P11",),
        ("dead-lettered-order",),
        settings={"order": _AMOUNT},
    ),
    Planted(
        "digest_of_text",
        BugKind.COMPARE,
        ("P4", "P5", "P6", "P7"),
        ("duplicate-failed",),
        settings={"order": {"spellings": True}},
    ),
    Planted(
        "stale_read",
        BugKind.COMPARE,
        ("P12", "P13"),
        ("overwrite",),
        settings={"faults": {"stale-read": {"rate": 0.5}}},
        explore=Smallest(2, (Fault.STALE_READ,)),
    ),
    Planted(
        "any_client_error",
        BugKind.CLASSIFY,
        ("E9",),
        ("lost-order",),
        # One attempt: the SDK's own patience would outlast the function's timeout.
        settings={
            "handler": {"environment": {"TABLE_NAME": "{table:orders}", "AWS_MAX_ATTEMPTS": "1"}},
            "faults": {"throttle": {"receive": 1, "every": 2}},
        },
        explore=Smallest(1, (Fault.THROTTLE,)),
    ),
    Planted(
        "errors_in_summary",
        BugKind.CLASSIFY,
        ("E10",),
        ("conflict-acknowledged", "poison-acknowledged"),
        explore=_AND_CONFLICT,
    ),
    Planted(
        "drops_invalid", BugKind.CLASSIFY, ("E12",), ("poison-acknowledged",), explore=_AND_POISON
    ),
    Planted(
        "duplicate_raises",
        BugKind.CLASSIFY,
        ("E11", "S2", "S11"),
        ("duplicate-failed",),
        explore=Smallest(2),
    ),
    Planted(
        "cancelled_is_duplicate",
        BugKind.CLASSIFY,
        ("E1", "E2", "E4", "E5", "E6"),
        ("lost-order",),
        settings={"faults": {"transaction-conflict": {"receive": 1, "every": 2}}},
        explore=Smallest(1, (Fault.TRANSACTION_CONFLICT,)),
    ),
    Planted(
        "cancelled_raises",
        BugKind.CLASSIFY,
        ("E3", "E7"),
        ("duplicate-failed",),
        explore=Smallest(2),
    ),
    Planted(
        "own_write_is_foreign",
        BugKind.SELF_CONFLICT,
        ("S1", "S3", "S4", "S5", "S6", "S7"),
        ("self-conflict",),
        settings={
            "faults": {"lost-reply": {"operation": "PutItem", "receive": 1, "every": 2}},
            "load": _CALM,
            "expect": {"contended_orders": 0},
        },
        explore=Smallest(1, (Fault.LOST_REPLY,)),
    ),
    Planted(
        "adds_again",
        BugKind.SELF_CONFLICT,
        ("F1", "S8"),
        ("duplicate-effect",),
        settings=_second_table(
            "totals",
            "UpdateItem",
            # The bug's addition, and its twin's.
            faults={
                "lost-reply": [
                    {"operation": "UpdateItem", "receive": 1, "every": 2},
                    {"operation": "TransactWriteItems", "receive": 1, "every": 2},
                ]
            },
        ),
        explore=Smallest(1, (Fault.LOST_REPLY,)),
    ),
    Planted(
        "claim_left",
        BugKind.CLAIM,
        ("L1", "L3", "L12"),
        ("stuck-message",),
        settings={
            "table": _CLAIMS,
            "queue": {"max_receive_count": 5},
            "faults": {"crash-after-call": {"call": 1, "receive": 1, "every": 3}},
        },
        explore=Smallest(1, (Fault.CRASH_AFTER,)),
    ),
    Planted(
        "stranger_releases",
        BugKind.CLAIM,
        ("L6", "L8", "L9"),
        ("double-accept",),
        settings={"table": _CLAIMS},
        explore=Smallest(3),
    ),
    Planted(
        "claim_before_validation",
        BugKind.CLAIM,
        ("L13",),
        ("stuck-message",),
        settings={"table": _CLAIMS, "load": {"poison": 0.5}},
    ),
    Planted(
        "takeover_without_deadline",
        BugKind.CLAIM,
        ("L5", "L10", "L11"),
        ("duplicate-effect",),
        settings=_receipts(queue={"max_receive_count": 5}),
        explore=Smallest(2),
    ),
    Planted(
        "claim_ends_with_run",
        BugKind.CLAIM,
        ("L4",),
        ("duplicate-effect",),
        settings=_second_table(
            "receipts",
            "PutItem",
            table=[*_CLAIMS, {"name": "receipts", "key": "id", "role": "other"}],
            queue={"max_receive_count": 5},
            faults={"timeout": {"call": 2, "receive": 1, "every": 4}},
            load={"orders": 12, "copies": 2},
        ),
        explore=Smallest(1, (Fault.TIMEOUT,)),
    ),
    Planted(
        "stale_takeover",
        BugKind.CLAIM,
        ("L7",),
        ("duplicate-effect",),
        # The first owner dies; those who come back find its claim at about the same time.
        settings=_second_table(
            "receipts",
            "PutItem",
            table=[*_CLAIMS, {"name": "receipts", "key": "id", "role": "other"}],
            queue={"max_receive_count": 6},
            faults={
                "crash-after-call": {"call": 1, "receive": 1, "copy": 1},
                "slow": {"operation": "PutItem", "seconds": [0.1, 0.3]},
            },
            load={"orders": 12, "copies": 4, "conflicts": 0.0, "poison": 0.0},
        ),
        explore=Smallest(2, (Fault.CRASH_AFTER,)),
    ),
    Planted(
        "effect_first",
        BugKind.EFFECT,
        ("F6", "F7", "F8", "C6"),
        ("duplicate-effect",),
        settings=_receipts(queue={"max_receive_count": 5}),
        explore=Smallest(2),
    ),
    Planted(
        "effect_lost",
        BugKind.EFFECT,
        ("F2", "F4", "F5"),
        ("missing-effect",),
        settings=_second_table(
            "receipts",
            "PutItem",
            queue={"max_receive_count": 5},
            faults={"crash-after-call": {"call": 1, "receive": 1, "every": 3}},
        ),
        explore=Smallest(1, (Fault.CRASH_AFTER,)),
    ),
    Planted(
        "counted_apart",
        BugKind.EFFECT,
        ("F3",),
        ("duplicate-effect",),
        settings=_second_table(
            "totals",
            "UpdateItem",
            faults={"crash-after-call": {"call": 2, "receive": 1, "every": 2}},
            load=_CALM,
            expect={"contended_orders": 0},
        ),
        explore=Smallest(1, (Fault.CRASH_AFTER,)),
    ),
    Planted(
        "ghost_sends",
        BugKind.EFFECT,
        ("F11",),
        ("duplicate-effect",),
        settings=_second_table(
            "outbox",
            "PutItem",
            faults={
                "access-denied": {
                    "operation": "PutItem",
                    "resource": "orders",
                    "receive": 1,
                    "every": 2,
                }
            },
            load=_CALM,
            expect={"contended_orders": 0},
        ),
        explore=Smallest(1, (Fault.CRASH_AFTER,)),
    ),
    Planted(
        "counts_receives",
        BugKind.DELIVERY,
        ("D5", "D9", "D11"),
        ("conflict-acknowledged", "poison-acknowledged"),
        explore=_AND_CONFLICT,
    ),
    Planted(
        "outlives_visibility",
        BugKind.DELIVERY,
        ("D1", "D2", "D3", "D4"),
        ("duplicate-effect",),
        settings=_receipts(
            queue={"max_receive_count": 6},
            faults={"redeliver-during": {"receive": 1}},
            load=_CALM,
            expect={"contended_orders": 0},
        ),
        explore=Smallest(1, (Fault.REDELIVER,)),
    ),
    Planted(
        "batch_raises",
        BugKind.BATCH,
        ("B1", "B2", "B5"),
        ("batch-misreport",),
        settings=_batches(5, copies=2, poison=0.5, arrangement="spread"),
        explore=_BESIDE_POISON,
    ),
    Planted(
        "batch_stops_early",
        BugKind.BATCH,
        ("B11",),
        ("lost-order",),
        settings=_batches(10, orders=40, copies=2, conflicts=0.0, poison=0.3),
        explore=_BESIDE_POISON,
    ),
    Planted(
        "decode_before_loop",
        BugKind.BATCH,
        ("B8",),
        ("dead-lettered-order",),
        settings=_batches(10, orders=40, copies=1, conflicts=0.0, poison=0.4),
        explore=_BESIDE_POISON,
    ),
    Planted(
        "batch_swallows",
        BugKind.BATCH,
        ("B9",),
        ("poison-acknowledged",),
        settings=_batches(5),
        explore=_AND_POISON,
    ),
    Planted(
        "failures_unread",
        BugKind.BATCH,
        ("B3", "B4"),
        ("batch-misreport", "poison-acknowledged"),
        explore=_AND_POISON,
    ),
    Planted(
        "malformed_answer",
        BugKind.BATCH,
        ("B12",),
        ("batch-misreport", "duplicate-failed"),
        settings={"queue": {"report_batch_item_failures": True}},
        explore=Smallest(2),
    ),
    Planted("not_awaited", BugKind.ACK, ("A10",), ("premature-ack",)),
    Planted(
        "gives_up",
        BugKind.ACK,
        ("A11",),
        ("conflict-acknowledged", "poison-acknowledged"),
        settings={
            "handler": {"environment": {"TABLE_NAME": "{table:orders}", "MAX_RECEIVES": "2"}}
        },
        explore=_AND_POISON,
    ),
    Planted(
        "own_poller",
        BugKind.ACK,
        ("A1", "A2", "A3", "A4", "A5", "A6", "A7"),
        ("lost-order",),
        needs=("worker",),
        settings={
            "handler": {"environment": {"TABLE_NAME": "{table:orders}", "QUEUE_URL": "{queue_url}"}}
        },
    ),
    Planted("container_memory", BugKind.SCOPE, ("W4", "W5"), ("overwrite",)),
    Planted(
        "marked_before_success",
        BugKind.SCOPE,
        ("W2", "A8"),
        ("conflict-acknowledged",),
        # Two processes: a redelivery meets the one that has seen it every other time.
        settings={"load": {"conflicts": 0.75, "concurrency": 2}},
    ),
    Planted(
        "guard_expires",
        BugKind.SCOPE,
        ("W1", "W7"),
        ("overwrite",),
        # Copies 2.5 s apart outlive a guard of 1 s; nothing overlaps then.
        settings={
            "handler": {"environment": {"TABLE_NAME": "{table:orders}", "TTL_S": "1"}},
            "load": {"orders": 20, "copies": 2, "rate": 8, "arrangement": "spread"},
            "expect": {"contended_orders": 0},
        },
    ),
    Planted("request_token", BugKind.SCOPE, ("W3", "S10"), ("overwrite",), needs=("clock",)),
)
