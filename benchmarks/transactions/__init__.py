"""What transactions cost, beside the same publishes and the same reads without them."""

from benchmarks.transactions.large import publish_in_large_transactions
from benchmarks.transactions.read import read_without_transactions
from benchmarks.transactions.small import publish_in_small_transactions

BENCHMARKS = (
    publish_in_large_transactions,
    publish_in_small_transactions,
    read_without_transactions,
)
