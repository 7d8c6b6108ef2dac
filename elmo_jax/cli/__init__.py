"""The command line: each module parses the arguments of one command and calls what does the work."""
