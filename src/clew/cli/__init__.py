"""The command line, one file a verb: it parses, calls the library, and prints. Help loads nothing heavy."""
