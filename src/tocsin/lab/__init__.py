"""The lab: the live state machines under virtual time, workloads, experiments, and what they show."""
