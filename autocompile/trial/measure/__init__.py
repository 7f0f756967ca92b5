"""Times calls and measures memory."""
