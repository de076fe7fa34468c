"""The mappings of ATen operators, one group a file, each with a table OPERATORS."""
