"""From a checked request to its response: token ids, the queue that counts them, batches."""
