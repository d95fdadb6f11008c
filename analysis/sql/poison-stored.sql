-- A message that no handler can accept left an item in an orders table. The item is known
-- by its key or by the invocation that wrote it. Written and deleted again is not left: in a
-- run that has ended the final items decide, before that the last accepted write.
WITH last_writes AS (
    SELECT place_no, any_value(order_no) AS order_no,
        arg_max(action, (over_at, call_id)) AS action,
        bool_or(complete_after) AS complete,
        arg_max(invocation_id, (over_at, call_id)) AS invocation_id,
        list_sort(list(call_id)) AS call_ids
    FROM writes WHERE role = 'orders' AND poison AND decision = 'accepted'
    GROUP BY place_no
), left_behind AS MATERIALIZED (
    SELECT f.place_no, f.order_no, w.invocation_id, coalesce(w.call_ids, []) AS call_ids
    FROM finals f LEFT JOIN last_writes w USING (place_no)
    WHERE f.role = 'orders' AND f.poison AND f.complete
    UNION ALL
    SELECT place_no, order_no, invocation_id, call_ids FROM last_writes
    WHERE action <> 'delete' AND complete AND NOT (SELECT ended FROM facts)
), sent AS (
    SELECT order_no, list_sort(list(message_no)) AS message_nos
    FROM planned SEMI JOIN left_behind USING (order_no) GROUP BY order_no
)
SELECT o.order_key,
    p.message_nos,
    CASE WHEN l.invocation_id IS NULL THEN [] ELSE [l.invocation_id] END AS invocation_ids,
    l.call_ids, [] AS flags, e.resource, e.item_key
FROM left_behind l
JOIN places e USING (place_no)
LEFT JOIN orders o USING (order_no)
LEFT JOIN sent p USING (order_no)
