"""Which setting next. No torch here."""
