"""What the user's own training process needs, and a trial's process too. Imports torch."""
