"""Where records of every feed arrive in their datasets."""
