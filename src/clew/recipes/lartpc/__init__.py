"""Liquid-argon time projection chambers: which particle made an image of wires and ticks."""
