"""Times calls, measures memory, and tells what torch is and has compiled."""
