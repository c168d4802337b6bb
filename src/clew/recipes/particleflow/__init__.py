"""Particle flow: the towers and tracks of an event in, its particles out."""
