"""A deployed stack: the function runs in AWS, behind its own event source mapping."""
