"""How fast each setting is, how certain that is, and which is best. Needs only numpy."""
