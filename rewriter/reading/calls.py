"""What the schemas say about one call: the slot of an input, the type of an attribute, how many of each.

A call may stand for several ops (`P.Op(..., types=[...])`). Then an attribute must be known to each of them
and a slot may be filled if one of them has it: the loosest reading, as the pattern is matched against all of
them. An op without schema accepts everything. Mistakes are `ValueError`; the reader adds the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import AttributeProto

from rewriter.schemas import OpInfo, attribute_type, op_info, type_name


@dataclass(frozen=True)
class Call:
    """A call of any of these ops; `known` has the schema of those that have one."""

    types: tuple[str, ...]
    known: tuple[OpInfo, ...]

    @classmethod
    def of(cls, types: Sequence[tuple[str, int]]) -> Call:
        """The call of these op keys, each at its opset version."""
        infos = (op_info(key, version) for key, version in types)
        return cls(tuple(key for key, _ in types), tuple(i for i in infos if i is not None))

    @property
    def label(self) -> str:
        """How messages call it."""
        return "/".join(self.types)

    @property
    def is_open(self) -> bool:
        """Whether one of the ops has no schema, so that there is no limit to inputs and outputs."""
        return len(self.known) < len(self.types)

    def slot(self, name: str) -> int | None:
        """The input slot that a keyword names, if it names one."""
        slots = {i.input_names.index(name) if name in i.input_names else None for i in self.known}
        return slots.pop() if len(slots) == 1 else None

    def attribute_type(self, name: str) -> int:
        """The type of an attribute; UNDEFINED where no schema says."""
        types = {attribute_type(info, name) for info in self.known}
        if len(types) > 1:
            raise ValueError(f"attribute {name} has several types among {self.label}; write one pattern for each")
        return types.pop() if types else AttributeProto.UNDEFINED

    def check_attribute_parameter(self, name: str, given: int, parameter: str) -> None:
        """An attribute parameter must be of the attribute's own type."""
        wanted = self.attribute_type(name)
        if wanted not in (AttributeProto.UNDEFINED, given):
            raise ValueError(
                f"attribute {name} of {self.label} is {type_name(wanted)}, "
                f"but parameter {parameter} is {type_name(given)}; change its annotation"
            )

    def check_position(self, slot: int) -> None:
        """There must be an input at this position."""
        if self.is_open or slot < (most := max(i.max_inputs for i in self.known)):
            return
        attributes = list(self.known[0].attribute_types)
        if slot - most < len(attributes):
            hint = f"remove it, or give an attribute by name (such as {attributes[slot - most]}=...)"
        else:
            hint = "remove it"
        raise ValueError(f"{self.label} has {_count(most, 'input')}, this is number {slot + 1}; {hint}")

    def check_inputs(self, present: Sequence[bool]) -> None:
        """What every one of the ops requires must be there."""
        if self.is_open:
            return
        problems = [p for i in self.known if (p := _missing_input(i, present))]
        if len(problems) == len(self.known):
            raise ValueError(problems[0])

    def check_outputs(self, count: int) -> None:
        """This many outputs must be possible for one of the ops."""
        if self.is_open or any(i.min_outputs <= count <= i.max_outputs for i in self.known):
            return
        info = self.known[0]
        if count < info.min_outputs:
            names = ", ".join(info.output_names)
            raise ValueError(f"{self.label} has {info.min_outputs} outputs; write {names} = ..., with _ for unused")
        raise ValueError(f"{self.label} has {_count(info.max_outputs, 'output')}, not {count}")


def _missing_input(info: OpInfo, present: Sequence[bool]) -> str | None:
    for slot, name in enumerate(info.input_names):
        if info.required[slot] and not (slot < len(present) and present[slot]):
            return f"{info.key} requires its input {name} (number {slot + 1}); give it"
    if info.variadic and not all(present[len(info.input_names) - 1 :]):
        return f"{info.key}: none of its {info.input_names[-1]} can be None; leave it out"
    return None


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
