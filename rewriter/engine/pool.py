"""The constants that a run made: equal ones are one initializer, so that a shared weight is stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

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

    def constant(
        self, table: Table, scope: Scope, tensor: ir.TensorProtocol, wish: str, shared: bool = True
    ) -> tuple[int, bool]:
        """The value that holds this tensor, and whether it is new."""
        if not shared:
            return table.add_initializer(table.fresh_name(wish), tensor, scope), True
        array = tensor.numpy()
        key = (scope.id, wish, tensor.dtype, array.shape, array.reshape(-1)[:16].tobytes())
        for value in self._made.setdefault(key, []):
            if value in table.initializer and table.initializer[value].numpy().tobytes() == array.tobytes():
                return value, False
        made = table.add_initializer(table.fresh_name(wish), tensor, scope)
        self._made[key].append(made)
        return made, True
