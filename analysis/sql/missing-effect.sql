-- The order is stored, all its messages are settled, and a side effect that is owed for it
-- never happened: no call for it was accepted, and none is unknown. Nothing will come again
-- that could bring it about. Which effects are missing is worked out in views.sql.
WITH messages AS (
    SELECT order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM fates SEMI JOIN missing_effects USING (order_no) GROUP BY order_no
), invoked AS (
    SELECT order_no, list_sort(list(DISTINCT invocation_id)) AS invocation_ids
    FROM handled SEMI JOIN missing_effects USING (order_no) GROUP BY order_no
)
SELECT o.order_key, p.message_nos, coalesce(i.invocation_ids, []) AS invocation_ids,
    coalesce((
        SELECT list_sort(list(DISTINCT e.call_id)) FROM effected e
        WHERE e.order_no = m.order_no AND e.effect = m.effect
    ), []) AS call_ids,
    [] AS flags, r.name AS effect
FROM missing_effects m
JOIN run_effects r USING (effect)
JOIN orders o USING (order_no)
JOIN messages p USING (order_no)
LEFT JOIN invoked i USING (order_no)
