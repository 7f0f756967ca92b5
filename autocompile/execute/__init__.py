"""Run one trial somewhere and say how it ended. No torch here."""
