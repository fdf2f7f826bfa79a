"""The status as an interface: conditions with reasons from a fixed list, derived from what is observed. Pure."""
