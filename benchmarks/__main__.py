"""python -m benchmarks [NAME ...] [--short]: the benchmarks of the engine, one table each; all of them without a name.

The exit status is 1 where a claim is missed. (Accuracy, unit SNR and throughput of the quantization have commands of
their own: `benchmarks.accuracy`, `benchmarks.unit_snr`, `benchmarks.throughput`.)
"""

from __future__ import annotations

import sys

from benchmarks import matching, memory, real_files, rewriting, scaling
from benchmarks.claims import Table

ALL = {
    "matching": matching.main,
    "rewriting": rewriting.main,
    "scaling": scaling.main,
    "real_files": real_files.main,
    "memory": memory.main,
}


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--short"] or list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    table = Table(short="--short" in arguments)
    for name in names:
        ALL[name](table)
    return table.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
