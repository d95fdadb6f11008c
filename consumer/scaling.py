"""How many batches a mapping works on at once. Pure."""

from __future__ import annotations

from enum import StrEnum

_FIRST = 5
_MORE_PER_MINUTE = 300


class Scaling(StrEnum):
    FIXED = "fixed"  # all environments from the first moment: the most racing there can be
    AWS = "aws"  # as a mapping on AWS grows, up to the number of environments


def joins_after_s(scaling: Scaling, position: int) -> float:
    """When the environment at this position, from 0, may take its first batch: seconds after
    the mapping started.

    A mapping starts with five concurrent batches and adds up to 300 a minute, up to its
    maximum concurrency (Lambda developer guide, "Scaling behaviour for Amazon SQS event
    source mappings"). The guide does not say how they are spread over the minute: evenly
    here.
    """
    if scaling is Scaling.FIXED:
        return 0.0
    return max(0, position + 1 - _FIRST) * 60 / _MORE_PER_MINUTE
