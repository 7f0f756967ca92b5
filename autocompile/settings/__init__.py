"""A compile setting, and the tables of dimensions, backends and phases."""
