"""What the tests share: backends, call styles, builders and views. Nothing here is a test."""
