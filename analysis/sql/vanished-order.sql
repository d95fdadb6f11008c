-- The final item (or its absence) is not where the accepted writes to it lead. Each write
-- names the image before it and the image after it; from the first image they form one walk,
-- and its end must be the final item. This compares whole items and needs no clock; where an
-- image is not known, or a write may or may not have happened, that write may explain any end.
SELECT o.order_key, messages_of(v.invocation_id, v.order_no) AS message_nos,
    CASE WHEN v.invocation_id IS NULL THEN [] ELSE [v.invocation_id] END AS invocation_ids,
    [v.call_id] AS call_ids, [] AS flags, v.call_id, e.resource, e.item_key,
    coalesce(e.item_after, '{}') AS final, w.after AS written
FROM vanished v
JOIN places e USING (place_no)
LEFT JOIN orders o USING (order_no)
LEFT JOIN touched w ON w.call_id = v.call_id AND w.place_no = v.place_no
WHERE v.order_no IS NULL OR NOT o.poison
