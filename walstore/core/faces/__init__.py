"""What a log is to a program, wherever it is: reading, appending, producers, fences and transactions."""
