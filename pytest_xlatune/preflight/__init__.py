"""Look before anything is submitted, and say everything that is wrong at once."""
