"""The live state machines under virtual time: the lab's second body for each of them."""
