"""How fast each setting is, how sure that is, and which one is best. Standard library and numpy."""
