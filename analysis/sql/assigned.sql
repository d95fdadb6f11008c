-- The rows of `assigned` for the invocations from $first to $last, slice by slice like `handled`.
INSERT INTO assigned
SELECT invocation_id, order_no, bool_and(poison) FROM handled
WHERE invocation_id BETWEEN $first AND $last GROUP BY invocation_id, order_no
