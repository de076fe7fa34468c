"""Operands, forms of instructions, and the bytes they become."""
