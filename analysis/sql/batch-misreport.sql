-- The answer for a batch does not say what happened to its messages.
--
-- Not reported: the answer was a success and the message was deleted, although all that was
-- tried for it failed (no write of its order was accepted, rejected or left unknown, nothing
-- was read, no guard answered). Wrongly reported: the message was reported failed although
-- this invocation inserted its order, with its details, and was told so, and no other call
-- failed that could have belonged to it and no fault struck it; where the handler raised, only
-- in a batch of several messages with batch item failures switched on, since else raising is
-- the only way to report.
-- Not said of an order that the batch held several times and of which somebody deleted an item:
-- the first may have been refused rightly, and the second stored.
-- Reported in vain: the answer names the message in `batchItemFailures`, which the mapping
-- of this run is not set to read, and the message was deleted.
WITH tried AS (
    SELECT invocation_id, order_no, min(call_id) AS call_id
    FROM writes SEMI JOIN (
        SELECT invocation_id, order_no FROM writes
        WHERE role = 'orders' AND decision = 'failed' AND reply = 'failed'
    ) failed USING (invocation_id, order_no)
    WHERE role = 'orders'
    GROUP BY ALL HAVING bool_and(decision = 'failed' AND reply = 'failed')
), fruitless AS MATERIALIZED (
    SELECT h.*, t.call_id
    FROM handled h
    JOIN tried t USING (invocation_id, order_no)
    JOIN invocations i USING (invocation_id)
    JOIN deliveries d USING (delivery_id)
    JOIN fates f ON f.message_no = h.message_no
        AND coalesce(f.sqs_message_id = d.sqs_message_id, true)
    WHERE i.outcome = 'returned' AND h.deleted_at IS NOT NULL AND f.fate = 'deleted'
        AND NOT h.poison
), answered AS (
    -- Invocations in which something else than the failed writes gave an answer.
    SELECT c.invocation_id
    FROM (FROM calls SEMI JOIN fruitless USING (invocation_id)) c
    LEFT JOIN writes w ON w.call_id = c.call_id AND w.role = 'orders'
    WHERE w.call_id IS NULL AND c.decision <> 'failed'
), failed AS (
    FROM handled WHERE result = 'failed' AND NOT poison
), inserted AS (
    SELECT invocation_id, order_no, details_no, min(call_id) AS call_id
    FROM inserts SEMI JOIN failed USING (invocation_id)
    WHERE reply = 'accepted' AND order_no IS NOT NULL GROUP BY ALL
), shares AS (
    -- How many messages the invocation was given, and how many of them of the order.
    SELECT invocation_id, order_no, count(*) AS own,
        sum(count(*)) OVER (PARTITION BY invocation_id) AS batch
    FROM handled SEMI JOIN inserted USING (invocation_id) GROUP BY invocation_id, order_no
), denied AS MATERIALIZED (
    SELECT h.*, n.call_id
    FROM failed h
    JOIN inserted n ON n.invocation_id = h.invocation_id AND n.order_no = h.order_no
    JOIN variants v ON v.variant_no = h.variant_no AND coalesce(n.details_no = v.details_no, true)
    JOIN invocations i ON i.invocation_id = h.invocation_id
    JOIN shares s ON s.invocation_id = h.invocation_id AND s.order_no = h.order_no
    WHERE (SELECT report_batch_item_failures FROM facts)
        AND (i.outcome = 'returned' OR (i.outcome = 'raised' AND s.batch > 1))
        AND (s.own = 1 OR h.order_no NOT IN (SELECT order_no FROM wipes WHERE order_no IS NOT NULL))
), failing AS (
    -- Calls that did not succeed, by the order they were for; NULL: for none in particular.
    SELECT c.invocation_id, w.order_no
    FROM (FROM calls SEMI JOIN denied USING (invocation_id)) c
    LEFT JOIN writes w ON w.call_id = c.call_id AND w.role = 'orders'
    WHERE c.decision <> 'accepted'
), named AS (
    SELECT invocation_id, unnest(CASE WHEN json_valid(response) THEN
        json_extract_string(response, '$.batchItemFailures[*].itemIdentifier') END)
        AS sqs_message_id
    FROM invocations
    WHERE outcome = 'returned' AND contains(response, 'batchItemFailures')
        AND NOT (SELECT report_batch_item_failures FROM facts)
), found AS (
    SELECT order_no, message_no, invocation_id, call_id,
        'was deleted as done, although everything tried for it failed' AS what
    FROM fruitless ANTI JOIN answered USING (invocation_id)
    UNION ALL
    SELECT order_no, message_no, invocation_id, call_id,
        'was reported failed, although its order was stored'
    FROM denied d
    WHERE NOT EXISTS (
        SELECT 1 FROM failing x WHERE x.invocation_id = d.invocation_id
            AND (x.order_no IS NULL OR x.order_no = d.order_no)
    ) AND d.invocation_id NOT IN (FROM struck)
    UNION ALL
    SELECT h.order_no, h.message_no, h.invocation_id, NULL,
        'was deleted, although the handler named it in batchItemFailures'
    FROM handled h SEMI JOIN (
        SELECT delivery_id FROM deliveries SEMI JOIN named USING (invocation_id, sqs_message_id)
    ) d USING (delivery_id)
    WHERE h.deleted_at IS NOT NULL
)
SELECT o.order_key, [message_no] AS message_nos, [invocation_id] AS invocation_ids,
    CASE WHEN call_id IS NULL THEN [] ELSE [call_id] END AS call_ids,
    [] AS flags, message_no, invocation_id, what
FROM found JOIN orders o USING (order_no)
