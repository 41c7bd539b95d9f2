"""What a Spark session is started with: its settings by the kind of master, and what its workers get from us."""
