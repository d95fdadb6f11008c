"""One planted bug per mechanism, and exactly what must be found because of it.

A plant with more than one kind says why one bug cannot show without the other.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from analysis.findings import FindingKind as K
from analysis.schema import Ack, AckOutcome, Decision, Delivery, MessageKind, item_text
from tests.simulator import (
    ABSENT,
    PATIENCE,
    CallFailed,
    Condition,
    Context,
    Item,
    NotShown,
    Order,
    Physical,
    Plant,
    Refused,
    Script,
    Steps,
    World,
    correct,
    free_or_expired,
    fresh,
    hash_text,
)

# --- handlers that are wrong ----------------------------------------------------------


def _until_stored(context: Context, physical: Physical) -> Steps:
    for _ in range(PATIENCE):
        if context.world.stored(physical.order) is not None:
            return
        yield
    raise NotShown


def _put(context: Context, physical: Physical, condition: Condition | None = None) -> Steps:
    item = fresh(context, physical, status="NEW")
    return (yield from context.put(physical.order.style.table, item, condition))


def _blind_put(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical)
    return "processed"


def _blind_update(context: Context, physical: Physical) -> Steps:
    order = physical.order
    changes = {"quantity": {"N": str(physical.quantity)}, "by": {"S": "update"}}
    yield from context.update(order.style.table, order.item_key, changes)
    return "processed"


def _same_again(context: Context, physical: Physical) -> Steps:
    """Puts what is there already, byte by byte."""
    stored = context.world.stored(physical.order)
    assert stored is not None
    yield from context.put(physical.order.style.table, stored)
    return "processed"


def _read_then_put(context: Context, physical: Physical) -> Steps:
    """The read shows nothing; the item is stored before the put arrives."""
    order = physical.order
    yield from context.read(order.style.table, order.item_key)
    yield from _until_stored(context, physical)
    yield from _put(context, physical)
    return "processed"


def _blind_put_reply_lost(context: Context, physical: Physical) -> Steps:
    context.fault, context.recorded = "lost-reply", True
    yield from _put(context, physical)
    return "processed"


def _rewrites_details(context: Context, physical: Physical) -> Steps:
    decision, _ = yield from _put(context, physical, ABSENT)
    assert decision is Decision.ACCEPTED
    order = physical.order
    yield from context.update(order.style.table, order.item_key, {"quantity": {"N": "77"}})
    return "processed"


def _claims_again(context: Context, physical: Physical) -> Steps:
    order = physical.order
    yield from context.put("claims", fresh(context, physical, status="CLAIMED"))
    yield from context.update("claims", order.item_key, {"status": {"S": "COMPLETED"}})
    return "processed"


def _deletes_first(context: Context, physical: Physical) -> Steps:
    order = physical.order
    yield from context.delete(order.style.table, order.item_key)
    decision, _ = yield from _put(context, physical, ABSENT)
    return "processed" if decision is Decision.ACCEPTED else "duplicate"


def _accepted_twice(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical, status="NEW")
    yield from context.put("orders", item, ABSENT, spurious=Decision.ACCEPTED)
    return "processed"


def _accepts_itself_twice(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    return (yield from _accepted_twice(context, physical))


def _own_sort_key(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"sk": {"S": f"at-{context.invocation_id}"}}
    yield from context.put("sorted", item, ABSENT)
    return "processed"


def _own_key(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"id": {"S": f"message-{physical.sqs_id}"}}
    yield from context.put("orders", item, ABSENT)
    return "processed"


def _own_key_in_single(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"id": {"S": f"ORDER#{physical.sqs_id}"}}
    yield from context.put("single", item, ABSENT)
    return "processed"


def _other_form(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"id": {"S": f"order-{physical.order.key}"}}
    yield from context.put("single", item, ABSENT)
    return "processed"


def _own_key_no_quantity(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"id": {"S": f"message-{physical.sqs_id}"}}
    del item["quantity"]
    yield from context.put("orders", item, ABSENT)
    return "processed"


def _other_quantity(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical) | {"quantity": {"N": "77"}}
    yield from context.put("orders", item, ABSENT)
    return "processed"


def _no_quantity(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical)
    del item["quantity"]
    yield from context.put("orders", item, ABSENT)
    return "processed"


def _says_nothing(context: Context, physical: Physical) -> Steps:
    yield
    return None


def _says_processed(context: Context, physical: Physical) -> Steps:
    yield
    return "processed"


def _says_duplicate(context: Context, physical: Physical) -> Steps:
    yield
    return "duplicate"


def _swallows_the_error(context: Context, physical: Physical) -> Steps:
    item = fresh(context, physical)
    with suppress(CallFailed):
        yield from context.put("orders", item, ABSENT, fails=True)
    return None


def _takes_back(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    yield from context.delete("orders", physical.order.item_key)
    return None


def _rejected_and_says(word: str | None) -> Script:
    def script(context: Context, physical: Physical) -> Steps:
        decision, _ = yield from _put(context, physical, ABSENT)
        assert decision is Decision.REJECTED
        return word

    return script


def _rejected_and_raises(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    raise Refused


def _rejected_and_set_aside(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    yield from context.set_aside(physical)
    return None


def _other_answer(context: Context, physical: Physical) -> Steps:
    decision, _ = yield from _put(context, physical, ABSENT)
    assert decision is Decision.REJECTED
    return {"id": physical.order.key, "quantity": 77, "processed": False, "duplicate": True}


def _inserted_and_says_duplicate(context: Context, physical: Physical) -> Steps:
    decision, _ = yield from _put(context, physical, ABSENT)
    assert decision is Decision.ACCEPTED
    return "duplicate"


def _rejected_for_nothing(context: Context, physical: Physical) -> Steps:
    if physical.receives > 1:
        return (yield from correct(context, physical))
    item = fresh(context, physical)
    yield from context.put("orders", item, ABSENT, spurious=Decision.REJECTED)
    context.world.now += 1
    raise Refused


def _poison_item(context: Context, physical: Physical) -> Item:
    return {"id": {"S": physical.order.key}, "by": {"S": str(context.invocation_id)}}


def _stores_poison(context: Context, physical: Physical) -> Steps:
    yield from context.put("orders", _poison_item(context, physical))
    return None


def _stores_poison_and_raises(context: Context, physical: Physical) -> Steps:
    yield from context.put("orders", _poison_item(context, physical))
    raise Refused


def _raises(context: Context, physical: Physical) -> Steps:
    yield
    raise Refused


def _raises_after_a_failed_call(context: Context, physical: Physical) -> Steps:
    yield from context.put("orders", fresh(context, physical), ABSENT, fails=True)


def _sets_aside(context: Context, physical: Physical) -> Steps:
    yield from context.set_aside(physical)
    return None


def _delete_now(context: Context, physical: Physical) -> None:
    """The message is deleted while its invocation runs."""
    world = context.world
    (delivery_id,) = (
        row.delivery_id
        for versions in world.rows.values()
        for row in versions
        if isinstance(row, Delivery)
        and row.sqs_message_id == physical.sqs_id
        and row.invocation_id == context.invocation_id
    )
    world.keep(Ack(delivery_id, world.now, AckOutcome.DELETED))
    context.early_acks.add(physical.sqs_id)
    world.now += 1


def _deletes_the_message_first(context: Context, physical: Physical) -> Steps:
    _delete_now(context, physical)
    yield from _put(context, physical, ABSENT)
    return None


def _deletes_the_message_itself(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    _delete_now(context, physical)
    yield
    return None


def _writes_later(context: Context, physical: Physical) -> Steps:
    """Returns while the write is under way; it is answered after the message was deleted."""
    world = context.world

    def background(invocation_id: int | None) -> Steps:
        while not physical.gone:
            yield
        world.now += 1
        later = Context(world, invocation_id)
        yield from _put(later, physical, ABSENT)
        if world.setup.effects:
            yield from later.effect(physical)

    same = world.rng.random() < 0.5
    world.tasks.append(background(context.invocation_id if same else None))
    yield
    return None


def _reported_failed(context: Context, physical: Physical) -> Steps:
    if physical.receives > 1:
        return (yield from correct(context, physical))
    decision, _ = yield from _put(context, physical, ABSENT)
    assert decision is Decision.ACCEPTED
    raise Refused


def _named_in_vain(context: Context, physical: Physical) -> Steps:
    yield from _put(context, physical, ABSENT)
    context.names_all = True
    return None


def _leaves_a_claim(context: Context, physical: Physical) -> Steps:
    yield from context.put("claims", fresh(context, physical, status="CLAIMED"), ABSENT)
    return None


def _leaves_a_claim_and_raises(context: Context, physical: Physical) -> Steps:
    yield from _leaves_a_claim(context, physical)
    raise Refused


def _is_killed_with_its_claim(context: Context, physical: Physical) -> Steps:
    context.fault = "crash-after-call"
    claim = fresh(context, physical, status="CLAIMED")
    yield from context.put("claims", claim, free_or_expired(context.world))


def _leaves_the_guard(context: Context, physical: Physical) -> Steps:
    guard = {
        "id": {"S": f"digest-{hash_text(physical.order.key)}"},
        "status": {"S": "CLAIMED"},
        "invocation": {"S": str(context.invocation_id)},
    }
    yield from context.put("guard", guard, ABSENT)
    yield from context.put("orders", fresh(context, physical), ABSENT)
    return "processed"


def _own_write_and_says(word: str | None) -> Script:
    """The reply is lost, and the second attempt meets the first one's item."""

    def script(context: Context, physical: Physical) -> Steps:
        context.fault, context.recorded = "lost-reply", True
        decision, _ = yield from _put(context, physical, ABSENT)
        assert decision is Decision.REJECTED
        return word

    return script


def _own_write_and_raises(context: Context, physical: Physical) -> Steps:
    if physical.receives > 1:
        return (yield from correct(context, physical))
    yield from _own_write_and_says(None)(context, physical)
    raise Refused


def _own_claim_and_raises(context: Context, physical: Physical) -> Steps:
    if physical.receives > 1:
        return (yield from correct(context, physical))
    context.fault, context.recorded = "lost-reply", True
    claim = fresh(context, physical, status="CLAIMED")
    decision, _ = yield from context.put("claims", claim, free_or_expired(context.world))
    assert decision is Decision.REJECTED
    raise Refused


def _own_write_recognised(context: Context, physical: Physical) -> Steps:
    said = yield from _own_write_and_says("processed")(context, physical)
    yield from context.effect(physical)
    return said


def _effect_twice(context: Context, physical: Physical) -> Steps:
    said = yield from correct(context, physical)
    for _ in range(2):
        yield from context.effect(physical, None)
    return said


def _effect_and_raises(context: Context, physical: Physical) -> Steps:
    yield from context.effect(physical)
    raise Refused


def _effect_fails(context: Context, physical: Physical) -> Steps:
    said = yield from correct(context, physical)
    with suppress(CallFailed):
        yield from context.effect(physical, fails=True)
    return said


def _writes_the_reference(context: Context, physical: Physical) -> Steps:
    key = json.loads(physical.order.reference[1])
    yield from context.update("reference", key, {"note": {"S": physical.sqs_id}})
    return (yield from correct(context, physical))


def _writes_the_reference_and_back(context: Context, physical: Physical) -> Steps:
    key = json.loads(physical.order.reference[1])
    for note in ("changed", "keep unchanged"):
        yield from context.update("reference", key, {"note": {"S": note}})
    return (yield from correct(context, physical))


def _writes_the_reference_as_it_is(context: Context, physical: Physical) -> Steps:
    key = json.loads(physical.order.reference[1])
    yield from context.update("reference", key, {"note": {"S": "keep unchanged"}})
    return (yield from correct(context, physical))


# --- what happens outside the handlers ------------------------------------------------


def _place(order: Order) -> tuple[str, str]:
    return order.style.table, item_text(order.item_key)


def _item_disappears(world: World, order: Order) -> None:
    if world.final.pop(_place(order), None) is None:
        raise NotShown


def _item_changes(world: World, order: Order) -> None:
    place = _place(order)
    if place not in world.final:
        raise NotShown
    world.final[place] = world.final[place] | {"note": {"S": "changed"}}


def _item_goes_back(world: World, order: Order) -> None:
    """A restore from a backup: the item is as it was before its last step."""
    place = _place(order)
    before = world.earlier.get(place)
    if before is None or before == world.final[place]:
        raise NotShown
    world.final[place] = before


def _reference_disappears(world: World, order: Order) -> str:
    del world.final[order.reference]
    return order.reference[1]


def _old_item_changes(world: World, order: Order) -> str:
    world.final[order.old_item] = world.final[order.old_item] | {"quantity": {"N": "5"}}
    return order.old_item[1]


def _old_item_disappears(world: World, order: Order) -> str:
    del world.final[order.old_item]
    return order.old_item[1]


def _reference_was_written(world: World, order: Order) -> str:
    return order.reference[1]


# --- all of them ----------------------------------------------------------------------


def _plant(name: str, *kinds: K, **more: Any) -> Plant:
    return Plant(name, frozenset(kinds), **more)


_CONFLICT = MessageKind.CONFLICT
_ORDER = MessageKind.ORDER
_POISON = MessageKind.POISON

PLANTS: tuple[Plant, ...] = (
    _plant("blind put", K.OVERWRITE, script=_blind_put, conflicts=False, steps=0),
    _plant("blind update", K.OVERWRITE, script=_blind_update),
    _plant("same again", K.OVERWRITE, script=_same_again),
    _plant("read then put", K.OVERWRITE, script=_read_then_put, gate="any", conflicts=False),
    _plant("blind put, reply lost", K.OVERWRITE, script=_blind_put_reply_lost, conflicts=False),
    # The other details are now stored, and the message that carried them was deleted as done.
    _plant(
        "blind put of a conflict",
        K.OVERWRITE,
        K.CONFLICT_ACKNOWLEDGED,
        script=_blind_put,
        message=_CONFLICT,
        gate="last",
        conflicts=False,
        needs_known=True,
    ),
    # What replaced the order's details is no message's.
    _plant(
        "rewrites details",
        K.OVERWRITE,
        K.PHANTOM_WRITE,
        script=_rewrites_details,
        message=_ORDER,
        gate="alone",
    ),
    # The claim replaces the result; completing it gives the order a result once more.
    _plant(
        "claims again",
        K.OVERWRITE,
        K.DOUBLE_ACCEPT,
        script=_claims_again,
        ways=("claim",),
        conflicts=False,
        needs_known=True,
    ),
    _plant(
        "deletes first",
        K.DOUBLE_ACCEPT,
        script=_deletes_first,
        conflicts=False,
        steps=0,
        needs_known=True,
    ),
    _plant(
        "accepted twice",
        K.DOUBLE_ACCEPT,
        script=_accepted_twice,
        conflicts=False,
        steps=0,
        needs_known=True,
    ),
    _plant(
        "accepts itself twice",
        K.DOUBLE_ACCEPT,
        script=_accepts_itself_twice,
        message=_ORDER,
        gate="alone",
    ),
    _plant("own sort key", K.DOUBLE_ACCEPT, script=_own_sort_key, sort_key=True, needs_known=True),
    # Beside the item under the right key there is one under another: two inserts.
    _plant("own key as well", K.WRONG_KEY, K.DOUBLE_ACCEPT, script=_own_key, needs_known=True),
    _plant("own key", K.WRONG_KEY, script=_own_key, message=_ORDER, gate="alone"),
    _plant(
        "own key in a single table",
        K.WRONG_KEY,
        script=_own_key_in_single,
        message=_ORDER,
        gate="alone",
        single=True,
    ),
    _plant(
        "blind put in a single table",
        K.OVERWRITE,
        script=_blind_put,
        conflicts=False,
        steps=0,
        single=True,
    ),
    # No kind of item that is judged: the order itself is missing.
    _plant(
        "other form of a key in a single table",
        K.LOST_ORDER,
        K.RESULT_MISMATCH,
        script=_other_form,
        every=True,
        single=True,
    ),
    # Details under a key that is not the order's are not judged besides.
    _plant(
        "own key, no quantity",
        K.WRONG_KEY,
        script=_own_key_no_quantity,
        message=_ORDER,
        gate="alone",
    ),
    _plant("other quantity", K.PHANTOM_WRITE, script=_other_quantity, gate="first"),
    _plant("no quantity", K.PHANTOM_WRITE, script=_no_quantity, gate="first"),
    _plant("nothing done", K.LOST_ORDER, script=_says_nothing, every=True),
    # Nothing was written, so the word for it is wrong besides.
    _plant(
        "nothing done, processed",
        K.LOST_ORDER,
        K.RESULT_MISMATCH,
        script=_says_processed,
        every=True,
    ),
    _plant(
        "nothing done, duplicate",
        K.LOST_ORDER,
        K.UNJUSTIFIED_REJECTION,
        script=_says_duplicate,
        every=True,
    ),
    # A failed write that was reported as success is how the order got lost.
    _plant(
        "swallows every error",
        K.LOST_ORDER,
        K.BATCH_MISREPORT,
        script=_swallows_the_error,
        every=True,
    ),
    _plant("takes back", K.LOST_ORDER, script=_takes_back, message=_ORDER, gate="alone"),
    _plant(
        "item disappears", K.VANISHED_ORDER, message=None, tamper=_item_disappears, needs_known=True
    ),
    _plant("item changes", K.VANISHED_ORDER, message=None, tamper=_item_changes, needs_known=True),
    _plant(
        "item goes back",
        K.VANISHED_ORDER,
        message=None,
        steps=2,
        tamper=_item_goes_back,
        needs_known=True,
    ),
    _plant(
        "conflict is a duplicate",
        K.CONFLICT_ACKNOWLEDGED,
        script=_rejected_and_says("duplicate"),
        message=_CONFLICT,
    ),
    _plant(
        "conflict is ignored",
        K.CONFLICT_ACKNOWLEDGED,
        script=_rejected_and_says(None),
        message=_CONFLICT,
    ),
    # Nothing was written for it, so "processed" is wrong besides.
    _plant(
        "conflict is processed",
        K.CONFLICT_ACKNOWLEDGED,
        K.RESULT_MISMATCH,
        script=_rejected_and_says("processed"),
        message=_CONFLICT,
    ),
    _plant(
        "poison is done", K.POISON_ACKNOWLEDGED, script=_says_nothing, message=_POISON, gate="alone"
    ),
    _plant(
        "poison is stored",
        K.POISON_STORED,
        script=_stores_poison_and_raises,
        message=_POISON,
        gate="alone",
    ),
    # Two mistakes in one handler that takes poison for an order.
    _plant(
        "poison is an order",
        K.POISON_STORED,
        K.POISON_ACKNOWLEDGED,
        script=_stores_poison,
        message=_POISON,
        gate="alone",
    ),
    _plant("copy is refused", K.DUPLICATE_FAILED, script=_rejected_and_raises),
    _plant(
        "copy is refused unseen", K.DUPLICATE_FAILED, script=_raises, gate="last", needs_known=True
    ),
    _plant("copy is set aside", K.DUPLICATE_FAILED, script=_rejected_and_set_aside),
    _plant(
        "duplicate of nothing",
        K.UNJUSTIFIED_REJECTION,
        script=_says_duplicate,
        gate="first",
        conflicts=False,
    ),
    _plant(
        "rejected for nothing", K.UNJUSTIFIED_REJECTION, script=_rejected_for_nothing, gate="first"
    ),
    _plant("copy is processed", K.RESULT_MISMATCH, script=_rejected_and_says("processed")),
    _plant(
        "insert is a duplicate",
        K.RESULT_MISMATCH,
        script=_inserted_and_says_duplicate,
        gate="first",
    ),
    _plant("other answer", K.DIVERGENT_RESULT, script=_other_answer),
    _plant("deletes at once", K.PREMATURE_ACK, script=_deletes_the_message_first),
    _plant("deletes in time", K.PREMATURE_ACK, script=_deletes_the_message_itself),
    _plant("writes later", K.PREMATURE_ACK, script=_writes_later, message=_ORDER, gate="alone"),
    _plant("swallows an error", K.BATCH_MISREPORT, script=_swallows_the_error, effect=False),
    _plant(
        "reports a success", K.BATCH_MISREPORT, script=_reported_failed, gate="first", report=True
    ),
    _plant("named in vain", K.BATCH_MISREPORT, script=_named_in_vain, report=False),
    _plant("refuses the order", K.DEAD_LETTERED_ORDER, script=_raises, every=True),
    _plant(
        "gives the order up",
        K.DEAD_LETTERED_ORDER,
        script=_raises_after_a_failed_call,
        every=True,
    ),
    _plant("sets the order aside", K.DEAD_LETTERED_ORDER, script=_sets_aside, every=True),
    _plant("stays in the queue", K.STUCK_MESSAGE, script=_raises, stays=True),
    _plant(
        "claim left",
        K.STUCK_MESSAGE,
        script=_leaves_a_claim,
        message=_ORDER,
        gate="alone",
        ways=("claim",),
    ),
    _plant(
        "claim left, refused",
        K.STUCK_MESSAGE,
        script=_leaves_a_claim_and_raises,
        message=_ORDER,
        gate="alone",
        ways=("claim",),
    ),
    _plant("guard left", K.STUCK_MESSAGE, script=_leaves_the_guard, message=_ORDER, gate="alone"),
    _plant(
        "reference written",
        K.UNRELATED_WRITE,
        script=_writes_the_reference,
        gate="any",
        tamper=_reference_was_written,
    ),
    _plant(
        "reference written and back",
        K.UNRELATED_WRITE,
        script=_writes_the_reference_and_back,
        gate="any",
        tamper=_reference_was_written,
    ),
    _plant("reference gone", K.UNRELATED_WRITE, message=None, tamper=_reference_disappears),
    _plant("old item changed", K.UNRELATED_WRITE, message=None, tamper=_old_item_changes),
    _plant("old item gone", K.UNRELATED_WRITE, message=None, tamper=_old_item_disappears),
    _plant(
        "own write is a duplicate",
        K.SELF_CONFLICT,
        script=_own_write_and_says("duplicate"),
        message=_ORDER,
        gate="alone",
    ),
    _plant("own write is refused", K.SELF_CONFLICT, script=_own_write_and_raises, gate="first"),
    _plant(
        "own claim is refused",
        K.SELF_CONFLICT,
        script=_own_claim_and_raises,
        gate="first",
        ways=("claim",),
    ),
    # Taken for somebody else's work, it was left to them to make the effect.
    _plant(
        "own write, no effect",
        K.SELF_CONFLICT,
        K.MISSING_EFFECT,
        script=_own_write_and_says(None),
        message=_ORDER,
        gate="alone",
        effect=False,
        needs_effects=True,
    ),
    _plant(
        "effect twice",
        K.DUPLICATE_EFFECT,
        script=_effect_twice,
        effect=False,
        needs_effects=True,
    ),
    # It is owed for an order that is stored, and this one is refused.
    _plant(
        "effect of a refused order",
        K.DUPLICATE_EFFECT,
        K.DEAD_LETTERED_ORDER,
        script=_effect_and_raises,
        every=True,
        needs_effects=True,
    ),
    _plant(
        "effect of poison",
        K.DUPLICATE_EFFECT,
        script=_effect_and_raises,
        message=_POISON,
        gate="alone",
        needs_effects=True,
    ),
    _plant(
        "no effect",
        K.MISSING_EFFECT,
        script=correct,
        every=True,
        effect=False,
        needs_effects=True,
    ),
    _plant(
        "effect fails",
        K.MISSING_EFFECT,
        script=_effect_fails,
        every=True,
        effect=False,
        needs_effects=True,
    ),
    # What looks wrong and is not: nothing must be found.
    _plant(
        "own write recognised",
        script=_own_write_recognised,
        message=_ORDER,
        gate="alone",
        effect=False,
        needs_effects=True,
    ),
    _plant(
        "killed with its claim",
        script=_is_killed_with_its_claim,
        message=_ORDER,
        gate="alone",
        ways=("claim",),
    ),
    _plant("reference written as it is", script=_writes_the_reference_as_it_is, gate="any"),
)
