"""Reading rules: `@script()` functions into `PatternGraph`, with every mistake named by file and line."""

from rewriter.reading.script import read_script

__all__ = ["read_script"]
