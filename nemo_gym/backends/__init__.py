"""Where replies come from: an endpoint over HTTP, an engine of our own, a recording."""
