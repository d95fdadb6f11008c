-- The final item (or its absence) is not where the accepted writes to it lead. Each write
-- names the image before it and the image after it; from the first image they form one walk,
-- and its end must be the final item. This compares whole items and needs no clock; where an
-- image is not known, or a write may or may not have happened, that write may explain any end.
SELECT v.order_key, coalesce(k.message_nos, []) AS message_nos,
    CASE WHEN v.invocation_id IS NULL THEN [] ELSE [v.invocation_id] END AS invocation_ids,
    [v.call_id] AS call_ids, [] AS flags, v.call_id, v.resource, v.item_key, v.final,
    v.written
FROM vanished v LEFT JOIN work k USING (invocation_id, order_key)
WHERE v.order_key IS NULL OR v.order_key NOT IN (SELECT order_key FROM planned_keys WHERE poison)
