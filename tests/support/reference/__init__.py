"""What the language's functions must answer, worked out in plain Python by other means than the SQL uses."""
