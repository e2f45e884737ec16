"""What runs below another interpreter: the standard library, and what that interpreter brings."""
