"""The rules of `Uint8Activations`: how int8 codes are followed through a graph, and how they become uint8 codes."""

from rules.activations.rule_set import Uint8Activations

__all__ = ["Uint8Activations"]
