-- What several checks ask of the evidence, worked out once.
--
-- Beside the tables of the schema this reads `facts` (one row: what run.json and the state
-- of the evidence say) and the macros of analysis/store.py. Everything is a hash join, an
-- aggregate or a sort: nothing is quadratic in the messages of a run or of an order.
--
-- Times are compared as closed intervals: A came before B only when A's end is earlier than
-- B's start. Equal times are concurrent.

-- Every message of the plan, with the details of its order as text (NULL: poison).
CREATE TEMP TABLE planned AS
SELECT message_no, order_key, kind, kind = 'poison' AS poison, details(expected_item) AS details
FROM messages;

CREATE TEMP TABLE planned_keys AS
SELECT order_key, bool_and(poison) AS poison FROM planned GROUP BY order_key;

-- Every message an invocation was given.
CREATE TEMP TABLE handled AS
SELECT d.invocation_id, d.delivery_id, d.sqs_message_id, d.message_no,
    p.order_key, p.poison, p.details
FROM deliveries d JOIN planned p USING (message_no)
WHERE d.queue = 'queue' AND d.invocation_id IS NOT NULL;

-- The orders of an invocation; `alone`: it had messages of no other.
CREATE TEMP TABLE work AS
SELECT w.*, count(*) OVER (PARTITION BY w.invocation_id) = 1 AS alone,
    i.environment, i.started_at, i.ended_at, i.outcome
FROM (
    SELECT invocation_id, order_key, bool_and(poison) AS poison,
        list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled GROUP BY invocation_id, order_key
) w LEFT JOIN invocations i USING (invocation_id);

-- Writes ------------------------------------------------------------------------------
-- An accepted write under the condition that the item's key does not exist had no item
-- before it, whether or not the store returned the old one.
CREATE TEMP TABLE touched AS
SELECT i.call_id, i.resource, i.item_key, i.role, i.action, i.condition, i.decision,
    CASE WHEN i.before IS NULL AND i.decision = 'accepted' AND i.insert_only THEN '{}'
        ELSE i.before END AS before,
    i.after, i.insert_only, c.invocation_id, c.sent_at, c.answered_at, c.decision AS reply,
    coalesce(c.answered_at, 9223372036854775807) AS over_at
FROM (
    SELECT x.*, y.role, coalesce(
        contains(replace(x.condition, ' ', ''), 'attribute_not_exists(' || y."key" || ')')
        AND NOT regexp_matches(x.condition, '(?i)\b(OR|NOT)\b'), false) AS insert_only
    FROM call_items x JOIN run_tables y USING (resource)
) i
JOIN calls c USING (call_id)
WHERE i.action IN ('put', 'update', 'delete');

-- Which order a write to an orders table belongs to. In this order: the key is, or holds,
-- the key of an order its invocation was given; the item names such an order in another
-- attribute; the key is that of an order which an earlier invocation of the same process
-- was given (work left running in the background: `late`); the invocation had one order
-- only; the key is that of any order of the plan.
CREATE TEMP TABLE attribution AS
WITH keyed AS (
    SELECT call_id, resource, item_key, invocation_id,
        key_text(resource, item_key) AS partition_text,
        sort_text(resource, item_key) AS sort_text,
        item_order_key(coalesce(nullif(after, '{}'), before)) AS named
    FROM touched WHERE role = 'orders'
), known AS (
    SELECT k.*, coalesce(p.order_key, s.order_key) AS planned_key,
        coalesce(p.poison, s.poison) AS planned_poison
    FROM keyed k
    LEFT JOIN planned_keys p ON p.order_key = k.partition_text
    LEFT JOIN planned_keys s ON s.order_key = k.sort_text
), candidates AS (
    SELECT k.call_id, k.resource, k.item_key, w.order_key, w.poison, w.invocation_id,
        CASE
            WHEN w.order_key IN (k.partition_text, coalesce(k.sort_text, k.partition_text)) THEN 1
            WHEN contains(k.partition_text, w.order_key)
                OR contains(coalesce(k.sort_text, ''), w.order_key) THEN 2
            WHEN w.order_key = k.named THEN 3
            WHEN w.alone THEN 5
        END AS rank
    FROM known k JOIN work w USING (invocation_id)
    UNION ALL
    SELECT k.call_id, k.resource, k.item_key, w.order_key, w.poison, w.invocation_id, 4
    FROM (SELECT * FROM known JOIN invocations USING (invocation_id)) k
    ASOF JOIN work w ON w.environment = k.environment AND w.order_key = k.planned_key
        AND w.invocation_id < k.invocation_id
    UNION ALL
    SELECT call_id, resource, item_key, planned_key, planned_poison, invocation_id, 6
    FROM known WHERE planned_key IS NOT NULL
)
SELECT * FROM candidates WHERE rank IS NOT NULL
QUALIFY row_number() OVER (
    PARTITION BY call_id, resource, item_key
    ORDER BY rank, length(order_key) DESC, order_key
) = 1;

-- Every write to a table of role orders or guard. `invocation_id` is whose work it was.
CREATE TEMP TABLE writes AS
SELECT t.* EXCLUDE (invocation_id),
    coalesce(a.invocation_id, t.invocation_id) AS invocation_id,
    a.order_key, coalesce(a.poison, false) AS poison,
    t.role = 'orders' AND coalesce(a.rank NOT IN (1, 2, 4), true) AND coalesce(
        t.invocation_id IN (SELECT invocation_id FROM work), false) AS wrong_key,
    coalesce(a.rank = 4 OR (a.rank = 6 AND t.invocation_id IS NULL), false) AS late,
    details(t.before) AS details_before, details(t.after) AS details_after,
    complete(t.resource, t.before) AS complete_before,
    complete(t.resource, t.after) AS complete_after
FROM touched t LEFT JOIN attribution a USING (call_id, resource, item_key)
WHERE t.role IN ('orders', 'guard');

-- An insert gives an order its result: accepted, nothing complete before it. One that the
-- same invocation deleted again (compensation) is undone and does not count.
CREATE TEMP TABLE inserts AS
SELECT w.* FROM writes w
LEFT JOIN (
    SELECT invocation_id, resource, item_key, max(call_id) AS last_delete FROM writes
    WHERE action = 'delete' AND decision = 'accepted' GROUP BY ALL
) d USING (invocation_id, resource, item_key)
WHERE w.role = 'orders' AND w.decision = 'accepted' AND w.action IN ('put', 'update')
    AND w.before IS NOT NULL AND NOT w.complete_before
    AND (w.after IS NULL OR w.complete_after)
    AND coalesce(d.last_delete < w.call_id, true);

-- Items at the end ---------------------------------------------------------------------
-- The order of a stored item is that of the writes to it, else that of its key.
CREATE TEMP TABLE finals AS
SELECT f.resource, f.item_key, f.item, t.role,
    coalesce(w.order_key, p.order_key, s.order_key) AS order_key,
    coalesce(w.poison, p.poison, s.poison, false) AS poison,
    w.item_key IS NOT NULL AS written,
    b.item AS item_before,
    details(f.item) AS details, complete(f.resource, f.item) AS complete
FROM items f
JOIN run_tables t USING (resource)
LEFT JOIN items b
    ON b.resource = f.resource AND b.item_key = f.item_key AND b.phase = 'before'
LEFT JOIN (
    SELECT resource, item_key, arg_max(order_key, call_id) AS order_key,
        bool_and(poison) AS poison
    FROM writes WHERE decision IN ('accepted', 'unknown') GROUP BY resource, item_key
) w ON w.resource = f.resource AND w.item_key = f.item_key
LEFT JOIN planned_keys p ON p.order_key = key_text(f.resource, f.item_key)
LEFT JOIN planned_keys s ON s.order_key = sort_text(f.resource, f.item_key)
WHERE f.phase = 'after' AND t.role IN ('orders', 'guard') AND (SELECT ended FROM facts);

-- The details stored first are the order's: every message with them is a copy, every other
-- one a conflict. Details that no message carries make a phantom-write, not an order.
CREATE TEMP TABLE stored AS
WITH images AS (
    SELECT order_key, details_after AS details, over_at AS stored_at, call_id FROM inserts
    WHERE order_key IS NOT NULL AND NOT poison AND details_after IS NOT NULL
    UNION ALL
    SELECT order_key, details, 9223372036854775807, NULL FROM finals
    WHERE role = 'orders' AND order_key IS NOT NULL AND NOT poison AND complete
)
SELECT order_key, details, stored_at, call_id FROM images
SEMI JOIN planned USING (order_key, details)
QUALIFY row_number() OVER (PARTITION BY order_key ORDER BY stored_at, call_id, details) = 1;

-- Fates --------------------------------------------------------------------------------
-- One row per physical message, judged by its last fate: deleted, dead_lettered, set_aside
-- (deleted, and the handler put a message with the same body into the dead-letter queue, for
-- which it must have called SQS) or open. A delete holds unless the message was received again after it.
--
-- `refused`: the handler's own last word was no, and not for want of a chance. Not so when the
-- message was received but never given to it, when only the delete failed or came after the
-- queue had moved the message, when the invocation met an injected fault, or when it was
-- shown a claim that was still in progress.
CREATE TEMP TABLE fates AS
WITH hindered AS (
    SELECT invocation_id FROM calls WHERE fault IS NOT NULL AND invocation_id IS NOT NULL
    UNION
    SELECT c.invocation_id FROM call_items i
    JOIN calls c USING (call_id)
    JOIN run_tables t ON t.resource = i.resource
    WHERE t.role IN ('orders', 'guard') AND (i.decision = 'rejected' OR i.action = 'read')
        AND c.invocation_id IS NOT NULL
        AND i.before <> '{}' AND NOT complete(i.resource, i.before)
), received AS (
    SELECT d.sqs_message_id, min(d.message_no) AS message_no, max(d.receive_count) AS receives,
        max(d.received_at) AS received_at, max(d.delivery_id) AS last_delivery_id,
        max(a.acked_at) FILTER (a.outcome = 'deleted') AS deleted_at,
        max(d.received_at) FILTER (a.outcome IS DISTINCT FROM 'deleted') AS kept_at
    FROM deliveries d LEFT JOIN acks a USING (delivery_id)
    WHERE d.queue = 'queue' AND d.message_no IS NOT NULL GROUP BY d.sqs_message_id
), physical AS (
    SELECT * FROM received
    UNION ALL
    SELECT sqs_message_id, message_no, 0, NULL, NULL, NULL, NULL FROM messages m
    WHERE accepted_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM received r WHERE r.sqs_message_id = m.sqs_message_id
    )
), dead AS (
    SELECT d.sqs_message_id, min(d.message_no) AS message_no, max(d.received_at) AS dead_at,
        bool_and(p.sqs_message_id IS NULL) AS is_foreign
    FROM deliveries d LEFT JOIN physical p USING (sqs_message_id)
    WHERE d.queue = 'dlq' GROUP BY d.sqs_message_id
), renamed AS (
    SELECT message_no FROM dead WHERE is_foreign
), same_body AS (
    SELECT message_no FROM messages WHERE body IN (
        SELECT body FROM messages WHERE message_no IN (SELECT message_no FROM renamed)
    )
), told AS (
    -- Messages that one of their invocations may have set aside.
    SELECT DISTINCT d.sqs_message_id FROM deliveries d JOIN calls c USING (invocation_id)
    WHERE c.service = 'sqs' AND c.decision IN ('accepted', 'unknown')
)
SELECT p.sqs_message_id, p.message_no, l.order_key, l.kind, l.poison, l.details,
    p.receives, p.received_at, p.deleted_at, d.dead_at, p.last_delivery_id,
    v.invocation_id AS last_invocation_id,
    v.invocation_id IS NOT NULL
        AND (a.outcome = 'returned' OR (a.outcome = 'deleted' AND d.dead_at IS NULL))
        AND v.invocation_id NOT IN (SELECT invocation_id FROM hindered) AS refused,
    CASE
        WHEN d.dead_at IS NOT NULL AND d.dead_at >= coalesce(p.received_at, d.dead_at)
            THEN 'dead_lettered'
        WHEN p.deleted_at IS NOT NULL AND coalesce(p.kept_at <= p.deleted_at, true) THEN CASE
            WHEN t.sqs_message_id IS NULL THEN 'deleted'
            WHEN p.message_no IN (SELECT message_no FROM same_body) THEN 'set_aside'
            -- It may not have been seen to arrive yet.
            WHEN NOT (SELECT ended FROM facts) THEN 'open'
            ELSE 'deleted' END
        -- A queue that gives a redriven message a new id.
        WHEN p.message_no IN (SELECT message_no FROM renamed) THEN 'dead_lettered'
        ELSE 'open'
    END AS fate
FROM physical p
JOIN planned l USING (message_no)
LEFT JOIN dead d USING (sqs_message_id)
LEFT JOIN told t USING (sqs_message_id)
LEFT JOIN deliveries v ON v.delivery_id = p.last_delivery_id
LEFT JOIN acks a ON a.delivery_id = p.last_delivery_id;

-- One row per order that the queue accepted.
CREATE TEMP TABLE outcomes AS
SELECT f.order_key, bool_and(f.fate <> 'open') AS settled,
    bool_or(f.fate IN ('dead_lettered', 'set_aside')) AS dead_lettered,
    list_sort(list(DISTINCT f.message_no)) AS message_nos,
    list_sort(list(DISTINCT f.last_invocation_id) FILTER (f.last_invocation_id IS NOT NULL))
        AS invocation_ids,
    any_value(i.order_key) IS NOT NULL AS has_item
FROM fates f
LEFT JOIN (SELECT DISTINCT order_key FROM finals WHERE role = 'orders') i USING (order_key)
WHERE NOT f.poison GROUP BY f.order_key;

-- The chain of images of one item ------------------------------------------------------
-- Accepted writes lead from the first image to the final one. In such a walk the final
-- image is arrived at once more than it is left (counting the start as an arrival). If it
-- is not, something that was not recorded changed the item. A write whose images are not
-- known, or of which it is not known whether it happened, may explain any final image.
CREATE TEMP TABLE vanished AS
SELECT w.resource, w.item_key, any_value(w.order_key) AS order_key,
    coalesce(any_value(f.item), '{}') AS final,
    arg_max(w.after, w.call_id) FILTER (w.decision = 'accepted') AS written,
    max(w.call_id) FILTER (w.decision = 'accepted') AS call_id,
    arg_max(w.invocation_id, w.call_id) FILTER (w.decision = 'accepted') AS invocation_id
FROM writes w
LEFT JOIN items f ON f.resource = w.resource AND f.item_key = w.item_key AND f.phase = 'after'
LEFT JOIN items b ON b.resource = w.resource AND b.item_key = w.item_key AND b.phase = 'before'
WHERE w.role = 'orders' AND w.decision IN ('accepted', 'unknown') AND (SELECT ended FROM facts)
GROUP BY w.resource, w.item_key
HAVING count(*) FILTER (w.decision = 'accepted') > 0
    AND count(*) FILTER (w.after IS NULL OR w.after = coalesce(f.item, '{}'))
        + CASE WHEN coalesce(any_value(b.item), '{}') = coalesce(any_value(f.item), '{}')
            THEN 1 ELSE 0 END
        - count(*) FILTER (w.decision = 'accepted' AND w.before = coalesce(f.item, '{}'))
        <= 0;

-- What cannot be known -----------------------------------------------------------------
-- One row per open question; any of them makes the verdict inconclusive.
--
-- An unknown write that can only insert is settled by the final items: if the item is there
-- some insert made it, if not none did, and it can have replaced nothing. Any other one is
-- settled when its image is known and was never seen, neither before an accepted write nor
-- at the end: then it did not happen.
CREATE TEMP TABLE unresolved AS
WITH questions AS (
    SELECT w.* FROM writes w WHERE w.role = 'orders' AND w.decision = 'unknown'
), deletes AS (
    SELECT DISTINCT resource, item_key FROM writes
    WHERE action = 'delete' AND decision IN ('accepted', 'unknown')
), seen AS (
    SELECT resource, item_key, before AS image FROM writes WHERE before IS NOT NULL
    UNION SELECT resource, item_key, after FROM writes
        WHERE decision = 'accepted' AND after IS NOT NULL
    UNION SELECT resource, item_key, item FROM items WHERE phase = 'after'
), blind AS (
    SELECT DISTINCT resource, item_key FROM writes WHERE decision = 'accepted' AND before IS NULL
)
SELECT 'unknown-write' AS question, q.call_id, q.resource, q.item_key FROM questions q
LEFT JOIN deletes d USING (resource, item_key)
LEFT JOIN blind b USING (resource, item_key)
LEFT JOIN seen s ON s.resource = q.resource AND s.item_key = q.item_key AND s.image = q.after
WHERE NOT coalesce((SELECT ended FROM facts) AND (
    (q.insert_only AND d.item_key IS NULL)
    OR (q.action <> 'delete' AND q.after IS NOT NULL AND s.image IS NULL AND b.item_key IS NULL)
), false)
UNION ALL
SELECT 'unknown-before', call_id, resource, item_key FROM writes
WHERE role = 'orders' AND decision = 'accepted' AND action <> 'delete' AND before IS NULL
UNION ALL
SELECT 'unrecorded-item', NULL, resource, item_key FROM finals
WHERE role = 'orders' AND NOT written AND item_before IS NULL
UNION ALL
SELECT 'unread-call', c.call_id, c.resource, NULL FROM calls c
WHERE c.service = 'dynamodb' AND c.decision IN ('accepted', 'unknown')
    AND c.operation IN ('PutItem', 'UpdateItem', 'DeleteItem', 'BatchWriteItem',
        'TransactWriteItems', 'ExecuteStatement', 'BatchExecuteStatement', 'ExecuteTransaction')
    AND NOT EXISTS (SELECT 1 FROM call_items i WHERE i.call_id = c.call_id);
