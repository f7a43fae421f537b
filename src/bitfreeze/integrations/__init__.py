"""BLIP as other libraries' own kind of plug-in, one file each: it needs the library, and so its extra."""
