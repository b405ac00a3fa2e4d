"""What was answered, durable and readable."""
