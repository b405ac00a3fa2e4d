"""Token ids in, token ids out: the one room with vLLM and Ray in it, and both only where a process needs them."""
