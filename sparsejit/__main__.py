"""`python -m sparsejit` is the command line."""

from sparsejit.commands.cli import main

main()
