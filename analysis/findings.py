"""The judge's words: findings, checks, rules, exposure, timing, verdict. Data only.

``verdict.json`` is one :class:`Verdict`, encoded by msgspec; the same evidence always
gives the same bytes, so it holds no time of judging.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from analysis.schema import Observation

MAX_SHOWN = 100
"""Findings of one kind that are told one by one; the count is always exact."""

MAX_GROUPS = 5
"""Groups of one kind that are shown, each with one finding proved and drawn."""


class FindingKind(StrEnum):
    OVERWRITE = "overwrite"
    DOUBLE_ACCEPT = "double-accept"
    PHANTOM_WRITE = "phantom-write"
    WRONG_KEY = "wrong-key"
    LOST_ORDER = "lost-order"
    VANISHED_ORDER = "vanished-order"
    CONFLICT_ACKNOWLEDGED = "conflict-acknowledged"
    POISON_ACKNOWLEDGED = "poison-acknowledged"
    POISON_STORED = "poison-stored"
    DUPLICATE_FAILED = "duplicate-failed"
    UNJUSTIFIED_REJECTION = "unjustified-rejection"
    SELF_CONFLICT = "self-conflict"
    RESULT_MISMATCH = "result-mismatch"
    DIVERGENT_RESULT = "divergent-result"
    PREMATURE_ACK = "premature-ack"
    BATCH_MISREPORT = "batch-misreport"
    DUPLICATE_EFFECT = "duplicate-effect"
    MISSING_EFFECT = "missing-effect"
    DEAD_LETTERED_ORDER = "dead-lettered-order"
    STUCK_MESSAGE = "stuck-message"
    UNRELATED_WRITE = "unrelated-write"


class VerdictWord(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        return {VerdictWord.PASS: 0, VerdictWord.FAIL: 1, VerdictWord.INCONCLUSIVE: 3}[self]


class CheckStatus(StrEnum):
    CLEAN = "clean"
    FOUND = "found"
    NOT_OBSERVABLE = "not-observable"  # the evidence cannot show it; note says why
    CRASHED = "crashed"  # the check itself failed: nothing is known


@dataclass(frozen=True, slots=True)
class Actor:
    """An invocation that takes part in a proof, named by a letter in text and picture."""

    letter: str  # "A", in the order in which they began
    invocation_id: int
    text: str  # "invocation 441, environment 3, with message 443 (copy)"


@dataclass(frozen=True, slots=True)
class FiredFault:
    """A fault that was carried out on the way to a finding."""

    fault_id: int
    name: str
    text: str  # "lost-reply on call 3 of invocation 2"


@dataclass(frozen=True, slots=True)
class FaultCount:
    """One rule of the fault plan: what was asked, how often it could strike, how often it did."""

    name: str
    text: str  # the rule as a person would write it
    opportunities: int
    fired: int


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. Times count from the first receive of the order."""

    text: str
    at_ns: int | None = None  # None: not at a known time
    until_ns: int | None = None  # answered, or acknowledged
    actor: str | None = None  # the letter of who did it
    call_id: int | None = None
    key: str | None = None  # of the item it was about, as short text, like all that follow
    condition: str | None = None
    before: str | None = None
    after: str | None = None
    fault: str | None = None  # that was met


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a finding holds: who took part, what each did in order, and what follows."""

    order_key: str | None
    actors: tuple[Actor, ...]
    item: str | None  # key and table of what steps call "the item"
    steps: tuple[Step, ...]
    steps_left_out: int
    conclusion: str
    drawing: tuple[str, ...]  # the steps as swim lanes of plain characters, below 80 columns
    query: str | None  # SQL that shows all calls of the actors


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be, with the rows that show it."""

    kind: FindingKind
    order_key: str | None
    explanation: str  # one sentence
    message_nos: tuple[int, ...] = ()
    invocation_ids: tuple[int, ...] = ()
    call_ids: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()  # "identical", "resurrected", "unstored"
    proof: Proof | None = None  # of the example of a group only
    faults: tuple[FiredFault, ...] = ()  # that led to it, the first ones
    fault_count: int = 0  # exact


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings of one kind whose invocations did the same: most likely one cause."""

    pattern: str  # what they did, without keys and values
    count: int  # exact
    orders: int  # different order keys among them, exact
    example: Finding  # the smallest one


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The answer of one check."""

    kind: FindingKind
    question: str
    assumption: str
    status: CheckStatus
    count: int  # exact
    findings: tuple[Finding, ...] = ()  # at most MAX_SHOWN
    note: str | None = None
    groups: tuple[FindingGroup, ...] = ()  # the largest ones, at most MAX_GROUPS
    patterns: int = 0  # groups there are, exact


@dataclass(frozen=True, slots=True)
class Counts:
    """Bare totals of the run, for the summary table."""

    messages: int
    accepted_messages: int  # confirmed by the queue
    orders: int  # order keys with at least one order message; poison not counted
    copies: int
    conflicts: int
    poison: int
    deliveries: int  # from the queue
    redeliveries: int  # of those, with a receive count above 1
    invocations: int
    calls: int
    accepted_writes: int  # accepted puts, updates and deletes in tables of role orders
    rejected_writes: int  # those whose condition failed
    failed_writes: int
    unknown_writes: int
    processed: int  # results
    duplicates: int
    failed: int
    deleted: int  # acknowledgements
    dead_lettered: int  # messages seen in the dead-letter queue
    unsettled: int  # planned messages neither deleted nor dead-lettered
    stored_items: int  # in tables of role orders, after


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much racing really took place.

    Two invocations of one order *overlap* when their call windows do: from the first
    call sent to the last one answered, closed intervals. An invocation whose calls did
    not overlap another's could not race with it, however long both ran.
    """

    overlapping_pairs: int
    contended_orders: int  # orders with at least one overlapping pair
    contestable_orders: int  # orders with two or more messages
    most_in_flight: int  # invocations of one order at the same time, at most
    busiest_order: str | None
    faults: tuple[FaultCount, ...] = ()  # one a rule


@dataclass(frozen=True, slots=True)
class Control:
    """What the same load did to a handler with a known race (read, then write)."""

    caught: bool  # it overwrote something
    overwrites: int
    overlapping_pairs: int
    note: str | None = None  # why there is nothing to count


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the verdict: a thing that was required, and what was found."""

    name: str
    passed: bool
    required: str
    actual: str


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Exact quantiles of raw values in nanoseconds; a quantile that n cannot carry is None."""

    name: str  # "end to end", "handler", "write", "send", "send lag", "delivery"
    split: str  # "all", or "accepted" / "rejected" / ...
    n: int
    min_ns: int
    p50_ns: int
    p90_ns: int | None
    p99_ns: int | None
    p99_9_ns: int | None
    max_ns: int


@dataclass(frozen=True, slots=True)
class Timing:
    duration_ns: int  # first send to last settled message
    offered_per_s: float | None  # what the plan asked; None at rate "max"
    sent_per_s: float  # what the queue accepted
    settled_per_s: float  # messages settled over the drain
    open_loop: bool  # True: latencies count from the intended time
    quantiles: tuple[Quantiles, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    run_id: str
    verdict: VerdictWord
    reasons: tuple[str, ...]  # why not PASS, one sentence each; empty for PASS
    counts: Counts
    exposure: Exposure
    rules: tuple[Rule, ...]
    checks: tuple[CheckReport, ...]
    timing: Timing | None
    notes: tuple[str, ...] = field(default=())  # facts a reader must know: damaged evidence, ...
    control: Control | None = None  # None: none was asked for
    not_observable: dict[Observation, str] = field(default_factory=dict)
    """What the run could not show, and why. What is counted of it is not what happened."""

    @property
    def is_told_apart(self) -> bool:
        """False when nothing says which results mean processed and which mean duplicate."""
        return self.counts.processed + self.counts.duplicates > 0 or all(
            check.status is not CheckStatus.NOT_OBSERVABLE
            for check in self.checks
            if check.kind is FindingKind.RESULT_MISMATCH
        )
