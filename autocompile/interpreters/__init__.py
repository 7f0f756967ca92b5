"""Other Python interpreters whose settings are tried too (``--python``), such as one with ipex.

A setting names its interpreter as its ``environment``; that of the tuner is ``default``.
"""
