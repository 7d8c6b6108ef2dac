"""What every task shares: its interface, its data, its inputs, its training and its trained form."""
