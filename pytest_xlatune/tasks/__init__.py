"""One use case a file, called by the plugin and by the command line."""
