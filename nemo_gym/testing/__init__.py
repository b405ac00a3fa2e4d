"""What environments' own tests import."""
