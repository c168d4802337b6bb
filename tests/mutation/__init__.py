"""Planted bugs: does a test notice? `make mutate` plants them one by one in a copy of the source and runs the tests.

Not part of `make test`. See docs/contributing/tests.md.
"""
