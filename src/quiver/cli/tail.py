"""stub"""


def tail() -> None: ...
