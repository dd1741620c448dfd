"""Behind ``quiver backup``."""
