"""What a log is made of: values, formats, files, the writer's task, readers. Needs no extra."""
