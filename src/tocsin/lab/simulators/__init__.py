"""Simulators: drive the live state machines under virtual time."""
