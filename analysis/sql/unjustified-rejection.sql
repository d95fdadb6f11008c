-- The handler was told, or told us, "already there" when nothing could have been there.
--
-- A write under a condition that an absent item meets (attribute_not_exists, <>, none at
-- all) was rejected although no accepted or unknown write to the same item began before the
-- rejection was answered and the item was not there before the run. Or a message was
-- reported as duplicate although no accepted or unknown write of any invocation with its
-- order began before its invocation ended. Equal times are concurrent, and an unknown write
-- may have happened, so both justify. Conditions that an absent item fails are not judged.
WITH causes AS (
    SELECT resource, item_key, min(sent_at) AS first_sent_at FROM writes
    WHERE decision IN ('accepted', 'unknown') GROUP BY resource, item_key
), rejected AS (
    SELECT w.order_key, w.invocation_id, w.call_id,
        'call ' || w.call_id || ' was rejected' AS what
    FROM writes w
    LEFT JOIN causes c USING (resource, item_key)
    LEFT JOIN items b
        ON b.resource = w.resource AND b.item_key = w.item_key AND b.phase = 'before'
    WHERE w.decision = 'rejected' AND b.item_key IS NULL
        AND (w.condition IS NULL OR regexp_matches(w.condition, 'attribute_not_exists|<>'))
        AND coalesce(c.first_sent_at > w.over_at, true)
), order_causes AS (
    SELECT o.order_key, min(w.sent_at) AS first_sent_at
    FROM writes w JOIN work o USING (invocation_id)
    WHERE w.decision IN ('accepted', 'unknown')
        AND (w.order_key = o.order_key OR w.order_key IS NULL)
    GROUP BY o.order_key
    UNION ALL
    SELECT key_text(resource, item_key) AS order_key, min(first_sent_at) FROM causes
    GROUP BY ALL
), stored_before AS (
    SELECT order_key FROM finals WHERE item_before IS NOT NULL AND order_key IS NOT NULL
), reported AS (
    SELECT p.order_key, r.invocation_id, NULL::BIGINT AS call_id,
        'message ' || r.message_no || ' was reported as duplicate' AS what
    FROM results r
    JOIN planned p USING (message_no)
    JOIN invocations i USING (invocation_id)
    LEFT JOIN (
        SELECT order_key, min(first_sent_at) AS first_sent_at FROM order_causes GROUP BY order_key
    ) c USING (order_key)
    WHERE r.result = 'duplicate' AND NOT p.poison
        AND p.order_key NOT IN (SELECT order_key FROM stored_before)
        AND coalesce(c.first_sent_at > i.ended_at, c.first_sent_at IS NULL)
)
SELECT u.order_key, coalesce(k.message_nos, []) AS message_nos,
    CASE WHEN u.invocation_id IS NULL THEN [] ELSE [u.invocation_id] END AS invocation_ids,
    CASE WHEN u.call_id IS NULL THEN [] ELSE [u.call_id] END AS call_ids,
    [] AS flags, u.what
FROM (FROM rejected UNION ALL FROM reported) u
LEFT JOIN work k USING (invocation_id, order_key)
