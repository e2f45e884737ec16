"""The command line, `xlatune`: parsers, and what the commands show."""
