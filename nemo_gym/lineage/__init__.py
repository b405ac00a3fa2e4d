"""Which call continues which, found when the call comes in."""
