"""What torch made of it."""
