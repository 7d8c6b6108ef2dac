"""The command line interface; each module parses the arguments of one command and calls the code for it."""
