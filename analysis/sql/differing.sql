-- The rows of `differing` for the invocations from $first to $last, slice by slice like `handled`.
INSERT INTO differing
SELECT r.message_no, r.invocation_id, r.result,
    array_to_string(differing_fields(r.detail, m.expected_item), ', ') AS fields
FROM results r JOIN messages m USING (message_no)
WHERE r.invocation_id BETWEEN $first AND $last AND r.result IN ('processed', 'duplicate')
    AND fields <> ''
