-- What the consumer reported contradicts what its own calls did.
--
-- `processed`, but no invocation that was given this message has an accepted or unknown
-- write for the order, or to a guard table, that began before the invocation ended. (Any of
-- them: after a crash a redelivery may rightly recognise its own earlier write, or complete
-- the claim of one that crashed after the order was written.) `duplicate`, but this very
-- invocation inserted the order and was told so. When the reply was lost the handler cannot
-- know, and either report is right. A batch with two copies of one order (or with one message
-- that was sent twice) may insert it for the first and report the second as duplicate.
WITH causes AS (
    SELECT invocation_id, order_no, role, sent_at FROM writes
    WHERE decision IN ('accepted', 'unknown') AND action <> 'delete'
), processed AS MATERIALIZED (
    -- Those whose own invocation wrote the order in time need no further look.
    SELECT DISTINCT h.message_no, h.invocation_id, h.order_no, h.ended_at
    FROM handled h
    ANTI JOIN causes c ON c.invocation_id = h.invocation_id AND c.order_no = h.order_no
        AND c.sent_at <= h.ended_at
    WHERE h.result = 'processed' AND NOT h.poison
), own AS (
    SELECT h.message_no, min(c.sent_at) AS first_sent_at
    FROM causes c
    JOIN (FROM handled SEMI JOIN processed USING (message_no)) h
        ON h.invocation_id = c.invocation_id AND (h.order_no = c.order_no OR c.role = 'guard')
    GROUP BY h.message_no
), inserted AS (
    SELECT n.invocation_id, n.order_no, h.message_no, min(n.call_id) AS call_id
    FROM inserts n
    JOIN (FROM handled WHERE result = 'duplicate' AND NOT poison) h USING (invocation_id, order_no)
    WHERE n.reply = 'accepted'
    GROUP BY ALL
), found AS (
    SELECT order_no, message_no, invocation_id, NULL AS call_id, 'processed' AS result,
        'none of its calls wrote the order' AS but
    FROM processed LEFT JOIN own USING (message_no)
    WHERE coalesce(first_sent_at > ended_at, first_sent_at IS NULL)
    UNION ALL
    SELECT order_no, message_no, invocation_id, call_id, 'duplicate',
        'its own call ' || call_id || ' inserted the order'
    FROM inserted SEMI JOIN (
        SELECT invocation_id, order_no FROM handled SEMI JOIN inserted USING (invocation_id)
        GROUP BY ALL HAVING count(*) = 1
    ) single USING (invocation_id, order_no)
)
SELECT o.order_key, [f.message_no] AS message_nos, [f.invocation_id] AS invocation_ids,
    CASE WHEN f.call_id IS NULL THEN [] ELSE [f.call_id] END AS call_ids,
    [] AS flags, f.message_no, f.result, f.but
FROM found f JOIN orders o USING (order_no)
