-- The final item (or its absence) is not where the accepted writes to it lead. Each write
-- names the image before it and the image after it; from the first image they form one walk,
-- and its end must be the final item. This compares whole items and needs no clock; where an
-- image is not known, or a write may or may not have happened, that write may explain any end.
WITH given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN vanished USING (invocation_id, order_no) GROUP BY ALL
)
SELECT o.order_key, coalesce(g.message_nos, []) AS message_nos,
    CASE WHEN v.invocation_id IS NULL THEN [] ELSE [v.invocation_id] END AS invocation_ids,
    [v.call_id] AS call_ids, [] AS flags, v.call_id, e.resource, e.item_key,
    coalesce(e.item_after, '{}') AS final, w.after AS written
FROM vanished v
JOIN places e USING (place_no)
LEFT JOIN given g ON g.invocation_id = v.invocation_id AND g.order_no = v.order_no
LEFT JOIN orders o ON o.order_no = v.order_no
LEFT JOIN images w ON w.call_id = v.call_id AND w.place_no = v.place_no
WHERE v.order_no IS NULL OR NOT o.poison
