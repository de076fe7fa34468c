"""What mappings say of operands that they cannot express."""


class Unmapped(Exception):
    """A mapping cannot express these operands; the text says why."""
