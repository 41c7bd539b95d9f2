"""The command line: an edge that speaks the wire protocol and reads settings.

It imports neither Spark nor a server before a command needs one, so that `tocsin --help` and clients start at once.
"""
