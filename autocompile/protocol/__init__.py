"""What the tuner's process and a trial's process share: messages and process trees."""
