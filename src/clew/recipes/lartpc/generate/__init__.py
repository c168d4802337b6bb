"""Synthetic events of single particles in liquid argon: physics in `passage` to `decays`, the read-out in `readout`.

Labelled synthetic everywhere, and frozen: VERSION is part of file names and of every event; what changes an event
raises it. Units inside: MeV, cm, microseconds, thousands of electrons.
"""
