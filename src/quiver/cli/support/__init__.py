"""What commands share: options, output, exit codes, texts."""
