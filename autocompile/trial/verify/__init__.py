"""Checks that a compiled side computes the same as eager mode."""
