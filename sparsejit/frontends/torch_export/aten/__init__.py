"""Mappings of ATen operators; `frontends/writing` has the code that other formats share."""
