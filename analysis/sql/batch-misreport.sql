-- The answer for a batch does not say what happened to its messages.
--
-- Not reported: the answer was a success and the message was deleted, although all that was
-- tried for it failed (no write of its order was accepted, rejected or left unknown, nothing
-- was read, no guard answered). Wrongly reported: the message was reported failed although
-- this invocation inserted its order, with its details, and was told so, and no other call
-- failed that could have belonged to it; where the handler raised, only in a batch of several messages with
-- batch item failures switched on, since else raising is the only way to report.
-- Reported in vain: the answer names the message in `batchItemFailures`, which the mapping
-- of this run is not set to read, and the message was deleted.
WITH tried AS (
    SELECT invocation_id, order_key, min(call_id) AS call_id,
        bool_and(decision = 'failed' AND reply = 'failed') AS all_failed
    FROM writes WHERE role = 'orders' AND order_key IS NOT NULL AND invocation_id IS NOT NULL
    GROUP BY ALL
), answered AS (
    -- Invocations in which something else than the failed writes gave an answer.
    SELECT DISTINCT c.invocation_id
    FROM calls c LEFT JOIN writes w ON w.call_id = c.call_id AND w.role = 'orders'
    WHERE w.call_id IS NULL AND c.decision <> 'failed' AND c.invocation_id IS NOT NULL
), failing AS (
    -- Calls that did not succeed, by the order they were for; NULL: for none in particular.
    SELECT DISTINCT c.invocation_id, w.order_key
    FROM calls c LEFT JOIN writes w ON w.call_id = c.call_id AND w.role = 'orders'
    WHERE c.decision <> 'accepted' AND c.invocation_id IS NOT NULL
), faulted AS (
    SELECT DISTINCT invocation_id FROM calls WHERE fault IS NOT NULL AND invocation_id IS NOT NULL
), inserted AS (
    SELECT invocation_id, order_key, details_after AS details, min(call_id) AS call_id
    FROM inserts
    WHERE reply = 'accepted' AND order_key IS NOT NULL GROUP BY ALL
), sizes AS (
    SELECT invocation_id, count(*) AS messages FROM handled GROUP BY invocation_id
), named AS (
    SELECT invocation_id, unnest(CASE WHEN json_valid(response) THEN
        json_extract_string(response, '$.batchItemFailures[*].itemIdentifier') END)
        AS sqs_message_id
    FROM invocations
    WHERE outcome = 'returned' AND contains(response, 'batchItemFailures')
        AND NOT (SELECT report_batch_item_failures FROM facts)
), found AS (
    SELECT h.*, t.call_id, 'was deleted as done, although everything tried for it failed' AS what
    FROM handled h
    JOIN tried t USING (invocation_id, order_key)
    JOIN invocations i USING (invocation_id)
    JOIN acks a USING (delivery_id)
    JOIN fates f USING (sqs_message_id)
    WHERE t.all_failed AND i.outcome = 'returned' AND a.outcome = 'deleted'
        AND f.fate = 'deleted' AND NOT h.poison
        AND h.invocation_id NOT IN (SELECT invocation_id FROM answered)
    UNION ALL
    SELECT h.*, n.call_id, 'was reported failed, although its order was stored'
    FROM handled h
    JOIN inserted n ON n.invocation_id = h.invocation_id AND n.order_key = h.order_key
        AND coalesce(n.details = h.details, true)
    JOIN invocations i ON i.invocation_id = h.invocation_id
    JOIN sizes z ON z.invocation_id = h.invocation_id
    JOIN results r ON r.invocation_id = h.invocation_id AND r.message_no = h.message_no
    WHERE r.result = 'failed' AND NOT h.poison AND (SELECT report_batch_item_failures FROM facts)
        AND (i.outcome = 'returned' OR (i.outcome = 'raised' AND z.messages > 1))
        AND h.invocation_id NOT IN (SELECT invocation_id FROM faulted)
        AND NOT EXISTS (
            SELECT 1 FROM failing x WHERE x.invocation_id = h.invocation_id
                AND (x.order_key IS NULL OR x.order_key = h.order_key)
        )
    UNION ALL
    SELECT h.*, NULL, 'was deleted, although the handler named it in batchItemFailures'
    FROM handled h JOIN named USING (invocation_id, sqs_message_id)
    JOIN acks a USING (delivery_id)
    WHERE a.outcome = 'deleted'
)
SELECT order_key, [message_no] AS message_nos, [invocation_id] AS invocation_ids,
    CASE WHEN call_id IS NULL THEN [] ELSE [call_id] END AS call_ids,
    [] AS flags, message_no, invocation_id, what
FROM found
