"""What frontends write graphs with: one writer, and what the functions of tensors become."""
