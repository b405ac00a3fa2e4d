"""The files that an export writes, one module a format."""
