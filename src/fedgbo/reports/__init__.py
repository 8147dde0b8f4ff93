"""Reports: read run folders, compute, draw; never train."""
