-- What the consumer reported contradicts what its own calls did.
--
-- `processed`, but no invocation that was given this message has an accepted or unknown
-- write for the order, or to a guard table, that began before the invocation ended. (Any of
-- them: after a crash a redelivery may rightly recognise its own earlier write, or complete
-- the claim of one that crashed after the order was written.) `duplicate`, but this very
-- invocation inserted the order and was told so. When the reply was lost the handler cannot
-- know, and either report is right. A batch with two copies of one order (or with one message
-- that was sent twice) may insert it for the first and report the second as duplicate.
WITH own AS (
    SELECT h.message_no, min(w.sent_at) AS first_sent_at
    FROM writes w
    JOIN handled h ON h.invocation_id = w.invocation_id
        AND (h.order_key = w.order_key OR w.role = 'guard')
    WHERE w.decision IN ('accepted', 'unknown') AND w.action <> 'delete'
    GROUP BY h.message_no
), inserted AS (
    SELECT i.invocation_id, i.order_key, min(i.call_id) AS call_id
    FROM inserts i SEMI JOIN (
        SELECT invocation_id, order_key FROM handled GROUP BY ALL HAVING count(*) = 1
    ) single USING (invocation_id, order_key)
    WHERE i.reply = 'accepted' GROUP BY ALL
)
SELECT p.order_key, [r.message_no] AS message_nos, [r.invocation_id] AS invocation_ids,
    CASE WHEN n.call_id IS NULL THEN [] ELSE [n.call_id] END AS call_ids,
    [] AS flags, r.message_no, r.result,
    CASE r.result WHEN 'processed' THEN 'none of its calls wrote the order'
        ELSE 'its own call ' || n.call_id || ' inserted the order' END AS but
FROM results r
JOIN planned p USING (message_no)
JOIN invocations i USING (invocation_id)
LEFT JOIN own o USING (message_no)
LEFT JOIN inserted n ON n.invocation_id = r.invocation_id AND n.order_key = p.order_key
    AND r.result = 'duplicate'
WHERE NOT p.poison AND (
    (r.result = 'processed'
        AND coalesce(o.first_sent_at > i.ended_at, o.first_sent_at IS NULL))
    OR (r.result = 'duplicate' AND n.call_id IS NOT NULL)
)
