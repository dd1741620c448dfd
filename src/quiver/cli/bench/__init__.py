"""The measurements behind ``quiver bench``."""
