"""autocompile's Dynamo backends, registered by the entry point ``torch_dynamo_backends``."""
