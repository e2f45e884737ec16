"""What a user may set, and every place that may speak: options, environment, files."""
