"""A fault that a property is there to find, and the proof that it finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """The right implementation passes the property on all examples, the wrong one fails on at least one."""

    name: str
    property: Callable[..., None]
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    examples: Iterable[tuple[Any, ...]]

    def check(self) -> None:
        examples = list(self.examples)
        assert all(self.passes(self.right, example) for example in examples)
        assert not all(self.passes(self.wrong, example) for example in examples)

    def passes(self, implementation: Callable[..., Any], example: tuple[Any, ...]) -> bool:
        try:
            self.property(implementation, *example)
        except AssertionError:
            return False
        return True
