-- A complete image, written or found at the end, carries details that no message of its
-- order carries: the plan is known in full before the first message is sent, so nothing
-- that was sent explains it. One finding an item.
--
-- Only the details are compared; times, states and totals are the handler's own. An item
-- under a wrong key is reported as wrong-key, one of a poison message as poison-stored, one
-- that differs from the last write to it as vanished-order.
WITH complete_images AS (
    SELECT place_no, order_no, details_no, invocation_id, call_id FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND action IN ('put', 'update')
        AND complete_after AND NOT wrong_key AND NOT poison
    UNION ALL
    SELECT f.place_no, f.order_no, s.details_no, NULL, NULL
    FROM finals f LEFT JOIN said s USING (details)
    WHERE f.role = 'orders' AND f.complete AND NOT f.written AND f.item_before IS NULL
        AND NOT f.poison
), found AS MATERIALIZED (
    FROM complete_images ANTI JOIN variants USING (order_no, details_no)
), given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN found USING (invocation_id, order_no) GROUP BY ALL
)
SELECT any_value(o.order_key) AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(g.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT f.invocation_id) FILTER (f.invocation_id IS NOT NULL))
        AS invocation_ids,
    list_sort(list(DISTINCT f.call_id) FILTER (f.call_id IS NOT NULL)) AS call_ids,
    [] AS flags, e.resource, e.item_key, min(coalesce(i.after, e.item_after)) AS image
FROM found f
JOIN places e USING (place_no)
LEFT JOIN images i ON i.call_id = f.call_id AND i.place_no = f.place_no
LEFT JOIN given g ON g.invocation_id = f.invocation_id AND g.order_no = f.order_no
LEFT JOIN orders o ON o.order_no = f.order_no
GROUP BY e.resource, e.item_key
