"""Hyper-parameter studies on the server: open studies that propose trials, and the rows that everyone reads."""
