-- An accepted put or update found a complete item and replaced it. The store itself returned
-- the old item with the write, so neither clocks nor the order of records matter, and an
-- overwrite with the same content shows as well.
--
-- A further write of the same invocation that leaves the details alone is a step of one work.
-- So is the second attempt of an SDK whose first reply was lost. A write over a claim (an
-- item that is not complete) is not an overwrite. What a poison message stored is judged as
-- poison-stored. Where it is not known which invocation wrote, a write that leaves the details
-- alone may be either, and is an open question (`ambiguous`).
WITH found AS MATERIALIZED (
    SELECT * FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND action IN ('put', 'update')
        AND complete_before AND NOT poison
), own AS (
    SELECT invocation_id, place_no, min(call_id) AS first_call_id
    FROM writes SEMI JOIN found USING (place_no)
    WHERE decision IN ('accepted', 'unknown') AND invocation_id IS NOT NULL
    GROUP BY ALL
), accepted AS MATERIALIZED (
    SELECT call_id, place_no, invocation_id, over_at
    FROM writes SEMI JOIN found USING (place_no)
    WHERE decision = 'accepted'
), shown AS (
    SELECT a.call_id, a.place_no, i.before, i.after,
        lag(struct_pack(call_id := a.call_id, invocation_id := a.invocation_id, after := i.after))
            OVER (PARTITION BY a.place_no ORDER BY a.over_at, a.call_id) AS previous
    FROM accepted a JOIN images i USING (call_id, place_no)
), given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN found USING (invocation_id, order_no) GROUP BY ALL
)
SELECT s.order_key, coalesce(g.message_nos, []) AS message_nos,
    list_filter(CASE WHEN p.previous.after = p.before
            THEN [p.previous.invocation_id, f.invocation_id]
        ELSE [f.invocation_id] END, lambda id: id IS NOT NULL) AS invocation_ids,
    CASE WHEN p.previous.after = p.before THEN [p.previous.call_id, f.call_id]
        ELSE [f.call_id] END AS call_ids,
    CASE WHEN p.before = p.after THEN ['identical'] ELSE [] END AS flags,
    f.call_id, e.resource, e.item_key, p.before, p.after
FROM found f
JOIN places e USING (place_no)
JOIN shown p ON p.call_id = f.call_id AND p.place_no = f.place_no
LEFT JOIN own o ON o.invocation_id = f.invocation_id AND o.place_no = f.place_no
LEFT JOIN orders s ON s.order_no = f.order_no
LEFT JOIN given g ON g.invocation_id = f.invocation_id AND g.order_no = f.order_no
WHERE NOT (coalesce(o.first_call_id < f.call_id, false)
    AND (details(p.after) IS NULL OR details(p.after) = details(p.before)))
    AND (f.call_id, f.place_no) NOT IN (SELECT (call_id, place_no) FROM ambiguous)
