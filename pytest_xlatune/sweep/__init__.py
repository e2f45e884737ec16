"""What a sweep file declares, and what the user's inputs make of it."""
