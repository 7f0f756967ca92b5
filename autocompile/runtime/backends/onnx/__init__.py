"""Runs captured graphs as ONNX models."""
