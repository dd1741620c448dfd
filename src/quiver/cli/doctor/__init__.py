"""What ``quiver doctor`` looks at: each check is a small function that says what it found."""
