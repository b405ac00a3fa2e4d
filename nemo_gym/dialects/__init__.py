"""A public API, as server and as client: what goes over the wire, to and from the values of one call."""
