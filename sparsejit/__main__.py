"""`python -m sparsejit` is the command line."""

from sparsejit.commands.cli import main

if __name__ == "__main__":
    main()
