"""One model call in no dialect: the values that every other room speaks in."""
