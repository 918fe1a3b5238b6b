"""`python -m rewriter` is the command `rewriter`."""

from rewriter.cli import main

main()
