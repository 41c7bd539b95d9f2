"""The command line: an edge that speaks the wire protocol and reads settings."""
