"""Writes docs/gallery.md from the modules of docs/gallery: `python -m tests.docs.gallery_page`.

The page shows each module as it is, under its own first line; a test compares the two, so neither can
drift.
"""

from __future__ import annotations

import ast
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

MODULES = (
    "gelu",
    "transpose",
    "reshape",
    "gemm",
    "conv_batch_norm",
    "layer_norm",
    "q_dq_pair",
    "qlinear_conv",
    "concat_dequantize",
    "skip_layer_norm",
    "constant_if",
)
"""From the plainest to the most unusual."""

HEAD = """\
# Rule gallery

Eleven rules as people write them, to read and to copy. Each is a module of [`gallery/`](gallery), is run
by the tests on models that it must find and on near misses that it must not, before and after in ONNX
Runtime, and says in its own first paragraph what it shows of the rule format. The format itself is in
[rules.md](rules.md), a first walk through it in [tutorial.md](tutorial.md).

Each of them is a rule set, so all of them together are `erf_gelu + transposes + ...`, compiled into one
matcher.

<!-- Written by `python -m tests.docs.gallery_page`; change the modules, not this page. -->
"""


def page() -> str:
    parts = [HEAD]
    for name in MODULES:
        text = (DOCS / "gallery" / f"{name}.py").read_text()
        title = (ast.get_docstring(ast.parse(text)) or name).split("\n")[0].rstrip(".")
        parts.append(f"## {title}\n\n[`gallery/{name}.py`](gallery/{name}.py)\n\n```python\n{text}```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (DOCS / "gallery.md").write_text(page())
