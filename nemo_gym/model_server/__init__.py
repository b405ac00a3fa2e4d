"""Server kind 1: a model server. Requests in one of the dialects, replies from a backend, one record a call."""
