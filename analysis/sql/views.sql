-- What several checks ask of the evidence, worked out once.
--
-- Beside the tables of the schema this reads those of base.sql and places.sql, `facts` (one row: what
-- run.json and the state of the evidence say) and the macros of analysis/store.py. Everything
-- is a hash join, an aggregate or a sort: nothing is quadratic in the messages of a run or of
-- an order. What is wide (texts) or rare is looked up where it is needed, not carried along.
--
-- Times are compared as closed intervals: A came before B only when A's end is earlier than
-- B's start. Equal times are concurrent.

-- Faults ------------------------------------------------------------------------------
-- Invocations that a fault kept from their work: a call failed or was not answered, or the
-- process was killed. What such a one did not do is never held against the handler.
--
-- Faults that leave it all it needs (a new process, another clock, a message that comes again
-- or late, an acknowledgement that failed) excuse nothing, and a slow reply only where the
-- run then ended at its timeout.
CREATE TABLE struck AS
SELECT DISTINCT invocation_id FROM (
    SELECT invocation_id, split_part(fault, ':', 1) AS name FROM calls WHERE fault IS NOT NULL
    UNION SELECT invocation_id, name FROM faults
) f LEFT JOIN invocations i USING (invocation_id)
WHERE invocation_id IS NOT NULL AND CASE name
    WHEN 'slow' THEN coalesce(i.outcome = 'timed_out', false)
    ELSE name NOT IN ('cold-start', 'freeze', 'clock', 'redeliver-during', 'redeliver-after',
        'same-message-twice', 'short-visibility', 'out-of-order', 'long-delay', 'delete-fails',
        'receive-without-run', 'item-deleted', 'redrive', 'resend') END;

-- Writes ------------------------------------------------------------------------------
CREATE VIEW touched AS FROM effective UNION ALL BY NAME FROM refused;

CREATE VIEW images AS
SELECT t.call_id, t.place_no, i.after,
    CASE WHEN i.before IS NULL AND t.before_known THEN '{}' ELSE i.before END AS before
FROM touched t
JOIN places e USING (place_no)
JOIN call_items i
    ON i.call_id = t.call_id AND i.resource = e.resource AND i.item_key = e.item_key;

-- Which order a write to an orders table belongs to. In this order: the key is, or holds,
-- the key of an order its invocation was given; the item names such an order in another
-- attribute; the key is that of an order which an earlier invocation of the same process
-- was given (work left running in the background); the invocation had one order
-- only; the key is that of any order of the plan. Writes with an `own_no` need none of this.
CREATE TABLE attribution AS
WITH odd AS MATERIALIZED (
    SELECT t.call_id, t.place_no, t.invocation_id, e.partition_no, e.sort_no,
        key_text(e.resource, e.item_key) AS partition_text,
        sort_text(e.resource, e.item_key) AS sort_text,
        item_order_key(coalesce(nullif(i.after, '{}'), i.before)) AS named,
        coalesce(e.partition_no, e.sort_no) AS planned_no
    FROM touched t
    JOIN places e USING (place_no)
    JOIN images i USING (call_id, place_no)
    WHERE t.role = 'orders' AND t.own_no IS NULL
), given AS MATERIALIZED (
    SELECT w.invocation_id, w.order_no, count(*) OVER (PARTITION BY w.invocation_id) = 1 AS alone
    FROM (FROM assigned SEMI JOIN odd USING (invocation_id)) w
), earlier AS (
    SELECT h.order_no, h.invocation_id, i.environment
    FROM (FROM assigned a SEMI JOIN odd ON odd.planned_no = a.order_no) h
    JOIN invocations i USING (invocation_id)
), candidates AS (
    SELECT k.call_id, k.place_no, w.order_no, w.invocation_id,
        CASE
            WHEN w.order_no IN (k.partition_no, k.sort_no) THEN 1
            WHEN contains(k.partition_text, o.order_key)
                OR contains(coalesce(k.sort_text, ''), o.order_key) THEN 2
            WHEN o.order_key = k.named THEN 3
            WHEN w.alone THEN 5
        END AS rank
    FROM odd k JOIN given w USING (invocation_id) JOIN orders o USING (order_no)
    UNION ALL
    SELECT k.call_id, k.place_no, w.order_no, w.invocation_id, 4
    FROM (SELECT * FROM odd JOIN invocations USING (invocation_id)) k
    ASOF JOIN earlier w ON w.environment = k.environment AND w.order_no = k.planned_no
        AND w.invocation_id < k.invocation_id
    UNION ALL
    SELECT call_id, place_no, planned_no, invocation_id, 6 FROM odd WHERE planned_no IS NOT NULL
), chosen AS (
    SELECT c.*, o.poison FROM candidates c JOIN orders o USING (order_no) WHERE c.rank IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY c.call_id, c.place_no
        ORDER BY c.rank, length(o.order_key) DESC, o.order_key
    ) = 1
)
SELECT k.call_id, k.place_no, c.order_no, c.poison, c.invocation_id, c.rank,
    coalesce(c.rank NOT IN (1, 2, 4), true)
        AND k.invocation_id IN (SELECT invocation_id FROM given) AS wrong_key
FROM odd k LEFT JOIN chosen c USING (call_id, place_no);

-- Every write to a table of role orders or guard. `invocation_id` is whose work it was.
CREATE VIEW writes AS
SELECT t.* EXCLUDE (invocation_id, own_no, own_poison),
    coalesce(a.invocation_id, t.invocation_id) AS invocation_id,
    coalesce(t.own_no, a.order_no) AS order_no,
    coalesce(a.poison, t.own_poison) AS poison,
    coalesce(a.wrong_key, false) AS wrong_key,
    coalesce(t.answered_at, 9223372036854775807) AS over_at
FROM touched t
LEFT JOIN attribution a USING (call_id, place_no)
WHERE t.role IN ('orders', 'guard');

-- Items that somebody else deleted: the fault item-deleted, a call of no invocation. `order_no`:
-- the order it was meant for. The order can then rightly be gone, or be stored once more.
CREATE TABLE wipes AS
SELECT w.call_id, w.place_no, coalesce(p.order_no, w.order_no) AS order_no,
    coalesce(w.complete_before, false) AS complete
FROM writes w
SEMI JOIN (
    SELECT call_id FROM calls WHERE invocation_id IS NULL AND fault = 'item-deleted'
) t USING (call_id)
LEFT JOIN (
    SELECT call_id, min(message_no) AS message_no FROM faults
    WHERE name = 'item-deleted' AND call_id IS NOT NULL GROUP BY call_id
) f USING (call_id)
LEFT JOIN planned p USING (message_no)
WHERE w.role = 'orders' AND w.decision = 'accepted' AND w.action = 'delete' AND w.changed;

-- An insert gives an order its result: accepted, nothing complete before it. One that the
-- same invocation deleted again (compensation) is undone and does not count.
CREATE TABLE inserts AS
SELECT w.call_id, w.place_no, w.invocation_id, w.order_no, w.poison, w.reply, w.over_at,
    w.details_no
FROM writes w
LEFT JOIN (
    SELECT invocation_id, place_no, max(call_id) AS last_delete FROM writes
    WHERE action = 'delete' AND decision = 'accepted' GROUP BY ALL
) d USING (invocation_id, place_no)
WHERE w.role = 'orders' AND w.decision = 'accepted' AND w.action IN ('put', 'update')
    AND w.before_known AND NOT w.complete_before
    AND (NOT w.after_known OR w.complete_after)
    AND coalesce(d.last_delete < w.call_id, true);

-- Per place, the writes that happened or may have.
CREATE TABLE written AS
SELECT place_no, arg_max(order_no, call_id) AS order_no, arg_max(poison, call_id) AS poison,
    min(sent_at) AS first_sent_at
FROM writes WHERE decision IN ('accepted', 'unknown') GROUP BY place_no;

-- Items at the end ---------------------------------------------------------------------
-- The order of a stored item is that of the writes to it, else that of its key.
CREATE VIEW finals AS
SELECT e.place_no, e.role, coalesce(w.order_no, e.partition_no, e.sort_no) AS order_no,
    coalesce(w.poison, e.poison) AS poison, w.place_no IS NOT NULL AS written,
    e.item_before, e.item_after AS item, details(e.item_after) AS details,
    complete(e.resource, e.item_after) AS complete
FROM places e
LEFT JOIN written w USING (place_no)
WHERE e.item_after IS NOT NULL AND e.role IN ('orders', 'guard') AND (SELECT ended FROM facts);

-- The details stored first are the order's: every message with them is a copy, every other
-- one a conflict. Details that no message carries make a phantom-write, not an order. Of an
-- order that somebody deleted and that has conflicting messages it cannot be said: any of
-- them may rightly have been stored next.
--
-- An item whose insert is not known, or left details that no message carries, tells what was
-- stored only where no insert does.
CREATE TABLE stored AS
WITH inserted AS MATERIALIZED (
    SELECT order_no, details_no, over_at AS stored_at, call_id
    FROM inserts SEMI JOIN variants USING (order_no, details_no)
    WHERE NOT poison
), others AS (
    SELECT order_no, place_no FROM finals
    ANTI JOIN inserted USING (order_no)
    WHERE role = 'orders' AND order_no IS NOT NULL AND NOT poison
), images AS (
    SELECT *, NULL AS details FROM inserted
    UNION ALL
    SELECT f.order_no, s.details_no, 9223372036854775807, NULL, f.details
    FROM (FROM finals SEMI JOIN others USING (place_no)) f
    JOIN said s USING (details)
    SEMI JOIN variants v ON v.order_no = f.order_no AND v.details_no = s.details_no
    WHERE f.complete
)
SELECT order_no, details_no, stored_at, call_id FROM images
ANTI JOIN (
    SELECT order_no FROM variants SEMI JOIN wipes USING (order_no)
    GROUP BY order_no HAVING count(*) > 1
) uncertain USING (order_no)
QUALIFY row_number() OVER (PARTITION BY order_no ORDER BY stored_at, call_id, details) = 1;

-- Variants with other details than those stored for their order.
CREATE TABLE conflicts AS
SELECT v.variant_no, v.order_no, v.details_no AS sent_no, s.details_no AS stored_no, s.call_id
FROM variants v JOIN stored s USING (order_no) WHERE v.details_no <> s.details_no;

-- Answers that name another value for a field of the order's body than their own message does,
-- with the names of those fields. Filled by differing.sql.
CREATE TABLE differing (
    message_no BIGINT, invocation_id BIGINT, result ENUM ('processed', 'duplicate', 'failed'),
    fields VARCHAR
);

-- Fates --------------------------------------------------------------------------------
-- One row per physical message, judged by its last fate: deleted, dead_lettered, set_aside
-- (deleted, and the handler put a message with the same body into the dead-letter queue, for
-- which it must have called SQS) or open. A delete holds unless the message was received
-- again after it. A dead letter that was moved back (the fault redrive) is none any more: what
-- comes of the message under its new id counts, and until that is received it is open.
--
-- `refused`: the handler's own last word was no, and not for want of a chance. Not so when the
-- message was received but never given to it, when only the delete failed or came after the
-- queue had moved the message, when the invocation was struck by a fault, or when it was
-- shown a claim that was still in progress.
--
-- Most messages are `quiet`. Only the others (`eventful`) need a search.

-- Messages that one of their invocations may have set aside.
CREATE TABLE told AS
SELECT DISTINCT d.message_no, d.sqs_message_id FROM deliveries d
JOIN calls c USING (invocation_id)
ANTI JOIN effects e ON e.call_id = c.call_id  -- which sends a message of another kind
WHERE c.service = 'sqs' AND c.decision IN ('accepted', 'unknown');

CREATE TABLE eventful AS
SELECT message_no FROM histories WHERE NOT quiet
UNION
SELECT message_no FROM told WHERE message_no IS NOT NULL
UNION
SELECT message_no FROM deliveries WHERE queue = 'dlq' AND message_no IS NOT NULL
UNION
SELECT message_no FROM deliveries SEMI JOIN (
    SELECT sqs_message_id FROM deliveries WHERE queue = 'dlq' AND message_no IS NULL
) unmarked USING (sqs_message_id) WHERE message_no IS NOT NULL;

-- Their deliveries, and all from the dead-letter queue.
CREATE TABLE eventful_deliveries AS
FROM deliveries WHERE queue = 'dlq'
UNION ALL
FROM deliveries SEMI JOIN eventful USING (message_no) WHERE queue = 'queue';

CREATE TABLE eventful_fates AS
WITH hindered AS (
    FROM struck
    UNION
    SELECT c.invocation_id FROM (
        SELECT i.call_id
        FROM call_items i SEMI JOIN (
            FROM run_tables WHERE claims AND role IN ('orders', 'guard')
        ) t USING (resource)
        WHERE (i.decision = 'rejected' OR i.action = 'read')
            AND i.before <> '{}' AND NOT complete(i.resource, i.before)
    ) JOIN calls c USING (call_id)
    WHERE c.invocation_id IS NOT NULL
), received AS (
    SELECT d.sqs_message_id, min(d.message_no) AS message_no,
        arg_max(d.receive_count, d.delivery_id) AS receives, min(d.received_at) AS first_at,
        max(d.received_at) AS received_at, max(d.delivery_id) AS last_delivery_id,
        max(a.acked_at) FILTER (a.outcome = 'deleted') AS deleted_at,
        max(d.received_at) FILTER (a.outcome IS DISTINCT FROM 'deleted') AS kept_at
    FROM eventful_deliveries d LEFT JOIN acks a USING (delivery_id)
    WHERE d.queue = 'queue'
    GROUP BY d.sqs_message_id
), physical AS (
    SELECT * FROM received
    UNION ALL
    SELECT sqs_message_id, message_no, 0, NULL, NULL, NULL, NULL, NULL
    FROM (FROM messages SEMI JOIN eventful USING (message_no)) m
    WHERE accepted_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM received r WHERE r.sqs_message_id = m.sqs_message_id
    )
), letters AS (
    SELECT d.sqs_message_id, min(d.message_no) AS message_no, max(d.received_at) AS dead_at,
        bool_and(p.sqs_message_id IS NULL) AS is_foreign
    FROM eventful_deliveries d LEFT JOIN physical p USING (sqs_message_id)
    WHERE d.queue = 'dlq' GROUP BY d.sqs_message_id
), redriven AS (
    -- Which letter: that of the delivery it names, else all of its message, else all.
    SELECT d.sqs_message_id, CASE WHEN d.sqs_message_id IS NULL THEN f.message_no END AS message_no,
        max(f."at") AS redriven_at
    FROM faults f LEFT JOIN eventful_deliveries d ON d.delivery_id = f.delivery_id AND d.queue = 'dlq'
    WHERE f.name = 'redrive' GROUP BY ALL
), dead AS (
    SELECT l.*, coalesce(greatest(r.redriven_at, m.redriven_at, (
        SELECT max(redriven_at) FROM redriven WHERE message_no IS NULL AND sqs_message_id IS NULL
    )) >= l.dead_at, false) AS moved
    FROM letters l
    LEFT JOIN redriven r ON r.sqs_message_id = l.sqs_message_id
    LEFT JOIN redriven m ON m.message_no = l.message_no
), superseded AS (
    -- The old ids of what was received again under a new one.
    SELECT p.sqs_message_id FROM (
        SELECT p.*, d.dead_at FROM physical p
        JOIN (FROM dead WHERE moved) d USING (sqs_message_id)
        UNION ALL
        SELECT p.*, d.dead_at FROM physical p
        JOIN (
            SELECT message_no, max(dead_at) AS dead_at FROM dead
            WHERE moved AND is_foreign GROUP BY message_no
        ) d USING (message_no)
    ) p
    JOIN (SELECT message_no, max(first_at) AS last_at FROM received GROUP BY message_no) n
        USING (message_no)
    WHERE coalesce(p.received_at <= p.dead_at, true) AND n.last_at > p.dead_at
), renamed AS (
    SELECT message_no, moved FROM dead WHERE is_foreign
), same_body AS (
    SELECT message_no FROM messages SEMI JOIN told USING (message_no) WHERE body IN (
        SELECT body FROM messages SEMI JOIN renamed USING (message_no)
    )
)
SELECT p.message_no, p.sqs_message_id, l.order_no, l.variant_no, l.poison,
    p.receives, p.received_at, v.invocation_id AS last_invocation_id,
    v.invocation_id IS NOT NULL
        AND (a.outcome = 'returned' OR (a.outcome = 'deleted' AND d.dead_at IS NULL))
        AND v.invocation_id NOT IN (SELECT invocation_id FROM hindered) AS refused,
    CASE
        WHEN NOT d.moved AND d.dead_at >= coalesce(p.received_at, d.dead_at)
            THEN 'dead_lettered'
        WHEN p.deleted_at IS NOT NULL AND coalesce(p.kept_at <= p.deleted_at, true) THEN CASE
            WHEN p.sqs_message_id NOT IN (SELECT sqs_message_id FROM told) THEN 'deleted'
            WHEN p.message_no IN (SELECT message_no FROM same_body) THEN 'set_aside'
            -- It may not have been seen to arrive yet.
            WHEN NOT (SELECT ended FROM facts) THEN 'open'
            ELSE 'deleted' END
        -- A queue that gives a redriven message a new id.
        WHEN p.message_no IN (SELECT message_no FROM renamed WHERE NOT moved)
            THEN 'dead_lettered'
        ELSE 'open'
    END AS fate
FROM physical p
JOIN planned l USING (message_no)
LEFT JOIN dead d USING (sqs_message_id)
LEFT JOIN eventful_deliveries v ON v.delivery_id = p.last_delivery_id
LEFT JOIN acks a ON a.delivery_id = p.last_delivery_id
WHERE p.sqs_message_id NOT IN (FROM superseded);

-- `sqs_message_id` is NULL where the message is only one.
CREATE VIEW fates AS
SELECT message_no, NULL AS sqs_message_id, order_no, variant_no, poison, 1 AS receives,
    NULL::BIGINT AS received_at, invocation_id AS last_invocation_id, false AS refused,
    'deleted' AS fate
FROM handled ANTI JOIN eventful USING (message_no)
UNION ALL
FROM eventful_fates;

-- Orders of which no item is there at the end, though nobody else deleted it.
CREATE TABLE itemless AS
SELECT order_no FROM orders
ANTI JOIN (FROM finals WHERE role = 'orders') i USING (order_no)
ANTI JOIN wipes USING (order_no)
WHERE (SELECT ended FROM facts);

-- Those of them that the queue accepted, each once.
CREATE TABLE outcomes AS
SELECT f.order_no, bool_and(f.fate <> 'open') AS settled,
    bool_or(f.fate IN ('dead_lettered', 'set_aside')) AS dead_lettered,
    list_sort(list(DISTINCT f.message_no)) AS message_nos,
    list_sort(list(DISTINCT f.last_invocation_id) FILTER (f.last_invocation_id IS NOT NULL))
        AS invocation_ids
FROM fates f SEMI JOIN itemless USING (order_no)
WHERE NOT f.poison GROUP BY f.order_no;

-- Effects ------------------------------------------------------------------------------
-- Declared side effects that happened or may have, by order: the one that the request names;
-- else the one whose key is part of what it names, or the only one, of those that the
-- invocation was given.
CREATE TABLE effected AS
WITH asked AS MATERIALIZED (
    SELECT e.*, c.invocation_id, o.order_no AS named_no
    FROM (FROM effects WHERE decision IN ('accepted', 'unknown')) e
    JOIN calls c USING (call_id)
    LEFT JOIN orders o ON same_key(o.order_key) = same_key(e.order_key)
), given AS (
    SELECT w.*, o.order_key AS given_key,
        count(*) OVER (PARTITION BY w.invocation_id) = 1 AS alone
    FROM (
        SELECT DISTINCT invocation_id, order_no FROM handled
        SEMI JOIN (FROM asked WHERE named_no IS NULL) odd USING (invocation_id)
    ) w JOIN orders o USING (order_no)
)
SELECT a.call_id, a.effect, a.position, any_value(a.decision) AS decision,
    any_value(a.invocation_id) AS invocation_id,
    coalesce(any_value(a.named_no), arg_max(g.order_no, (
        contains(a.order_key, g.given_key), length(g.given_key)
    )) FILTER (g.alone OR contains(a.order_key, g.given_key))) AS order_no
FROM asked a LEFT JOIN given g ON g.invocation_id = a.invocation_id AND a.named_no IS NULL
GROUP BY a.call_id, a.effect, a.position;

-- Effects that are owed and cannot come any more: of orders that this run stored and of which
-- all messages are settled. None is owed once somebody else deleted the item, nor while a
-- message with the stored details is in the dead-letter queue because of a fault, or of
-- receives without a run: moved back, it can still bring the effect about.
CREATE TABLE missing_effects AS
WITH owing AS (
    SELECT DISTINCT order_no FROM finals
    WHERE role = 'orders' AND complete AND NOT poison AND item_before IS NULL
        AND order_no IS NOT NULL AND EXISTS (FROM run_effects)
), owed AS (
    SELECT o.order_no, e.effect FROM owing o
    ANTI JOIN wipes USING (order_no)
    CROSS JOIN run_effects e
)
SELECT order_no, effect FROM owed ANTI JOIN effected USING (order_no, effect)
WHERE order_no IN (
    SELECT f.order_no FROM (FROM fates SEMI JOIN owed USING (order_no)) f
    JOIN variants v USING (variant_no)
    LEFT JOIN stored s ON s.order_no = f.order_no AND s.details_no = v.details_no
    GROUP BY f.order_no
    HAVING bool_and(f.fate <> 'open') AND NOT bool_or(s.order_no IS NOT NULL
        AND f.fate IN ('dead_lettered', 'set_aside') AND NOT f.refused)
);

-- The chain of images of one item ------------------------------------------------------
-- Accepted writes lead from the first image to the final one. In such a walk the final
-- image is arrived at once more than it is left (counting the start as an arrival). If it
-- is not, something that was not recorded changed the item. A write whose images are not
-- known, or of which it is not known whether it happened, may explain any final image.
CREATE TABLE vanished AS
SELECT w.place_no, any_value(w.order_no) AS order_no,
    max(w.call_id) FILTER (w.decision = 'accepted') AS call_id,
    arg_max(w.invocation_id, w.call_id) FILTER (w.decision = 'accepted') AS invocation_id
FROM writes w
JOIN (
    SELECT place_no, coalesce(item_before, '{}') = coalesce(item_after, '{}') AS unchanged
    FROM places
) e USING (place_no)
WHERE w.role = 'orders' AND w.decision IN ('accepted', 'unknown') AND (SELECT ended FROM facts)
GROUP BY w.place_no
HAVING count(*) FILTER (w.decision = 'accepted') > 0
    AND count(*) FILTER (NOT w.after_known OR w.arrives) + bool_or(e.unchanged)::INTEGER
        - count(*) FILTER (w.decision = 'accepted' AND w.leaves)
        <= 0;

-- Writes of which it is not known who made them -----------------------------------------
-- Where calls are not observable, an accepted write is known (from the table's stream) and its
-- invocation is not. One that leaves the details of a complete item as they are is a further
-- step of one work, or a copy that overwrote it; a second insert of one order is that of a copy,
-- or of the same invocation.
CREATE TABLE ambiguous AS
WITH unseen AS MATERIALIZED (
    SELECT call_id, place_no FROM effective
    WHERE invocation_id IS NULL AND role = 'orders' AND decision = 'accepted'
        AND action IN ('put', 'update') AND complete_before
        AND NOT (SELECT sees_calls FROM facts)
)
SELECT u.call_id, u.place_no FROM unseen u
JOIN places e USING (place_no)
JOIN call_items i
    ON i.call_id = u.call_id AND i.resource = e.resource AND i.item_key = e.item_key
LEFT JOIN attribution a ON a.call_id = u.call_id AND a.place_no = u.place_no
WHERE details(i.after) IS NOT DISTINCT FROM details(i.before) AND NOT coalesce(a.poison, false)
UNION ALL
SELECT call_id, place_no FROM inserts
WHERE invocation_id IS NULL AND order_no IS NOT NULL AND NOT poison
    AND NOT (SELECT sees_calls FROM facts)
QUALIFY row_number() OVER (PARTITION BY order_no ORDER BY call_id) > 1;

-- What cannot be known -----------------------------------------------------------------
-- One row per open question; any of them makes the verdict inconclusive.
--
-- An unknown write that can only insert is settled by the final items: if the item is there
-- some insert made it, if not none did, and it can have replaced nothing. Any other one is
-- settled when its image is known and was never seen, neither before an accepted write nor
-- at the end: then it did not happen. An effect of which it is not known whether it happened
-- is one too many or the one that was owed, unless it had happened twice already.
CREATE TABLE unresolved AS
WITH deletes AS (
    SELECT DISTINCT place_no FROM writes
    WHERE action = 'delete' AND decision IN ('accepted', 'unknown')
), questions AS MATERIALIZED (
    SELECT w.* FROM writes w LEFT JOIN deletes d USING (place_no)
    WHERE w.role = 'orders' AND w.decision = 'unknown'
        AND NOT coalesce((SELECT ended FROM facts) AND w.insert_only AND d.place_no IS NULL, false)
), asked AS MATERIALIZED (
    SELECT place_no, call_id, decision FROM touched SEMI JOIN questions USING (place_no)
), images_there AS MATERIALIZED (
    SELECT a.*, i.before, i.after FROM asked a JOIN images i USING (call_id, place_no)
), seen AS (
    SELECT place_no, before AS image FROM images_there WHERE before IS NOT NULL
    UNION SELECT place_no, after FROM images_there WHERE decision = 'accepted' AND after IS NOT NULL
    UNION SELECT place_no, item_after FROM places SEMI JOIN questions USING (place_no)
        WHERE item_after IS NOT NULL
), blind AS (
    SELECT DISTINCT place_no FROM writes WHERE decision = 'accepted' AND NOT before_known
)
SELECT u.question, u.call_id, coalesce(e.resource, u.resource) AS resource,
    coalesce(e.item_key, u.item_key) AS item_key
FROM (
    SELECT 'unknown-write' AS question, q.call_id, q.place_no, NULL AS resource, NULL AS item_key
    FROM questions q
    LEFT JOIN blind b USING (place_no)
    JOIN images_there i ON i.call_id = q.call_id AND i.place_no = q.place_no
    LEFT JOIN seen s ON s.place_no = q.place_no AND s.image = i.after
    WHERE NOT coalesce((SELECT ended FROM facts) AND q.action <> 'delete' AND q.after_known
        AND s.place_no IS NULL AND b.place_no IS NULL, false)
    UNION ALL
    SELECT 'unknown-before', call_id, place_no, NULL, NULL FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND action <> 'delete' AND NOT before_known
    UNION ALL
    SELECT 'unrecorded-item', NULL, place_no, NULL, NULL FROM finals
    WHERE role = 'orders' AND NOT written AND item_before IS NULL
        AND (SELECT sees_writes FROM facts)
    UNION ALL
    SELECT 'unknown-writer', call_id, place_no, NULL, NULL FROM ambiguous
    UNION ALL
    SELECT 'unknown-effect', min(call_id), NULL, any_value(r.name),
        coalesce(any_value(o.order_key), '')
    FROM effected JOIN run_effects r USING (effect) LEFT JOIN orders o USING (order_no)
    GROUP BY order_no, effect
    HAVING count(*) FILTER (decision = 'unknown') > 0
        AND count(*) FILTER (decision = 'accepted') < 2
    UNION ALL
    SELECT 'unread-call', c.call_id, NULL, c.resource, NULL FROM calls c
    WHERE c.service = 'dynamodb' AND c.decision IN ('accepted', 'unknown')
        AND c.operation IN ('PutItem', 'UpdateItem', 'DeleteItem', 'BatchWriteItem',
            'TransactWriteItems', 'ExecuteStatement', 'BatchExecuteStatement', 'ExecuteTransaction')
        AND NOT EXISTS (SELECT 1 FROM call_items i WHERE i.call_id = c.call_id)
) u LEFT JOIN places e USING (place_no);
