"""Dynamo backends of ours; torch finds them by the entry point ``torch_dynamo_backends``."""
