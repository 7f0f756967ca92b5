"""What a trial's process is asked to do."""
