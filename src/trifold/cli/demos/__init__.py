"""What `trifold demo` can show, a file each: `run(out, minutes, json)`, and the folder that it usually writes to."""
