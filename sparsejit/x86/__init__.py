"""Operands and forms of instructions, and their encoding to bytes."""
