"""The constants that a run made: equal ones are one initializer, so that a shared weight is stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter.engine.held import Held, array_of, dtype_of
from rewriter.engine.scope import Scope
from rewriter.engine.table import Table


@dataclass(frozen=True, eq=False)
class Unshared:
    """A constant that a callback returns for this place alone: an equal one elsewhere is not the same initializer."""

    array: np.ndarray


class ConstantPool:
    """Constants that the run made: equal ones of one scope and wish are one initializer."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], list[int]] = {}

    def constant(self, table: Table, scope: Scope, held: Held, wish: str, shared: bool = True) -> tuple[int, bool]:
        """The value that holds this constant, and whether it is new."""
        if not shared:
            return table.add_initializer(table.fresh_name(wish), held, scope), True
        array = array_of(held)
        key = (scope.id, wish, dtype_of(held), array.shape, array.reshape(-1)[:16].tobytes())
        for value in self._made.setdefault(key, []):
            if value in table.initializer and array_of(table.initializer[value]).tobytes() == array.tobytes():
                return value, False
        made = table.add_initializer(table.fresh_name(wish), held, scope)
        self._made[key].append(made)
        return made, True
