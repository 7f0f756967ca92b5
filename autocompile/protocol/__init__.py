"""What parent and child say to each other, and which processes belong to a trial."""
