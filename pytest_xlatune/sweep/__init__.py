"""What a sweep file declares, combined with the user's inputs."""
