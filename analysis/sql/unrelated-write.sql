-- Something changed that does not belong to this run: an item of a reference table, or an
-- item of an orders table that was there before the run under a key which is not planned.
-- The items read before and after the run are compared, and each accepted write to a
-- reference table that changed its item is a change too, even if it was undone.
WITH changed AS MATERIALIZED (
    SELECT place_no, NULL::BIGINT AS invocation_id, NULL::BIGINT AS call_id
    FROM places
    WHERE (SELECT ended FROM facts) AND item_before IS DISTINCT FROM item_after
        AND (role = 'reference' OR (role = 'orders' AND item_before IS NOT NULL
            AND partition_no IS NULL AND sort_no IS NULL))
    UNION ALL
    SELECT place_no, invocation_id, call_id FROM touched
    WHERE role = 'reference' AND decision = 'accepted' AND changed
), given AS (
    SELECT invocation_id, list(message_no) AS message_nos
    FROM handled SEMI JOIN changed USING (invocation_id) GROUP BY invocation_id
)
SELECT NULL::VARCHAR AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(g.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT c.invocation_id) FILTER (c.invocation_id IS NOT NULL))
        AS invocation_ids,
    list_sort(list(DISTINCT c.call_id) FILTER (c.call_id IS NOT NULL)) AS call_ids,
    [] AS flags, e.resource, e.item_key
FROM changed c JOIN places e USING (place_no) LEFT JOIN given g USING (invocation_id)
GROUP BY e.resource, e.item_key
