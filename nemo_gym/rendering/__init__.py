"""A conversation -> the model's prompt as token ids, exact across turns where that can be proven."""
