//! Nothing: the package holds bench targets and the yardstick, which is a binary.
