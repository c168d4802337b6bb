"""Against the real software of sites, on loopback: skipped, with the reason, where it is not installed."""
