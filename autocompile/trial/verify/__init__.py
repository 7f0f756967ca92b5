"""Is a compiled side right?"""
