"""Tools and verifiers: the servers of kind `resources_servers`."""
