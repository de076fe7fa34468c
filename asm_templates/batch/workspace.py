"""Limit of the stack that a kernel of a batch may take."""

# Bytes of workspace, beside saved registers and the pages that it is rounded up to. Threads have
# 8 MiB by default, and 1 or 2 MiB if a program or another C library sets that.
LARGEST_WORKSPACE = 1 << 20
