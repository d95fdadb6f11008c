-- An accepted write to an orders table whose key is neither the key of an order that its
-- invocation was given nor holds one as a part of its text (`ORDER#<id>` is fine). The order
-- is then found through the invocation and the messages it was given. One finding an item.
--
-- A write under the key of an order which an earlier invocation of the same process was
-- given is work left running in the background: see premature-ack.
SELECT any_value(w.order_key) AS order_key,
    list_sort(list_distinct(flatten(list(coalesce(k.message_nos, []))))) AS message_nos,
    list_sort(list(DISTINCT w.invocation_id)) AS invocation_ids,
    list_sort(list(DISTINCT w.call_id)) AS call_ids,
    [] AS flags, w.resource, w.item_key,
    coalesce('order ' || any_value(w.order_key), 'one of several orders') AS owner
FROM writes w LEFT JOIN work k USING (invocation_id, order_key)
WHERE w.wrong_key AND NOT w.poison AND w.decision = 'accepted' AND w.action IN ('put', 'update')
GROUP BY w.resource, w.item_key
