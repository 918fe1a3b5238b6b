"""What memory the command line takes for a large model: anonymous resident memory beyond the size of the result.

python -m benchmarks memory [--short]

A model of 1 GiB of float weights in external data is completed by `rewriter apply` in a process of its own, which is
watched from outside. What is mapped from files does not count: the system takes that back when it needs it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from benchmarks import graphs
from benchmarks.claims import Table

BEYOND = 200.0  # MiB
SIDE = 2048


def large(folder: Path, mib: int) -> Path:
    """A chain of DQ -> MatMul -> Q units with weights [2048, 2048] in one external file of so many MiB."""
    each = SIDE * SIDE * 4
    count = max(1, mib * 2**20 // each)
    random = np.random.default_rng(0)
    nodes, tensors = [graphs.node("QuantizeLinear", ["x", "scale", "zero"], "q0")], []
    with open(folder / "weights.bin", "wb") as data:
        for number in range(count):
            data.write(random.normal(size=(SIDE, SIDE)).astype(np.float32).tobytes())
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", number * each), ("length", each)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes += [
                graphs.node("DequantizeLinear", [f"q{number}", "scale", "zero"], f"d{number}"),
                graphs.node("MatMul", [f"d{number}", f"w{number}"], f"m{number}"),
                graphs.node("QuantizeLinear", [f"m{number}", "scale", "zero"], f"q{number + 1}"),
            ]
    tensors.append(numpy_helper.from_array(np.array(0.05, np.float32), "scale"))
    tensors.append(numpy_helper.from_array(np.array(0, np.uint8), "zero"))
    nodes.append(graphs.node("DequantizeLinear", [f"q{count}", "scale", "zero"], "y"))
    path = folder / "large.onnx"
    path.write_bytes(graphs.model_of(nodes, tensors, ["y"]).SerializeToString())
    return path


def peak(command: list[str]) -> float:
    """The largest anonymous resident memory of a command, in MiB, looked at every few milliseconds."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
            most = max(most, int(found[0]) if found else 0)
            time.sleep(0.005)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return most / 1024


def main(table: Table) -> None:
    mib = 128 if table.short else 1024
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = large(folder, mib), folder / "result.onnx"
        command = [sys.executable, "-m", "rewriter", "apply", str(source), str(target), "--quiet"]
        reached = peak([*command, "--rules", "weight_bias"])
        size = sum(f.stat().st_size for f in folder.iterdir() if f.name.startswith("result")) / 2**20
    table.head(f"rewriter apply on {mib:,} MiB of float weights in external data, MiB")
    table.add("size of the result", size)
    table.add("anonymous resident memory at its peak", reached)
    table.add("beyond the size of the result", reached - size, most=BEYOND)
