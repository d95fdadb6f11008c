-- A message that no handler can accept was deleted as done: it is gone, and nobody will see
-- it in the dead-letter queue. One that the handler itself put there is not acknowledged as
-- done. `[expect] poison = "drop"` allows it.
SELECT o.order_key, [f.message_no] AS message_nos,
    CASE WHEN f.last_invocation_id IS NULL THEN [] ELSE [f.last_invocation_id] END
        AS invocation_ids,
    [] AS call_ids, [] AS flags, f.message_no
FROM fates f JOIN orders o USING (order_no)
WHERE f.poison AND f.fate = 'deleted' AND NOT (SELECT drop_poison FROM facts)
