"""HTTP between our processes."""
