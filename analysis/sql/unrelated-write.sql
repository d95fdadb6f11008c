-- Something changed that does not belong to this run: an item of a reference table, or an
-- item of an orders table that was there before the run under a key which is not planned.
-- The items read before and after the run are compared, and each accepted write to a
-- reference table that changed its item is a change too, even if it was undone.
WITH changed AS (
    SELECT resource, item_key, b.item AS before, a.item AS after, NULL::BIGINT AS invocation_id,
        NULL::BIGINT AS call_id
    FROM (FROM items WHERE phase = 'before') b
    FULL JOIN (FROM items WHERE phase = 'after') a USING (resource, item_key)
    JOIN run_tables t USING (resource)
    WHERE (SELECT ended FROM facts) AND b.item IS DISTINCT FROM a.item
        AND (t.role = 'reference' OR (t.role = 'orders' AND b.item IS NOT NULL
            AND coalesce(key_text(resource, item_key) NOT IN (FROM planned_keys SELECT order_key), true)
            AND coalesce(sort_text(resource, item_key) NOT IN (FROM planned_keys SELECT order_key), true)))
    UNION ALL
    SELECT resource, item_key, before, after, invocation_id, call_id FROM touched
    WHERE role = 'reference' AND decision = 'accepted' AND before IS DISTINCT FROM after
)
SELECT NULL::VARCHAR AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(h.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT c.invocation_id) FILTER (c.invocation_id IS NOT NULL))
        AS invocation_ids,
    list_sort(list(DISTINCT c.call_id) FILTER (c.call_id IS NOT NULL)) AS call_ids,
    [] AS flags, c.resource, c.item_key
FROM changed c
LEFT JOIN (
    SELECT invocation_id, list(DISTINCT message_no) AS message_nos FROM handled GROUP BY ALL
) h USING (invocation_id)
GROUP BY c.resource, c.item_key
