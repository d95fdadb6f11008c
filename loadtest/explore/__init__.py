"""Every interleaving of a few copies: ``loadtest explore``."""
