"""stub"""

import typer

app = typer.Typer()


@app.command()
def x() -> None: ...
@app.command()
def y() -> None: ...
