"""Files that LOAD reads: one reader per format, each a bounded piece of the file at a time."""
