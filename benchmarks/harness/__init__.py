"""What every benchmark needs: rows with targets, a folder to work in, fair rounds, a report."""
