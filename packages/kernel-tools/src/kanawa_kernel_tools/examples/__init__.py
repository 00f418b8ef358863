"""Problems and operands of each operation, and the features that problems are generated from."""
