"""What one command or session runs: a campaign opened, a calibration, an evidence run."""
