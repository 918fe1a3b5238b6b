"""External data: tensors that lie in a file beside the model, memory-mapped, never leaving the model's
folder.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto

from rewriter.errors import ModelError


def external_tensor(proto: TensorProto, base: Path | None) -> ir.ExternalTensor:
    """The tensor behind an external TensorProto, read lazily. Raises ModelError where it cannot be right.

    The location must be a relative path inside the model's folder; offset and length must lie within the file
    and length must be what shape and type say.
    """
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    what = f"tensor {proto.name!r} with external data at {location!r}"
    if base is None:
        raise ModelError(f"{what}: pass the model's path, so that its folder is known, or load the data first")
    folder = base.resolve()
    path = (folder / location).resolve()
    if not location or Path(location).is_absolute() or folder not in path.parents:
        raise ModelError(f"{what}: the file lies outside of the model's folder, so it is not read")
    if not path.is_file():
        raise ModelError(f"{what}: there is no file {path}")
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else None
    except ValueError:
        raise ModelError(f"{what}: offset and length must be numbers") from None
    if any(d < 0 for d in proto.dims):
        raise ModelError(f"{what}: its shape {list(proto.dims)} has a negative dimension")
    dtype = ir.DataType(proto.data_type)
    count = 1
    for dim in proto.dims:
        count *= dim
    needed = -(-count * dtype.bitwidth // 8)
    if length is not None and length != needed:
        raise ModelError(
            f"{what}: length is {length}, but shape {list(proto.dims)} of {dtype.name} takes {needed} bytes"
        )
    size = path.stat().st_size
    if offset < 0 or offset + needed > size:
        raise ModelError(f"{what}: bytes {offset} to {offset + needed} lie outside of the file of {size} bytes")
    return ir.ExternalTensor(
        location,
        offset,
        needed,
        dtype,
        shape=ir.Shape(list(proto.dims)),
        name=proto.name,
        base_dir=str(folder),
    )
