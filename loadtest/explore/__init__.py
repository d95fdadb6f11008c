"""Every interleaving of a few copies: ``loadtest explore``, and :func:`explore` for tests."""

from loadtest.explore.command import explore
from loadtest.explore.outcome import Exploration

__all__ = ["Exploration", "explore"]
