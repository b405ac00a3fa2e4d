"""A model server for agents under evaluation and training, with the jobs, environments and exports around it."""

__version__ = "0.1.0"
