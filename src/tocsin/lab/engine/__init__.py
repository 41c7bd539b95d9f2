"""Virtual time: one event after the other, each component with chance of its own."""
