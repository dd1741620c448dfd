"""The console: pages in the browser that show a node and let a person work with it.

The pages are plain files that the HTTP edge serves. What moves in them comes from ``LiveMetrics``,
which asks a client as anybody could: nothing here knows the broker, so a forwarder serves the console
of the nodes behind it.
"""
