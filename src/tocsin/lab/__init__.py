"""The lab: runs the live state machines under virtual time, with workloads, experiments and judged claims."""
