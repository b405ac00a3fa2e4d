"""Commands run away from the verifier, at whatever provider the configuration names."""
