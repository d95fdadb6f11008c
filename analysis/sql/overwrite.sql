-- An accepted put or update found a complete item and replaced it. The store itself returned
-- the old item with the write, so neither clocks nor the order of records matter, and an
-- overwrite with the same content shows as well.
--
-- A further write of the same invocation that leaves the details alone is a step of one work.
-- So is the second attempt of an SDK whose first reply was lost. A write over a claim (an
-- item that is not complete) is not an overwrite. What a poison message stored is judged as
-- poison-stored.
WITH own AS (
    SELECT invocation_id, resource, item_key, min(call_id) AS first_call_id FROM writes
    WHERE role = 'orders' AND decision IN ('accepted', 'unknown')
        AND invocation_id IS NOT NULL
    GROUP BY ALL
), accepted AS (
    SELECT w.*, coalesce(o.first_call_id < w.call_id, false)
            AND (w.details_after IS NULL OR w.details_after = w.details_before) AS step,
        lag(struct_pack(call_id, invocation_id, after)) OVER (
            PARTITION BY w.resource, w.item_key ORDER BY w.over_at, w.call_id
        ) AS previous
    FROM writes w LEFT JOIN own o USING (invocation_id, resource, item_key)
    WHERE w.role = 'orders' AND w.decision = 'accepted'
)
SELECT a.order_key, coalesce(k.message_nos, []) AS message_nos,
    CASE WHEN previous.after = before THEN [previous.invocation_id, a.invocation_id]
        ELSE [a.invocation_id] END AS invocation_ids,
    CASE WHEN previous.after = before THEN [previous.call_id, call_id]
        ELSE [call_id] END AS call_ids,
    CASE WHEN before = after THEN ['identical'] ELSE [] END AS flags,
    call_id, resource, item_key, before, after
FROM accepted a LEFT JOIN work k USING (invocation_id, order_key)
WHERE a.action IN ('put', 'update') AND a.complete_before AND NOT a.step AND NOT a.poison
