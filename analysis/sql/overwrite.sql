-- An accepted put or update found a complete item and replaced it. The store itself returned
-- the old item with the write, so neither clocks nor the order of records matter, and an
-- overwrite with the same content shows as well.
--
-- A further write of the same invocation that leaves the details alone is a step of one work.
-- So is the second attempt of an SDK whose first reply was lost. A write over a claim (an
-- item that is not complete) is not an overwrite. What a poison message stored is judged as
-- poison-stored.
WITH found AS MATERIALIZED (
    SELECT * FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND action IN ('put', 'update')
        AND complete_before AND NOT poison
), own AS (
    SELECT invocation_id, place_no, min(call_id) AS first_call_id
    FROM writes SEMI JOIN found USING (place_no)
    WHERE decision IN ('accepted', 'unknown') AND invocation_id IS NOT NULL
    GROUP BY ALL
), previous AS (
    SELECT call_id, place_no, lag(struct_pack(call_id, invocation_id, after)) OVER (
        PARTITION BY place_no ORDER BY over_at, call_id
    ) AS previous
    FROM writes SEMI JOIN found USING (place_no)
    WHERE decision = 'accepted'
)
SELECT s.order_key, messages_of(f.invocation_id, f.order_no) AS message_nos,
    CASE WHEN p.previous.after = f.before THEN [p.previous.invocation_id, f.invocation_id]
        ELSE [f.invocation_id] END AS invocation_ids,
    CASE WHEN p.previous.after = f.before THEN [p.previous.call_id, f.call_id]
        ELSE [f.call_id] END AS call_ids,
    CASE WHEN f.before = f.after THEN ['identical'] ELSE [] END AS flags,
    f.call_id, e.resource, e.item_key, f.before, f.after
FROM found f
JOIN places e USING (place_no)
JOIN previous p ON p.call_id = f.call_id AND p.place_no = f.place_no
LEFT JOIN own o ON o.invocation_id = f.invocation_id AND o.place_no = f.place_no
LEFT JOIN orders s ON s.order_no = f.order_no
WHERE NOT (coalesce(o.first_call_id < f.call_id, false)
    AND (f.details_after IS NULL OR f.details_after = f.details_before))
