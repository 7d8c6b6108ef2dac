"""The command line interface; each module parses the arguments of some commands and calls the code for them."""
