"""How fast this machine is, by native code that is timed."""
