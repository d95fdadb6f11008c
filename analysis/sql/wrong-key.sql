-- An accepted write to an orders table whose key is neither the key of an order that its
-- invocation was given nor holds one as a part of its text (`ORDER#<id>` is fine). The order
-- is then found through the invocation and the messages it was given. One finding an item.
--
-- A write under the key of an order which an earlier invocation of the same process was
-- given is work left running in the background: see premature-ack.
WITH found AS MATERIALIZED (
    SELECT * FROM writes
    WHERE wrong_key AND NOT poison AND decision = 'accepted' AND action IN ('put', 'update')
), given AS (
    SELECT invocation_id, order_no, list_sort(list(DISTINCT message_no)) AS message_nos
    FROM handled SEMI JOIN found USING (invocation_id, order_no) GROUP BY ALL
)
SELECT any_value(o.order_key) AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(g.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT f.invocation_id)) AS invocation_ids,
    list_sort(list(DISTINCT f.call_id)) AS call_ids,
    [] AS flags, e.resource, e.item_key,
    coalesce('order ' || any_value(o.order_key), 'one of several orders') AS owner
FROM found f
JOIN places e USING (place_no)
LEFT JOIN given g ON g.invocation_id = f.invocation_id AND g.order_no = f.order_no
LEFT JOIN orders o ON o.order_no = f.order_no
GROUP BY e.resource, e.item_key
