-- A complete image, written or found at the end, carries details that no message of its
-- order carries: the plan is known in full before the first message is sent, so nothing
-- that was sent explains it. One finding an item.
--
-- Only the details are compared; times, states and totals are the handler's own. An item
-- under a wrong key is reported as wrong-key, one of a poison message as poison-stored, one
-- that differs from the last write to it as vanished-order.
WITH images AS (
    SELECT resource, item_key, order_key, details_after AS details, after AS image,
        invocation_id, call_id
    FROM writes
    WHERE role = 'orders' AND decision = 'accepted' AND action IN ('put', 'update')
        AND complete_after AND NOT wrong_key AND NOT poison
    UNION ALL
    SELECT resource, item_key, order_key, details, item, NULL, NULL FROM finals
    WHERE role = 'orders' AND complete AND NOT written AND item_before IS NULL AND NOT poison
)
SELECT any_value(i.order_key) AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(k.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT i.invocation_id) FILTER (i.invocation_id IS NOT NULL))
        AS invocation_ids,
    list_sort(list(DISTINCT i.call_id) FILTER (i.call_id IS NOT NULL)) AS call_ids,
    [] AS flags, i.resource, i.item_key, min(i.image) AS image
FROM images i
LEFT JOIN (SELECT DISTINCT order_key, details FROM planned WHERE details IS NOT NULL) p
    ON p.order_key = i.order_key AND p.details = i.details
LEFT JOIN work k ON k.invocation_id = i.invocation_id AND k.order_key = i.order_key
WHERE p.details IS NULL
GROUP BY i.resource, i.item_key
