"""Measuring: hosts on this machine, and what is compared on them."""
