"""The error of a mapping for operands that it cannot express."""


class Unmapped(Exception):
    """A mapping cannot express these operands; the text says why."""
