"""One of many replicas, of whatever kind: which of them, when, how often, and for how long."""
