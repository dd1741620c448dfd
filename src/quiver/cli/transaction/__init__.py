"""Behind ``quiver transaction``."""
