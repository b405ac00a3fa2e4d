"""What the YAML means: composed, checked, and described by pydantic models."""
