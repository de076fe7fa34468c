"""The rivals: libraries here, and engines in processes of their own."""
