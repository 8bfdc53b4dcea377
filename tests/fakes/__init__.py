"""Services that stand in for remote ones in the tests, each with the behaviour of the real one written down."""
