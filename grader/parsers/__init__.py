"""Log parsers, by the names that task rows use."""
