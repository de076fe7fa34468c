"""What is claimed of speed, and how `sparsejit bench check` holds it to this machine."""
