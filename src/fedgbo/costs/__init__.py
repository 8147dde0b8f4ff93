"""What a run costs: bytes and floating point operations."""
