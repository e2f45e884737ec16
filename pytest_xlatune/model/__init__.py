"""Pure values that everything else is made of: cells, profiles, trials, results, errors."""
